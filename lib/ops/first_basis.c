/* first_basis.c - eigenvectors of a matrix's Gram matrix, in which soap begins (optimizers.md 4.8). */
#include "ops/cpu.h"
#include "ops/eigen.h"

struct job {
    struct ops *o;
    struct tensor q, x;
    int64_t rows, k;
    bool right;
    double *a; /* (k,k + 1) of each thread */
};

static void one_matrix(void *arg, int64_t i, int64_t n, int thread)
{
    const struct job *j = arg;
    int64_t k = j->k, rows = j->rows, cols = j->x.cols, other = j->right ? rows : cols;
    const real *x = (const real *)j->x.data + i * rows * cols;
    real *q = (real *)j->q.data + i * k * k;
    double *a = j->a + thread * k * (k + 1);

    (void)n;
    for (int64_t c = 0; c < k; c++)
        if (q[c] != 0)
            return;
    for (int64_t r = 0; r < k; r++)
        for (int64_t c = 0; c <= r; c++) {
            double sum = 0;
            for (int64_t e = 0; e < other; e++)
                sum += j->right ? (double)x[e * cols + r] * (double)x[e * cols + c]
                                : (double)x[r * cols + e] * (double)x[c * cols + e];
            a[r * k + c] = a[c * k + r] = sum;
        }
    if (eigen(a, a + k * k, (int)k)) {
        cpu_fail(j->o, GPT_SYSTEM, "eigenvectors of a gradient's Gram matrix were not found");
        return;
    }
    for (int64_t r = 0; r < k; r++)
        for (int64_t c = 0; c < k; c++)
            q[r * k + c] = (real)a[c * k + r];
}

void cpu_first_basis(struct ops *o, struct tensor q, struct tensor x, int n, bool right,
                     const struct step_gate *gate)
{
    int64_t k = q.cols;
    struct job job = { o, q, x, x.rows / n, k, right, NULL };

    assert(q.rows == n * k && (right ? x.cols : x.rows / n) == k && is_real(q) && is_real(x));
    job.a = cpu_scratch_bytes(o, 0, (size_t)(cpu_threads(o) * k * (k + 1)) * sizeof(double));
    if (!cpu_failed(o) && !(gate && gate->skip))
        cpu_split(o, n, 1, one_matrix, &job);
}
