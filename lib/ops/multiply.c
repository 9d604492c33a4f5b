/* multiply.c - products of matrices that a rule's stages need in f32 (optimizers.md 4.8). */
#include "ops/cpu.h"

struct job {
    struct tensor c, a, b;
    int64_t rows, k;
    const struct multiply *m;
};

static void one_matrix(void *arg, int64_t i, int64_t n, int thread)
{
    const struct job *j = arg;
    const struct multiply *m = j->m;
    int64_t rows = j->rows, cols = j->c.cols, k = j->k;
    real *c = (real *)j->c.data + i * rows * cols;
    const real *a = (const real *)j->a.data + i * rows * k;
    const real *b = (const real *)j->b.data + i * k * cols;
    double blend = !m->blend || (m->whole && m->whole[i] == 0) ? 1 : (double)*m->blend;
    double alpha = (m->alpha == 0 ? 1 : m->alpha) * (m->sum ? 1 : blend);

    (void)n, (void)thread;
    real_gemm_here(false, m->ta, m->tb, rows, cols, k, (real)alpha, a, m->ta ? rows : k, b,
                   m->tb ? k : cols, m->blend ? (real)(1 - blend) : 0, c, cols);
    for (int64_t e = 0; m->diagonal != 0 && e < rows && e < cols; e++)
        c[e * (cols + 1)] += (real)m->diagonal;
}

void cpu_multiply(struct ops *o, struct tensor c, struct tensor a, struct tensor b, int n,
                  const struct multiply *m)
{
    int64_t rows = c.rows / n, k = m->ta ? a.rows / n : a.cols;
    struct job job = { c, a, b, rows, k, m };

    assert(rows * n == c.rows && tensor_count(a) == n * rows * k &&
           tensor_count(b) == n * k * c.cols);
    assert(is_real(a) && is_real(b) && is_real(c) && c.data != a.data && c.data != b.data);
    if (!cpu_failed(o) && !(m->gate && m->gate->skip))
        cpu_split(o, n, 1, one_matrix, &job);
}
