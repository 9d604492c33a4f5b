/* rope_table.cu - cosines and sines by position: table (n, E/2) bf16, or f32, from freq (E/4, host).
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

template <typename T>
__global__ static void rope_fill(T *table, int64_t n, int quarter, frequencies freq, int period)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int64_t p = i / quarter;
    int m = (int)(i % quarter);
    double sine, cosine;

    if (p >= n)
        return;
    p = period ? p % period : p;
    sincos((double)__fmul_rn((float)p, freq.f[m]), &sine, &cosine);
    table[2 * i] = (T)(float)cosine;
    table[2 * i + 1] = (T)(float)sine;
}

void gpu_rope_table(struct ops *o, struct rope r, const float *freq, int period, bool exact)
{
    struct cuda_ops *c = cuda_of(o);
    int quarter = (int)r.table.cols / 2;
    frequencies f = {};

    if (c->failed || !CUDA_NEED(c, quarter <= MAX_FREQ, "a head has at most 256 channels") ||
        !CUDA_NEED(c, r.table.dtype == (exact ? DT_F32 : DT_BF16),
                   "the rotary table is bf16, or f32 of exact angles") ||
        !r.table.rows)
        return;
    memcpy(f.f, freq, quarter * sizeof *freq);
    int blocks = div_up(r.table.rows * quarter, 256);
    if (exact)
        rope_fill<<<blocks, 256, 0, c->stream>>>((float *)r.table.data, r.table.rows, quarter, f,
                                                 period);
    else
        rope_fill<<<blocks, 256, 0, c->stream>>>((bf16 *)r.table.data, r.table.rows, quarter, f,
                                                 period);
    CUDA_LAUNCHED(c);
}
