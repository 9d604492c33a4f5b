#include "coeffs/eval.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/grow.h"

/* --- extrema: a composition of polynomials is cut where one of its rows has an extremum --- */

enum { EXTREMA_MAX = 1 << 20 };

/* The first n rows; no overflow, no NaN. */
static double chain(const struct coeffs *c, int n, double x)
{
    for (int t = 0; t < n; t++)
        x = coeffs_clip(coeffs_row_value(c->row[t], x));
    return x;
}

static double poly(const double *p, int degree, double z)
{
    double y = p[degree];
    for (int i = degree; i-- > 0;)
        y = y * z + p[i];
    return y;
}

/* Halves [lo, hi], at whose ends poly - or the chain - has different signs, down to a double. */
static double bisect_poly(const double *p, int degree, double lo, double hi)
{
    bool rising = poly(p, degree, lo) < 0;
    for (;;) {
        double mid = lo + (hi - lo) / 2;
        if (!(mid > lo && mid < hi))
            return hi;
        if ((poly(p, degree, mid) < 0) == rising)
            lo = mid;
        else
            hi = mid;
    }
}

/* Positive roots of a polynomial where it changes sign, ascending; between two of them there is
 * one of its derivative. */
static int positive_roots(const double *p, int degree, double *root)
{
    while (degree > 0 && p[degree] == 0)
        degree--;
    if (degree == 0)
        return 0;
    double d[COEFFS_TERMS], extremum[COEFFS_TERMS + 1], bound = 0;
    for (int i = 1; i <= degree; i++)
        d[i - 1] = i * p[i];
    int n = degree > 1 ? positive_roots(d, degree - 1, extremum) : 0, found = 0;
    for (int i = 0; i < degree; i++) /* Cauchy's bound of the roots */
        bound = fmax(bound, fabs(p[i] / p[degree]));
    extremum[n] = bound + 1;
    double from = 0;
    for (int i = 0; i <= n; i++) {
        if (extremum[i] > from && (poly(p, degree, from) < 0) != (poly(p, degree, extremum[i]) < 0))
            root[found++] = bisect_poly(p, degree, from, extremum[i]);
        from = fmax(from, extremum[i]);
    }
    return found;
}

/* Arguments at which one row has an extremum: both signs, ascending. */
static int row_extrema(const double *row, double *q)
{
    double p[COEFFS_TERMS], z[COEFFS_TERMS];
    for (int i = 0; i < COEFFS_TERMS; i++)
        p[i] = (2 * i + 1) * row[i];
    int n = positive_roots(p, COEFFS_TERMS - 1, z);
    for (int i = 0; i < n; i++) {
        q[n + i] = sqrt(z[i]);
        q[n - 1 - i] = -q[n + i];
    }
    return 2 * n;
}

/* Returns where in (lo, hi), on which the first n rows are monotone from v_lo on, they take the
 * value q. */
static double crossing(const struct coeffs *c, int n, double lo, double hi, double v_lo, double q)
{
    for (;;) {
        double mid = lo + (hi - lo) / 2;
        if (!(mid > lo && mid < hi))
            return hi;
        if ((chain(c, n, mid) < q) == (v_lo < q))
            lo = mid;
        else
            hi = mid;
    }
}

static int push(struct extrema *t, double x, double f)
{
    if (t->n == EXTREMA_MAX)
        return err_set(GPT_INPUT, "the table has more than %d extrema", EXTREMA_MAX);
    if (grow_one(&t->x, t->n, sizeof *t->x) || grow_one(&t->f, t->n, sizeof *t->f))
        return GPT_SYSTEM;
    t->x[t->n] = x;
    t->f[t->n++] = f;
    return 0;
}

/* One more row: cuts every piece at the extrema of the row, then applies it. */
static int refine(const struct coeffs *c, int row, struct extrema *t)
{
    double q[2 * COEFFS_TERMS];
    int n = row_extrema(c->row[row], q), rc = 0;
    struct extrema next = { 0 };
    for (int i = 0; i < t->n && !rc; i++) {
        rc = push(&next, t->x[i], t->f[i]);
        if (i + 1 == t->n)
            break;
        double a = t->f[i], b = t->f[i + 1];
        for (int k = 0; k < n && !rc; k++) {
            double at = q[a < b ? k : n - 1 - k];
            if ((at > a && at < b) || (at < a && at > b))
                rc = push(&next, crossing(c, row, t->x[i], t->x[i + 1], a, at), at);
        }
    }
    for (int i = 0; i < next.n; i++)
        next.f[i] = coeffs_clip(coeffs_row_value(c->row[row], next.f[i]));
    extrema_release(t);
    *t = next;
    return rc;
}

int eval_extrema(const struct coeffs *c, double lower, double upper, struct extrema *t)
{
    memset(t, 0, sizeof *t);
    if (!(lower >= 0 && upper > lower && isfinite(upper)))
        return err_set(GPT_INPUT, "expected 0 <= lower < upper, found %g and %g", lower, upper);
    int rc = push(t, lower, lower);
    if (!rc)
        rc = push(t, upper, upper);
    for (int i = 0; i < c->n && !rc; i++)
        rc = refine(c, i, t);
    if (rc) {
        extrema_release(t);
        return err_prefix("%s", c->name);
    }
    return 0;
}

void extrema_release(struct extrema *t)
{
    free(t->x);
    free(t->f);
    memset(t, 0, sizeof *t);
}

int eval_range(const struct coeffs *c, double lower, double upper, struct range *r)
{
    struct extrema t;
    int rc = eval_extrema(c, lower, upper, &t);
    if (rc)
        return rc;
    *r = (struct range){ .low = t.f[0], .high = t.f[0], .worst = -1 };
    for (int i = 0; i < t.n; i++) {
        r->low = fmin(r->low, t.f[i]);
        r->high = fmax(r->high, t.f[i]);
        if (fabs(1 - t.f[i]) > r->worst) {
            r->worst = fabs(1 - t.f[i]);
            r->worst_at = t.x[i];
        }
    }
    extrema_release(&t);
    return 0;
}

double eval_slope(const struct coeffs *c)
{
    double slope = 1;
    for (int t = 0; t < c->n; t++)
        slope *= c->row[t][0];
    return slope;
}

/* Window by window, so that what lies far beyond an explosion is not looked at. */
int eval_overshoot(const struct coeffs *c, double *x)
{
    *x = INFINITY;
    for (double from = 1; from < 10 && isinf(*x); from *= 1.01) {
        struct extrema t;
        int rc = eval_extrema(c, from, from * 1.01, &t);
        if (rc)
            return rc;
        for (int i = 0; i < t.n && isinf(*x); i++)
            if (fabs(t.f[i]) >= 2)
                *x = i == 0
                         ? t.x[0]
                         : crossing(c, c->n, t.x[i - 1], t.x[i], t.f[i - 1], t.f[i] > 0 ? 2 : -2);
        extrema_release(&t);
    }
    return 0;
}

/* --- singular values --- */

struct tally {
    long n;
    double squares, max;
};

static void count(struct tally *y, double e)
{
    y->n++;
    y->squares += e * e;
    if (e > y->max || isnan(e)) /* a NaN stays */
        y->max = e;
}

static struct spread spread_of(const struct tally *y)
{
    if (y->n == 0)
        return (struct spread){ NAN, NAN };
    return (struct spread){ sqrt(y->squares / (double)y->n), y->max };
}

struct spread eval_trials(const struct coeffs *c, const struct trials *t, double lower)
{
    struct tally y = { 0, 0, 0 };
    for (int i = 0; i < t->n; i++)
        for (int k = 0; k < t->v[i].n; k++)
            if (t->v[i].x[k] >= lower)
                count(&y, fabs(1 - coeffs_value(c, t->v[i].x[k])));
    return spread_of(&y);
}

double eval_polar(const struct coeffs *c, const struct trials *t)
{
    double sum = 0;
    long n = 0;
    for (int i = 0; i < t->n; i++) {
        double d = trial_distance(&t->v[i], c);
        sum += d * d * t->v[i].n;
        n += t->v[i].n;
    }
    return n ? sqrt(sum / (double)n) : NAN;
}

int eval_rounded(const struct coeffs *c, const struct trials *t, unsigned how, double lower,
                 struct spread *all, struct spread *in, double *polar)
{
    struct tally y[2] = { { 0, 0, 0 }, { 0, 0, 0 } };
    double squares = 0;
    int rc = 0;
    for (int i = 0; i < t->n && !rc; i++) {
        double *e = malloc((size_t)t->v[i].n * sizeof *e);
        if (!e)
            return err_memory();
        double d = 0;
        rc = trial_rounded(&t->v[i], c, how, NULL, e, &d);
        squares += d * d * t->v[i].n;
        for (int k = 0; k < t->v[i].n && !rc; k++) {
            count(&y[0], e[k]);
            if (t->v[i].x[k] >= lower)
                count(&y[1], e[k]);
        }
        free(e);
    }
    *all = spread_of(&y[0]);
    if (in)
        *in = spread_of(&y[1]);
    if (polar)
        *polar = y[0].n ? sqrt(squares / (double)y[0].n) : NAN;
    return rc;
}

static int bits_of(unsigned x)
{
    int n = 0;
    for (; x; x &= x - 1)
        n++;
    return n;
}

int eval_restarts(const struct coeffs *c, const struct trials *t, double lower,
                  struct spread direct, unsigned *restart, struct spread *in)
{
    *restart = 0;
    *in = (struct spread){ NAN, NAN };
    if (c->n > EVAL_GRAM_ROWS)
        return err_set(GPT_INPUT, "%s: the Gram form is tried on %d rows at most, found %d",
                       c->name, EVAL_GRAM_ROWS, c->n);
    for (int count = 0; count < c->n && isnan(in->rms); count++)
        for (unsigned r = 0; r < 1u << c->n; r += 2) { /* bit 0: row 0 begins anyway */
            struct spread all, got;
            if (bits_of(r) != count)
                continue;
            int rc = eval_rounded(c, t, POLAR_GRAM | POLAR_RESTART * r, lower, &all, &got, NULL);
            if (rc)
                return rc;
            if (got.rms <= 1.02 * direct.rms && got.max <= 1.05 * direct.max &&
                !(got.rms >= in->rms)) {
                *restart = r;
                *in = got;
            }
        }
    return 0;
}

/* --- work --- */

struct costs eval_costs(const struct coeffs *c, int rows, int cols)
{
    double n = rows < cols ? rows : cols, m = rows < cols ? cols : rows;
    double cube = n * n * n, square = n * n, wide = n * m, r = m / n;
    struct costs k = { 0 };
    enum { RESTART_AFTER = 2, BYTES = 2 };
    for (int t = 0; t < c->n; t++) {
        /* A A, A^2 A and so on: terms beyond x^3, one more product each */
        double powers = c->row[t][3] != 0 ? 2 : c->row[t][2] != 0 ? 1 : 0;
        k.plain.flops += (4 * r + 2 * powers) * cube;
        k.symmetric.flops += (3 * r + powers) * cube;
        /* X X^T, powers of A with B, B X + a X */
        k.plain.bytes += BYTES * (wide + square + 2 * square * powers + square + 2 * wide);

        bool first = t == 0 || t == RESTART_AFTER;
        bool last = t + 1 == c->n || t + 1 == RESTART_AFTER;
        /* Z = b R + c R^2; Q <- Q Z + a Q, free while Q is I; R <- (R Z + a R) Z + a P, while
         * R is still needed */
        k.gram.flops += (powers + (first ? 0 : 1) + (last ? 0 : 2)) * cube;
        k.gram.bytes += BYTES * square * (2 * powers + (first ? 0 : 3) + (last ? 0 : 6));
        if (first) { /* R = X X^T */
            k.gram.flops += r * cube;
            k.gram.bytes += BYTES * (wide + square);
        }
        if (last) { /* X <- Q X */
            k.gram.flops += 2 * r * cube;
            k.gram.bytes += BYTES * (2 * wide + square);
        }
    }
    k.symmetric.bytes = k.plain.bytes; /* the mirror is written, too */
    return k;
}
