#include "coeffs/fit.h"

#include <cblas.h>
#include <lapacke.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/hash.h"
#include "base/rng.h"
#include "base/stats.h"
#include "coeffs/linprog.h"
#include "coeffs/minimax.h"
#include "coeffs/sets.h"

/* --- what a fit minimises, as a sum of smooth terms ---
 *
 *     phi = mean_i w_i (|r_i| / scale)^p  +  weight * mean_g (h_g / scale)^2
 *
 * r_i = 1 - f(x_i) on the points; h_g is how far the table leaves the guard at
 * the point g of a grid. p = 2 with scale 1 is the mean square.
 */

enum { PARAMS_MAX = COEFFS_ROWS * COEFFS_TERMS, GUARD_POINTS = 400, GUARD_MAX = 640 };

struct objective {
    enum fit_objective what;
    int n; /* points, */
    double *x, *w; /* their weights sum to 1 */
    double power, scale; /* p above */
    int n_grid; /* points of the guard, ascending; the last is its end */
    double grid[GUARD_MAX];
    double floor_from; /* guard: over 1 - swing from here on */
    double swing, safety, weight;
    double bound; /* the swing that a result may have; the search keeps to less, `swing` */
    const struct trials
        *trials; /* not NULL: residuals as rounded, of their n values from `lower` on */
    unsigned how; /* of the rounded iteration */
    double lower;
};

enum { LOG_FROM = 3 }; /* where |f| is larger, its logarithm takes its place */

/* Backward through the rows: d f / d coefficient (t, i) = df/dx_t times x_t^(2i+1). */
static void slopes(const struct coeffs *c, const double *in, double g, double stretch, double *d)
{
    for (int t = c->n; t-- > 0;) {
        double power = g * in[t], xx = in[t] * in[t];
        for (int i = 0; i < c->terms; i++, power *= xx)
            d[t * c->terms + i] = isfinite(power) ? power : 0;
        g *= coeffs_row_slope(c->row[t], in[t]) * stretch;
    }
}

/* f at x, with every row's input after the first times `stretch`, and its slopes d by all
 * coefficients, row by row (d NULL: none). Where |f| > LOG_FROM the value grows as log |f|, so that
 * a diverging table has a finite slope. */
static double objective_point(const struct coeffs *c, double x, double stretch, double *d)
{
    double in[COEFFS_ROWS], size;
    for (int t = 0; t < c->n; t++) {
        in[t] = t ? x * stretch : x;
        x = coeffs_row_value(c->row[t], in[t]);
        x = x > 1e30 ? 1e30 : x < -1e30 ? -1e30 : x;
    }
    size = fabs(x);
    if (d)
        slopes(c, in, size > LOG_FROM ? LOG_FROM / size : 1, stretch, d);
    return size > LOG_FROM ? copysign(LOG_FROM * (1 + log(size / LOG_FROM)), x) : x;
}

struct sum {
    int n;
    double phi, *grad, *hess;
};

/* Adds a term of value v with slope v1 and curvature v2 by f, of which d are the slopes. */
static void add(struct sum *s, double v, double v1, double v2, const double *d)
{
    s->phi += v;
    for (int i = 0; i < s->n; i++) {
        double f = v2 * d[i], *row = s->hess + (size_t)i * s->n;
        s->grad[i] += v1 * d[i];
        for (int j = 0; j <= i; j++)
            row[j] += f * d[j];
    }
}

/* Adds weight (e / scale)^p. e >= 0 has slope e1 by f, and e^2 curvature 2. */
static void add_error(const struct objective *o, struct sum *s, double w, double e, double e1,
                      const double *d)
{
    double p = o->power, u = e / o->scale;
    if (p == 2)
        add(s, w * u * u, 2 * w * u * e1 / o->scale, 2 * w / (o->scale * o->scale), d);
    else {
        double up = pow(u, p - 2) * w;
        add(s, up * u * u, p * up * u * e1 / o->scale,
            p * (p - 1) * up * e1 * e1 / (o->scale * o->scale), d);
    }
}

/* Returns how far f is outside the guard at y; its slope by f is *sign. */
static double excess(const struct objective *o, double y, double f, double swing, double *sign)
{
    double floor = y >= o->floor_from ? 1 - swing : 0;
    *sign = f > 1 ? 1 : -1;
    return f > 1 + swing ? f - 1 - swing : f < floor ? floor - f : 0;
}

/* The guard, once as it is and once with every row's input stretched. */
static void add_guard(const struct objective *o, const struct coeffs *c, struct sum *s, double *d)
{
    double w = o->weight / o->n_grid / (o->scale * o->scale), sign;
    for (int k = 0; k < 2; k++)
        for (int g = 0; g < o->n_grid; g++) {
            double stretch = k ? 1 + o->safety : 1;
            double f = objective_point(c, o->grid[g], stretch, NULL);
            double h = excess(o, o->grid[g], f, o->swing, &sign);
            if (h > 0) {
                objective_point(c, o->grid[g], stretch, d);
                add(s, w * h * h, 2 * w * h * sign, 2 * w, d);
            }
        }
}

/* Errors of the rounded iteration, slopes of the exact one. Rounding rotates the output in
 * direction i: of its length F, only y lies along u_i. The rows scale both by the same factor, that
 * of an input of length x F / y, so that e^2 = 1 - 2 y + F^2 has the slope 2 (F - y / F) by F. The
 * error of a singular value below the rounding noise is therefore least where it is not raised to
 * 1. */
static bool add_rounded(const struct objective *o, const struct coeffs *c, struct sum *s, double *d)
{
    for (int i = 0; i < o->trials->n; i++) {
        const struct trial *t = &o->trials->v[i];
        double *y = malloc(2 * (size_t)t->n * sizeof *y), *e = y + t->n;
        bool bad = !y || trial_rounded(t, c, o->how, y, e, NULL);
        for (int k = 0; k < t->n && !bad; k++) {
            double length = sqrt(fmax(e[k] * e[k] - 1 + 2 * y[k], 1e-12));
            double turned = fmin(length / fmax(fabs(y[k]), 1e-6), 100);
            if (!(t->x[k] >= o->lower))
                continue;
            objective_point(c, fmin(t->x[k] * turned, 1), 1, d);
            if (isfinite(e[k]) && e[k] > 0)
                add_error(o, s, 1.0 / o->n, e[k], (length - y[k] / length) / e[k], d);
            else if (!(e[k] == 0))
                bad = true;
        }
        free(y);
        if (bad)
            return false;
    }
    return true;
}

/* phi and its derivatives grad and hess (row-major, params x params), the second ones without
 * curvature of f. Infinite when a value is not finite or memory ran out. */
static double objective_value(const struct objective *o, const struct coeffs *c, double *grad,
                              double *hess)
{
    double d[PARAMS_MAX];
    struct sum s = { .n = c->n * c->terms, .grad = grad, .hess = hess };
    memset(grad, 0, (size_t)s.n * sizeof *grad);
    memset(hess, 0, (size_t)s.n * (size_t)s.n * sizeof *hess);
    if (o->trials) {
        if (!add_rounded(o, c, &s, d))
            return INFINITY;
    } else {
        for (int i = 0; i < o->n; i++) {
            double r = 1 - objective_point(c, o->x[i], 1, d);
            add_error(o, &s, o->w[i], fabs(r), r > 0 ? -1 : 1, d);
        }
    }
    add_guard(o, c, &s, d);
    return isfinite(s.phi) ? s.phi : INFINITY;
}

/* Largest excess over the guard with the swing `bound`, on the grid. */
static double guard_excess(const struct objective *o, const struct coeffs *c)
{
    double worst = 0, sign;
    for (int k = 0; k < 2; k++)
        for (int g = 0; g < o->n_grid; g++) {
            double f = objective_point(c, o->grid[g], k ? 1 + o->safety : 1, NULL);
            worst = fmax(worst, excess(o, o->grid[g], f, o->bound, &sign));
        }
    return worst;
}

/* Largest of f - high and low - f on [from, to]; infinite when eval_range fails. */
static double excess_between(const struct coeffs *c, double from, double to, double low,
                             double high)
{
    struct range r;
    if (!(from < to))
        return 0;
    if (eval_range(c, from, to, &r))
        return INFINITY;
    return fmax(r.high - high, low - r.low);
}

/* c with the input of every row after the first stretched, as another table. */
static struct coeffs stretched(const struct coeffs *c, double stretch)
{
    struct coeffs s = *c;
    for (int t = 1; t < c->n; t++) {
        double power = stretch;
        for (int i = 0; i < COEFFS_TERMS; i++, power *= stretch * stretch)
            s.row[t][i] *= power;
    }
    return s;
}

/* Returns the largest excess over the guard everywhere. */
static double guard_excess_all(const struct objective *o, const struct coeffs *c, double swing)
{
    double worst = 0, end = o->grid[o->n_grid - 1];
    for (int k = 0; k < 2; k++) {
        struct coeffs s = stretched(c, k ? 1 + o->safety : 1);
        worst = fmax(worst, excess_between(&s, 0, fmin(o->floor_from, end), 0, 1 + swing));
        worst = fmax(worst, excess_between(&s, o->floor_from, end, 1 - swing, 1 + swing));
    }
    return worst;
}

static void insert(struct objective *o, double x)
{
    int g = o->n_grid;
    if (g == GUARD_MAX || !(x < o->grid[g - 1]))
        return;
    for (; g > 0 && o->grid[g - 1] > x; g--)
        o->grid[g] = o->grid[g - 1];
    o->grid[g] = x;
    o->n_grid++;
}

/* Adds to the grid the places between its points where c leaves the guard. */
static void guard_refine(struct objective *o, const struct coeffs *c)
{
    double low = o->grid[0], end = o->grid[o->n_grid - 1], sign;
    for (int k = 0; k < 2; k++) {
        struct coeffs s = stretched(c, k ? 1 + o->safety : 1);
        struct extrema t;
        if (eval_extrema(&s, low, end, &t))
            continue;
        for (int i = 0; i < t.n; i++) /* on both sides, too: a step moves the extremum */
            if (excess(o, t.x[i], t.f[i], o->swing, &sign) > 0) {
                insert(o, t.x[i]);
                insert(o, fmax(t.x[i] * 0.997, low));
                insert(o, t.x[i] * 1.003);
            }
        extrema_release(&t);
    }
}

/* c moved by step; false when (hess + lambda diag) is not positive definite. */
static bool take_step(const struct coeffs *c, const double *grad, const double *hess, double lambda,
                      double *work, struct coeffs *out)
{
    int n = c->n * c->terms;
    double *step = work + (size_t)n * n;
    memcpy(work, hess, (size_t)n * n * sizeof *work);
    for (int i = 0; i < n; i++) {
        /* Coefficients of rows that scale against each other leave directions without
         * curvature: damping must not be zero there. */
        work[(size_t)i * n + i] += lambda * (hess[(size_t)i * n + i] + 1e-12);
        step[i] = -grad[i];
    }
    if (LAPACKE_dposv(LAPACK_ROW_MAJOR, 'L', n, 1, work, n, step, 1))
        return false;
    *out = *c;
    for (int i = 0; i < n; i++)
        out->row[i / c->terms][i % c->terms] += step[i];
    return true;
}

/* Levenberg-Marquardt from c, in place, for at most `rounds` accepted steps; returns phi. */
static double objective_minimize(const struct objective *o, struct coeffs *c, int rounds)
{
    size_t n = (size_t)c->n * (size_t)c->terms, each = n + n * n;
    double *all = malloc((3 * each) * sizeof *all);
    if (!all)
        return INFINITY;
    double *here = all, *there = all + each, *work = there + each; /* gradient, then Hessian */
    double lambda = 1e-3, phi = objective_value(o, c, here, here + n);
    for (int taken = 0, idle = 0; taken < rounds && idle < 3 && lambda < 1e8;) {
        struct coeffs next;
        double got = INFINITY;
        if (take_step(c, here, here + n, lambda, work, &next))
            got = objective_value(o, &next, there, there + n);
        if (!(got < phi)) {
            lambda *= o->trials ? 10 : 4; /* a matrix iteration is costly */
            continue;
        }
        idle = phi - got < 1e-6 * phi ? idle + 1 : 0;
        *c = next;
        phi = got;
        double *swap = here;
        here = there;
        there = swap;
        lambda = fmax(lambda / 5, 1e-9);
        taken++;
    }
    free(all);
    return phi;
}

/* --- the least largest error: a linear program a step, within a trust region ---
 *
 * Unknowns of a program are the steps of all coefficients, in units of the region's size, and the
 * largest error t; t also bounds PENALTY times the excess over the guard (an exact penalty).
 *
 * The program has a row for each peak of the error, evaluated at the extremum itself and not at the
 * nearest point. A step moves peaks sideways: a row on a peak's flank would rule such a step out,
 * and a row beside the extremum would count it as a gain.
 */

enum { PENALTY = 300, HALVINGS = 40 };

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
        v[2 + 2 * k] =
            (struct curve){ o->grid, o->n_grid, 1, PENALTY, stretch, 1 + o->swing, 0, 0 };
        v[3 + 2 * k] = (struct curve){ o->grid, o->n_grid,    -1, PENALTY,
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

/* The extremum of f between the neighbours of point i, a local maximum; x[i] if that is an end. */
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
    linprog_solve(&p, z, 1e-8); /* an approximate solution is as good a step */
    *next = *c;
    for (int j = 0; j < r->n; j++)
        next->row[j / c->terms][j % c->terms] += r->size[j] * z[j];
    return z[r->n];
}

/* The largest |1 - f| alone, by linear programs within a trust region: each minimises the
 * largest linearised error while the linearised guard holds. In place, at most `rounds` of them. */
static void objective_minimax(const struct objective *o, struct coeffs *c, int rounds)
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

/* --- the fit: points, starts, search --- */

/* A search works on this many points; the result is judged on all values. f is smooth, so that
 * neighbouring singular values are represented by their mean. */
enum { POINTS_MAX = 2048, SCOUT_POINTS = 384 };
/* Starting tables: at most, minimised for a few rounds, minimised to the end. */
enum { STARTS_MAX = 80, SCOUTS = 48, FINALISTS = 6, HOPS = 60, GUARD_ROUNDS = 5 };
static const double guard_weight = 300, guard_margin = 0.95;

/* Collects all singular values from lower on, ascending; caller frees. */
static int all_values(const struct trials *t, double lower, double **x, int *n)
{
    size_t room = 1;
    for (int i = 0; i < t->n; i++)
        room += (size_t)t->v[i].n;
    *n = 0;
    if (!(*x = malloc(room * sizeof **x)))
        return err_memory();
    for (int i = 0; i < t->n; i++)
        for (int k = 0; k < t->v[i].n; k++)
            if (t->v[i].x[k] >= lower)
                (*x)[(*n)++] = t->v[i].x[k];
    if (*n == 0) {
        free(*x);
        return err_set(GPT_INPUT, "no singular value of %g or more to fit to", lower);
    }
    stats_sort(*x, *n);
    return 0;
}

/* Groups of neighbours of x as points: the ends alone, else the mean of each group. */
static int set_points(struct objective *o, const double *x, int n, int max)
{
    int groups = n < max ? n : max;
    o->x = malloc(2 * (size_t)groups * sizeof *o->x);
    if (!o->x)
        return err_memory();
    o->w = o->x + groups;
    o->n = groups;
    for (int g = 0, from = 0; g < groups; g++) {
        int to = g + 1 == groups ? n
                 : g == 0        ? 1
                 : groups == 2   ? 1
                                 : 1 + (int)((long)(n - 2) * g / (groups - 2));
        if (g + 2 == groups)
            to = n - 1;
        double sum = 0;
        for (int i = from; i < to; i++)
            sum += x[i];
        o->x[g] = sum / (to - from);
        o->w[g] = (double)(to - from) / n;
        from = to;
    }
    return 0;
}

/* The grid of the guard: geometric, and denser towards the end, where f has most extrema. */
static void set_guard(struct objective *o, const struct fit_options *f, const double *x, int n,
                      double bound)
{
    double low = fmax(fmin(x[0], f->upper / 30) / 4, 1e-30), knee = f->upper / 30;
    o->floor_from = x[n / 2];
    for (int g = 0, half = GUARD_POINTS / 2; g < GUARD_POINTS; g++)
        o->grid[g] = g < half ? low * pow(knee / low, (double)g / half)
                              : knee * pow(f->upper / knee, (double)(g - half + 1) / half);
    o->n_grid = GUARD_POINTS;
    o->grid[GUARD_POINTS - 1] = f->upper;
    for (int g = GUARD_POINTS - 2; g > 0; g--) /* the floor begins at a point */
        if (o->grid[g] <= o->floor_from) {
            o->grid[g] = o->floor_from;
            break;
        }
    o->what = f->objective;
    o->safety = f->safety;
    o->weight = guard_weight;
    o->bound = bound;
    o->swing = bound * guard_margin;
    o->power = 2;
    o->scale = 1;
}

static double exact_objective(const struct coeffs *c, const double *x, int n,
                              enum fit_objective what)
{
    double sum = 0, worst = 0;
    for (int i = 0; i < n; i++) {
        double e = fabs(1 - coeffs_value(c, x[i]));
        sum += e * e;
        worst = e <= worst ? worst : e;
    }
    return what == FIT_MAX ? worst : sqrt(sum / n);
}

/* --- the search --- */

/* Rounded, where linear programs would follow rounding errors, the largest error is approached by
 * p-norms, p doubled each time, relative to the largest so far. */
static void minimize(struct objective *o, struct coeffs *c, int rounds)
{
    struct spread all, in;
    if (o->what == FIT_MAX && !o->trials)
        objective_minimax(o, c, rounds);
    else
        objective_minimize(o, c, rounds);
    for (double p = 4; o->what == FIT_MAX && o->trials && p <= 64; p *= 2) {
        if (eval_rounded(c, o->trials, o->how, o->lower, &all, &in, NULL) ||
            !(in.max > 0 && isfinite(in.max)))
            break;
        o->power = p;
        o->scale = in.max;
        objective_minimize(o, c, rounds / 4 + 1);
    }
    o->power = 2;
    o->scale = 1;
}

/* Minimizes until the guard holds between the points of its grid, too. */
static void minimize_guarded(struct objective *o, struct coeffs *c, int rounds)
{
    minimize(o, c, rounds);
    for (int k = 0; k < GUARD_ROUNDS && guard_excess_all(o, c, o->bound) > 0; k++) {
        guard_refine(o, c);
        minimize(o, c, rounds / 3 + 1);
    }
}

struct candidate {
    struct coeffs c;
    double score;
};

static int by_score(const void *a, const void *b)
{
    double x = ((const struct candidate *)a)->score, y = ((const struct candidate *)b)->score;
    return (x > y) - (x < y);
}

/* A greedy table of the same size for [lower, upper]; false when there is none. */
static bool greedy_start(struct coeffs *c, const struct coeffs *like, double lower, double upper,
                         double safety, double cushion)
{
    struct greedy g;
    struct greedy_options o = {
        like->n, 2 * like->terms - 1, lower, upper, safety, cushion, false
    };
    if (!(lower < upper) || greedy_derive(&g, &o))
        return false;
    greedy_coeffs(&g, c);
    c->terms = like->terms; /* 2 for tables of degree 3 */
    return true;
}

/* Starts: the given one first, then greedy tables. Without guard, the greedy one for an interval
 * is optimal for that interval (minimax.h), which leaves the largest error little to gain. */
static int make_starts(struct candidate *v, const struct coeffs *start, const double *x, int n,
                       const struct fit_options *o)
{
    static const double quantile[] = { 0, 0.005, 0.05, 0.3 }, cushion[] = { 0, 0.02, 0.05 };
    const double safety[] = { 0, o->safety, 0.02 };
    int count = 1;
    v[0].c = *start;
    for (int i = 0; i < 4 * 2 * 3 * 3; i++) {
        double low = x[(int)(quantile[i / 18] * (n - 1))];
        double high = i / 9 % 2 ? x[n - 1] * 1.02 : o->upper;
        count += greedy_start(&v[count].c, start, low, high, safety[i / 3 % 3], cushion[i % 3]);
    }
    return count;
}

static void score(struct candidate *v, int n, const struct objective *o)
{
    for (int i = 0; i < n; i++)
        v[i].score = exact_objective(&v[i].c, o->x, o->n, o->what) + guard_excess(o, &v[i].c);
    qsort(v + 1, (size_t)n - 1, sizeof *v, by_score); /* the given one stays first */
}

/* Keeps c in *best if it is better for all x, and stays within the guard. */
static void consider(struct coeffs *best, double *least, const struct coeffs *c,
                     const struct objective *o, const double *x, int n)
{
    double got = exact_objective(c, x, n, o->what);
    if (got < *least && guard_excess_all(o, c, o->bound) <= 0) {
        *least = got;
        *best = *c;
    }
}

/* Basin hopping: random perturbations of the best table, each minimised again; local minima of the
 * mean square lie close together. */
static void hop(struct fit *f, const struct objective *scout, struct objective *full,
                const double *x, int n)
{
    struct rng r = rng_make(0, 0);
    struct coeffs here = f->table;
    double least = exact_objective(&here, scout->x, scout->n, scout->what);
    uint64_t draw = 0;
    for (int k = 0; k < HOPS; k++) {
        struct objective o = *scout;
        struct coeffs c = here;
        for (int t = 0; t < c.n; t++)
            for (int i = 0; i < c.terms; i++)
                c.row[t][i] *= 1 + 0.04 * (k % 4 + 1) * rng_normal(&r, draw++);
        minimize_guarded(&o, &c, 40);
        consider(&here, &least, &c, &o, o.x, o.n);
    }
    minimize_guarded(full, &here, 150);
    consider(&f->table, &f->exact_after, &here, full, x, n);
}

/* Rows may be scaled against each other without a change of f. As in greedy tables, 1 is made the
 * middle of what each row makes of [low, upper]. */
static void settle_scales(struct coeffs *c, double low, double upper)
{
    struct coeffs some = *c;
    struct range r;
    for (int t = 0; t + 1 < c->n; t++) {
        some.n = t + 1;
        memcpy(some.row, c->row, sizeof some.row);
        if (eval_range(&some, low, upper, &r) || !(r.low > 0 && r.high < 1e3))
            return;
        double scale = 2 / (r.low + r.high), power = scale;
        for (int i = 0; i < c->terms; i++, power *= scale * scale) {
            c->row[t][i] *= scale;
            c->row[t + 1][i] /= power;
        }
    }
}

static int search(struct fit *f, const double *x, int n, const struct fit_options *opt,
                  double bound)
{
    struct objective scout = { .n = 0 }, full = { .n = 0 };
    struct candidate *v = calloc(STARTS_MAX, sizeof *v);
    int rc = v ? set_points(&scout, x, n, SCOUT_POINTS) : err_memory();
    if (!rc)
        rc = set_points(&full, x, n, POINTS_MAX);
    if (!rc) {
        set_guard(&scout, opt, x, n, bound);
        set_guard(&full, opt, x, n, bound);
        int scouts = make_starts(v, &f->table, x, n, opt);
        bool largest = opt->objective == FIT_MAX;
        score(v, scouts, &scout);
        scouts = scouts < SCOUTS ? scouts : SCOUTS;
        for (int i = 0; i < scouts; i++)
            minimize(&scout, &v[i].c, largest ? 8 : 25);
        score(v, scouts, &scout);
        for (int i = 0; i < scouts && i < FINALISTS; i++) {
            minimize_guarded(&full, &v[i].c, largest ? 60 : 150);
            consider(&f->table, &f->exact_after, &v[i].c, &full, x, n);
        }
        if (!largest)
            hop(f, &scout, &full, x, n);
        if (f->exact_after < f->exact_before) {
            settle_scales(&f->table, x[0], opt->upper);
            f->exact_after = exact_objective(&f->table, x, n, opt->objective);
        }
    }
    free(scout.x);
    free(full.x);
    free(v);
    return rc;
}

/* --- rounded --- */

static int rounded_objective(const struct objective *o, const struct coeffs *c, double *out)
{
    struct spread all, in;
    int rc = eval_rounded(c, o->trials, o->how, o->lower, &all, &in, NULL);
    if (rc)
        return rc;
    *out = o->what == FIT_MAX ? in.max : in.rms;
    return isfinite(*out)
               ? 0
               : err_set(GPT_INPUT, "%s: the rounded iteration does not stay finite", c->name);
}

/* Refines the exact fit in rounded arithmetic; f->before and after become the rounded iteration's. */
static int refine_rounded(struct fit *f, const struct coeffs *start, const struct trials *t,
                          const double *x, int n, const struct fit_options *opt, double bound)
{
    struct objective o = { .trials = t, .how = opt->how, .lower = opt->lower, .n = n };
    struct coeffs tries[2] = { f->table, f->table };
    double got;
    set_guard(&o, opt, x, n, bound);
    int rc = rounded_objective(&o, start, &f->before);
    f->after = f->before;
    f->table = *start;
    for (int i = 0; i < 2 && !rc; i++) { /* the exact fit, then what comes from it */
        if (i == 1)
            minimize_guarded(&o, &tries[i], opt->objective == FIT_MAX ? 8 : 12);
        if (rounded_objective(&o, &tries[i], &got))
            continue;
        if (got < f->after && guard_excess_all(&o, &tries[i], bound) <= 0) {
            f->after = got;
            f->table = tries[i];
        }
    }
    f->exact_after = exact_objective(&f->table, x, n, opt->objective);
    return rc;
}

/* Coefficients that a fit may move: none of x^5 where the start has none, which saves a product. */
static int terms_of(const struct coeffs *c)
{
    for (int t = 0; t < c->n; t++)
        if (c->row[t][2] != 0 || c->row[t][3] != 0)
            return c->terms;
    return 2;
}

int fit_check(const struct fit_options *o)
{
    if (!(o->lower >= 0 && o->upper > o->lower && o->upper <= 2))
        return err_set(GPT_USAGE,
                       "--lower, --upper: expected 0 <= lower < upper <= 2, found %g and %g",
                       o->lower, o->upper);
    if (!(o->swing > 0 && o->swing < 1))
        return err_set(GPT_USAGE, "--swing: expected more than 0 and less than 1, found %g",
                       o->swing);
    if (!(o->safety >= 0 && o->safety <= 1))
        return err_set(GPT_USAGE, "safety: expected 0 to 1, found %g", o->safety);
    return 0;
}

int fit_table(struct fit *f, const struct coeffs *start, const struct trials *t,
              const struct fit_options *o)
{
    struct objective guard = { .n = 0 };
    double *x;
    int n, rc = fit_check(o);
    if (rc || (rc = all_values(t, o->lower, &x, &n)))
        return rc;
    memset(f, 0, sizeof *f);
    f->table = *start;
    f->table.terms = terms_of(start);
    f->count = n;
    f->low = x[0];
    f->high = x[n - 1];
    set_guard(&guard, o, x, n, o->swing);
    f->guard_before = guard_excess_all(&guard, start, o->swing);
    /* A fit may exceed the guard as far as its start does, unless the start diverges. */
    double swing = f->guard_before < 1 ? o->swing + f->guard_before : o->swing;
    f->before = f->after = f->exact_before = f->exact_after =
        exact_objective(start, x, n, o->objective);
    rc = search(f, x, n, o, swing);
    f->after = f->exact_after;
    if (!rc && o->rounded)
        rc = refine_rounded(f, start, t, x, n, o, swing);
    f->guard_after = guard_excess_all(&guard, &f->table, o->swing);
    f->table.terms = start->terms;
    f->table.input = start->input; /* also where a greedy start won */
    free(x);
    return rc;
}

/* --- the table to start from --- */

static int greedy_table(struct coeffs *c, int rows)
{
    struct greedy_options opt = GREEDY_DEFAULT;
    struct greedy g;
    opt.iters = rows;
    int rc = greedy_derive(&g, &opt);
    if (rc)
        return rc;
    greedy_coeffs(&g, c);
    snprintf(c->name, sizeof c->name, "polar --iters %d", rows);
    return 0;
}

int fit_start(struct coeffs *c, const char *from, int rows, bool aol)
{
    int want = rows ? rows : aol ? 4 : 5;
    int rc = from ? coeffs_set_or_file(c, from) : greedy_table(c, want + aol);
    if (rc)
        return rc;
    if (aol && c->n == want + 1 && (rc = coeffs_drop(c, false)))
        return rc;
    if ((rows || aol) && c->n != want)
        return err_set(GPT_USAGE, "%s has %d rows, expected %d%s", c->name, c->n, want,
                       aol ? " or one more" : "");
    c->input = aol ? INPUT_AOL : INPUT_NORM;
    return 0;
}

/* --- report of a fit --- */

void fit_describe(const struct fit *f, const struct coeffs *start, const struct fit_options *o,
                  char *text, size_t size)
{
    int at = snprintf(text, size, "%s |1 - f|%s: %.6g, of the start (%s) %.6g: ",
                      o->objective == FIT_MAX ? "largest" : "rms",
                      !o->rounded           ? ""
                      : o->how & POLAR_GRAM ? " in bf16, Gram form"
                                            : " in bf16",
                      f->after, start->name, f->before);
    if (f->after < f->before && f->after == 0)
        snprintf(text + at, size - (size_t)at, "exact");
    else if (f->after < f->before)
        snprintf(text + at, size - (size_t)at, "%.4g times less", f->before / f->after);
    else
        snprintf(text + at, size - (size_t)at, "nothing better was found");
}

/* Hash of the inputs of a fit: the singular values and the start. */
static int hash_inputs(const struct trials *t, const struct coeffs *start, char hex[33])
{
    struct xxh x;
    int rc = xxh_init(&x);
    if (rc)
        return rc;
    for (int i = 0; i < t->n; i++)
        xxh_add(&x, t->v[i].x, (size_t)t->v[i].n * sizeof *t->v[i].x);
    xxh_add(&x, start->row, sizeof start->row[0] * (size_t)start->n);
    xxh_hex(&x, hex);
    xxh_release(&x);
    return 0;
}

int fit_write(const struct fit *f, const struct coeffs *start, const struct trials *t,
              const struct fit_options *o, FILE *to)
{
    char hex[33], verdict[256];
    int rc = hash_inputs(t, start, hex);
    if (rc)
        return rc;
    fit_describe(f, start, o, verdict, sizeof verdict);
    fprintf(to,
            "# fitted to %ld singular values of %d matrices%s, %.4g to %.4g; xxh3 of values "
            "and start: %s\n# %s\n",
            f->count, t->n, t->v[0].input == INPUT_AOL ? " after AOL" : "", f->low, f->high, hex,
            verdict);
    if (o->rounded)
        fprintf(to, "# in exact arithmetic %.6g, of the start %.6g\n", f->exact_after,
                f->exact_before);
    if (f->guard_after > 0)
        fprintf(to, "# leaves the guard by %.3g, as the start does\n", f->guard_after);
    coeffs_write(&f->table, to);
    return 0;
}
