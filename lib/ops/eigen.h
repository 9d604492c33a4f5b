/* eigen.h - factorisations of symmetric matrices by LAPACK, in double, for the stages of rules.
 *
 *     if (eigen(a, values, n)) ...                  // a's columns: eigenvectors, by falling value
 *     if (q_factor(a, work, n)) ...                 // a <- Q of a = Q R, R's diagonal positive
 *
 * Matrices are column by column. Each call sets the process's BLAS to one thread, so that bits do not depend
 * on how many cores there are. Returns 0, or GPT_SYSTEM without a message. Threads: any.
 */
#ifndef OPS_EIGEN_H
#define OPS_EIGEN_H

#include <stdbool.h>
#include "base/err.h"

/* a (n,n) symmetric; values (n). A matrix of zeros has the eigenvectors I. */
int eigen(double *a, double *values, int n) MUST_CHECK;
/* a (n,n); work (2 n). Columns whose R is 0 complete the others. */
int q_factor(double *a, double *work, int n) MUST_CHECK;
/* c (m,n) = op(a) op(b), op(a) (m,k). */
void times(double *c, const double *a, bool ta, const double *b, bool tb, int m, int n, int k);

#endif
