/* turns.c - where a composition of polynomials turns. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "coeffs/eval.h"
#include "base/grow.h"

enum { TURNS_MAX = 1 << 20 };

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
    double d[COEFFS_TERMS], turn[COEFFS_TERMS + 1], bound = 0;
    for (int i = 1; i <= degree; i++)
        d[i - 1] = i * p[i];
    int n = degree > 1 ? positive_roots(d, degree - 1, turn) : 0, found = 0;
    for (int i = 0; i < degree; i++) /* Cauchy's bound of the roots */
        bound = fmax(bound, fabs(p[i] / p[degree]));
    turn[n] = bound + 1;
    double from = 0;
    for (int i = 0; i <= n; i++) {
        if (turn[i] > from && (poly(p, degree, from) < 0) != (poly(p, degree, turn[i]) < 0))
            root[found++] = bisect_poly(p, degree, from, turn[i]);
        from = fmax(from, turn[i]);
    }
    return found;
}

/* Arguments at which one row turns: both signs, ascending. */
static int row_turns(const double *row, double *q)
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

/* Where in (lo, hi), on which the first n rows are monotone from v_lo on, they take the value q. */
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

static int push(struct turns *t, double x, double f)
{
    if (t->n == TURNS_MAX)
        return err_set(GPT_INPUT, "the table turns more than %d times", TURNS_MAX);
    if (grow_one(&t->x, t->n, sizeof *t->x) || grow_one(&t->f, t->n, sizeof *t->f))
        return GPT_SYSTEM;
    t->x[t->n] = x;
    t->f[t->n++] = f;
    return 0;
}

/* One more row: cuts every piece where the row turns, then applies it. */
static int refine(const struct coeffs *c, int row, struct turns *t)
{
    double q[2 * COEFFS_TERMS];
    int n = row_turns(c->row[row], q), rc = 0;
    struct turns next = { 0 };
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
    turns_release(t);
    *t = next;
    return rc;
}

int eval_turns(const struct coeffs *c, double lower, double upper, struct turns *t)
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
        turns_release(t);
        return err_prefix("%s", c->name);
    }
    return 0;
}

void turns_release(struct turns *t)
{
    free(t->x);
    free(t->f);
    memset(t, 0, sizeof *t);
}

int eval_range(const struct coeffs *c, double lower, double upper, struct range *r)
{
    struct turns t;
    int rc = eval_turns(c, lower, upper, &t);
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
    turns_release(&t);
    return 0;
}

/* Window by window, so that what lies far beyond an explosion is not looked at. */
int eval_overshoot(const struct coeffs *c, double *x)
{
    *x = INFINITY;
    for (double from = 1; from < 10 && isinf(*x); from *= 1.01) {
        struct turns t;
        int rc = eval_turns(c, from, from * 1.01, &t);
        if (rc)
            return rc;
        for (int i = 0; i < t.n && isinf(*x); i++)
            if (fabs(t.f[i]) >= 2)
                *x = i == 0
                         ? t.x[0]
                         : crossing(c, c->n, t.x[i - 1], t.x[i], t.f[i - 1], t.f[i] > 0 ? 2 : -2);
        turns_release(&t);
    }
    return 0;
}
