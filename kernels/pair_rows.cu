/* pair_rows.cu - rows of q's and k's matrices in the order in which rotary pairs are neighbours
 * (track-3.md 2): w, from (n E, D) bf16 or f32. One thread an element; once a step for each layer, 2 D^2
 * elements of 2 or 4 bytes each way.
 */
#include "gpu.h"
#include "vec.h"

/* Returns the row of a head, in the order of its channels, that row m is in the order of pairs. */
__device__ __forceinline__ static int channel_of(int m, int size)
{
    int quarter = size / 4;

    if (m < 2 * quarter)
        return m / 2 + m % 2 * 2 * quarter;
    return m < 3 * quarter ? m - quarter : m;
}

__global__ static void pair(void *w, bool w_f32, const void *from, bool from_f32, int64_t n,
                            int cols, int size, bool back)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (i >= n)
        return;
    int64_t r = i / cols, other = r / size * size + channel_of((int)(r % size), size);
    int64_t source = (back ? r : other) * cols + i % cols,
            to = (back ? other : r) * cols + i % cols;
    float x =
        from_f32 ? ((const float *)from)[source] : __bfloat162float(((const bf16 *)from)[source]);
    if (w_f32)
        ((float *)w)[to] = x;
    else
        ((bf16 *)w)[to] = __float2bfloat16(x);
}

void gpu_pair_rows(struct ops *o, struct tensor w, struct tensor from, int head_dim, bool back)
{
    struct cuda_ops *c = cuda_of(o);
    int64_t n = tensor_count(w);

    assert(w.rows == from.rows && w.cols == from.cols && w.rows % head_dim == 0);
    if (c->failed || !n)
        return;
    pair<<<(unsigned)((n - 1) / 256 + 1), 256, 0, c->stream>>>(
        w.data, w.dtype == DT_F32, from.data, from.dtype == DT_F32, n, (int)w.cols, head_dim, back);
    CUDA_LAUNCHED(c);
}
