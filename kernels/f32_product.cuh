/* f32_product.cuh - plain batched products in f32, for matrices of the optimizer that no tensor core may round.
 *
 *     f32_product p = { a, b, c, m, n, k };     // c = a b, all row-major and dense
 *     p.turn_b = true, p.beta = 0.5f, p.add = d;
 *     launch_products(c, p, count);             // c = a b' + d / 2 of `count` matrices that follow each other
 *
 * A block makes a tile of 64 x 64 of one matrix in steps of 16, a thread 4 x 4 of it. A sum runs in one order,
 * with fused multiply-adds. FLOPs: 2 m n k; no claim to speed.
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

/* SQUARES: in place of c, c[(z gridDim.y + y) gridDim.x + x] as double = the tile's sum of squares. */
template <bool SQUARES>
static __global__ void __launch_bounds__(F32_THREADS) f32_make_tiles(f32_product p)
{
    __shared__ float a[F32_DEEP][F32_TILE + 1], b[F32_DEEP][F32_TILE + 1];
    __shared__ double warps[32];
    int row = threadIdx.x / 16 * 4, col = threadIdx.x % 16 * 4, r0 = blockIdx.y * F32_TILE;
    int c0 = blockIdx.x * F32_TILE;
    float sum[4][4] = {};

    if ((p.only && !p.only[blockIdx.z]) || (p.lower && blockIdx.x > blockIdx.y))
        return;
    p.a += blockIdx.z * (p.stride ? p.stride : (int64_t)p.m * p.k);
    p.b += blockIdx.z * (p.stride ? p.stride : (int64_t)p.k * p.n);
    for (int k0 = 0; k0 < p.k; k0 += F32_DEEP) {
        for (int i = threadIdx.x; i < F32_TILE * F32_DEEP; i += F32_THREADS) {
            int of_a = p.turn_a ? i % F32_TILE : i / F32_DEEP,
                k_a = p.turn_a ? i / F32_TILE : i % F32_DEEP;
            int of_b = p.turn_b ? i / F32_DEEP : i % F32_TILE,
                k_b = p.turn_b ? i % F32_DEEP : i / F32_TILE;
            a[k_a][of_a] = f32_element(p.a, p.ld, p.turn_a, p.m, p.k, r0 + of_a, k0 + k_a);
            b[k_b][of_b] = f32_element(p.b, p.ld, p.turn_b, p.k, p.n, k0 + k_b, c0 + of_b);
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < F32_DEEP; k++)
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    sum[i][j] = fmaf(a[k][row + i], b[k][col + j], sum[i][j]);
        __syncthreads();
    }
    double squares = 0;
    float alpha = p.by ? p.alpha * p.by[blockIdx.z] : p.alpha;
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            int r = r0 + row + i, c = c0 + col + j;
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

static inline dim3 f32_tiles(const f32_product &p, int count)
{
    return dim3(div_up(p.n, F32_TILE), div_up(p.m, F32_TILE), count);
}

static inline void launch_products(struct cuda_ops *c, const f32_product &p, int count)
{
    if (c->failed || count == 0)
        return;
    f32_make_tiles<false><<<f32_tiles(p, count), F32_THREADS, 0, c->stream>>>(p);
    CUDA_LAUNCHED(c);
}

/* How many matrices of so many bytes of workspace are taken at a time. */
static inline int f32_at_once(int n, size_t bytes)
{
    size_t many = ((size_t)256 << 20) / (bytes + 1) + 1;
    return many < (size_t)n ? (int)many : n;
}

#endif
