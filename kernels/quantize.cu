/* quantize.cu - a weight's copy in e4m3, with its greatest magnitude: where Adam did not write it.
 *
 * Contract: op_list.h. Bytes an element of a bf16 weight: 2 + 1; 768 x 50304: 116 MB, 27 us at
 * 4.25 TB/s, at the start of a run only. A thread takes 8 elements at a time, the blocks
 * form a grid-stride loop, so that amax takes one atomic a block.
 */
#include "fp8_copy.h"
#include "gpu.h"

enum { THREADS = 256, BLOCKS = 132 * 8 };

template <int WIDTH, typename W>
static __global__ void __launch_bounds__(THREADS)
    quantize(const W *w, int64_t count, const fp8_out out)
{
    int64_t stride = (int64_t)gridDim.x * THREADS * WIDTH;
    uint32_t most = 0;

    for (int64_t at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * WIDTH; at < count;
         at += stride) {
        float x[WIDTH];
        load<WIDTH>(x, w + at);
        write_codes<WIDTH>(out, at, x, &most);
    }
    fold_amax(out, most);
}

void gpu_quantize(struct ops *o, const struct fp8_copy *copy, struct tensor w)
{
    struct cuda_ops *c = cuda_of(o);
    int64_t count = tensor_count(w);
    fp8_out out;

    assert(copy->codes.dtype == DT_E4M3 && tensor_count(copy->codes) == count && is_float(w));
    if (c->failed || !count || !fp8_out_begin(c, copy, &out))
        return;
    bool by_8 = wide(w, count) && (uintptr_t)out.codes % 8 == 0;
    int64_t blocks = (count - 1) / (THREADS * (by_8 ? 8 : 1)) + 1;
    unsigned grid = (unsigned)(blocks < BLOCKS ? blocks : BLOCKS);
    with_type(w, [&](auto *p) {
        if (by_8)
            quantize<8><<<grid, THREADS, 0, c->stream>>>(p, count, out);
        else
            quantize<1><<<grid, THREADS, 0, c->stream>>>(p, count, out);
    });
    CUDA_LAUNCHED(c);
}
