/* power.c - singular values to a power, by a series around 1 (optimizers.md 4.7). */
#include "ops/cpu.h"

struct job {
    struct tensor x, g;
    int64_t rows, k;
    real number;
    real *e, *t, *u; /* (k,k), (R,C), (R,C) of each thread */
};

/* to = e x, or x e of a tall x. */
static void times_e(const struct job *j, real *to, const real *e, const real *x)
{
    int64_t rows = j->rows, cols = j->x.cols;
    bool tall = rows > cols;

    real_gemm_here(false, false, false, rows, cols, j->k, 1, tall ? x : e, j->k, tall ? e : x, cols,
                   0, to, cols);
}

static void one_matrix(void *arg, int64_t i, int64_t n, int thread)
{
    const struct job *j = arg;
    int64_t rows = j->rows, cols = j->x.cols, k = j->k, count = rows * cols;
    real *x = (real *)j->x.data + i * count, *e = j->e + thread * k * k;
    const real *g = (const real *)j->g.data + i * count;
    real *t = j->t + thread * count, *u = j->u + thread * count;
    bool tall = rows > cols;
    double squares = 0, p = (double)j->number / 2;

    (void)n;
    for (int64_t m = 0; m < count; m++)
        squares += (double)g[m] * (double)g[m];
    double s = sqrt(squares) + 1e-7, to = pow(s, (double)j->number);
    real_gemm_here(false, tall, !tall, k, k, tall ? rows : cols, (real)(1 / (s * s)), g, cols, g,
                   cols, 0, e, k);
    for (int64_t m = 0; m < k; m++)
        e[m * (k + 1)] -= 1;
    times_e(j, t, e, x);
    times_e(j, u, e, t);
    for (int64_t m = 0; m < count; m++)
        x[m] = (real)(((double)x[m] + p * (double)t[m] + p * (p - 1) / 2 * (double)u[m]) * to);
}

void cpu_power(struct ops *o, struct tensor x, struct tensor g, int n, const real *number)
{
    int64_t rows = x.rows / n, k = rows < x.cols ? rows : x.cols, threads = cpu_threads(o);
    struct job job = { .x = x,
                       .g = g,
                       .rows = rows,
                       .k = k,
                       .e = cpu_scratch(o, 0, threads * k * k),
                       .t = cpu_scratch(o, 1, threads * rows * x.cols),
                       .u = cpu_scratch(o, 2, threads * rows * x.cols) };

    assert(rows * n == x.rows && tensor_count(g) == tensor_count(x) && is_real(x) && is_real(g));
    if (cpu_failed(o) || !(fabs((double)*number) >= 1e-12))
        return;
    job.number = *number;
    cpu_split(o, n, 1, one_matrix, &job);
}
