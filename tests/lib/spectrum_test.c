/* Spectra: LAPACK's values against a one-sided Jacobi of our own, measures against cases that are
 * known by hand, the image of an orthogonalisation against running it. */
#include <float.h>
#include <stdlib.h>
#include "base/rng.h"
#include "check.h"
#include <cblas.h>
#include "coeffs/matrix.h"
#include "ops/cpu.h"
#include "ops/ops.h"
#include "inspect/spectrum.h"

/* --- an independent SVD --- */

static int descending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x > y ? -1 : x < y;
}

/* Rotates pairs of columns until all are orthogonal; then their lengths are the singular values
 * (Hestenes, 1958). a: rows x cols, rows >= cols, by columns. */
static void jacobi(double *a, int rows, int cols, double *sigma)
{
    for (int sweep = 0; sweep < 60; sweep++) {
        double worst = 0;
        for (int p = 0; p < cols; p++)
            for (int q = p + 1; q < cols; q++) {
                double *x = a + p * rows, *y = a + q * rows, xx = 0, yy = 0, xy = 0;
                for (int i = 0; i < rows; i++) {
                    xx += x[i] * x[i];
                    yy += y[i] * y[i];
                    xy += x[i] * y[i];
                }
                if (fabs(xy) <= 1e-15 * sqrt(xx * yy))
                    continue;
                worst = fmax(worst, fabs(xy) / sqrt(xx * yy));
                double z = (yy - xx) / (2 * xy);
                double t = (z >= 0 ? 1 : -1) / (fabs(z) + sqrt(1 + z * z));
                double c = 1 / sqrt(1 + t * t), s = c * t;
                for (int i = 0; i < rows; i++) {
                    double u = x[i], v = y[i];
                    x[i] = c * u - s * v;
                    y[i] = s * u + c * v;
                }
            }
        if (worst < 1e-14)
            break;
    }
    for (int p = 0; p < cols; p++) {
        double s = 0;
        for (int i = 0; i < rows; i++)
            s += a[p * rows + i] * a[p * rows + i];
        sigma[p] = sqrt(s);
    }
    qsort(sigma, (size_t)cols, sizeof *sigma, descending);
}

/* Random rows x cols with singular values that fall by `decay` decades. */
static double *random_matrix(int rows, int cols, double decay, uint64_t seed)
{
    struct rng r = rng_make(seed, 0);
    double *a = malloc((size_t)(rows * cols) * sizeof *a);
    for (int i = 0; i < rows * cols; i++)
        a[i] = rng_normal(&r, (uint64_t)i) * pow(10, -decay * (i % cols) / cols);
    return a;
}

static void test_against_jacobi(void)
{
    static const struct {
        int rows, cols;
        double decay;
    } shapes[] = { { 1, 1, 0 },   { 1, 7, 0 },   { 7, 1, 0 },   { 5, 5, 0 },    { 31, 17, 0 },
                   { 17, 31, 3 }, { 96, 64, 6 }, { 64, 64, 2 }, { 128, 37, 0 }, { 192, 48, 4 } };
    for (size_t k = 0; k < sizeof shapes / sizeof shapes[0]; k++) {
        int rows = shapes[k].rows, cols = shapes[k].cols, n = rows < cols ? rows : cols;
        double *a = random_matrix(rows, cols, shapes[k].decay, k + 1);
        double *t = malloc((size_t)(rows * cols) * sizeof *t), ref[128];
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < cols; j++) /* columns of the taller way round */
                t[rows >= cols ? j * rows + i : i * cols + j] = a[i * cols + j];
        jacobi(t, rows >= cols ? rows : cols, n, ref);
        struct spectrum sp;
        CHECK_OK(spectrum_of(a, (uint64_t)rows, (uint64_t)cols, &sp));
        CHECK_EQ(sp.n, n);
        /* both are backward stable: apart by some eps * sigma_max; 1e-5 relative is what is
         * promised, and the smallest sigma here is 1e-6 of the largest */
        for (int i = 0; i < n; i++) {
            CHECK_NEAR(sp.sigma[i], ref[i], 1e-13 * n * ref[0]);
            CHECK_NEAR(sp.sigma[i] / ref[i], 1, 1e-5);
        }
        spectrum_release(&sp);
        free(a);
        free(t);
    }
}

/* --- measures --- */

static struct spectrum measured(const double *sigma, int n)
{
    struct spectrum sp = { .n = n, .sigma = malloc((size_t)n * sizeof *sigma) };
    memcpy(sp.sigma, sigma, (size_t)n * sizeof *sigma);
    spectrum_measure(&sp);
    return sp;
}

static void test_measures(void)
{
    struct spectrum sp = measured((double[]){ 2, 2, 2, 2 }, 4);
    CHECK_NEAR(sp.frobenius, 4, 1e-15);
    CHECK_NEAR(sp.condition, 1, 0);
    CHECK_NEAR(sp.stable_rank, 4, 1e-14);
    CHECK_NEAR(sp.effective_rank, 4, 1e-14);
    CHECK_NEAR(sp.orthogonality, 0, 1e-15);
    spectrum_release(&sp);
    sp = measured((double[]){ 3, 0, 0 }, 3);
    CHECK(isinf(sp.condition));
    CHECK_NEAR(sp.stable_rank, 1, 1e-15);
    CHECK_NEAR(sp.effective_rank, 1, 1e-15);
    spectrum_release(&sp);
    sp = measured((double[]){ 4, 2, 1, 1 }, 4); /* p = 1/2 1/4 1/8 1/8: 1.75 bits */
    CHECK_NEAR(sp.condition, 4, 0);
    CHECK_NEAR(sp.stable_rank, 22.0 / 16, 1e-15);
    CHECK_NEAR(sp.effective_rank, pow(2, 1.75), 1e-14);
    spectrum_release(&sp);
    sp = measured((double[]){ 0, 0 }, 2);
    CHECK(isnan(sp.condition) && isnan(sp.stable_rank) && isnan(sp.effective_rank));
    CHECK_NEAR(sp.frobenius, 0, 0);
    spectrum_release(&sp);
    sp = measured((double[]){ 3, 1 }, 2); /* rms sqrt 5 */
    double r = sqrt(5), a = 3 / r - 1, b = 1 / r - 1;
    CHECK_NEAR(sp.orthogonality, sqrt((a * a + b * b) / 2), 1e-15);
    spectrum_release(&sp);
}

/* sigma^2 at the quantiles of a power law x^-alpha. The estimate of n values has standard error
 * (alpha - 1)/sqrt(n); quantiles, which have no noise, come much nearer. */
static void test_alpha(void)
{
    static const double alphas[] = { 1.8, 2.5, 4 };
    double sigma[500];
    for (int k = 0; k < 3; k++) {
        for (int i = 0; i < 500; i++)
            sigma[i] = sqrt(pow((i + 0.5) / 500, -1 / (alphas[k] - 1)));
        struct spectrum sp = measured(sigma, 500);
        CHECK_NEAR(sp.alpha, alphas[k], (alphas[k] - 1) / sqrt(500));
        spectrum_release(&sp);
    }
    struct spectrum sp = measured(sigma, 9);
    CHECK(isnan(sp.alpha)); /* too few */
    spectrum_release(&sp);
}

/* --- the image of an orthogonalisation --- */

static const double record[5][3] = {
    { 8.156554524902461, -22.48329292557795, 15.878769915207462 },
    { 4.042929935166739, -2.808917465908714, 0.5000178451051316 },
    { 3.8916678022926607, -2.772484153217685, 0.5060648178503393 },
    { 3.285753657755655, -2.3681294933425376, 0.46449024233003106 },
    { 2.3465413258596377, -1.7097828382687081, 0.42323551169305323 }
};

/* The same by the op that training uses, in fp32: its matrix products round to some 1e-6. */
static void test_polar(void)
{
    enum { R = 48, C = 32 };
    struct ops *ops;
    struct spectrum before, after;
    double *a = random_matrix(R, C, 2, 5), sum = 0, copy[R * C];
    memcpy(copy, a, sizeof copy);
    CHECK_OK(ops_cpu_new(&ops));
    struct tensor x = tensor_of(NULL, DT_F32, R, C);
    float *data = x.data = ops->alloc(ops, tensor_bytes(x), "x");
    for (int i = 0; i < R * C; i++)
        sum += a[i] * a[i];
    for (int i = 0; i < R * C; i++)
        data[i] = (float)(a[i] / (1.02 * sqrt(sum) + 1e-6));
    ops->polar(ops, x, 1, record, 5, false);
    CHECK_OK(ops->sync(ops));
    for (int i = 0; i < R * C; i++)
        copy[i] = data[i];
    CHECK_OK(spectrum_of(copy, R, C, &after));
    CHECK_OK(spectrum_of(a, R, C, &before));
    spectrum_polar(&before, 1 / (1.02 * before.frobenius + 1e-6), record, 5);
    for (int i = 0; i < C; i++)
        CHECK_NEAR(before.sigma[i], after.sigma[i], 2e-5);
    spectrum_release(&before);
    spectrum_release(&after);
    ops->free(ops);
    free(a);
}

/* What AOL leaves has no singular value above 1, whatever the matrix's size, and orthogonal rows
 * scaled by anything become orthonormal. */
static void test_aol(void)
{
    for (int k = 0; k < 2; k++) {
        int rows = k ? 40 : 24, cols = k ? 24 : 40;
        struct matrix m;
        CHECK_OK(matrix_take(&m, rows, cols, random_matrix(rows, cols, k, 9)));
        cblas_dscal(rows * cols, 1e4, m.x, 1);
        CHECK_OK(matrix_aol(&m));
        struct spectrum sp;
        CHECK_OK(spectrum_of(m.x, 24, 40, &sp));
        CHECK(sp.sigma[0] <= 1 + 1e-12 && sp.sigma[0] > 0.3);
        spectrum_release(&sp);
        matrix_release(&m);
    }
    double d[9] = { 0, 3, 0, 1e-2, 0, 0, 0, 0, -1e3 }, *copy = malloc(sizeof d);
    struct matrix m = { 3, 3, copy };
    memcpy(copy, d, sizeof d);
    CHECK_OK(matrix_aol(&m));
    for (int i = 0; i < 9; i++)
        CHECK_NEAR(copy[i], (d[i] > 0) - (d[i] < 0), 1e-12);
    matrix_release(&m);
}

/* Known of these coefficients: [1e-3, 1] goes to [0.8588726, 1.1411274]. What goes in is
 * sigma / (1.02 |A|_F + 1e-6). */
static void test_polar_range(void)
{
    double one = 7; /* alone it goes in as 0.98 */
    struct spectrum sp = measured(&one, 1);
    spectrum_polar(&sp, 1 / (1.02 * sp.frobenius + 1e-6), record, 5);
    CHECK(sp.sigma[0] > 0.8588 && sp.sigma[0] < 1.1412);
    spectrum_release(&sp);
    double many[200];
    for (int i = 0; i < 200; i++)
        many[i] = pow(10, -2.5 * i / 199.0); /* the smallest goes in as 1e-3 */
    sp = measured(many, 200);
    CHECK(many[199] / (1.02 * sp.frobenius) < 1.1e-3 && many[199] / (1.02 * sp.frobenius) > 5e-4);
    spectrum_polar(&sp, 1 / (1.02 * sp.frobenius + 1e-6), record, 5);
    CHECK(sp.sigma[0] <= 1.1411275 && sp.sigma[0] > 1.13);
    CHECK(sp.sigma[0] >= sp.sigma[199]);
    CHECK(sp.orthogonality > 0 && sp.orthogonality < 0.15);
    spectrum_release(&sp);
}

static void test_bad(void)
{
    struct spectrum sp;
    double a[6] = { 1, 2, 3, 4, NAN, 6 }, b[4] = { 1, INFINITY, 0, 0 };
    CHECK_ERR(spectrum_of(a, 2, 3, &sp), GPT_INPUT, "element (1,1) is not finite");
    CHECK_ERR(spectrum_of(b, 2, 2, &sp), GPT_INPUT, "element (0,1) is not finite");
    CHECK_OK(spectrum_of(a, 0, 3, &sp));
    CHECK_EQ(sp.n, 0);
    spectrum_release(&sp);
}

int main(void)
{
    test_against_jacobi();
    test_measures();
    test_alpha();
    test_polar();
    test_aol();
    test_polar_range();
    test_bad();
    return check_done();
}
