/* shampoo.c - an update between powers of two covariances (optimizers.md 4.8). */
#include "ops/cpu.h"
#include "ops/eigen.h"

struct job {
    struct ops *o;
    struct tensor x, left, right;
    int64_t rows;
    bool pinv;
    const real *number;
    real age;
    double *work; /* (3 most most + 2 rows cols) of each thread */
};

/* to (k,k) = (s / age)^P. */
static int power_of(const struct job *j, double *to, const real *s, int64_t k, double *work)
{
    double *a = work, *b = a + k * k, value[k], shift = 0, p = (double)j->number[1];

    for (int64_t e = 0; e < k * k; e++)
        a[e] = (double)s[e] / (double)j->age;
    if (eigen(a, value, (int)k))
        return GPT_SYSTEM;
    if (!j->pinv)
        shift = (double)j->number[2] - fmin(value[k - 1], 0);
    for (int64_t c = 0; c < k; c++) {
        double l = value[c] + shift > 0 ? pow(value[c] + shift, p) : 0;
        for (int64_t r = 0; r < k; r++)
            b[c * k + r] = a[c * k + r] * l;
    }
    times(to, b, false, a, true, (int)k, (int)k, (int)k);
    return 0;
}

static void one_matrix(void *arg, int64_t i, int64_t n, int thread)
{
    const struct job *j = arg;
    int64_t rows = j->rows, cols = j->x.cols, most = rows > cols ? rows : cols;
    int r = (int)rows, c = (int)cols;
    real *x = (real *)j->x.data + i * rows * cols;
    double *root = j->work + thread * (3 * most * most + 2 * rows * cols);
    double *work = root + most * most, *a = work + 2 * most * most, *b = a + rows * cols;

    (void)n;
    /* Row by row is the transpose by columns: x' <- R^P x' L^P. */
    for (int64_t e = 0; e < rows * cols; e++)
        a[e] = (double)x[e];
    int bad = power_of(j, root, (const real *)j->left.data + i * rows * rows, rows, work);
    times(b, a, false, root, false, c, r, r);
    bad |= power_of(j, root, (const real *)j->right.data + i * cols * cols, cols, work);
    times(a, root, false, b, false, c, r, c);
    for (int64_t e = 0; e < rows * cols; e++)
        x[e] = (real)a[e];
    if (bad)
        cpu_fail(j->o, GPT_SYSTEM, "eigenvectors of a covariance were not found");
}

void cpu_shampoo(struct ops *o, struct tensor x, struct tensor left, struct tensor right, int n,
                 bool pinv, const real *number, const real *age)
{
    int64_t rows = x.rows / n, most = rows > x.cols ? rows : x.cols;
    int64_t each = 3 * most * most + 2 * rows * x.cols;
    struct job job = { o, x, left, right, rows, pinv, number, 1, NULL };

    assert(left.rows == n * rows && right.rows == n * x.cols && is_real(x));
    job.work = cpu_scratch_bytes(o, 0, (size_t)(cpu_threads(o) * each) * sizeof(double));
    if (cpu_failed(o))
        return;
    job.age = *age;
    cpu_split(o, n, 1, one_matrix, &job);
}
