/* plot.c - see plot.h. */
#include "runs/plot.h"

#include <math.h>
#include <string.h>
#include "base/chart.h"

enum {
    WIDTH = 900,
    LEFT = 80,
    RIGHT = 30,
    PANEL = 270,
    TOP = 34,
    BOTTOM = 44,
    BINS = 400,
    LEGEND = 20
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

/* --- loss curves --- */

/* A mean over fewer runs than the next one's jumps: drawn are steps of all validated runs. */
static bool has_point(const struct group *g, const struct curve_point *c)
{
    return c->n && c->n == g->validated && drawn(c->mean);
}

static bool curve_panel(const struct gather *g, double target, struct chart *p)
{
    double lo = target, hi = -INFINITY, last = 0;
    for (int i = 0; i < g->n; i++)
        for (int k = 0; k < g->group[i].points; k++) {
            const struct curve_point *c = &g->group[i].curve[k];
            if (!has_point(&g->group[i], c))
                continue;
            lo = fmin(lo, c->mean);
            last = fmax(last, c->step);
            if (c->step > 0 && k <= 1)
                hi = fmax(hi, c->mean);
        }
    if (!(hi > lo) || !(last > 0))
        return false;
    widen(&lo, &hi, 0.04);
    set_panel(p, 0, last, lo, hi);
    return true;
}

static void put_band(const struct chart *p, const struct group *g, int which)
{
    fprintf(p->f, "<path fill='%s' fill-opacity='0.2' d='", chart_colour(which));
    bool first = true;
    for (int side = 1; side >= -1; side -= 2)
        for (int i = 0; i < g->points; i++) {
            const struct curve_point *c = &g->curve[side > 0 ? i : g->points - 1 - i];
            double sd = curve_sd(c);
            if (!has_point(g, c))
                continue;
            fprintf(p->f, "%c%.1f %.1f", first ? 'M' : 'L', chart_x(p, c->step),
                    chart_y(p, c->mean + side * (drawn(sd) ? sd : 0)));
            first = false;
        }
    fputs(first ? "'/>\n" : "Z'/>\n", p->f);
}

static void put_curves(const struct gather *g, const struct chart *p, double target)
{
    chart_axes(p);
    chart_mark_y(p, target);
    for (int i = 0; i < g->n; i++) {
        const struct group *in = &g->group[i];
        put_band(p, in, i);
        chart_curve(p, i, 1.6);
        for (int k = 0; k < in->points; k++)
            if (has_point(in, &in->curve[k]))
                chart_to(p, in->curve[k].step, in->curve[k].mean);
        chart_curve_end(p, in->name);
    }
    chart_axes_end(p);
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
    double x0 = INFINITY, x1 = -INFINITY, y0 = target, y1 = target;
    for (int i = 0; i < g->n; i++)
        for (int k = 0; k < g->group[i].n; k++) {
            const struct run *e = &g->group[i].run[k];
            if (!drawn(e->loss) || !drawn(e->time_ms / 1e3))
                continue;
            x0 = fmin(x0, e->time_ms / 1e3);
            x1 = fmax(x1, e->time_ms / 1e3);
            y0 = fmin(y0, e->loss);
            y1 = fmax(y1, e->loss);
        }
    if (x0 > x1)
        return false;
    widen(&x0, &x1, 0.06);
    widen(&y0, &y1, 0.08);
    set_panel(p, x0, x1, y0, y1);
    return true;
}

static void put_scatter(const struct gather *g, const struct chart *p, double target)
{
    chart_axes(p);
    chart_mark_y(p, target);
    for (int i = 0; i < g->n; i++)
        for (int k = 0; k < g->group[i].n; k++) {
            const struct run *e = &g->group[i].run[k];
            if (drawn(e->loss) && drawn(e->time_ms / 1e3))
                fprintf(p->f, "<circle cx='%.1f' cy='%.1f' r='4' fill='%s' fill-opacity='0.7'/>\n",
                        chart_x(p, e->time_ms / 1e3), chart_y(p, e->loss), chart_colour(i));
        }
    chart_axes_end(p);
}

int plot_svg(FILE *f, const struct gather *g, double target)
{
    struct chart p = { .f = f,
                       .left = LEFT,
                       .top = TOP,
                       .width = WIDTH - LEFT - RIGHT,
                       .height = PANEL - TOP - BOTTOM };
    struct chart curves = p, times = p, dots = p;
    curves.title = "Validation loss, mean and deviation";
    times.title = "Step times, mean of the runs";
    dots.title = "Loss against time, a dot a run";
    curves.x_title = times.x_title = "step";
    curves.y_title = dots.y_title = "loss";
    times.y_title = "ms";
    dots.x_title = "seconds";
    bool has_curves = curve_panel(g, target, &curves), has_times = time_panel(g, &times),
         has_dots = scatter_panel(g, target, &dots);
    times.top += PANEL * has_curves;
    dots.top += PANEL * (has_curves + has_times);
    int height = PANEL * (has_curves + has_times + has_dots);
    int listed = g->n < CHART_STYLES ? g->n : CHART_STYLES;
    chart_begin(f, WIDTH, height + LEGEND * (listed + 1 + (g->n > listed)));
    if (has_curves)
        put_curves(g, &curves, target);
    if (has_times)
        put_times(g, &times);
    if (has_dots)
        put_scatter(g, &dots, target);
    for (int i = 0; i < listed; i++) {
        char note[32];
        snprintf(note, sizeof note, " (%d runs)", g->group[i].n);
        chart_legend(f, LEFT, height + LEGEND * (i + 1), i, g->group[i].name, note);
    }
    if (g->n > listed)
        chart_legend_more(f, LEFT, height + LEGEND * (listed + 1), g->n - listed);
    chart_end(f);
    return ferror(f) ? err_sys("cannot write the plot") : 0;
}
