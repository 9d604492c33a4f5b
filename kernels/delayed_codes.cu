/* delayed_codes.cu - codes of the MLP's hidden layer by a scale of the micro-batch before, and its greatest
 * number, of which the next scale is made (fp8.md 5).
 *
 * delayed_codes: x (T,F) bf16, codes (T,F); a thread takes 8 numbers at a time. 3 T F bytes: 453 MB at T =
 * 49152, F = 3072, 0.11 ms at 4.25 TB/s, for each layer. The greatest number is a maximum of bits, whose order
 * is that of numbers >= 0, so that the order of blocks does not matter. delayed_scales: one block.
 */
#include "fp8_copy.h"
#include "gpu.h"

enum { THREADS = 256, BLOCKS_AN_SM = 8 };

static __global__ void __launch_bounds__(THREADS)
    write_delayed(uint2 *codes, const uint4 *x, const float *scale, uint32_t *most, int64_t n)
{
    float s = *scale, inverse = 1 / (s == 0 ? 1 : s);
    uint32_t top = 0;

    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * THREADS) {
        float a[8];
        uint4 u = x[i];
        top = max(top, amax8(u));
        unpack8(a, u);
#pragma unroll
        for (int j = 0; j < 8; j++)
            a[j] *= inverse;
        codes[i] = pack_e4m3(a);
    }
    top = block_max(top);
    if (threadIdx.x == 0)
        atomicMax(most, top);
}

static __global__ void __launch_bounds__(32) set_if_none(float *scale)
{
    if (threadIdx.x == 0 && *scale == 0)
        *scale = 1;
}

void gpu_delayed_codes(struct ops *o, struct tensor x8, struct tensor x, real *scale, real *most)
{
    struct cuda_ops *c = cuda_of(o);
    int64_t n = tensor_count(x) / 8, blocks = (n + THREADS - 1) / THREADS;

    assert(x8.dtype == DT_E4M3 && x.dtype == DT_BF16 && tensor_count(x8) == tensor_count(x));
    if (!c->fp8 || c->failed || !n ||
        !CUDA_NEED(c, x.cols % 8 == 0, "the MLP's widths are multiples of 8"))
        return;
    blocks = blocks < BLOCKS_AN_SM * c->sms ? blocks : BLOCKS_AN_SM * c->sms;
    set_if_none<<<1, 32, 0, c->stream>>>(scale);
    CUDA_LAUNCHED(c);
    write_delayed<<<(int)blocks, THREADS, 0, c->stream>>>((uint2 *)x8.data, (const uint4 *)x.data,
                                                          scale, (uint32_t *)most, n);
    CUDA_LAUNCHED(c);
}

static __global__ void __launch_bounds__(THREADS)
    next_scales(float *scale, float *most, int n, float headroom)
{
    for (int i = threadIdx.x; i < n; i += THREADS) {
        scale[i] = quot(headroom * (most[i] < 1e-12f ? 1e-12f : most[i]), E4M3_MAX);
        most[i] = 0;
    }
}

void gpu_delayed_scales(struct ops *o, real *scale, real *most, int n, real headroom)
{
    struct cuda_ops *c = cuda_of(o);

    if (!c->fp8 || c->failed || !n)
        return;
    next_scales<<<1, THREADS, 0, c->stream>>>(scale, most, n, headroom);
    CUDA_LAUNCHED(c);
}
