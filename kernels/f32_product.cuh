/* f32_product.cuh - plain batched products in f32, for matrices of the optimizer that no tensor core may round.
 *
 *     f32_product p = { a, b, c, m, n, k };     // c = a b, all row-major and dense
 *     p.turn_b = true, p.beta = 0.5f, p.add = d;
 *     launch_products(c, p, count);             // c = a b' + d / 2 of `count` matrices that follow each other
 *
 * A block makes a tile of 64 x 64 of one matrix in steps of 16, a thread 4 x 4 of it; where such tiles of 128 x 128 fill the
 * GPU those, a thread 2 x 2 such pieces. A sum runs in one order, with fused multiply-adds. FLOPs: 2 m n k.
 */
#ifndef KERNELS_F32_PRODUCT_CUH
#define KERNELS_F32_PRODUCT_CUH

#include "host/device.h"
#include "vec.h"

struct f32_product {
    const float *a, *b; /* (m,k), (k,n); turned: stored (k,m), (n,k) */
    float *c; /* (m,n) */
    int m, n, k;
    bool turn_a, turn_b;
    float alpha = 1, beta = 0, diagonal = 0; /* c = alpha by a b + beta add + diagonal I */
    const float *add = NULL; /* (m,n) */
    const float *by = NULL; /* device (count); NULL: 1 */
    int64_t ld = 0, stride = 0; /* of all rows, and all matrices; 0: they are dense */
    const int *only = NULL; /* device (count): a matrix is left alone where it is 0 */
    bool lower = false; /* tiles above the diagonal are not made */
};

enum { F32_TILE = 64, F32_DEEP = 16, F32_THREADS = 256 };

__device__ __forceinline__ float f32_element(const float *x, int64_t ld, bool turned, int rows,
                                             int cols, int r, int c)
{
    int64_t each = ld ? ld : turned ? rows : cols;
    return r < rows && c < cols ? x[turned ? c * each + r : r * each + c] : 0;
}

/* Returns the row, or column, of a thread's i-th number behind its first one. */
__device__ __forceinline__ int f32_line(int i) { return i / 4 * F32_TILE + i % 4; }

/* SQUARES: in place of c, c[(z gridDim.y + y) gridDim.x + x] as double = the tile's sum of squares. N: pieces along a tile. */
template <bool SQUARES, int N>
static __global__ void __launch_bounds__(F32_THREADS, 2) f32_make_tiles(f32_product p)
{
    enum { TILE = N * F32_TILE };
    __shared__ __align__(16) float a[F32_DEEP][TILE + 4], b[F32_DEEP][TILE + 4];
    __shared__ double warps[32];
    int row = threadIdx.x / 16 * 4, col = threadIdx.x % 16 * 4, r0 = blockIdx.y * TILE;
    int c0 = blockIdx.x * TILE;
    float sum[4 * N][4 * N] = {};

    if ((p.only && !p.only[blockIdx.z]) || (p.lower && blockIdx.x > blockIdx.y))
        return;
    p.a += blockIdx.z * (p.stride ? p.stride : (int64_t)p.m * p.k);
    p.b += blockIdx.z * (p.stride ? p.stride : (int64_t)p.k * p.n);
    for (int k0 = 0; k0 < p.k; k0 += F32_DEEP) {
#pragma unroll 4
        for (int e = 0; e < TILE * F32_DEEP / F32_THREADS; e++) {
            int i = e * F32_THREADS + threadIdx.x;
            int of_a = p.turn_a ? i % TILE : i / F32_DEEP, k_a = p.turn_a ? i / TILE : i % F32_DEEP;
            int of_b = p.turn_b ? i / F32_DEEP : i % TILE, k_b = p.turn_b ? i % F32_DEEP : i / TILE;
            a[k_a][of_a] = f32_element(p.a, p.ld, p.turn_a, p.m, p.k, r0 + of_a, k0 + k_a);
            b[k_b][of_b] = f32_element(p.b, p.ld, p.turn_b, p.k, p.n, k0 + k_b, c0 + of_b);
        }
        __syncthreads();
#pragma unroll 4
        for (int k = 0; k < F32_DEEP; k++) {
            float x[4 * N], y[4 * N];
#pragma unroll
            for (int i = 0; i < N; i++) {
                *(float4 *)(x + 4 * i) = *(const float4 *)(a[k] + row + i * F32_TILE);
                *(float4 *)(y + 4 * i) = *(const float4 *)(b[k] + col + i * F32_TILE);
            }
#pragma unroll
            for (int i = 0; i < 4 * N; i++)
#pragma unroll
                for (int j = 0; j < 4 * N; j++)
                    sum[i][j] = fmaf(x[i], y[j], sum[i][j]);
        }
        __syncthreads();
    }
    double squares = 0;
    float alpha = p.by ? p.alpha * p.by[blockIdx.z] : p.alpha;
#pragma unroll
    for (int i = 0; i < 4 * N; i++)
#pragma unroll
        for (int j = 0; j < 4 * N; j++) {
            int r = r0 + row + f32_line(i), c = c0 + col + f32_line(j);
            int64_t at = blockIdx.z * (p.stride ? p.stride : (int64_t)p.m * p.n) +
                         r * (p.ld ? p.ld : p.n) + c;
            if (SQUARES)
                squares += (double)sum[i][j] * sum[i][j]; /* 0 beyond the edge */
            else if (r < p.m && c < p.n)
                p.c[at] = alpha * sum[i][j] + (p.add ? p.beta * p.add[at] : 0) +
                          (r == c ? p.diagonal : 0);
        }
    if (!SQUARES)
        return;
    squares = block_sum(squares, warps);
    if (threadIdx.x == 0)
        ((double *)p.c)[((int64_t)blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x] =
            squares;
}

static inline dim3 f32_tiles(const f32_product &p, int count, int tile = F32_TILE)
{
    return dim3(div_up(p.n, tile), div_up(p.m, tile), count);
}

static inline void launch_products(struct cuda_ops *c, const f32_product &p, int count)
{
    dim3 large = f32_tiles(p, count, 2 * F32_TILE);
    if (c->failed || count == 0)
        return;
    if ((int64_t)large.x * large.y * large.z >= c->sms)
        f32_make_tiles<false, 2><<<large, F32_THREADS, 0, c->stream>>>(p);
    else
        f32_make_tiles<false, 1><<<f32_tiles(p, count), F32_THREADS, 0, c->stream>>>(p);
    CUDA_LAUNCHED(c);
}

/* How many matrices of so many bytes of workspace are taken at a time. */
static inline int f32_at_once(int n, size_t bytes)
{
    size_t many = ((size_t)256 << 20) / (bytes + 1) + 1;
    return many < (size_t)n ? (int)many : n;
}

#endif
