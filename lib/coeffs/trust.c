/* trust.c - the least largest error: a linear program a step, within a trust region.
 *
 * Unknowns of a program are the steps of all coefficients, in units of the region's size, and the
 * largest error t; t also bounds STERN times the excess over the guard, a penalty that is exact.
 *
 * Rows are the peaks of the error alone, and at the place where f turns, not at the nearest point.
 * A step moves peaks sideways: on their flanks, the linear model would forbid that, and beside the
 * summit it would take it for a gain.
 */
#include <math.h>
#include <stdlib.h>
#include "coeffs/linprog.h"
#include "coeffs/objective.h"

enum { STERN = 300, HALVINGS = 40 };

/* One curve whose peaks count: factor * sign * (f - bound) over x[0..n-1]. */
struct curve {
    const double *x;
    int n, sign;
    double factor, stretch, bound;
    double low_bound, low_until; /* another bound for x below low_until */
};
enum { CURVES = 6 };

static void set_curves(struct curve *v, const struct objective *o)
{
    v[0] = (struct curve){ o->x, o->n, 1, 1, 1, 1, 0, 0 };
    v[1] = (struct curve){ o->x, o->n, -1, 1, 1, 1, 0, 0 };
    for (int k = 0; k < 2; k++) {
        double stretch = k ? 1 + o->safety : 1;
        v[2 + 2 * k] = (struct curve){ o->grid, o->n_grid, 1, STERN, stretch, 1 + o->swing, 0, 0 };
        v[3 + 2 * k] = (struct curve){ o->grid, o->n_grid,    -1, STERN,
                                       stretch, 1 - o->swing, 0,  o->floor_from };
    }
}

static double height(const struct curve *v, const struct coeffs *c, double x, double *d)
{
    double bound = x < v->low_until ? v->low_bound : v->bound;
    return v->factor * v->sign * (objective_point(c, x, v->stretch, d) - bound);
}

/* f' with stretched inputs, for its sign. */
static double slope(const struct curve *v, const struct coeffs *c, double x)
{
    double g = 1;
    for (int t = 0; t < c->n; t++) {
        double in = t ? x * v->stretch : x;
        g *= coeffs_row_slope(c->row[t], in);
        x = coeffs_row_value(c->row[t], in);
    }
    return v->sign * g;
}

/* Where between neighbours of point i, a local maximum, f turns; x[i] when it is an end. */
static double summit(const struct curve *v, const struct coeffs *c, int i)
{
    if (i == 0 || i + 1 == v->n)
        return v->x[i];
    double up = slope(v, c, v->x[i]), lo = up > 0 ? v->x[i] : v->x[i - 1];
    double hi = up > 0 ? v->x[i + 1] : v->x[i];
    if (!(slope(v, c, lo) > 0 && slope(v, c, hi) < 0))
        return v->x[i];
    for (int k = 0; k < HALVINGS; k++) {
        double mid = (lo + hi) / 2;
        if (slope(v, c, mid) > 0)
            lo = mid;
        else
            hi = mid;
    }
    return (lo + hi) / 2;
}

struct rows {
    int n, m, most;
    double *a, *b, *size;
    double merit;
};

/* The row v + d step <= t, unless no step within the region can bring it to zero. */
static void add_row(struct rows *r, double v, double factor, const double *d)
{
    double *a = r->a + (size_t)r->m * (size_t)(r->n + 1), reach = 0;
    for (int j = 0; j < r->n; j++) {
        a[j] = factor * d[j] * r->size[j] / r->merit;
        reach += fabs(a[j]);
    }
    if (r->m == r->most || v / r->merit + reach < 0)
        return;
    a[r->n] = -1;
    r->b[r->m++] = -v / r->merit;
}

/* The highest peak of all curves; with r, also a row for each. */
static double climb(const struct objective *o, const struct coeffs *c, struct rows *r)
{
    struct curve v[CURVES];
    double d[PARAMS_MAX], highest = 0;
    set_curves(v, o);
    for (int k = 0; k < CURVES; k++) {
        double before, here = -INFINITY, after = -INFINITY;
        for (int i = 0; i <= v[k].n; i++) {
            before = here;
            here = after;
            after = i < v[k].n ? height(&v[k], c, v[k].x[i], NULL) : -INFINITY;
            if (i == 0 || here < before || here < after)
                continue;
            double top = height(&v[k], c, summit(&v[k], c, i - 1), d);
            highest = fmax(highest, top);
            if (r)
                add_row(r, top, v[k].factor * v[k].sign, d);
        }
    }
    return highest;
}

static void add_region(struct rows *r)
{
    for (int j = 0; j < 2 * r->n + 1; j++) { /* -1 <= step <= 1, t >= 0 */
        double *a = r->a + (size_t)r->m * (size_t)(r->n + 1);
        for (int i = 0; i <= r->n; i++)
            a[i] = 0;
        a[j / 2] = j % 2 || j == 2 * r->n ? -1 : 1;
        r->b[r->m++] = j < 2 * r->n;
    }
}

/* One program from c, in a region of that relative size; its t, in units of the merit. */
static double linear_step(const struct objective *o, const struct coeffs *c, double region,
                          struct rows *r, double *z, struct coeffs *next)
{
    double cost[PARAMS_MAX + 1] = { 0 };
    for (int j = 0; j < r->n; j++) {
        r->size[j] = region * (fabs(c->row[j / c->terms][j % c->terms]) + 1e-3);
        z[j] = 0;
    }
    z[r->n] = 1.001;
    cost[r->n] = 1;
    r->m = 0;
    add_region(r);
    climb(o, c, r);
    struct linprog p = { r->n + 1, r->m, r->a, r->b, cost };
    linprog_solve(&p, z, 1e-8); /* a point short of the best is as good a step */
    *next = *c;
    for (int j = 0; j < r->n; j++)
        next->row[j / c->terms][j % c->terms] += r->size[j] * z[j];
    return z[r->n];
}

void objective_minimax(const struct objective *o, struct coeffs *c, int rounds)
{
    int n = c->n * c->terms, most = o->n + 2 * GUARD_MAX + 2 * n + 1;
    double *all = malloc(((size_t)most * (size_t)(n + 2) + 2 * (size_t)n + 1) * sizeof *all);
    if (!all)
        return;
    struct rows r = { .n = n, .most = most, .a = all, .b = all + (size_t)most * (size_t)(n + 1) };
    r.size = r.b + most;
    double *z = r.size + n, region = 0.02;
    r.merit = climb(o, c, NULL);
    for (int k = 0; k < rounds && region > 1e-10 && r.merit > 0 && isfinite(r.merit); k++) {
        struct coeffs next;
        double promised = r.merit * (1 - linear_step(o, c, region, &r, z, &next));
        double got = climb(o, &next, NULL), gained = r.merit - got;
        if (!(promised > 1e-8 * r.merit))
            break;
        if (gained > 0) {
            *c = next;
            r.merit = got;
        }
        region *= gained > 0.75 * promised ? 2 : gained > 0.25 * promised ? 1 : 0.3;
        region = fmin(region, 0.5);
    }
    free(all);
}
