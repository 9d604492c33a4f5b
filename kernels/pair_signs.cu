/* pair_signs.cu - signs by the two last tokens (record-84.md 3): x_t (P) times a row of signs
 * (R,P).
 *
 * x bf16, in place; signs bf16 or f32, +-1: the product is exact. A thread takes eight elements
 * (one where 16-byte accesses do not fit); 4 T P bytes (38 MB at T = 49152, P = 192, 9 us at 4.25
 * TB/s), the signs' 3 MB are in the L2.
 */
#include "behind.h"
#include "gpu.h"
#include "optim.h"

enum { THREADS = 256 };

template <int WIDTH, typename ROWS>
__global__ static void __launch_bounds__(THREADS)
    signed_rows(bf16 *x, ROWS signs, int rows, int width, int64_t count, const int32_t *token,
                const int32_t *before)
{
    int64_t i = (blockIdx.x * (int64_t)THREADS + threadIdx.x) * WIDTH, t = i / width;
    float y[WIDTH], s[WIDTH];

    begin_step();
    if (i >= count)
        return;
    int32_t last = before ? before[t] : t ? token[t - 1] : -1;
    int64_t row = last < 0 ? 0 : (last ^ token[t]) % rows;
    load<WIDTH>(y, x + i);
    load<WIDTH>(s, signs + row * width + (i - t * width));
#pragma unroll
    for (int e = 0; e < WIDTH; e++)
        y[e] *= s[e];
    store<WIDTH>(x + i, y);
}

void gpu_pair_signs(struct ops *o, struct tensor x, struct tensor signs, const struct batch *b)
{
    struct cuda_ops *c = cuda_of(o);
    int64_t count = tensor_count(x);

    assert(x.rows == b->tokens && x.cols == signs.cols && x.dtype == DT_BF16);
    if (c->failed || !count)
        return;
    with_type(signs, [&](auto *row) {
        typedef decltype(row) rows;
        bool eight = wide(x, x.cols) && wide(signs, signs.cols);
        launch_step(c, eight ? signed_rows<8, rows> : signed_rows<1, rows>,
                    dim3(div_up(count, THREADS * (eight ? 8 : 1))), THREADS, (bf16 *)x.data, row,
                    (int)signs.rows, (int)x.cols, count, b->token.row, b->before);
    });
}
