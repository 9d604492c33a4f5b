/* bias.c - what follows a product: its bias, the stream that it is added to, the squared ReLU; and back
 * (track-3.md 2, 3). */
#include "ops/cpu.h"

void cpu_bias(struct ops *o, struct tensor y, struct tensor b, struct tensor residual, bool relu2)
{
    const real *bias = real_view(o, 0, b);

    if (cpu_failed(o))
        return;
    assert((!bias || tensor_count(b) == y.cols) && !(relu2 && has(residual)));
    assert(!has(residual) || (residual.rows == y.rows && residual.cols == y.cols));
    for (int64_t t = 0; t < y.rows; t++) {
        real *to = real_ptr(y) + t * y.cols;
        const real *r = has(residual) ? real_ptr(residual) + t * y.cols : NULL;
        for (int64_t i = 0; i < y.cols; i++) {
            real x = to[i] + (bias ? bias[i] : 0);
            to[i] = relu2 ? (x < 0 ? 0 : x * x) : r ? r[i] + x : x;
        }
    }
}

void cpu_bias_bwd(struct ops *o, struct tensor db, struct tensor dy, struct tensor post)
{
    real *sum = cpu_scratch(o, 0, dy.cols);

    if (cpu_failed(o))
        return;
    assert(!has(db) || tensor_count(db) == dy.cols);
    assert(!has(post) || (post.rows == dy.rows && post.cols == dy.cols));
    memset(sum, 0, (size_t)dy.cols * sizeof *sum);
    for (int64_t t = 0; t < dy.rows; t++) {
        real *d = real_ptr(dy) + t * dy.cols;
        const real *p = has(post) ? real_ptr(post) + t * dy.cols : NULL;
        for (int64_t i = 0; i < dy.cols; i++) {
            d[i] = p ? 2 * d[i] * real_sqrt(p[i]) : d[i];
            sum[i] += d[i];
        }
    }
    if (has(db))
        real_write(db, 0, sum, dy.cols, true);
}
