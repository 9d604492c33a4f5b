/* linear_relu2.c - first product of the MLP and its squared ReLU (record-61.md 2.8, 3.1). */
#include "ops/cpu.h"

static real relu(real x) { return x < 0 ? 0 : x; } /* of NaN: NaN */

void cpu_linear_relu2(struct ops *o, struct tensor post, struct tensor x, struct tensor w)
{
    const real *wr = real_view(o, 0, w);
    real *p = real_ptr(post);

    if (cpu_failed(o))
        return;
    assert(x.cols == w.cols && post.cols == w.rows && x.rows == post.rows);
    real_gemm(o, false, true, post.rows, post.cols, x.cols, 1, real_ptr(x), x.cols, wr, w.cols, 0,
              p, post.cols);
    for (int64_t i = 0; i < tensor_count(post); i++)
        p[i] = relu(p[i]) * relu(p[i]);
}

void cpu_linear_relu2_bwd(struct ops *o, struct tensor dpre, struct tensor dout, struct tensor w2,
                          const real *scale, struct tensor post)
{
    const real *wr = real_view(o, 0, w2), *p = real_ptr(post);
    int64_t n = tensor_count(post);
    real *dpost = cpu_scratch(o, 1, n), *d = real_ptr(dpre);

    if (cpu_failed(o))
        return;
    assert(dout.cols == w2.cols && post.cols == w2.rows && dout.rows == post.rows);
    real_gemm(o, false, true, post.rows, post.cols, dout.cols, scale ? *scale : 1, real_ptr(dout),
              dout.cols, wr, w2.cols, 0, dpost, post.cols);
    for (int64_t i = 0; i < n; i++)
        d[i] = 2 * dpost[i] * real_sqrt(p[i]);
}
