#include "coeffs/eval.h"

#include <math.h>
#include <stdlib.h>

double eval_slope(const struct coeffs *c)
{
    double slope = 1;
    for (int t = 0; t < c->n; t++)
        slope *= c->row[t][0];
    return slope;
}

struct tally {
    long n;
    double squares, max;
};

static void count(struct tally *y, double e)
{
    y->n++;
    y->squares += e * e;
    if (!(e <= y->max)) /* a NaN stays */
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

int eval_bf16(const struct coeffs *c, const struct trials *t, double lower, struct spread *all,
              struct spread *in)
{
    struct tally y[2] = { { 0, 0, 0 }, { 0, 0, 0 } };
    int rc = 0;
    for (int i = 0; i < t->n && !rc; i++) {
        double *e = malloc((size_t)t->v[i].n * sizeof *e);
        if (!e)
            return err_memory();
        rc = trial_bf16(&t->v[i], c, NULL, e);
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
    return rc;
}

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
