#include "coeffs/objective.h"

#include <cblas.h>
#include <float.h>
#include <lapacke.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TALLEST = 3 }; /* f beyond is replaced by its logarithm */

/* Back through the rows: df/dx_t times x_t^(2i+1). */
static void slopes(const struct coeffs *c, const double *in, double g, double stretch, double *d)
{
    for (int t = c->n; t-- > 0;) {
        double power = g * in[t], xx = in[t] * in[t];
        for (int i = 0; i < c->terms; i++, power *= xx)
            d[t * c->terms + i] = isfinite(power) ? power : 0;
        g *= coeffs_row_slope(c->row[t], in[t]) * stretch;
    }
}

double objective_point(const struct coeffs *c, double x, double stretch, double *d)
{
    double in[COEFFS_ROWS], size;
    for (int t = 0; t < c->n; t++) {
        in[t] = t ? x * stretch : x;
        x = coeffs_row_value(c->row[t], in[t]);
        x = x > 1e30 ? 1e30 : x < -1e30 ? -1e30 : x;
    }
    size = fabs(x);
    if (d)
        slopes(c, in, size > TALLEST ? TALLEST / size : 1, stretch, d);
    return size > TALLEST ? copysign(TALLEST * (1 + log(size / TALLEST)), x) : x;
}

struct sum {
    int n;
    double phi, *grad, *hess;
};

/* Adds a term of value v with slope v1 and curvature v2 by f, of which d are the slopes. */
static void add(struct sum *s, double v, double v1, double v2, const double *d)
{
    s->phi += v;
    if (!s->grad)
        return;
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

/* How far f is outside the guard at y; its slope by f is *sign. */
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

/* Errors of the rounded iteration, slopes of the exact one. Rounding has turned what comes out in
 * direction i: of its length F, only y lies along u_i. The rows scale both alike, by what they make
 * of the length x F / y that went in, so that e^2 = 1 - 2 y + F^2 has the slope 2 (F - y / F) by F.
 * A singular value below the noise is therefore better not raised to 1, and a fit learns that. */
static bool add_bf16(const struct objective *o, const struct coeffs *c, struct sum *s, double *d)
{
    long point = 0;
    for (int i = 0; i < o->trials->n; i++) {
        const struct trial *t = &o->trials->v[i];
        double *y = malloc(2 * (size_t)t->n * sizeof *y), *e = y + t->n;
        bool bad = !y || trial_bf16(t, c, y, e);
        for (int k = 0; k < t->n && !bad; k++, point++) {
            double length = sqrt(fmax(e[k] * e[k] - 1 + 2 * y[k], 1e-12));
            double turned = fmin(length / fmax(fabs(y[k]), 1e-6), 100);
            if (!(o->w[point] > 0))
                continue;
            objective_point(c, fmin(t->x[k] * turned, 1), 1, d);
            if (isfinite(e[k]) && e[k] > 0)
                add_error(o, s, o->w[point], e[k], (length - y[k] / length) / e[k], d);
            else if (!(e[k] == 0))
                bad = true;
        }
        free(y);
        if (bad)
            return false;
    }
    return true;
}

double objective_value(const struct objective *o, const struct coeffs *c, double *grad,
                       double *hess)
{
    double d[PARAMS_MAX];
    struct sum s = { .n = c->n * c->terms, .grad = grad, .hess = hess };
    if (grad) {
        memset(grad, 0, (size_t)s.n * sizeof *grad);
        memset(hess, 0, (size_t)s.n * (size_t)s.n * sizeof *hess);
    }
    if (o->trials) {
        if (!add_bf16(o, c, &s, d))
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

double objective_largest(const struct objective *o, const struct coeffs *c)
{
    double worst = 0;
    long point = 0;
    if (!o->trials) {
        for (int i = 0; i < o->n; i++)
            worst = fmax(worst, fabs(1 - coeffs_value(c, o->x[i])));
        return worst;
    }
    for (int i = 0; i < o->trials->n; i++) {
        const struct trial *t = &o->trials->v[i];
        double *e = malloc((size_t)t->n * sizeof *e);
        bool bad = !e || trial_bf16(t, c, NULL, e);
        for (int k = 0; k < t->n && !bad; k++, point++)
            if (o->w[point] > 0)
                worst = e[k] <= worst ? worst : e[k]; /* a NaN stays */
        free(e);
        if (bad)
            return INFINITY;
    }
    return worst;
}

double guard_excess(const struct objective *o, const struct coeffs *c, double swing)
{
    double worst = 0, sign;
    for (int k = 0; k < 2; k++)
        for (int g = 0; g < o->n_grid; g++) {
            double f = objective_point(c, o->grid[g], k ? 1 + o->safety : 1, NULL);
            worst = fmax(worst, excess(o, o->grid[g], f, swing, &sign));
        }
    return worst;
}

/* Largest of f - high and low - f on [from, to]; infinite when it cannot be said. */
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

double guard_excess_all(const struct objective *o, const struct coeffs *c, double swing)
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

void guard_refine(struct objective *o, const struct coeffs *c)
{
    double low = o->grid[0], end = o->grid[o->n_grid - 1], sign;
    for (int k = 0; k < 2; k++) {
        struct coeffs s = stretched(c, k ? 1 + o->safety : 1);
        struct turns t;
        if (eval_turns(&s, low, end, &t))
            continue;
        for (int i = 0; i < t.n; i++) /* and both sides: a step moves it */
            if (excess(o, t.x[i], t.f[i], o->swing, &sign) > 0) {
                insert(o, t.x[i]);
                insert(o, fmax(t.x[i] * 0.997, low));
                insert(o, t.x[i] * 1.003);
            }
        turns_release(&t);
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

double objective_minimize(const struct objective *o, struct coeffs *c, int rounds)
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
