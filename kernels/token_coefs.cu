/* token_coefs.cu - coefficients of each token from a hidden layer: out = f (gelu(pre) w^T + b),
 * and back; f a learnable number, or 1/10. record-84.md 5, 7.
 *
 * pre, dpre (T,K) bf16, out, dout (T,m) f32, w (m,K) and b (m) f32 or bf16; K a power of two up to
 * 64, m at most MOST, 16 or 48. Four lanes a token: lane p takes vectors p, p + 4, .. of eight channels, w in
 * shared memory, where the four are in banks of their own. Bytes: 2 T K + 4 T m, 9.0 MB at T =
 * 49152, K = 64, m = 14, 2.1 us at 4.25 TB/s; backward 4 T K + 4 T m, 15 MB, 3.6 us. 2 T m K FLOP
 * and T K error functions forward, three times as many back: below 10 us.
 *
 * Backward's sums over tokens: a block puts q = f dout and gelu(pre) of its TOKENS into shared
 * memory, and a thread adds up to MOST / 4 neighbouring sums of dw; with a learnable f the sums are
 * without it, and those of dw w and db b are its gradient; blocks are added in a fixed order.
 */
#include "behind.h"
#include "gpu.h"
#include "vec.h"

enum { THREADS = 256, TOKENS = THREADS / 4, FEW = 16, MANY = 48, WIDEST = 64 };

/* P(N(0,1) <= x) */
__device__ __forceinline__ static float normal_below(float x)
{
    return 0.5f * erfcf(-0.70710678118654752f * x);
}

struct weights {
    const void *w, *b;
    bool f32;
    int m, width;
    const float *factor; /* NULL: 1/10 */
};

__device__ __forceinline__ static float factor_of(const weights &a)
{
    return a.factor ? *a.factor : 0.1f;
}

/* w by channel, MOST numbers each, a vector's eight channels so many behind the last's. */
template <int MOST> struct vector_of {
    enum { N = 8 * MOST + 4 };
};

template <int MOST> __device__ static void load_weights(float *to, const weights &a)
{
    for (int i = threadIdx.x; i < MOST * a.width; i += THREADS) {
        int k = i / a.width, c = i % a.width;
        to[c / 8 * vector_of<MOST>::N + c % 8 * MOST + k] = k < a.m ? load_any(a.w, a.f32, i) : 0;
    }
}

/* MOST numbers from shared memory, 16 bytes at a time. */
template <int MOST>
__device__ __forceinline__ static void load_most(float (&x)[MOST], const float *from)
{
#pragma unroll
    for (int k = 0; k < MOST; k += 4) {
        float4 u = *(const float4 *)(from + k);
        x[k] = u.x, x[k + 1] = u.y, x[k + 2] = u.z, x[k + 3] = u.w;
    }
}

/* Over the four lanes of a token. */
__device__ __forceinline__ static float token_sum(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

template <int MOST>
static __global__ void __launch_bounds__(THREADS)
    coefs_forward(float *out, const bf16 *pre, int rows, const weights a)
{
    __shared__ __align__(16) float w[WIDEST / 8 * vector_of<MOST>::N];
    int t = blockIdx.x * TOKENS + threadIdx.x / 4, p = threadIdx.x % 4;
    float sum[MOST] = {};

    start_step_behind();
    load_weights<MOST>(w, a);
    wait_for_kernel_before();
    __syncthreads();
    for (int c = 8 * p; c < a.width && t < rows; c += 32) {
        float x[8];
        load8(x, pre + (int64_t)t * a.width + c);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float hidden = x[j] * normal_below(x[j]), of[MOST];
            load_most(of, w + c / 8 * vector_of<MOST>::N + j * MOST);
#pragma unroll
            for (int k = 0; k < MOST; k++)
                sum[k] = fmaf(hidden, of[k], sum[k]);
        }
    }
#pragma unroll
    for (int k = 0; k < MOST; k++) {
        float s = token_sum(sum[k]);
        if (k < a.m && k % 4 == p && t < rows)
            out[(int64_t)t * a.m + k] = factor_of(a) * (s + load_any(a.b, a.f32, k));
    }
}

/* q and hidden (TOKENS, WIDTH + 4) of the block's tokens into shared memory, and dpre. */
template <int MOST, int WIDTH>
__device__ static void backward_tokens(bf16 *dpre, float (*q)[MOST], float (*hidden)[WIDTH + 4],
                                       const float *dout, const bf16 *pre, const float *w,
                                       int first, int rows, const weights &a)
{
    int token = threadIdx.x / 4, t = first + token, p = threadIdx.x % 4;
    float mine[MOST], in = a.factor ? 1 : 0.1f, by = a.factor ? *a.factor : 1;

    for (int k = p; k < MOST; k += 4)
        q[token][k] = k < a.m && t < rows ? in * dout[(int64_t)t * a.m + k] : 0;
    __syncwarp();
    load_most(mine, q[token]);
    for (int c = 8 * p; c < WIDTH; c += 32) {
        float x[8] = {}, d[8];
        if (t < rows)
            load8(x, pre + (int64_t)t * WIDTH + c);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float below = normal_below(x[j]), sum = 0, of[MOST];
            float slope = below + x[j] * 0.39894228040143268f * __expf(-0.5f * x[j] * x[j]);
            x[j] *= below;
            load_most(of, w + c / 8 * vector_of<MOST>::N + j * MOST);
#pragma unroll
            for (int k = 0; k < MOST; k++)
                sum = fmaf(mine[k], of[k], sum);
            d[j] = by * sum * slope;
        }
        store8(hidden[token] + c, x);
        if (t < rows)
            store8(dpre + (int64_t)t * WIDTH + c, d);
    }
}

/* Sums x over the block's threads in a fixed order, into the first of them. */
__device__ static float block_sum(float x, float *shared)
{
    for (int m = 16; m; m /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, m);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0;
    for (int i = 0; i < THREADS / 32; i++)
        x += shared[i];
    return x;
}

/* partial (blocks, m K), of_bias (blocks, m), with a factor of_factor (blocks). */
template <int MOST, int WIDTH>
__global__ static void __launch_bounds__(THREADS)
    coefs_backward(bf16 *dpre, float *partial, float *of_bias, float *of_factor, const float *dout,
                   const bf16 *pre, int rows, const weights a)
{
    constexpr int EACH = MOST * WIDTH > THREADS ? MOST * WIDTH / THREADS : 1;
    __shared__ __align__(16) float w[WIDEST / 8 * vector_of<MOST>::N], q[TOKENS][MOST],
        hidden[TOKENS][WIDTH + 4];
    int channel = threadIdx.x % WIDTH, k = threadIdx.x / WIDTH * EACH;
    float sum[EACH] = {}, bias = 0, by = a.factor ? *a.factor : 1;

    load_weights<MOST>(w, a);
    for (int first = blockIdx.x * TOKENS; first < rows; first += gridDim.x * TOKENS) {
        __syncthreads();
        backward_tokens<MOST, WIDTH>(dpre, q, hidden, dout, pre, w, first, rows, a);
        __syncthreads();
        for (int t = 0; t < TOKENS && k < MOST; t++) {
            float h = hidden[t][channel];
#pragma unroll
            for (int i = 0; i < EACH; i++)
                sum[i] = fmaf(q[t][k + i], h, sum[i]);
            if (threadIdx.x < a.m)
                bias += q[t][threadIdx.x];
        }
    }
    float product = a.factor && threadIdx.x < a.m ? bias * load_any(a.b, a.f32, threadIdx.x) : 0;
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (k + i < a.m) {
            partial[((int64_t)blockIdx.x * a.m + k + i) * WIDTH + channel] = by * sum[i];
            product += sum[i] * w[channel / 8 * vector_of<MOST>::N + channel % 8 * MOST + k + i];
        }
    if (threadIdx.x < a.m)
        of_bias[blockIdx.x * a.m + threadIdx.x] = by * bias;
    if (!a.factor)
        return;
    product = block_sum(product, &q[0][0]);
    if (threadIdx.x == 0)
        of_factor[blockIdx.x] = product;
}

static bool can_do(struct cuda_ops *c, struct tensor pre, struct tensor w)
{
    int64_t width = pre.cols;

    assert(pre.dtype == DT_BF16 && w.cols == width);
    return !c->failed && pre.rows > 0 &&
           CUDA_NEED(
               c, width >= 8 && width <= WIDEST && !(width & (width - 1)) && w.rows <= MANY,
               "coefficients of tokens come from 8, 16, 32 or 64 channels, and are 48 at most");
}

void gpu_token_coefs(struct ops *o, struct tensor out, struct tensor pre, struct tensor w,
                     struct tensor b, const real *factor)
{
    struct cuda_ops *c = cuda_of(o);
    weights a = { w.data, b.data, w.dtype == DT_F32, (int)w.rows, (int)w.cols, factor };

    assert(out.dtype == DT_F32 && out.cols == w.rows && b.dtype == w.dtype);
    if (!can_do(c, pre, w))
        return;
    launch_step(c, a.m <= FEW ? coefs_forward<FEW> : coefs_forward<MANY>,
                dim3(div_up(pre.rows, TOKENS)), THREADS, (float *)out.data, (const bf16 *)pre.data,
                (int)pre.rows, a);
}

template <int MOST> static auto *backward_for(int width)
{
    return width == 64   ? coefs_backward<MOST, 64>
           : width == 32 ? coefs_backward<MOST, 32>
           : width == 16 ? coefs_backward<MOST, 16>
                         : coefs_backward<MOST, 8>;
}

void gpu_token_coefs_bwd(struct ops *o, struct tensor dpre, struct tensor dw, struct tensor db,
                         real *dfactor, struct tensor dout, struct tensor pre, struct tensor w,
                         struct tensor b, const real *factor)
{
    struct cuda_ops *c = cuda_of(o);
    weights a = { w.data, b.data, w.dtype == DT_F32, (int)w.rows, (int)w.cols, factor };
    int blocks = div_up(pre.rows, TOKENS), n = a.m * a.width;
    char *at;

    assert(dpre.dtype == DT_BF16 && dout.dtype == DT_F32 && tensor_count(db) == w.rows);
    if (!can_do(c, pre, w))
        return;
    blocks = blocks < 6 * c->sms ? blocks : 6 * c->sms;
    at = (char *)cuda_workspace(c, cuda_round(4 * (size_t)blocks * n) +
                                       4 * (size_t)blocks * (a.m + (factor ? 1 : 0)));
    if (!at)
        return;
    float *partial = (float *)cuda_cut(&at, 4 * (size_t)blocks * n), *of_bias = (float *)at;
    float *of_factor = of_bias + (size_t)blocks * a.m;
    auto *kernel = a.m <= FEW ? backward_for<FEW>(a.width) : backward_for<MANY>(a.width);
    kernel<<<blocks, THREADS, 0, c->stream>>>((bf16 *)dpre.data, partial, of_bias, of_factor,
                                              (const float *)dout.data, (const bf16 *)pre.data,
                                              (int)pre.rows, a);
    CUDA_LAUNCHED(c);
    cuda_add_partials(c, dw.data, dw.dtype, partial, blocks, n);
    cuda_add_partials(c, db.data, db.dtype, of_bias, blocks, a.m);
    if (factor)
        cuda_add_partials(c, dfactor, DT_F32, of_factor, blocks, 1);
}
