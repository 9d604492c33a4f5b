/* worth.c - see worth.h. */
#include "runs/worth.h"

#include <math.h>
#include <stdlib.h>

static const struct estimate unknown = { NAN, NAN };

/* --- a run's curve --- */

static double loss_at(const struct run *r, int32_t step)
{
    for (int i = r->vals - 1; i >= 0; i--)
        if (r->val[i].step == step)
            return r->val[i].loss;
    return NAN;
}

/* Linear between the two points around x; NaN where x lies outside. */
static double between(double x, double x0, double y0, double x1, double y1)
{
    return x1 > x0 && x >= x0 && x <= x1 ? y0 + (y1 - y0) * (x - x0) / (x1 - x0) : NAN;
}

static double loss_by(const struct run *r, double x, bool by_time)
{
    double y = NAN;
    for (int i = 1; i < r->vals && isnan(y); i++) {
        const struct run_val *a = &r->val[i - 1], *b = &r->val[i];
        if (by_time && a->step < r->clock_restart)
            continue;
        y = by_time ? between(x, a->time_ms / 1e3, a->loss, b->time_ms / 1e3, b->loss)
                    : between(x, a->step, a->loss, b->step, b->loss);
    }
    return y;
}

/* --- slope and cushion --- */

enum { POINTS = 3 };

static int ended_in(const struct group *g)
{
    int n = 0;
    for (int i = 0; i < g->n; i++)
        n += g->run[i].ended;
    return n;
}

/* The last trained steps, at most three, that all ended runs validated; in order. */
static int common_steps(const struct group *g, int32_t x[POINTS])
{
    int n = 0, ended = ended_in(g);
    for (int i = g->points - 1; i >= 0 && n < POINTS; i--) {
        int has = 0;
        if (g->curve[i].n < ended)
            continue;
        for (int k = 0; k < g->n; k++)
            has += g->run[k].ended && isfinite(loss_at(&g->run[k], g->curve[i].step));
        if (ended && has == ended && g->curve[i].step > 0)
            x[n++] = g->curve[i].step;
    }
    for (int i = 0; i < n / 2; i++) {
        int32_t t = x[i];
        x[i] = x[n - 1 - i];
        x[n - 1 - i] = t;
    }
    return n;
}

/* The derivative at the last of n points. */
static double end_slope(const int32_t *x, const double *y, int n)
{
    if (n < 2)
        return NAN;
    double last = (y[n - 1] - y[n - 2]) / (x[n - 1] - x[n - 2]);
    if (n < 3)
        return last;
    double before = (y[1] - y[0]) / (x[1] - x[0]);
    return last + (x[2] - x[1]) * (last - before) / (x[2] - x[0]);
}

static void set_cushion(struct worth *w, const double *loss, const double *slope, int n,
                        double target)
{
    struct sample l = sample_of(loss, n), s = sample_of(slope, n);
    w->slope = (struct estimate){ s.mean, s.sd / sqrt(n) };
    if (!(s.mean < 0))
        return;
    double c = (target - l.mean) / -s.mean, both = 0;
    w->cushion.value = c;
    for (int i = 0; i < n && n > 1; i++)
        both += (loss[i] - l.mean) * (slope[i] - s.mean) / (n - 1);
    double v = l.sd * l.sd - 2 * c * both + c * c * s.sd * s.sd;
    w->cushion.error = sqrt(fmax(v, 0) / n) / -s.mean; /* NaN for one run, whose sd is */
    if (isnan(v))
        w->cushion.error = NAN;
}

/* --- differences --- */

static struct estimate difference(const struct sample *own, const struct sample *base)
{
    return (struct estimate){ own->mean - base->mean,
                              sqrt(own->sd * own->sd / own->n + base->sd * base->sd / base->n) };
}

/* The losses of ended runs at a step or a time; n is 0 where one has none. */
static struct sample losses_at(const struct group *g, double x, bool by_time, double *room)
{
    int n = 0;
    for (int i = 0; i < g->n; i++) {
        if (!g->run[i].ended)
            continue;
        room[n] = loss_by(&g->run[i], x, by_time);
        if (isnan(room[n++]))
            return sample_of(room, 0);
    }
    return sample_of(room, n);
}

/* What all ended runs of both have reached; infinite where no run has ended. */
static double reached(const struct group *g, bool by_time)
{
    double x = INFINITY;
    for (int i = 0; i < g->n; i++)
        if (g->run[i].ended)
            x = fmin(x, by_time ? g->run[i].time_ms / 1e3 : g->run[i].last);
    return x;
}

static struct estimate compare(const struct group *own, const struct group *base, bool by_time,
                               double *at, double *room)
{
    *at = fmin(reached(own, by_time), reached(base, by_time));
    if (!isfinite(*at))
        return unknown;
    struct sample a = losses_at(own, *at, by_time, room), b = losses_at(base, *at, by_time, room);
    return a.n && b.n ? difference(&a, &b) : unknown;
}

int worth_of(struct worth *w, const struct gather *g, int group, double target)
{
    const struct group *own = &g->group[group], *base = &g->group[0];
    int32_t x[POINTS];
    int points = common_steps(own, x), n = 0;
    size_t most = (size_t)(own->n > base->n ? own->n : base->n);
    double *loss = malloc((2 * most + 1) * sizeof *loss), *slope = loss ? loss + most : NULL;
    *w = (struct worth){ unknown, unknown, NAN, NAN, unknown, unknown };
    if (!loss)
        return err_memory();
    for (int i = 0; i < own->n; i++) {
        double y[POINTS];
        if (!own->run[i].ended || points < 2 || own->run[i].last != x[points - 1])
            continue;
        for (int k = 0; k < points; k++)
            y[k] = loss_at(&own->run[i], x[k]);
        loss[n] = y[points - 1];
        slope[n++] = end_slope(x, y, points);
    }
    if (n && n == ended_in(own))
        set_cushion(w, loss, slope, n, target);
    if (group) {
        w->at_step = compare(own, base, false, &w->step, loss);
        w->at_time = compare(own, base, true, &w->time_s, loss);
    }
    free(loss);
    return 0;
}
