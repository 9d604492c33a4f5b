/* eigen.c - see eigen.h. */
#include "ops/eigen.h"

#include <cblas.h>
#include <lapacke.h>
#include <string.h>
#include "base/blas.h"

static void flip(double *x, double *y, int n)
{
    for (int i = 0; i < n; i++) {
        double t = x[i];
        x[i] = y[i], y[i] = t;
    }
}

int eigen(double *a, double *values, int n)
{
    double largest = 0;
    blas_threads(1);
    for (int64_t i = 0; i < (int64_t)n * n; i++)
        largest = a[i] > largest ? a[i] : largest;
    if (largest == 0) {
        memset(a, 0, (size_t)n * (size_t)n * sizeof *a);
        for (int i = 0; i < n; i++)
            a[(size_t)i * ((size_t)n + 1)] = 1, values[i] = 0;
        return 0;
    }
    if (LAPACKE_dsyevd(LAPACK_COL_MAJOR, 'V', 'U', n, a, n, values))
        return GPT_SYSTEM;
    for (int i = 0; i < n / 2; i++) {
        flip(a + (size_t)i * (size_t)n, a + (size_t)(n - 1 - i) * (size_t)n, n);
        flip(values + i, values + n - 1 - i, 1);
    }
    return 0;
}

int q_factor(double *a, double *work, int n)
{
    double *tau = work, *sign = work + n;
    blas_threads(1);
    if (LAPACKE_dgeqrf(LAPACK_COL_MAJOR, n, n, a, n, tau))
        return GPT_SYSTEM;
    for (int i = 0; i < n; i++)
        sign[i] = a[(size_t)i * ((size_t)n + 1)] < 0 ? -1 : 1;
    if (LAPACKE_dorgqr(LAPACK_COL_MAJOR, n, n, n, a, n, tau))
        return GPT_SYSTEM;
    for (int i = 0; i < n; i++)
        cblas_dscal(n, sign[i], a + (size_t)i * (size_t)n, 1);
    return 0;
}

void times(double *c, const double *a, bool ta, const double *b, bool tb, int m, int n, int k)
{
    blas_threads(1);
    cblas_dgemm(CblasColMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans, m, n,
                k, 1, a, ta ? k : m, b, tb ? n : k, 0, c, m);
}
