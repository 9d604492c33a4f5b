/* linear_relu2.cu - pre = x w^T, post = max(pre,0)^2; dpre = 2 (dout w2^T) max(pre,0).
 * Record-61.md 2.8, 3.1.
 *
 * x, dout (T,D), w, w2 (F,D), pre, post, dpre (T,F) bf16. A cuBLASLt product of 2 T D F FLOP
 * (232 GFLOP at T = 49152: 0.31 ms at 750 TFLOP/s), then one element-wise pass:
 *
 *   forward    reads pre, writes post                  4 T F bytes   604 MB, 142 us
 *   backward   reads the product and pre, writes dpre  6 T F bytes   906 MB, 213 us
 *              (post too when asked: 8 T F)
 *
 * NaN in pre stays NaN (max would drop it).
 */
#include "gpu.h"
#include "vec.h"

enum { THREADS = 256, UNROLL = 4 };     /* vectors of eight a thread */

__device__ __forceinline__ static float relu(float x) { return x < 0 ? 0 : x; }

__device__ __forceinline__ static int64_t vector_index(int k)
{
    return ((int64_t)blockIdx.x * UNROLL + k) * THREADS + threadIdx.x;
}

__global__ static void __launch_bounds__(THREADS) relu2_forward(bf16 *post, const bf16 *pre, int64_t n8)
{
    uint4 u[UNROLL];

#pragma unroll
    for (int k = 0; k < UNROLL; k++)
        if (vector_index(k) < n8)
            u[k] = ((const uint4 *)pre)[vector_index(k)];
#pragma unroll
    for (int k = 0; k < UNROLL; k++)
        if (vector_index(k) < n8) {
            float x[8];
            unpack8(x, u[k]);
#pragma unroll
            for (int j = 0; j < 8; j++)
                x[j] = relu(x[j]) * relu(x[j]);
            ((uint4 *)post)[vector_index(k)] = pack8(x);
        }
}

static int blocks_for(int64_t n8) { return div_up(n8, THREADS * UNROLL); }

static bool can_do(struct cuda_ops *c, struct tensor w, struct tensor pre)
{
    return !c->failed && CUDA_NEED(c, w.dtype == DT_BF16, "weights of products are bf16") &&
        CUDA_NEED(c, tensor_count(pre) % 8 == 0, "the MLP's width is a multiple of 8");
}

void gpu_linear_relu2(struct ops *o, struct tensor pre, struct tensor post, struct tensor x,
                      struct tensor w)
{
    struct cuda_ops *c = cuda_of(o);
    struct gemm g = { .out = pre, .a = x, .b = w, .tb = true };
    int64_t n8 = tensor_count(pre) / 8;

    assert(pre.dtype == DT_BF16 && post.dtype == DT_BF16 && tensor_count(post) == 8 * n8);
    if (!can_do(c, w, pre) || !n8)
        return;
    cuda_gemm(c, &g);
    relu2_forward<<<blocks_for(n8), THREADS, 0, c->stream>>>((bf16 *)post.data, (const bf16 *)pre.data,
                                                      n8);
    CUDA_LAUNCHED(c);
}

/* dpost and dpre may be one memory: a thread reads its elements before it writes them. */
template <bool POST>
__global__ static void __launch_bounds__(THREADS)
relu2_backward(bf16 *dpre, bf16 *post, const bf16 *dpost, const bf16 *pre, int64_t n8)
{
    uint4 u[UNROLL], g[UNROLL];

#pragma unroll
    for (int k = 0; k < UNROLL; k++)
        if (vector_index(k) < n8) {
            u[k] = ((const uint4 *)pre)[vector_index(k)];
            g[k] = ((const uint4 *)dpost)[vector_index(k)];
        }
#pragma unroll
    for (int k = 0; k < UNROLL; k++)
        if (vector_index(k) < n8) {
            float x[8], d[8];
            unpack8(x, u[k]);
            unpack8(d, g[k]);
#pragma unroll
            for (int j = 0; j < 8; j++) {
                x[j] = relu(x[j]);
                d[j] *= 2 * x[j];
                x[j] *= x[j];
            }
            ((uint4 *)dpre)[vector_index(k)] = pack8(d);
            if (POST)
                ((uint4 *)post)[vector_index(k)] = pack8(x);
        }
}

/* The product goes to dpre, or to scratch when dpre is pre itself. */
void gpu_linear_relu2_bwd(struct ops *o, struct tensor dpre, struct tensor post,
                          struct tensor dout, struct tensor w2, struct tensor pre)
{
    struct cuda_ops *c = cuda_of(o);
    struct gemm g = { .out = dpre, .a = dout, .b = w2, .tb = true };
    int64_t n8 = tensor_count(pre) / 8;

    if (!can_do(c, w2, pre) || !n8)
        return;
    if (dpre.data == pre.data)
        g.out.data = cuda_workspace(c, tensor_bytes(pre));
    if (!g.out.data)
        return;
    cuda_gemm(c, &g);
    (post.data ? relu2_backward<true> : relu2_backward<false>)
        <<<blocks_for(n8), THREADS, 0, c->stream>>>((bf16 *)dpre.data, (bf16 *)post.data,
                                                    (const bf16 *)g.out.data,
                                                    (const bf16 *)pre.data, n8);
    CUDA_LAUNCHED(c);
}
