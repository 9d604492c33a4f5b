/* pair_signs.cu - signs by the two last tokens (record-84.md 3): x_t (P) times a row of signs (R,P).
 *
 * x bf16, in place; signs bf16 or f32, +-1: the product is exact. A thread takes one element; 4 T P
 * bytes (38 MB at T = 49152, P = 192, 9 us at 4.25 TB/s), the signs' 3 MB are in the L2.
 */
#include "behind.h"
#include "gpu.h"
#include "vec.h"

enum { THREADS = 256 };

static __global__ void __launch_bounds__(THREADS)
    signed_rows(bf16 *x, const void *signs, bool f32, int rows, int width, int64_t count,
                const int32_t *token, const int32_t *before)
{
    int64_t i = blockIdx.x * (int64_t)THREADS + threadIdx.x, t = i / width;

    begin_step();
    if (i >= count)
        return;
    int32_t last = before ? before[t] : t ? token[t - 1] : -1;
    int64_t row = last < 0 ? 0 : (last ^ token[t]) % rows;
    x[i] = __float2bfloat16(__bfloat162float(x[i]) * load_any(signs, f32, row * width + i % width));
}

void gpu_pair_signs(struct ops *o, struct tensor x, struct tensor signs, const struct batch *b)
{
    struct cuda_ops *c = cuda_of(o);
    int64_t count = tensor_count(x);

    assert(x.rows == b->tokens && x.cols == signs.cols && x.dtype == DT_BF16);
    if (c->failed || !count)
        return;
    launch_step(c, signed_rows, dim3(div_up(count, THREADS)), THREADS, (bf16 *)x.data, signs.data,
                signs.dtype == DT_F32, (int)signs.rows, (int)x.cols, count, b->token.row,
                b->before);
}
