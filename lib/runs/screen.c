/* screen.c - see screen.h. */
#include "runs/screen.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include "base/progress.h"
#include "base/text.h"

enum {
    COLUMNS_MIN = 40,
    ROWS_MIN = 12,
    WIDTH_MAX = 100, /* of the picture */
    HEIGHT_MAX = 14, /* of the canvas */
    LABEL = 8, /* columns of the losses' labels */
    AROUND = 4, /* lines besides the canvas, and one for the cursor */
    RECENT = 20 /* train lines that the speed is taken over */
};
#define REDRAW_S 0.25

void screen_wipe(struct screen *s)
{
    if (s->lines)
        fprintf(s->f, "\033[%dA\r\033[J", s->lines);
    s->lines = 0;
    s->last = -INFINITY;
}

void screen_end(struct screen *s)
{
    if (s->lines)
        fputc('\n', s->f);
    pace_close(&s->pace);
    s->on = false;
}

/* False where the terminal is too small. A terminal whose size has changed is cleared, for its lines may
 * be broken. */
static bool measure(struct screen *s)
{
    struct winsize w;
    if (ioctl(fileno(s->f), TIOCGWINSZ, &w) || !w.ws_col)
        w.ws_col = 80, w.ws_row = 24;
    if (s->lines && (w.ws_col != s->columns || w.ws_row != s->rows)) {
        fputs("\033[H\033[2J", s->f);
        s->lines = 0;
    }
    s->columns = w.ws_col;
    s->rows = w.ws_row;
    return w.ws_col >= COLUMNS_MIN && w.ws_row >= ROWS_MIN;
}

void screen_init(struct screen *s, FILE *f, const char *name, const struct group *base)
{
    *s = (struct screen){ .f = f, .name = name, .base = base, .last = -INFINITY };
    s->pace.steps = -1;
    s->on = terminal_able(fileno(f)) && measure(s);
}

/* --- canvas --- */

/* A cell has two dots across and four down, or a character in their place. */
struct canvas {
    int width, height;
    unsigned char dots[HEIGHT_MAX][WIDTH_MAX];
    char mark[HEIGHT_MAX][WIDTH_MAX];
    double x1, y0, y1; /* steps from 0; losses, in powers of e where log */
    bool log;
};

static double y_of(const struct canvas *c, double loss) { return c->log ? log(loss) : loss; }

/* The place of a point in dots; false outside. */
static bool place(const struct canvas *c, double step, double loss, int *x, int *y)
{
    double px = step / c->x1, py = (c->y1 - y_of(c, loss)) / (c->y1 - c->y0);
    if (!(px >= 0 && px <= 1 && py >= 0 && py <= 1))
        return false;
    *x = (int)(px * (2 * c->width - 1) + 0.5);
    *y = (int)(py * (4 * c->height - 1) + 0.5);
    return true;
}

static double loss_of(const struct run_step *s) { return isnan(s->next) ? s->loss : s->next; }

static void put_dot(struct canvas *c, int x, int y)
{
    static const unsigned char bit[4][2] = { { 1, 8 }, { 2, 16 }, { 4, 32 }, { 64, 128 } };
    c->dots[y / 4][x / 2] |= bit[y % 4][x % 2];
}

/* Training losses, with a line between those that are dots apart. */
static void put_curve(struct canvas *c, const struct run *r)
{
    int x, y, x0 = -1, y0 = 0;
    for (int i = 0; i < r->steps; i++) {
        if (!place(c, r->step[i].step, loss_of(&r->step[i]), &x, &y))
            continue;
        int apart = x0 >= 0 && x - x0 > 1 ? x - x0 > abs(y - y0) ? x - x0 : abs(y - y0) : 1;
        for (int k = 1; k <= apart; k++)
            put_dot(c, k == apart ? x : x0 + (x - x0) * k / apart,
                    k == apart ? y : y0 + (y - y0) * k / apart);
        x0 = x, y0 = y;
    }
}

static void put_mark(struct canvas *c, double step, double loss, char mark)
{
    int x, y;
    if (place(c, step, loss, &x, &y))
        c->mark[y / 4][x / 2] = mark;
}

static void take(double x, double *lo, double *hi)
{
    if (!isfinite(x))
        return;
    *lo = fmin(*lo, x);
    *hi = fmax(*hi, x);
}

static void set_range(struct canvas *c, const struct screen *s, const struct run *r)
{
    double lo = INFINITY, hi = -INFINITY;
    for (int i = 0; i < r->steps; i++)
        take(loss_of(&r->step[i]), &lo, &hi);
    for (int i = 0; i < r->vals; i++)
        take(r->val[i].loss, &lo, &hi);
    for (int i = 0; s->base && i < s->base->points; i++)
        if (s->base->curve[i].n)
            take(s->base->curve[i].mean, &lo, &hi);
    if (!(hi > lo))
        lo = isfinite(lo) ? lo - 0.5 : 0, hi = lo + 1;
    c->log = lo > 0 && hi > 1.5 * lo;
    c->y0 = y_of(c, lo);
    c->y1 = y_of(c, hi);
    c->x1 = r->total ? r->total : fmax(r->last, 1);
}

static void fill(struct canvas *c, const struct screen *s, const struct run *r)
{
    set_range(c, s, r);
    put_curve(c, r);
    for (int i = 0; s->base && i < s->base->points; i++)
        if (s->base->curve[i].n)
            put_mark(c, s->base->curve[i].step, s->base->curve[i].mean, '+');
    for (int i = 0; i < r->vals; i++)
        put_mark(c, r->val[i].step, r->val[i].loss, 'o');
}

static void print_canvas(FILE *f, const struct canvas *c)
{
    for (int y = 0; y < c->height; y++) {
        double at = c->y1 - (c->y1 - c->y0) * y / (c->height - 1);
        bool labelled = y % 4 == 0 || y == c->height - 1;
        if (labelled)
            fprintf(f, "%*.*f ", LABEL - 1, 3, c->log ? exp(at) : at);
        else
            fprintf(f, "%*s", LABEL, "");
        fputc('|', f);
        int last = c->width - 1;
        while (last >= 0 && !c->dots[y][last] && !c->mark[y][last])
            last--;
        for (int x = 0; x <= last; x++) {
            unsigned b = c->dots[y][x]; /* U+2800 and these bits */
            if (c->mark[y][x])
                fputc(c->mark[y][x], f);
            else if (b)
                fprintf(f, "\xe2%c%c", 0xa0 + (int)(b >> 6), 0x80 + (int)(b & 63));
            else
                fputc(' ', f);
        }
        fputc('\n', f);
    }
    fprintf(f, "%*s0%*.0f\n", LABEL, "", c->width, c->x1);
}

/* --- words --- */

/* The pace of the last train lines. */
struct speed {
    double ms, tokens_s; /* a step; NaN: not known */
};

static struct speed speed_of(const struct screen *s, const struct run *r)
{
    int last = r->steps - 1, first = last > RECENT ? last - RECENT : 0;
    if (last <= first)
        return (struct speed){ NAN, NAN };
    const struct run_step *a = &r->step[first], *b = &r->step[last];
    double ms = b->time_ms - a->time_ms,
           tokens = pace_tokens(&s->pace, b->step) - pace_tokens(&s->pace, a->step);
    return (struct speed){ b->step > a->step && ms > 0 ? ms / (b->step - a->step) : NAN,
                           ms > 0 ? tokens / ms * 1e3 : NAN };
}

/* Seconds of training until the last step. */
static double left_of(const struct screen *s, const struct run *r, const struct speed *v)
{
    double tokens = pace_tokens(&s->pace, r->total) - pace_tokens(&s->pace, r->last);
    if (!r->total)
        return NAN;
    return isnan(tokens) || isnan(v->tokens_s) ? (r->total - r->last) * v->ms / 1e3
                                               : tokens / v->tokens_s;
}

static void print_state(const struct screen *s, const struct run *r, int width)
{
    char text[1024]; /* a loss may take 315 characters */
    int n = snprintf(text, sizeof text, "%.40s: step %d", s->name, (int)r->last);
    if (r->total)
        n += snprintf(text + n, sizeof text - (size_t)n, "/%d", (int)r->total);
    if (r->steps && !isnan(loss_of(&r->step[r->steps - 1])))
        n += snprintf(text + n, sizeof text - (size_t)n, ", train %.4f",
                      loss_of(&r->step[r->steps - 1]));
    if (r->vals)
        snprintf(text + n, sizeof text - (size_t)n, ", val %.4f at %d", r->val[r->vals - 1].loss,
                 (int)r->val[r->vals - 1].step);
    text_plain(s->f, text, text_cut(text, width));
    fputc('\n', s->f);
}

static void print_speed(const struct screen *s, const struct run *r, int width)
{
    char text[1024], left[16]; /* a speed may take 310 characters */
    struct speed v = speed_of(s, r);
    double tokens = pace_tokens(&s->pace, r->last);
    int n = snprintf(text, sizeof text, "%s left", format_duration(left, left_of(s, r, &v)));
    if (!isnan(v.tokens_s))
        n += snprintf(text + n, sizeof text - (size_t)n, ", %.0f tokens/s", v.tokens_s);
    if (!isnan(v.ms))
        n += snprintf(text + n, sizeof text - (size_t)n, ", %.4g ms/step", v.ms);
    if (r->pass_tokens > 0 && !isnan(tokens))
        snprintf(text + n, sizeof text - (size_t)n, ", %.2f passes", tokens / r->pass_tokens);
    fprintf(s->f, "%.*s\n", width, text);
}

/* --- the picture --- */

void screen_draw(struct screen *s, const struct run *r)
{
    if (!s->on || !measure(s) || r->trial != s->trial)
        return;
    int width = s->columns - 1 < WIDTH_MAX ? s->columns - 1 : WIDTH_MAX;
    struct canvas c = { .width = width - LABEL - 1 };
    c.height = s->rows - AROUND - 1 < HEIGHT_MAX ? s->rows - AROUND - 1 : HEIGHT_MAX;
    fill(&c, s, r);
    screen_wipe(s);
    print_state(s, r, width);
    print_canvas(s->f, &c);
    print_speed(s, r, width);
    fflush(s->f);
    s->lines = c.height + 3;
    s->last = now_seconds();
}

int screen_run(struct screen *s, const struct run *r, const char *recipe)
{
    int rc = 0;
    if (!s->on)
        return 0;
    if (r->trial != s->trial) {
        pace_close(&s->pace);
        rc = pace_open(&s->pace, recipe);
        s->trial = r->trial;
    }
    if (!rc && now_seconds() - s->last >= REDRAW_S)
        screen_draw(s, r);
    return rc;
}
