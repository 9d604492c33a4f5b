/* norm.cu - the norm of rows with a gain for each channel, and back (track-3.md 2):
 *   norm       y = Norm(x) gain, one rounding
 *   norm_bwd   dx (+)= Norm'(dy gain; x), dgain += sum over rows of dy Norm(x)
 *
 * x, y, dy, dx (T,D) bf16, gain and dgain (1,D) bf16 or f32. One warp a row. Bandwidth-bound: forward moves
 * 2 T D elements (201 MB at T = 65536, D = 768, 47 us at 4.25 TB/s), backward 3 T D, or 4 T D where it
 * adds. dgain: a warp adds up its rows in registers, warps and blocks are added in a fixed order.
 */
#include "behind.h"
#include "gpu.h"
#include "row.h"

enum { BACK_BLOCKS = 2 }; /* a multiprocessor */

/* Numbers by channel, or ones. */
struct channels {
    const void *p;
    bool is_f32;
};

template <int V> __device__ __forceinline__ static void load_channels(row<V> &g, channels c, int d)
{
    if (c.p && c.is_f32) {
        g.load((const float *)c.p, d);
    } else if (c.p) {
        g.load((const bf16 *)c.p, d);
    } else {
#pragma unroll
        for (int i = 0; i < V; i++)
#pragma unroll
            for (int j = 0; j < 8; j++)
                g.x[i][j] = 1;
    }
}

template <int V> __device__ __forceinline__ static void multiply(row<V> &a, const row<V> &b)
{
#pragma unroll
    for (int i = 0; i < V; i++)
#pragma unroll
        for (int j = 0; j < 8; j++)
            a.x[i][j] *= b.x[i][j];
}

template <int V>
__global__ static void __launch_bounds__(ROW_THREADS)
    norm_forward(bf16 *y, const bf16 *x, channels gain, int rows, int d)
{
    int t = blockIdx.x * ROW_WARPS + warp_id();
    row<V> a, g;

    begin_step();
    if (t >= rows)
        return;
    load_channels(g, gain, d);
    a.load(x + (int64_t)t * d, d);
    a.scale(norm_factor(warp_sum(a.dot(a)), d));
    multiply(a, g);
    a.store(y + (int64_t)t * d, d);
}

/* partial (blocks, D), or NULL. Dynamic shared memory: ROW_WARPS D floats. */
template <int V>
__global__ static void __launch_bounds__(ROW_THREADS)
    norm_backward(bf16 *dx, bool add, float *partial, const bf16 *dy, const bf16 *x, channels gain,
                  int rows, int d)
{
    extern __shared__ float shared[];
    row<V> g, sum;

    load_channels(g, gain, d);
    sum.zero();
    for (int t = blockIdx.x * ROW_WARPS + warp_id(); t < rows; t += gridDim.x * ROW_WARPS) {
        int64_t at = (int64_t)t * d;
        row<V> a, b;
        a.load(x + at, d);
        b.load(dy + at, d);
        float r = norm_factor(warp_sum(a.dot(a)), d);
#pragma unroll
        for (int i = 0; i < V; i++)
#pragma unroll
            for (int j = 0; j < 8; j++)
                sum.x[i][j] = fmaf(r * a.x[i][j], b.x[i][j], sum.x[i][j]);
        multiply(b, g);
        float c = r * r * warp_sum(b.dot(a)) / d;
        b.add(-c, a);
        b.scale(r);
        if (add) {
            a.load(dx + at, d);
            b.add(1, a);
        }
        b.store(dx + at, d);
    }
    if (!partial)
        return;
    sum.store(shared + warp_id() * d, d);
    __syncthreads();
    for (int i = threadIdx.x; i < d; i += ROW_THREADS) {
        float s = 0;
        for (int w = 0; w < ROW_WARPS; w++)
            s += shared[w * d + i];
        partial[(int64_t)blockIdx.x * d + i] = s;
    }
}

static bool can_do(struct cuda_ops *c, struct tensor x, struct tensor gain)
{
    assert(x.dtype == DT_BF16 && (!gain.data || tensor_count(gain) == x.cols));
    return !c->failed && x.rows &&
           CUDA_NEED(c, x.cols % 8 == 0 && x.cols <= 1024,
                     "rows of a norm "
                     "with a gain have at most 1024 channels, a multiple of 8");
}

void gpu_norm(struct ops *o, struct tensor y, struct tensor x, struct tensor gain)
{
    struct cuda_ops *c = cuda_of(o);

    cuda_launch_waiting(c);
    assert(y.dtype == DT_BF16 && y.rows == x.rows && y.cols == x.cols);
    if (!can_do(c, x, gain))
        return;
    with_vectors(x.cols, [&](auto v) {
        launch_step(c, norm_forward<decltype(v)::value>, dim3(div_up(x.rows, ROW_WARPS)),
                    ROW_THREADS, (bf16 *)y.data, (const bf16 *)x.data,
                    channels{ gain.data, gain.dtype == DT_F32 }, (int)x.rows, (int)x.cols);
    });
}

void gpu_norm_bwd(struct ops *o, struct tensor dx, bool add, struct tensor dgain, struct tensor dy,
                  struct tensor x, struct tensor gain)
{
    struct cuda_ops *c = cuda_of(o);
    int d = (int)x.cols, blocks = div_up(x.rows, ROW_WARPS);
    size_t shared = (size_t)ROW_WARPS * d * sizeof(float); /* 32 KiB at most */
    float *partial = NULL;

    assert(dx.rows == x.rows && dy.rows == x.rows && dx.dtype == DT_BF16 && dy.dtype == DT_BF16);
    blocks = blocks < BACK_BLOCKS * c->sms ? blocks : BACK_BLOCKS * c->sms;
    if (gain.data)
        partial = (float *)cuda_workspace(c, (size_t)blocks * d * sizeof *partial);
    if (!can_do(c, x, gain) || c->counting || (gain.data && !partial))
        return;
    with_vectors(d, [&](auto v) {
        norm_backward<decltype(v)::value><<<blocks, ROW_THREADS, shared, c->stream>>>(
            (bf16 *)dx.data, add, partial, (const bf16 *)dy.data, (const bf16 *)x.data,
            channels{ gain.data, gain.dtype == DT_F32 }, (int)x.rows, d);
    });
    CUDA_LAUNCHED(c);
    if (gain.data)
        cuda_add_partials(c, dgain.data, dgain.dtype, partial, blocks, d);
}
