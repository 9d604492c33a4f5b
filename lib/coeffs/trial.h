/* trial.h - one matrix, prepared so that tables can be tried on it.
 *
 *     struct trial t;
 *     if ((rc = trial_of_matrix(&t, &m, "gaussian", TRIAL_AOL | TRIAL_VECTORS))) return rc;
 *     t.x[0 .. t.n-1]                          // what the first row of a table sees
 *     rc = trial_rounded(&t, &table, 0, NULL, error);
 *     trial_release(&t);
 *
 * The input is scaled as in the optimizer, X / (1.02 |X|_F + 1e-6) (record 61),
 * or, with TRIAL_SPECTRAL, by its largest singular value, which becomes 1, or, with TRIAL_AOL,
 * by AOL: rows times s_i = (sum_j |X X^T|_ij)^(-1/2), which puts all singular values at or
 * below 1 (arXiv 2208.03160; pull request 155). AOL moves the polar factor as well: `shift`
 * says by how much, and `along` what is left of it in each direction.
 *
 * A trial is read-only once made; different threads may use it.
 */
#ifndef COEFFS_TRIAL_H
#define COEFFS_TRIAL_H

#include "coeffs/matrix.h"
#include "coeffs/svals.h"
#include "coeffs/coeffs.h"
#include "ops/ops.h"

enum {
    TRIAL_AOL = 1,
    TRIAL_VECTORS =
        2, /* singular vectors too: needed for bf16, and with AOL for the distance to polar(G) */
    TRIAL_SPECTRAL = 4,
};
struct trial {
    char name[96];
    int rows, cols; /* rows <= cols */
    int n; /* singular values that count */
    double *x; /* descending, in (0, 1] */
    enum coeffs_input input; /* how it was scaled */
    double shift; /* |polar(S G) - polar(G)|_F / sqrt(n); 0 without AOL, NaN
                                   without vectors */
    double *along; /* (n) with AOL and vectors: u_i^T polar(G) v_i, else NULL: 1 without AOL */
    float *
        scaled; /* rows x cols, not yet rounded; with AOL by the norm alone, the op does the rest */
    float *u, *vt; /* rows x rows by columns; rows x cols; of x */
    float *polar; /* rows x cols, with AOL and vectors: polar(G) */
};
/* |f(X) - polar(G)|_F / sqrt(n) in exact arithmetic, G the matrix as it was given, polar(G) of its
 * singular values but those of 1e-12 of the largest; NaN with AOL and without vectors. */
double trial_distance(const struct trial *t, const struct coeffs *c);

/* Makes a trial of a matrix, which stays the caller's. A zero matrix is GPT_INPUT. */
int trial_of_matrix(struct trial *t, const struct matrix *m, const char *name,
                    int flags) MUST_CHECK;
/* Makes a trial of singular values alone: scaled only, or (with any flag) as a random matrix that
 * has them, of v's shape, else of rows x cols scaled to v->n rows. */
int trial_of_svals(struct trial *t, const struct svals *v, int rows, int cols, int flags,
                   uint64_t seed, uint64_t index) MUST_CHECK;
void trial_release(struct trial *t);

struct trials {
    int n;
    struct trial *v;
};
int trials_add(struct trials *l, const struct trial *t) MUST_CHECK; /* takes t over */
void trials_release(struct trials *l);

/* X by `c` in bf16, as the optimizer's op computes it; how: POLAR_GRAM and restarts (ops.h), or 0.
 * record-61: one rounding of a X + B X for matrices of at most 1024 rows and columns, else B X is
 * rounded before. For each singular direction i of t: y[i]
 * = u_i^T X v_i, the singular value that came out, and error[i] = |X v_i - u_i|; rms of error is |X
 * - U V^T|_F / sqrt(rows). y may be NULL; *distance, or NULL, is |X - polar(G)|_F / sqrt(n). Needs
 * TRIAL_VECTORS. Rows of four numbers are GPT_INPUT. */
int trial_rounded(const struct trial *t, const struct coeffs *c, unsigned how, double *y,
                  double *error, double *distance) MUST_CHECK;

#endif
