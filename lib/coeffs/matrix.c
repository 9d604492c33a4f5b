#include "coeffs/matrix.h"

#include <cblas.h>
#include <lapacke.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/rng.h"

static const char *const names[MATRIX_KINDS] = { "gaussian", "levy",  "cauchy",
                                                 "uniform",  "power", "orthogonal" };

enum matrix_kind matrix_kind_parse(const char *name)
{
    int k = 0;
    while (k < MATRIX_KINDS && strcmp(names[k], name))
        k++;
    return (enum matrix_kind)k;
}

/* Symmetric alpha-stable, by Chambers, Mallows and Stuck: an angle and an exponential. */
static double stable(double alpha, const struct rng *r, uint64_t i)
{
    uint32_t b[4];
    rng_block(r, i, b);
    double angle = M_PI * ((b[0] + 0.5) * 0x1p-32 - 0.5), w = -log((b[1] + 0.5) * 0x1p-32);
    if (alpha == 1)
        return tan(angle);
    return sin(alpha * angle) / pow(cos(angle), 1 / alpha) *
           pow(cos((1 - alpha) * angle) / w, (1 - alpha) / alpha);
}

static double draw(enum matrix_kind kind, const struct rng *r, uint64_t i)
{
    switch (kind) {
    case MATRIX_LEVY: return stable(1.5, r, i);
    case MATRIX_CAUCHY: return stable(1, r, i);
    case MATRIX_UNIFORM: return rng_uniform(r, i);
    default: return rng_normal(r, i);
    }
}

static int matrix_new(struct matrix *m, int rows, int cols)
{
    m->rows = rows < cols ? rows : cols;
    m->cols = rows < cols ? cols : rows;
    m->x = malloc((size_t)rows * (size_t)cols * sizeof *m->x);
    return m->x ? 0 : err_memory();
}

int matrix_take(struct matrix *m, int rows, int cols, double *x)
{
    *m = (struct matrix){ rows, cols, x };
    if (rows <= cols)
        return 0;
    struct matrix wide;
    if (matrix_new(&wide, rows, cols)) {
        free(x);
        m->x = NULL;
        return err_code();
    }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < cols; j++)
            wide.x[(size_t)j * rows + i] = x[(size_t)i * cols + j];
    free(x);
    *m = wide;
    return 0;
}

void matrix_release(struct matrix *m)
{
    free(m->x);
    m->x = NULL;
}

/* n orthonormal rows of length `len`, Haar-distributed: Q of a Gaussian matrix with the signs of
 * R's diagonal (Stewart, 1980). Seen by columns, q is len x n. */
static int haar(double *q, int len, int n, const struct rng *r)
{
    double *tau = malloc(2 * (size_t)n * sizeof *tau);
    if (!tau)
        return err_memory();
    double *sign = tau + n;
    for (size_t i = 0; i < (size_t)len * n; i++)
        q[i] = rng_normal(r, i);
    lapack_int bad = LAPACKE_dgeqrf(LAPACK_COL_MAJOR, len, n, q, len, tau);
    for (int i = 0; !bad && i < n; i++)
        sign[i] = q[(size_t)i * len + i] < 0 ? -1 : 1;
    if (!bad)
        bad = LAPACKE_dorgqr(LAPACK_COL_MAJOR, len, n, n, q, len, tau);
    for (int i = 0; !bad && i < n; i++)
        cblas_dscal(len, sign[i], q + (size_t)i * len, 1);
    free(tau);
    return bad ? err_memory() : 0;
}

int matrix_with_svals(struct matrix *m, int rows, int cols, const double *sigma, int n,
                      uint64_t seed, uint64_t index)
{
    struct rng ru = rng_make(seed, 2 * index), rv = rng_make(seed, 2 * index + 1);
    if (matrix_new(m, rows, cols))
        return err_code();
    int k = m->rows, len = m->cols;
    double *u = malloc((size_t)k * n * sizeof *u), *v = malloc((size_t)len * n * sizeof *v);
    int rc = u && v ? 0 : err_memory();
    if (!rc && !(rc = haar(u, k, n, &ru)) && !(rc = haar(v, len, n, &rv))) {
        for (int i = 0; i < n; i++)
            cblas_dscal(k, sigma[i], u + (size_t)i * k, 1);
        /* u and v are column-major, so that as rows they are transposes. */
        cblas_dgemm(CblasRowMajor, CblasTrans, CblasNoTrans, k, len, n, 1, u, k, v, len, 0, m->x,
                    len);
    }
    free(u);
    free(v);
    if (rc)
        matrix_release(m);
    return rc;
}

int matrix_random(struct matrix *m, enum matrix_kind kind, int rows, int cols, uint64_t seed,
                  uint64_t index)
{
    int n = rows < cols ? rows : cols;
    if (kind == MATRIX_POWER || kind == MATRIX_ORTHOGONAL) {
        double *sigma = malloc((size_t)n * sizeof *sigma);
        for (int i = 0; sigma && i < n; i++)
            sigma[i] = kind == MATRIX_POWER ? 1.0 / (i + 1) : 1;
        int rc = sigma ? matrix_with_svals(m, rows, cols, sigma, n, seed, index) : err_memory();
        free(sigma);
        return rc;
    }
    struct rng r = rng_make(seed, index);
    if (matrix_new(m, rows, cols))
        return err_code();
    for (size_t i = 0; i < (size_t)m->rows * m->cols; i++)
        m->x[i] = draw(kind, &r, i);
    return 0;
}

/* Square roots of the eigenvalues of m m^T. */
static int values_alone(const struct matrix *m, double *sigma)
{
    int n = m->rows;
    double *a = malloc((size_t)n * n * sizeof *a);
    if (!a)
        return err_memory();
    cblas_dsyrk(CblasRowMajor, CblasLower, CblasNoTrans, n, m->cols, 1, m->x, m->cols, 0, a, n);
    /* The lower triangle by rows is the upper one by columns. */
    lapack_int bad = LAPACKE_dsyevd(LAPACK_COL_MAJOR, 'N', 'U', n, a, n, sigma);
    free(a);
    if (bad)
        return err_set(GPT_SYSTEM, "LAPACK dsyevd failed (%d)", (int)bad);
    for (int i = 0; i < n / 2; i++) {
        double s = sigma[i];
        sigma[i] = sigma[n - 1 - i];
        sigma[n - 1 - i] = s;
    }
    for (int i = 0; i < n; i++)
        sigma[i] = sigma[i] > 0 ? sqrt(sigma[i]) : 0;
    return 0;
}

int matrix_aol(struct matrix *m)
{
    int n = m->rows;
    double *a = malloc((size_t)n * (n + 1) * sizeof *a);
    if (!a)
        return err_memory();
    double *s = a + (size_t)n * n;
    cblas_dsyrk(CblasRowMajor, CblasLower, CblasNoTrans, n, m->cols, 1, m->x, m->cols, 0, a, n);
    memset(s, 0, (size_t)n * sizeof *s);
    for (int i = 0; i < n; i++)
        for (int j = 0; j <= i; j++) {
            double v = fabs(a[(size_t)i * n + j]);
            s[i] += v;
            if (i != j)
                s[j] += v;
        }
    for (int i = 0; i < n; i++)
        cblas_dscal(m->cols, 1 / sqrt(s[i] > 1e-7 ? s[i] : 1e-7), m->x + (size_t)i * m->cols, 1);
    free(a);
    return 0;
}

int matrix_svd(const struct matrix *m, double *sigma, double *u, double *vt)
{
    int n = m->rows, cols = m->cols;
    if (!u)
        return values_alone(m, sigma);
    double *a = malloc((size_t)n * cols * sizeof *a);
    if (!a)
        return err_memory();
    memcpy(a, m->x, (size_t)n * cols * sizeof *a);
    /* By columns a is the transpose, V S U^T: its left vectors are ours of the right. */
    lapack_int bad = LAPACKE_dgesdd(LAPACK_COL_MAJOR, 'S', cols, n, a, cols, sigma, vt, cols, u, n);
    free(a);
    return bad ? err_set(GPT_SYSTEM, "LAPACK dgesdd failed (%d)", (int)bad) : 0;
}
