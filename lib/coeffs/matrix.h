/* matrix.h - matrices to try tables on: random ones, and ones with given singular values.
 *
 *     struct matrix m;
 *     if ((rc = matrix_random(&m, MATRIX_GAUSSIAN, 768, 3072, seed, i))) return rc;
 *     m.x[r * m.cols + c]                      // m.rows <= m.cols
 *     matrix_release(&m);
 *
 * A tall shape is transposed, which only transposes its polar factor. The same
 * kind, shape, seed and index give the same matrix. GPT_SYSTEM: no memory.
 */
#ifndef COEFFS_MATRIX_H
#define COEFFS_MATRIX_H

#include <stdint.h>
#include "base/err.h"

enum matrix_kind {
    MATRIX_GAUSSIAN,
    MATRIX_LEVY, /* symmetric alpha-stable, alpha 1.5 (Chambers, Mallows and Stuck, 1976) */
    MATRIX_CAUCHY, /* the same with alpha 1 */
    MATRIX_UNIFORM, /* 0 to 1: one singular value stands far out */
    MATRIX_POWER, /* Haar's singular vectors, i-th singular value 1 / i */
    MATRIX_ORTHOGONAL, /* the same, all singular values 1 */
    MATRIX_KINDS
};
#define MATRIX_CHOICES "gaussian|levy|cauchy|uniform|power|orthogonal"
enum matrix_kind matrix_kind_parse(const char *name); /* MATRIX_KINDS: none of them */

struct matrix {
    int rows, cols;
    double *x;
};

int matrix_random(struct matrix *m, enum matrix_kind kind, int rows, int cols, uint64_t seed,
                  uint64_t index) MUST_CHECK;
/* U diag(sigma) V^T with Haar's U and V, n <= min(rows, cols) values, the others zero. */
int matrix_with_svals(struct matrix *m, int rows, int cols, const double *sigma, int n,
                      uint64_t seed, uint64_t index) MUST_CHECK;
/* Owns x (rows x cols) from here on; transposes it where rows > cols. */
int matrix_take(struct matrix *m, int rows, int cols, double *x) MUST_CHECK;
void matrix_release(struct matrix *m);

/* m with its rows scaled by AOL: s_i = max(sum_j |m m^T|_ij, 1e-7)^(-1/2) (orthogonalisation.md
 * 2.2). */
int matrix_aol(struct matrix *m) MUST_CHECK;

/* SVD of m: sigma (rows, descending), u (rows x rows, column i is u_i), vt (rows x cols); u and vt
 * both NULL for the values alone, which then come from m m^T and have an absolute error of 1e-8
 * of the largest. Row-major. */
int matrix_svd(const struct matrix *m, double *sigma, double *u, double *vt) MUST_CHECK;

#endif
