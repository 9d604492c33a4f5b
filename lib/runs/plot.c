/* plot.c - see plot.h. */
#include "runs/plot.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/chart.h"
#include "base/text.h"
#include "runs/means.h"

enum {
    WIDTH = 680,
    LEFT = 80,
    RIGHT = 24,
    HEIGHT = 190, /* of a frame */
    TOP = 34,
    BOTTOM = 46,
    BINS = 400,
    LEGEND = 18, /* height of an entry */
    LEGEND_WIDTH = 210,
    LEGEND_ENTRIES = 8, /* that fit a frame of HEIGHT */
    NAME_MAX_CHARS = 24,
    COLUMNS = 3 /* of a legend below its panel */
};

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

static void set_panel(struct chart *p, double x0, double x1, double y0, double y1)
{
    p->x0 = x0;
    p->x1 = x1;
    p->y0 = y0;
    p->y1 = y1;
}

/* Beyond, a difference of two may be no number any longer. */
static bool drawn(double x) { return fabs(x) < 1e30; }

static void put_dot(const struct chart *p, double x, double y, int which)
{
    fprintf(p->f, "<circle cx='%.1f' cy='%.1f' r='4' fill='%s' fill-opacity='0.7'/>\n",
            chart_x(p, x), chart_y(p, y), chart_colour(which));
}

static void mark_target(const struct chart *p, double target)
{
    double y = p->log_y ? log10(target) : target;
    if (isnan(target) || !(y > p->y0) || !(y < p->y1))
        return;
    chart_mark_y(p, y);
    fprintf(p->f, "<text x='%d' y='%.1f'>target %.6g</text>\n", p->left + 6, chart_y(p, y) - 4,
            target);
}

/* --- loss curves --- */

/* One panel: mean losses of all groups over an axis, from a step on. */
struct losses {
    const struct gather *g;
    const struct means *m; /* a group each */
    enum means_axis axis;
    double from; /* the first step that is drawn */
    int least; /* points that a curve must have */
    bool train; /* training losses, too */
    double target;
};

static bool is_point(const struct losses *l, const struct mean_point *p)
{
    return p->at[MEANS_STEPS] >= l->from && drawn(p->at[l->axis]) && drawn(p->mean);
}

struct range {
    double x0, x1, y0, y1;
    int n, longest; /* points: all, and of the curve that has the most */
};

static void take_range(const struct losses *l, const struct mean_point *p, int n, struct range *r)
{
    int had = r->n;
    for (int i = 0; i < n; i++) {
        if (!is_point(l, &p[i]))
            continue;
        double sd = drawn(p[i].sd) ? p[i].sd : 0;
        r->x0 = fmin(r->x0, p[i].at[l->axis]);
        r->x1 = fmax(r->x1, p[i].at[l->axis]);
        r->y0 = fmin(r->y0, fmin(p[i].mean, fmax(p[i].mean - sd, p[i].mean / 2)));
        r->y1 = fmax(r->y1, p[i].mean + sd);
        r->n++;
    }
    if (r->n - had > r->longest)
        r->longest = r->n - had;
}

/* Losses of a decade or so are told apart best on a logarithmic axis. */
static bool loss_panel(const struct losses *l, struct chart *p)
{
    struct range r = { INFINITY, -INFINITY, INFINITY, -INFINITY, 0, 0 };
    for (int i = 0; i < l->g->n; i++) {
        take_range(l, l->m[i].val, l->m[i].vals, &r);
        if (l->train)
            take_range(l, l->m[i].train, l->m[i].trains, &r);
    }
    if (r.longest < l->least || !(r.x1 > r.x0))
        return false;
    if (!isnan(l->target) && l->axis == MEANS_STEPS) {
        r.y0 = fmin(r.y0, l->target);
        r.y1 = fmax(r.y1, l->target);
    }
    p->log_y = r.y0 > 0 && r.y1 > 1.5 * r.y0;
    if (p->log_y)
        r.y0 = log10(r.y0), r.y1 = log10(r.y1);
    widen(&r.y0, &r.y1, 0.04);
    set_panel(p, l->from > 0 ? r.x0 : 0, r.x1, r.y0, r.y1);
    return true;
}

static double y_of(const struct chart *p, double loss)
{
    return p->log_y ? log10(fmax(loss, 1e-300)) : loss;
}

static void put_band(const struct losses *l, const struct chart *p, const struct mean_point *v,
                     int n, int which)
{
    bool first = true;
    for (int side = 1; side >= -1; side -= 2)
        for (int i = 0; i < n; i++) {
            const struct mean_point *at = &v[side > 0 ? i : n - 1 - i];
            if (!is_point(l, at) || !drawn(at->sd))
                continue;
            if (first)
                fprintf(p->f, "<path fill='%s' fill-opacity='0.2' d='", chart_colour(which));
            fprintf(p->f, "%c%.1f %.1f", first ? 'M' : 'L', chart_x(p, at->at[l->axis]),
                    chart_y(p, y_of(p, at->mean + side * at->sd)));
            first = false;
        }
    fputs(first ? "" : "Z'/>\n", p->f);
}

/* A curve of one point is a dot. */
static void put_curve(const struct losses *l, const struct chart *p, const struct mean_point *v,
                      int n, int which, bool thick)
{
    char name[300];
    int points = 0, last = 0;
    put_band(l, p, v, n, which);
    chart_curve(p, which, thick ? 2 : 0.7);
    for (int i = 0; i < n; i++)
        if (is_point(l, &v[i])) {
            chart_to(p, v[i].at[l->axis], y_of(p, v[i].mean));
            last = i;
            points++;
        }
    snprintf(name, sizeof name, "%.250s%s", l->g->group[which].name, thick ? "" : ", training");
    chart_curve_end(p, name);
    if (points == 1)
        put_dot(p, v[last].at[l->axis], y_of(p, v[last].mean), which);
}

static void put_losses(const struct losses *l, const struct chart *p)
{
    chart_axes(p);
    mark_target(p, l->target);
    for (int i = 0; i < l->g->n; i++) {
        if (l->train)
            put_curve(l, p, l->m[i].train, l->m[i].trains, i, false);
        put_curve(l, p, l->m[i].val, l->m[i].vals, i, true);
    }
    chart_axes_end(p);
}

/* The first step of the last third of the steps that any group has validated. */
static double last_third(const struct gather *g)
{
    double last = 0;
    for (int i = 0; i < g->n; i++)
        if (g->group[i].points)
            last = fmax(last, g->group[i].curve[g->group[i].points - 1].step);
    return ceil(last * 2 / 3);
}

/* --- legend --- */

static int entries(const struct gather *g)
{
    return g->n <= CHART_STYLES ? g->n : CHART_STYLES + 1;
}

/* Draws an entry: as much of a name as fits, and a note. */
static void put_entry(FILE *f, int x, int y, int which, const char *name, const char *note)
{
    char cut[4 * NAME_MAX_CHARS + 1], rest[40];
    size_t n = text_cut(name, NAME_MAX_CHARS);
    snprintf(cut, sizeof cut, "%.*s", (int)n, name);
    snprintf(rest, sizeof rest, "%s%s", name[n] ? "…" : "", note);
    chart_legend(f, x, y, which, cut, rest);
}

/* In the upper right corner of a panel, where curves that fall leave room. */
static void put_legend(const struct chart *p, const struct gather *g)
{
    int x = p->left + p->width - LEGEND_WIDTH, y = p->top + 6;
    fprintf(p->f, "<rect class='paper' fill-opacity='.8' x='%d' y='%d' width='%d' height='%d'/>\n",
            x, y, LEGEND_WIDTH - 6, LEGEND * entries(g) + 6);
    for (int i = 0; i < g->n && i < CHART_STYLES; i++) {
        char note[32];
        snprintf(note, sizeof note, " (%d run%s)", g->group[i].n, g->group[i].n == 1 ? "" : "s");
        put_entry(p->f, x + 8, y + LEGEND * (i + 1) - 2, i, g->group[i].name, note);
    }
    if (g->n > CHART_STYLES)
        chart_legend_more(p->f, x + 8, y + LEGEND * entries(g) - 2, g->n - CHART_STYLES);
}

/* --- step times --- */

struct bins {
    double ms[BINS];
    int n[BINS];
};

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
    int steps = 1;
    for (int i = 0; i < g->n; i++)
        if (g->group[i].profile.steps > steps)
            steps = g->group[i].profile.steps;
    return steps - 1;
}

static bool time_panel(const struct gather *g, struct chart *p)
{
    double most = 0, last = last_step(g);
    struct bins b;
    for (int i = 0; i < g->n && last > 0; i++) {
        fill_bins(&g->group[i].profile, last, &b);
        for (int k = BINS / 50; k < BINS; k++) /* the warm-up may leave the frame */
            if (b.n[k])
                most = fmax(most, b.ms[k]);
    }
    if (!(most > 0))
        return false;
    set_panel(p, 0, last, 0, 1.08 * most);
    return true;
}

static void put_times(const struct gather *g, const struct chart *p)
{
    struct bins b;
    chart_axes(p);
    for (int i = 0; i < g->n; i++) {
        fill_bins(&g->group[i].profile, p->x1, &b);
        chart_curve(p, i, 1);
        for (int k = 0; k < BINS; k++)
            if (b.n[k])
                chart_to(p, (k + 0.5) * p->x1 / BINS, b.ms[k]);
        chart_curve_end(p, g->group[i].name);
    }
    chart_axes_end(p);
}

/* --- loss against time --- */

static bool scatter_panel(const struct gather *g, double target, struct chart *p)
{
    double x0 = INFINITY, x1 = -INFINITY, y0 = target, y1 = target; /* fmin passes NaN over */
    int runs = 0;
    for (int i = 0; i < g->n; i++)
        for (int k = 0; k < g->group[i].n; k++) {
            const struct run *e = &g->group[i].run[k];
            if (!drawn(e->loss) || !drawn(e->time_ms / 1e3))
                continue;
            runs++;
            x0 = fmin(x0, e->time_ms / 1e3);
            x1 = fmax(x1, e->time_ms / 1e3);
            y0 = fmin(y0, e->loss);
            y1 = fmax(y1, e->loss);
        }
    if (runs < 2)
        return false;
    widen(&x0, &x1, 0.06);
    widen(&y0, &y1, 0.08);
    set_panel(p, x0, x1, y0, y1);
    return true;
}

static void put_scatter(const struct gather *g, const struct chart *p, double target)
{
    chart_axes(p);
    mark_target(p, target);
    for (int i = 0; i < g->n; i++)
        for (int k = 0; k < g->group[i].n; k++) {
            const struct run *e = &g->group[i].run[k];
            if (drawn(e->loss) && drawn(e->time_ms / 1e3))
                put_dot(p, e->time_ms / 1e3, e->loss, i);
        }
    chart_axes_end(p);
}

/* --- loss over a number --- */

/* Point of a scan: the mean loss of a group called NAME@X. */
struct spot {
    const char *name;
    int length; /* of NAME; 0: the group is not called so */
    double x, loss, error; /* error: NaN for one run */
};

static int spot_of(struct spot *s, const struct group *g)
{
    struct group_sum sum = { .runs = 0 };
    const char *at = strrchr(g->name, '@');
    char *end = NULL;
    int rc = group_sum(g, NAN, &sum);
    *s = (struct spot){ .name = g->name, .loss = sum.loss.mean };
    s->error = sum.loss.sd / sqrt(sum.loss.n);
    if (at && at[1])
        s->x = strtod(at + 1, &end);
    if (end && !*end && drawn(s->x) && sum.loss.n && drawn(s->loss))
        s->length = (int)(at - g->name);
    return rc;
}

static bool same_curve(const struct spot *a, const struct spot *b)
{
    return a->length == b->length && !memcmp(a->name, b->name, (size_t)a->length);
}

/* True if spot i is the first of its curve. */
static bool begins(const struct spot *s, int i)
{
    for (int k = 0; k < i; k++)
        if (same_curve(&s[k], &s[i]))
            return false;
    return s[i].length > 0;
}

/* Returns the spot of the curve of s[i] that has the least x above `after`; NULL: none. */
static const struct spot *next_spot(const struct spot *s, int n, int i, double after)
{
    const struct spot *best = NULL;
    for (int k = 0; k < n; k++)
        if (same_curve(&s[k], &s[i]) && s[k].x > after && (!best || s[k].x < best->x))
            best = &s[k];
    return best;
}

static bool scan_panel(const struct spot *s, int n, struct chart *p)
{
    double x0 = INFINITY, x1 = -INFINITY, y0 = INFINITY, y1 = -INFINITY;
    for (int i = 0; i < n; i++) {
        if (!s[i].length)
            continue;
        double error = drawn(s[i].error) ? s[i].error : 0;
        x0 = fmin(x0, s[i].x);
        x1 = fmax(x1, s[i].x);
        y0 = fmin(y0, s[i].loss - error);
        y1 = fmax(y1, s[i].loss + error);
    }
    if (!(x1 > x0))
        return false;
    p->log_x = x0 > 0 && x1 > 3 * x0;
    p->log_y = y0 > 0 && y1 > 1.5 * y0;
    if (p->log_x)
        x0 = log10(x0), x1 = log10(x1);
    if (p->log_y)
        y0 = log10(y0), y1 = log10(y1);
    widen(&x0, &x1, 0.04);
    widen(&y0, &y1, 0.06);
    set_panel(p, x0, x1, y0, y1);
    return true;
}

static void put_scan_curve(const struct spot *s, int n, int i, const struct chart *p, int which)
{
    char name[300];
    const struct spot *at;
    snprintf(name, sizeof name, "%.*s", s[i].length, s[i].name);
    chart_curve(p, which, 2);
    for (double x = -INFINITY; (at = next_spot(s, n, i, x)); x = at->x)
        chart_to(p, p->log_x ? log10(at->x) : at->x, y_of(p, at->loss));
    chart_curve_end(p, name);
    for (double x = -INFINITY; (at = next_spot(s, n, i, x)); x = at->x) {
        double px = p->log_x ? log10(at->x) : at->x;
        put_dot(p, px, y_of(p, at->loss), which);
        if (drawn(at->error))
            fprintf(p->f, "<path stroke='%s' d='M%.1f %.1fV%.1f'/>\n", chart_colour(which),
                    chart_x(p, px), chart_y(p, y_of(p, at->loss - at->error)),
                    chart_y(p, y_of(p, at->loss + at->error)));
    }
}

/* Counts the curves that have an entry in the legend; *more are those beyond. */
static int scan_entries(const struct spot *s, int n, int *more)
{
    int curves = 0;
    for (int i = 0; i < n; i++)
        curves += begins(s, i);
    *more = curves > CHART_STYLES ? curves - CHART_STYLES : 0;
    return curves - *more;
}

/* Draws curves, and a legend below the panel in columns. */
static void put_scan(const struct spot *s, int n, const struct chart *p)
{
    int which = 0, more, shown = scan_entries(s, n, &more), x, y;
    chart_axes(p);
    for (int i = 0; i < n; i++)
        if (begins(s, i))
            put_scan_curve(s, n, i, p, which++);
    chart_axes_end(p);
    for (int i = 0, k = 0; i < n && k <= shown; i++) {
        char name[300];
        if (!begins(s, i))
            continue;
        x = p->left + k % COLUMNS * (p->width / COLUMNS);
        y = p->top + p->height + BOTTOM + LEGEND * (k / COLUMNS) + 8;
        snprintf(name, sizeof name, "%.*s", s[i].length, s[i].name);
        if (k++ < shown)
            put_entry(p->f, x, y, k - 1, name, "");
        else
            chart_legend_more(p->f, x, y, more);
    }
}

/* --- the picture --- */

enum { PANELS = MEANS_AXES + 4 };

/* Where the panels that have data stand. */
struct picture {
    struct chart chart[PANELS];
    bool has[PANELS];
    int height;
};

/* Puts panel i below those that stand there, the first one as high as the legend needs. */
static void place(struct picture *p, int i, int legend)
{
    struct chart *c = &p->chart[i];
    if (!p->has[i])
        return;
    c->top = p->height + TOP;
    if (!p->height && legend > LEGEND_ENTRIES)
        c->height += LEGEND * (legend - LEGEND_ENTRIES);
    p->height += TOP + c->height + BOTTOM;
}

static int draw(FILE *f, const struct gather *g, const struct means *m, const struct spot *spots,
                double target)
{
    static const char *const titles[PANELS] = {
        "Loss: validation thick, training thin; bands are a deviation",
        "Loss over tokens",
        "Loss over time",
        "Validation loss, the last third of the steps",
        "Step times, mean of the runs",
        "Loss against time, a dot a run",
        "Mean loss over the number after @, with standard errors"
    };
    static const char *const units[PANELS] = { "step", "tokens",  "seconds",       "step",
                                               "step", "seconds", "number after @" };
    enum { END = MEANS_AXES, TIMES, DOTS, SCAN };
    struct losses l[END + 1];
    struct picture p = { .height = 0 };
    int more;
    for (int i = 0; i < PANELS; i++) {
        p.chart[i] = (struct chart){ .f = f,
                                     .left = LEFT,
                                     .width = WIDTH - LEFT - RIGHT,
                                     .height = i == SCAN ? 3 * HEIGHT / 2 : HEIGHT,
                                     .title = titles[i],
                                     .x_title = units[i],
                                     .y_title = i == TIMES ? "ms" : "loss" };
        if (i > END)
            continue;
        l[i] = (struct losses){ .g = g, .m = m, .target = target };
        l[i].axis = i < END ? i : MEANS_STEPS;
        l[i].from = i < END ? 0 : last_third(g);
        l[i].least = i < END ? 1 : 3;
        l[i].train = i < END;
        p.has[i] = loss_panel(&l[i], &p.chart[i]);
    }
    p.has[TIMES] = time_panel(g, &p.chart[TIMES]);
    p.has[DOTS] = scatter_panel(g, target, &p.chart[DOTS]);
    p.has[SCAN] = scan_panel(spots, g->n, &p.chart[SCAN]);
    for (int i = 0; i < PANELS; i++)
        place(&p, i, i == SCAN ? 0 : entries(g));
    if (p.has[SCAN])
        p.height +=
            LEGEND * ((scan_entries(spots, g->n, &more) + (more > 0) + COLUMNS - 1) / COLUMNS) + 8;
    if (!p.height)
        p.height = TOP; /* nothing is drawn: an empty picture */
    chart_begin(f, WIDTH, p.height);
    bool legend = false;
    for (int i = 0; i < PANELS; i++) {
        if (!p.has[i])
            continue;
        if (i <= END)
            put_losses(&l[i], &p.chart[i]);
        else if (i == TIMES)
            put_times(g, &p.chart[i]);
        else if (i == DOTS)
            put_scatter(g, &p.chart[i], target);
        else
            put_scan(spots, g->n, &p.chart[i]);
        if (!legend && i != SCAN)
            put_legend(&p.chart[i], g);
        legend = true;
    }
    chart_end(f);
    return ferror(f) ? err_sys("cannot write the plot") : 0;
}

int plot_svg(FILE *f, const struct gather *g, double target)
{
    struct means *m = calloc((size_t)g->n + 1, sizeof *m);
    struct spot *spots = calloc((size_t)g->n + 1, sizeof *spots);
    int rc = m && spots ? 0 : err_memory();
    for (int i = 0; i < g->n && !rc; i++)
        if (!(rc = means_of(&m[i], g, i)))
            rc = spot_of(&spots[i], &g->group[i]);
    if (!rc)
        rc = draw(f, g, m, spots, target);
    for (int i = 0; m && i < g->n; i++)
        means_release(&m[i]);
    free(m);
    free(spots);
    return rc;
}
