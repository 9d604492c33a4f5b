/* eval.h - what a table does: to an interval, near its end, to singular values.
 *
 *     struct range r;
 *     if ((rc = eval_range(&c, 1e-3, 1, &r))) return rc;
 *     r.worst                                  // largest |1 - f| on [1e-3, 1]
 *
 * f is the composition of all rows. Its extrema are found, not sampled: f is cut
 * where some row is at an extremum of its own, and between the cuts it is
 * monotone. So range, worst error and overshoot are exact to rounding.
 * Thread-safe.
 */
#ifndef COEFFS_EVAL_H
#define COEFFS_EVAL_H

#include "coeffs/trial.h"

/* x and f(x) at the ends and wherever f may have an extremum, x ascending. */
struct extrema {
    int n;
    double *x, *f;
};
/* GPT_INPUT unless 0 <= lower < upper, and for a table with more than a million extrema there.
 * Values beyond 1e40 are cut to it. */
int eval_extrema(const struct coeffs *c, double lower, double upper, struct extrema *t) MUST_CHECK;
void extrema_release(struct extrema *t);

/* Least and largest f; largest |1 - f|, and the first x that has it. */
struct range {
    double low, high, worst, worst_at;
};
int eval_range(const struct coeffs *c, double lower, double upper, struct range *r) MUST_CHECK;

double eval_slope(const struct coeffs *c); /* f'(0) */
/* The first x >= 1 with |f(x)| >= 2; INFINITY when there is none up to 10. */
int eval_overshoot(const struct coeffs *c, double *x) MUST_CHECK;

/* Errors |1 - f| over the singular values of all trials that are at least `lower`, each counting
 * the same; NaN when there is none. */
struct spread {
    double rms, max;
};
struct spread eval_trials(const struct coeffs *c, const struct trials *t, double lower);
/* The polar error: rms over all directions of all trials of the distance to the matrices' own polar factors
 * (trial_distance), which without AOL is eval_trials' rms from 0 on. */
double eval_polar(const struct coeffs *c, const struct trials *t);
/* Computes the spread of |X v_i - u_i| in bf16 (how: as for trial_rounded), in *all over all
 * singular values and in *in (or NULL) over those of at least `lower`; and in *polar (or NULL) the polar error. */
int eval_rounded(const struct coeffs *c, const struct trials *t, unsigned how, double lower,
                 struct spread *all, struct spread *in, double *polar) MUST_CHECK;

/* The fewest restarts with which the Gram form is no less accurate
 * than `direct`, by 2% in rms and 5% in the largest error over singular values of at least `lower`,
 * and of those the most accurate ones. restart: bit t, before row t; 0 also where none will do:
 * then *in is NaN. GPT_INPUT: more than EVAL_GRAM_ROWS rows. */
enum { EVAL_GRAM_ROWS = 10 };
int eval_restarts(const struct coeffs *c, const struct trials *t, double lower,
                  struct spread direct, unsigned *restart, struct spread *in) MUST_CHECK;

/* Work of one orthogonalisation of a rows x cols matrix. Multiplications and additions count as
 * two FLOPs; bytes are what each product reads and writes once, in bf16, without any cache. With
 * n <= m, r = m / n and T rows (Gram Newton-Schulz: Dao-AILab; one restart, after row 2):
 *   plain      T (4r + 2) n^3              X X^T, A A and B X in full
 *   symmetric  T (3r + 1) n^3              one triangle of X X^T and A A
 *   gram       symmetric products of n x n only, but for R = X X^T and X <- Q X per segment
 * Rows without x^5 need no A A. aol adds no product. */
struct cost {
    double flops, bytes;
};
struct costs {
    struct cost plain, symmetric, gram;
};
struct costs eval_costs(const struct coeffs *c, int rows, int cols);

#endif
