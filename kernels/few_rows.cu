/* few_rows.cu - y (T,O) = scale x w' (+ add) for T of 1 to some hundred rows, w (O,I) or (I,O).
 *
 * A decoding step reads every weight once and does little else, so the weights go from memory into
 * registers, many loads at a time, and from there into the tensor cores; x is read where it lies, in
 * the L2. A block has 16 columns of y (in_out: 16 or 64) and all of I, cut among its warps, whose
 * sums are added in order. The loads of a block's first weights are under way before the kernel
 * before it ends (behind.h): nothing that runs in a decoding step writes weights.
 *
 * In a fragment of m16n8k16 a lane has four pairs of neighbours in k, eight apart. Which k a pair
 * stands for does not matter as long as both operands agree, so a lane takes the eight (in_out:
 * four) neighbours that it can load at once.
 *
 * Sums of a row do not depend on the other rows: for each row the same instructions in the same
 * order, whatever T. Bytes: O I weights; 2 O I T FLOP. O I = 2304 x 768: 3.5 MB, 0.74 us at 4.8 TB/s.
 */
#include "behind.h"
#include "few_rows.h"
#include "mma.h"
#include "vec.h"

struct args {
    void *out;
    const bf16 *x, *w, *add;
    const float *scale;
    int rows, in, cols; /* T, I, O */
    enum few_rows_end end;
    float cap_a, cap_b, cap_c;
};

__device__ __forceinline__ static uint4 load(const bf16 *p, bool exists)
{
    return exists ? *(const uint4 *)p : make_uint4(0, 0, 0, 0);
}

__device__ __forceinline__ static void finish(const args &a, int t, int o, float sum)
{
    if (t >= a.rows || o >= a.cols)
        return;
    int64_t at = (int64_t)t * a.cols + o;
    if (a.scale)
        sum *= *a.scale;
    if (a.add)
        sum += __bfloat162float(a.add[at]);
    if (a.end == FEW_SOFTCAP) {
        ((float *)a.out)[at] = a.cap_a * sigmoid((sum + a.cap_b) / a.cap_c);
        return;
    }
    bf16 y = __float2bfloat16(sum);
    if (a.end == FEW_RELU2) {
        float r = relu(__bfloat162float(y));
        y = __float2bfloat16(r * r);
    }
    ((bf16 *)a.out)[at] = y;
}

/* -- w (O,I): columns of y are the tiles' rows --------------------------------------- */

enum { WARPS = 8, AHEAD = 4 }; /* chunks of 32 in I that a warp loads before it waits */

template <int N> /* tiles of 8 rows of x */
__global__ static void __launch_bounds__(32 * WARPS) by_column(args a)
{
    __shared__ float part[WARPS][N][32][4];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
    int o = 16 * blockIdx.x, t = 8 * N * blockIdx.y, chunks = (a.in + 31) / 32;
    const bf16 *w0 = a.w + (int64_t)(o + g) * a.in, *w1 = w0 + 8 * (int64_t)a.in;
    bool in0 = o + g < a.cols, in1 = o + g + 8 < a.cols;
    uint4 first[AHEAD][2];
    float d[N][4] = {};

    start_kernel_behind();
#pragma unroll
    for (int p = 0; p < AHEAD; p++) {
        int k = 32 * (warp + WARPS * p) + 8 * c;
        first[p][0] = load(w0 + k, in0 && k < a.in);
        first[p][1] = load(w1 + k, in1 && k < a.in);
    }
    wait_for_kernel_before();
    for (int q = 0; warp + WARPS * q < chunks; q += AHEAD) {
#pragma unroll
        for (int p = 0; p < AHEAD; p++) {
            int k = 32 * (warp + WARPS * (q + p)) + 8 * c;
            uint4 u = first[p][0], v = first[p][1];
            if (q) {
                u = load(w0 + k, in0 && k < a.in);
                v = load(w1 + k, in1 && k < a.in);
            }
            uint32_t low[4] = { u.x, v.x, u.y, v.y }, high[4] = { u.z, v.z, u.w, v.w };
#pragma unroll
            for (int n = 0; n < N; n++) {
                int row = t + 8 * n + g;
                uint4 x = load(a.x + (int64_t)row * a.in + k, row < a.rows && k < a.in);
                mma(d[n], low, x.x, x.y);
                mma(d[n], high, x.z, x.w);
            }
        }
    }
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            part[warp][n][lane][i] = d[n][i];
    __syncthreads();
    for (int i = threadIdx.x; i < 128 * N; i += 32 * WARPS) {
        int f = i % 16, row = i / 16, n = row / 8, l = f % 8 * 4 + row % 8 / 2;
        float sum = 0;
#pragma unroll
        for (int k = 0; k < WARPS; k++)
            sum += part[k][n][l][f / 8 * 2 + row % 2];
        finish(a, t + row, o + f, sum);
    }
}

/* -- w (I,O): rows of y are the tiles' rows ------------------------------------------- */

/* C neighbours of a row of w. */
template <int C> struct piece {
    uint32_t u[C / 2];

    __device__ __forceinline__ void load(const bf16 *p, bool exists)
    {
        if (C == 8) {
            uint4 v = exists ? *(const uint4 *)p : make_uint4(0, 0, 0, 0);
            u[0] = v.x, u[1 % (C / 2)] = v.y, u[2 % (C / 2)] = v.z, u[3 % (C / 2)] = v.w;
        } else {
            u[0] = exists ? *(const uint32_t *)p : 0;
        }
    }
};

/* Number j of two rows side by side. */
__device__ __forceinline__ static uint32_t beside(uint32_t a, uint32_t b, int j)
{
    return j % 2 ? a >> 16 | (b & 0xffff0000u) : (a & 0xffff) | b << 16;
}

/* M tiles of 16 rows of x; 8 C columns a block, W warps, S steps of 16 in I loaded ahead. */
template <int M, int C, int W, int S>
__global__ static void __launch_bounds__(32 * W) by_row(args a)
{
    __shared__ float part[W][C][32][4];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
    int o = 8 * C * blockIdx.x, t = 16 * M * blockIdx.y, steps = (a.in + 15) / 16;
    const bf16 *w = a.w + o + C * g;
    bool in = o + C * g < a.cols;
    piece<C> first[S][4];
    float d[M][C][4] = {};

    start_kernel_behind();
#pragma unroll
    for (int s = 0; s < S; s++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int k = 16 * (warp + W * s) + 4 * c + i;
            first[s][i].load(w + (int64_t)k * a.cols, in && k < a.in);
        }
    wait_for_kernel_before();
    for (int q = 0; warp + W * q < steps; q += S) {
#pragma unroll
        for (int s = 0; s < S; s++) {
            int k = 16 * (warp + W * (q + s)) + 4 * c;
            if (q)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    first[s][i].load(w + (int64_t)(k + i) * a.cols, in && k + i < a.in);
#pragma unroll
            for (int m = 0; m < M; m++) {
                uint32_t x[4];
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    int row = t + 16 * m + 8 * h + g;
                    uint2 u = row < a.rows && k < a.in
                                  ? *(const uint2 *)(a.x + (int64_t)row * a.in + k)
                                  : make_uint2(0, 0);
                    x[h] = u.x, x[2 + h] = u.y;
                }
#pragma unroll
                for (int j = 0; j < C; j++)
                    mma(d[m][j], x, beside(first[s][0].u[j / 2], first[s][1].u[j / 2], j),
                        beside(first[s][2].u[j / 2], first[s][3].u[j / 2], j));
            }
        }
    }
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int j = 0; j < C; j++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                part[warp][j][lane][i] = d[m][j][i];
        __syncthreads();
        for (int i = threadIdx.x; i < 128 * C; i += 32 * W) {
            int f = i % (8 * C), row = i / (8 * C), n = f / C, l = row % 8 * 4 + n / 2;
            float sum = 0;
#pragma unroll
            for (int k = 0; k < W; k++)
                sum += part[k][f % C][l][row / 8 * 2 + n % 2];
            finish(a, t + 16 * m + row, o + f, sum);
        }
        __syncthreads();
    }
}

/* -- launch ---------------------------------------------------------------------------- */

/* f(tiles<n>()) with the least n of 1, 2, 4, .. most that holds `tiles`. */
template <int N> struct tiles {
    static constexpr int value = N;
};
template <int MOST, int N = 1, typename F> static void with_tiles(int n, F f)
{
    if constexpr (N >= MOST)
        f(tiles<MOST>());
    else if (n <= N)
        f(tiles<N>());
    else
        with_tiles<MOST, 2 * N>(n, f);
}

static void launch_by_row(struct cuda_ops *c, const args &a)
{
    with_tiles<4>(div_up(a.rows, 16), [&](auto m) {
        constexpr int M = decltype(m)::value;
        int down = div_up(a.rows, 16 * M);
        if (a.cols > 16 * 1024) /* enough blocks, and whole lines of w for each */
            launch_behind(c, by_row<M, 8, 8, 3>, dim3(div_up(a.cols, 64), down), 256, a);
        else
            launch_behind(c, by_row<M, 2, 16, 12>, dim3(div_up(a.cols, 16), down), 512, a);
    });
}

void few_rows(struct cuda_ops *c, const struct few_rows &p)
{
    args a = { p.out.data,
               (const bf16 *)p.x.data,
               (const bf16 *)p.w.data,
               (const bf16 *)p.add.data,
               p.scale,
               (int)p.x.rows,
               (int)p.x.cols,
               (int)p.out.cols,
               p.end,
               p.cap_a,
               p.cap_b,
               p.cap_c };

    assert(p.x.dtype == DT_BF16 && p.out.dtype == (p.end == FEW_SOFTCAP ? DT_F32 : DT_BF16));
    assert((p.in_out ? p.w.rows : p.w.cols) == a.in && (p.in_out ? p.w.cols : p.w.rows) == a.cols);
    if (c->failed || !a.rows ||
        !CUDA_NEED(c, p.w.dtype == DT_BF16, "weights of products are bf16") ||
        !CUDA_NEED(c, a.in % 8 == 0 && a.cols % 8 == 0, "widths are multiples of 8"))
        return;
    if (p.in_out)
        launch_by_row(c, a);
    else
        with_tiles<8>(div_up(a.rows, 8), [&](auto n) {
            constexpr int N = decltype(n)::value;
            launch_behind(c, by_column<N>, dim3(div_up(a.cols, 16), div_up(a.rows, 8 * N)),
                          32 * WARPS, a);
        });
}
