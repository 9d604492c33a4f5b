/* rope_table.cu - cosines and sines by position: table (n, E/2) bf16 from freq (E/4, host).
 *
 * theta = fl32(p f), its cosine and sine in f64, rounded through f32 to bf16 as the reference
 * does, so that both devices use the same table. One thread a position and frequency. Runs at
 * the start and when the window changes: 2 x 16.8 M numbers at most. record-61.md 2.5.
 */
#include "gpu.h"
#include "vec.h"

enum { MAX_FREQ = 64 };
struct frequencies {
    float f[MAX_FREQ];
};

__global__ static void rope_fill(bf16 *table, int64_t n, int quarter, frequencies freq)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int64_t p = i / quarter;
    int m = (int)(i % quarter);
    double sine, cosine;

    if (p >= n)
        return;
    sincos((double)__fmul_rn((float)p, freq.f[m]), &sine, &cosine);
    table[2 * i] = __float2bfloat16((float)cosine);
    table[2 * i + 1] = __float2bfloat16((float)sine);
}

void gpu_rope_table(struct ops *o, struct rope r, const float *freq)
{
    struct cuda_ops *c = cuda_of(o);
    int quarter = (int)r.table.cols / 2;
    frequencies f = {};

    if (c->failed || !CUDA_NEED(c, quarter <= MAX_FREQ, "a head has at most 256 channels") ||
        !CUDA_NEED(c, r.table.dtype == DT_BF16, "the rotary table is bf16") || !r.table.rows)
        return;
    memcpy(f.f, freq, quarter * sizeof *freq);
    rope_fill<<<div_up(r.table.rows * quarter, 256), 256, 0, c->stream>>>((bf16 *)r.table.data,
                                                                          r.table.rows, quarter, f);
    CUDA_LAUNCHED(c);
}
