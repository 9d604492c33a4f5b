/* linear_relu2.c - first product of the MLP and its squared ReLU (record-61.md 2.8, 3.1). */
#include "ops/cpu.h"

static real relu(real x) { return x < 0 ? 0 : x; } /* of NaN: NaN */

void cpu_linear_relu2(struct ops *o, struct tensor post, struct tensor x, struct tensor w)
{
    real *p = real_ptr(post);

    cpu_linear(o, post, x, w, NULL, NO_TENSOR);
    if (cpu_failed(o))
        return;
    for (int64_t i = 0; i < tensor_count(post); i++)
        p[i] = relu(p[i]) * relu(p[i]);
}

void cpu_linear_relu2_bwd(struct ops *o, struct tensor dpre, struct tensor dout, struct tensor w2,
                          const real *scale, struct tensor post)
{
    int64_t n = tensor_count(post);
    const real *p = real_ptr(post);
    real *dpost = cpu_scratch(o, 1, n), *d = real_ptr(dpre); /* slot 0 is cpu_linear's */

    cpu_linear(o, tensor_of(dpost, DT_REAL, post.rows, post.cols), dout, w2, scale, NO_TENSOR);
    if (cpu_failed(o))
        return;
    for (int64_t i = 0; i < n; i++)
        d[i] = 2 * dpost[i] * real_sqrt(p[i]);
}
