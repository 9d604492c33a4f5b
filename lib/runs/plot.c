/* plot.c - see plot.h. */
#include "runs/plot.h"

#include <math.h>
#include <string.h>
#include "base/text.h"

enum { WIDTH = 900, LEFT = 80, RIGHT = 30, PANEL = 270, TOP = 34, BOTTOM = 44, BINS = 400,
       LEGEND = 20 };

/* Colours that differ for most eyes (Okabe and Ito), then again. */
static const char *const colours[] = { "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00",
                                       "#56b4e9", "#999999", "#000000" };

static const char *colour(int i)
{
    return colours[(size_t)i % (sizeof colours / sizeof *colours)];
}

struct panel { double x0, x1, y0, y1; int top; const char *title, *x_title, *y_title; };

static double at_x(const struct panel *p, double x)
{
    return LEFT + (x - p->x0) / (p->x1 - p->x0) * (WIDTH - LEFT - RIGHT);
}

static double at_y(const struct panel *p, double y)
{
    return p->top + TOP + (p->y1 - y) / (p->y1 - p->y0) * (PANEL - TOP - BOTTOM);
}

/* 1, 2 or 5 times a power of ten, five or so to the range. */
static double tick_of(double range)
{
    double raw = range / 5, power = pow(10, floor(log10(raw))), m = raw / power;
    return (m < 1.5 ? 1 : m < 3.5 ? 2 : m < 7.5 ? 5 : 10) * power;
}

/* Also so far that doubles can count through it, and that it can be seen. */
static void widen(double *lo, double *hi, double share)
{
    double size = fmax(fabs(*lo), fabs(*hi));
    double pad = fmax(share * (*hi - *lo), fmax(1e-6 * size, 1e-9));
    if (*lo == *hi)
        pad = 0.01 * (size > 0 ? size : 1);
    *lo -= pad;
    *hi += pad;
}

static void put_axes(FILE *f, const struct panel *p)
{
    double step = tick_of(p->x1 - p->x0);
    fprintf(f, "<text x='%d' y='%d' font-size='14'>%s</text>\n", LEFT, p->top + 20, p->title);
    for (double x = ceil(p->x0 / step) * step; x <= p->x1 + 1e-9 * step; x += step)
        fprintf(f, "<line x1='%.1f' x2='%.1f' y1='%.1f' y2='%.1f' stroke='#e4e4e4'/>"
                "<text x='%.1f' y='%.1f' text-anchor='middle'>%.10g</text>\n", at_x(p, x),
                at_x(p, x), at_y(p, p->y0), at_y(p, p->y1), at_x(p, x), at_y(p, p->y0) + 16,
                fabs(x) < 1e-9 * step ? 0 : x);
    step = tick_of(p->y1 - p->y0);
    for (double y = ceil(p->y0 / step) * step; y <= p->y1 + 1e-9 * step; y += step)
        fprintf(f, "<line x1='%.1f' x2='%.1f' y1='%.1f' y2='%.1f' stroke='#e4e4e4'/>"
                "<text x='%d' y='%.1f' text-anchor='end'>%.10g</text>\n", at_x(p, p->x0),
                at_x(p, p->x1), at_y(p, y), at_y(p, y), LEFT - 6, at_y(p, y) + 4,
                fabs(y) < 1e-9 * step ? 0 : y);
    fprintf(f, "<text x='%.1f' y='%.1f' text-anchor='middle'>%s</text>\n"
            "<text transform='translate(18 %.1f) rotate(-90)' text-anchor='middle'>%s</text>\n",
            at_x(p, 0.5 * (p->x0 + p->x1)), at_y(p, p->y0) + 34, p->x_title,
            at_y(p, 0.5 * (p->y0 + p->y1)), p->y_title);
}

/* What lies outside the panel is not drawn. */
static void begin_clip(FILE *f, const struct panel *p, int id)
{
    fprintf(f, "<clipPath id='c%d'><rect x='%.1f' y='%.1f' width='%.1f' height='%.1f'/></clipPath>"
            "\n<g clip-path='url(#c%d)'>\n", id, at_x(p, p->x0), at_y(p, p->y1),
            at_x(p, p->x1) - at_x(p, p->x0), at_y(p, p->y0) - at_y(p, p->y1), id);
}

static void put_target(FILE *f, const struct panel *p, double target)
{
    fprintf(f, "<line x1='%.1f' x2='%.1f' y1='%.1f' y2='%.1f' stroke='#888' "
            "stroke-dasharray='5 4'/>\n", at_x(p, p->x0), at_x(p, p->x1), at_y(p, target),
            at_y(p, target));
}

/* Beyond, a difference of two may be no number any longer. */
static bool drawn(double x)
{
    return fabs(x) < 1e30;
}

/* --- loss curves --- */

static bool curve_panel(const struct gather *g, double target, struct panel *p)
{
    double lo = target, hi = -INFINITY, last = 0;
    for (int i = 0; i < g->n; i++)
        for (int k = 0; k < g->group[i].points; k++) {
            const struct curve_point *c = &g->group[i].curve[k];
            if (!c->n || !drawn(c->mean))
                continue;
            lo = fmin(lo, c->mean);
            last = fmax(last, c->step);
            if (c->step > 0 && k <= 1)
                hi = fmax(hi, c->mean);
        }
    if (!(hi > lo) || !(last > 0))
        return false;
    widen(&lo, &hi, 0.04);
    *p = (struct panel){ 0, last, lo, hi, p->top, "Validation loss, mean and deviation", "step",
                         "loss" };
    return true;
}

static void put_band(FILE *f, const struct panel *p, const struct group *g, const char *paint)
{
    fprintf(f, "<path fill='%s' fill-opacity='0.2' d='", paint);
    bool first = true;
    for (int side = 1; side >= -1; side -= 2)
        for (int i = 0; i < g->points; i++) {
            const struct curve_point *c = &g->curve[side > 0 ? i : g->points - 1 - i];
            double sd = curve_sd(c);
            if (!c->n || !drawn(c->mean))
                continue;
            fprintf(f, "%c%.1f %.1f", first ? 'M' : 'L', at_x(p, c->step),
                    at_y(p, c->mean + side * (drawn(sd) ? sd : 0)));
            first = false;
        }
    fputs(first ? "'/>\n" : "Z'/>\n", f);
}

static void put_curves(FILE *f, const struct gather *g, const struct panel *p, double target)
{
    put_axes(f, p);
    begin_clip(f, p, 1);
    put_target(f, p, target);
    for (int i = 0; i < g->n; i++) {
        const struct group *in = &g->group[i];
        put_band(f, p, in, colour(i));
        fprintf(f, "<polyline fill='none' stroke='%s' stroke-width='1.6' points='", colour(i));
        for (int k = 0; k < in->points; k++)
            if (in->curve[k].n && drawn(in->curve[k].mean))
                fprintf(f, "%.1f,%.1f ", at_x(p, in->curve[k].step), at_y(p, in->curve[k].mean));
        fputs("'/>\n", f);
    }
    fputs("</g>\n", f);
}

/* --- step times --- */

struct bins { double ms[BINS]; int n[BINS]; };

static void fill_bins(const struct profile *p, double last, struct bins *b)
{
    memset(b, 0, sizeof *b);
    for (int32_t s = 1; s < p->steps; s++) {
        double ms = profile_ms(p, s);
        int at = (int)((s - 1) / last * BINS);
        if (isnan(ms) || at >= BINS)
            continue;
        b->ms[at] += ms;
        b->n[at]++;
    }
    for (int i = 0; i < BINS; i++)
        b->ms[i] = b->n[i] ? b->ms[i] / b->n[i] : NAN;
}

static double last_step(const struct gather *g)
{
    double last = 0;
    for (int i = 0; i < g->n; i++)
        last = fmax(last, g->group[i].profile.steps - 1);
    return last;
}

static bool time_panel(const struct gather *g, struct panel *p)
{
    double most = 0, last = last_step(g);
    struct bins b;
    for (int i = 0; i < g->n && last > 0; i++) {
        fill_bins(&g->group[i].profile, last, &b);
        for (int k = BINS / 50; k < BINS; k++)      /* the warm-up may leave the frame */
            if (b.n[k])
                most = fmax(most, b.ms[k]);
    }
    if (!(most > 0))
        return false;
    *p = (struct panel){ 0, last, 0, 1.08 * most, p->top, "Step times, mean of the runs", "step",
                         "ms" };
    return true;
}

static void put_times(FILE *f, const struct gather *g, const struct panel *p)
{
    struct bins b;
    put_axes(f, p);
    begin_clip(f, p, 2);
    for (int i = 0; i < g->n; i++) {
        fill_bins(&g->group[i].profile, p->x1, &b);
        fprintf(f, "<polyline fill='none' stroke='%s' points='", colour(i));
        for (int k = 0; k < BINS; k++)
            if (b.n[k])
                fprintf(f, "%.1f,%.1f ", at_x(p, (k + 0.5) * p->x1 / BINS), at_y(p, b.ms[k]));
        fputs("'/>\n", f);
    }
    fputs("</g>\n", f);
}

/* --- loss against time --- */

static bool scatter_panel(const struct gather *g, double target, struct panel *p)
{
    double x0 = INFINITY, x1 = -INFINITY, y0 = target, y1 = target;
    for (int i = 0; i < g->n; i++)
        for (int k = 0; k < g->group[i].n; k++) {
            const struct run_end *e = &g->group[i].run[k];
            if (!drawn(e->loss) || !drawn(e->time_s))
                continue;
            x0 = fmin(x0, e->time_s);
            x1 = fmax(x1, e->time_s);
            y0 = fmin(y0, e->loss);
            y1 = fmax(y1, e->loss);
        }
    if (x0 > x1)
        return false;
    widen(&x0, &x1, 0.06);
    widen(&y0, &y1, 0.08);
    *p = (struct panel){ x0, x1, y0, y1, p->top, "Loss against time, a dot a run", "seconds",
                         "loss" };
    return true;
}

static void put_scatter(FILE *f, const struct gather *g, const struct panel *p, double target)
{
    put_axes(f, p);
    put_target(f, p, target);
    for (int i = 0; i < g->n; i++)
        for (int k = 0; k < g->group[i].n; k++) {
            const struct run_end *e = &g->group[i].run[k];
            if (drawn(e->loss) && drawn(e->time_s))
                fprintf(f, "<circle cx='%.1f' cy='%.1f' r='4' fill='%s' fill-opacity='0.7'/>\n",
                        at_x(p, e->time_s), at_y(p, e->loss), colour(i));
        }
}

int plot_svg(FILE *f, const struct gather *g, double target)
{
    struct panel curves = { .top = 0 }, times, dots;
    bool has_curves = curve_panel(g, target, &curves);
    times.top = has_curves ? PANEL : 0;
    bool has_times = time_panel(g, &times);
    dots.top = times.top + (has_times ? PANEL : 0);
    bool has_dots = scatter_panel(g, target, &dots);
    int height = dots.top + (has_dots ? PANEL : 0);
    fprintf(f, "<svg xmlns='http://www.w3.org/2000/svg' width='%d' height='%d' "
            "font-family='sans-serif' font-size='11'>\n<rect width='100%%' height='100%%' "
            "fill='white'/>\n", WIDTH, height + LEGEND * (g->n + 1));
    if (has_curves)
        put_curves(f, g, &curves, target);
    if (has_times)
        put_times(f, g, &times);
    if (has_dots)
        put_scatter(f, g, &dots, target);
    for (int i = 0; i < g->n; i++) {
        int y = height + LEGEND * (i + 1);
        fprintf(f, "<rect x='%d' y='%d' width='12' height='12' fill='%s'/><text x='%d' y='%d'>",
                LEFT, y - 10, colour(i), LEFT + 20, y);
        text_xml(f, g->group[i].name);
        fprintf(f, " (%d runs)</text>\n", g->group[i].n);
    }
    fputs("</svg>\n", f);
    return ferror(f) ? err_sys("cannot write the plot") : 0;
}
