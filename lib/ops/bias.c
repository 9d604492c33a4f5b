/* bias.c - products with a bias, then the stream that they are added to or the squared ReLU; and back
 * (track-3.md 2, 3). */
#include "ops/cpu.h"

void cpu_linear_bias(struct ops *o, struct tensor y, struct tensor x, struct tensor w,
                     const real *scale, struct tensor b, struct tensor residual, bool relu2)
{
    bool in_place = residual.data == y.data;
    const real *bias, *r = has(residual) && !in_place ? real_ptr(residual) : NULL;

    assert(tensor_count(b) == y.cols && !(relu2 && has(residual)));
    assert(!has(residual) || (residual.rows == y.rows && residual.cols == y.cols));
    cpu_linear(o, y, x, w, scale, in_place ? residual : NO_TENSOR);
    bias = real_view(o, 0, b);
    if (cpu_failed(o))
        return;
    for (int64_t t = 0; t < y.rows; t++) {
        real *to = real_ptr(y) + t * y.cols;
        const real *add = r ? r + t * y.cols : NULL;
        for (int64_t i = 0; i < y.cols; i++) {
            real v = to[i] + bias[i];
            to[i] = relu2 ? (v < 0 ? 0 : v * v) : add ? add[i] + v : v;
        }
    }
}

void cpu_bias_bwd(struct ops *o, struct tensor db, struct tensor dy)
{
    real *sum = cpu_scratch(o, 0, dy.cols);

    if (cpu_failed(o))
        return;
    assert(tensor_count(db) == dy.cols);
    memset(sum, 0, (size_t)dy.cols * sizeof *sum);
    for (int64_t t = 0; t < dy.rows; t++)
        for (int64_t i = 0; i < dy.cols; i++)
            sum[i] += real_ptr(dy)[t * dy.cols + i];
    real_write(db, 0, sum, dy.cols, true);
}

void cpu_relu2_bias_bwd(struct ops *o, struct tensor dpre, struct tensor db, struct tensor dout,
                        struct tensor w2, const real *scale, struct tensor post)
{
    real *d = real_ptr(dpre);
    const real *p = real_ptr(post);

    assert(dpre.rows == post.rows && dpre.cols == post.cols && dpre.data != post.data);
    cpu_linear_bwd_x(o, dpre, dout, w2, scale, false);
    if (cpu_failed(o))
        return;
    for (int64_t i = 0; i < tensor_count(dpre); i++)
        d[i] = 2 * d[i] * real_sqrt(p[i]);
    if (has(db))
        cpu_bias_bwd(o, db, dpre);
}
