/* schatten4.c - the fourth root of the sum of a matrix's singular values to the fourth
 * (optimizers.md 4.7).
 */
#include "ops/cpu.h"

struct job {
    real *out, *a; /* a: (k,k) of each thread */
    struct tensor x;
    int64_t rows, k;
};

static void one_matrix(void *arg, int64_t i, int64_t n, int thread)
{
    const struct job *j = arg;
    int64_t rows = j->rows, cols = j->x.cols, k = j->k;
    const real *x = (const real *)j->x.data + i * rows * cols;
    real *a = j->a + thread * k * k;
    bool tall = rows > cols;
    double squares = 0;

    (void)n;
    real_gemm_here(false, tall, !tall, k, k, tall ? rows : cols, 1, x, cols, x, cols, 0, a, k);
    for (int64_t e = 0; e < k * k; e++)
        squares += (double)a[e] * (double)a[e];
    j->out[i] = (real)sqrt(sqrt(squares));
}

void cpu_schatten4(struct ops *o, real *out, struct tensor x, int n)
{
    int64_t rows = x.rows / n, k = rows < x.cols ? rows : x.cols;
    struct job job = { out, cpu_scratch(o, 0, cpu_threads(o) * k * k), x, rows, k };

    assert(rows * n == x.rows && is_real(x));
    if (!cpu_failed(o))
        cpu_split(o, n, 1, one_matrix, &job);
}
