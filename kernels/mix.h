/* mix.h - rows of a mix and their norms: one by a warp (mix_norm.cu), or all of them in each block
 * of the product that reads them (few_rows.cu), with the same bits.
 */
#ifndef KERNELS_MIX_H
#define KERNELS_MIX_H

#include "host/device.h"
#include "row.h"

/* The coefficients of a mix of at most N terms. */
template <int N> struct mix_coefs {
    float of[N];
    __device__ __forceinline__ void load(const mix_args &a)
    {
#pragma unroll
        for (int k = 0; k < N; k++)
            of[k] = k < a.n && a.coef[k] ? a.sign[k] * *a.coef[k] : a.sign[k];
    }
};

/* Row t of the norm, N = a.n; in the memory of a.out and a.y too if wanted. */
template <int V, int N>
__device__ __forceinline__ void mix_row(row<V> &sum, const mix_args &a, const mix_coefs<N> &coef,
                                        int t, bool store)
{
    packed_row<V> in[N];
    row<V> x;
    int64_t at = (int64_t)t * a.d;

#pragma unroll
    for (int k = 0; k < N; k++)
        in[k].load(a.x[k] + at, a.d);
    sum.zero();
#pragma unroll
    for (int k = 0; k < N; k++) {
        x.unpack(in[k]);
        sum.add(coef.of[k], x);
    }
    if (store && a.write_out)
        sum.store(a.out + at, a.d);
    if (!a.y)
        return;
    sum.scale(norm_factor(warp_sum(sum.dot(sum)), a.d));
    if (store)
        sum.store(a.y + at, a.d);
}

/* Returns the bytes of shared memory that mix_rows takes. */
__host__ __device__ __forceinline__ int mix_sums_bytes(const mix_args &a)
{
    return a.rows * (a.d + a.d / 8) * (int)sizeof(float);
}
/* Computes all rows of the norm into y (shared memory, `stride` numbers a row), by a block of whole
 * warps; if `store`, into the memory of a.out and a.y too. sums: shared, mix_sums_bytes of it. A
 * sum of squares is added up as mix_row does, and few numbers are in registers: those hold the
 * block's weights. */
template <int N>
__device__ __forceinline__ void mix_rows(bf16 *y, int stride, float *sums, const mix_args &a,
                                         const mix_coefs<N> &coef, bool store)
{
    int pieces = a.d / 8; /* of a row */
    float *squares = sums + a.rows * a.d, x[8], sum[8];

    for (int i = threadIdx.x; i < a.rows * pieces; i += blockDim.x) {
        uint4 in[N];
#pragma unroll
        for (int k = 0; k < N; k++)
            if (k < a.n)
                in[k] = *(const uint4 *)(a.x[k] + 8 * i);
#pragma unroll
        for (int j = 0; j < 8; j++)
            sum[j] = 0;
#pragma unroll
        for (int k = 0; k < N; k++)
            if (k < a.n) {
                unpack8(x, in[k]);
#pragma unroll
                for (int j = 0; j < 8; j++)
                    sum[j] = fmaf(coef.of[k], x[j], sum[j]);
            }
        if (store && a.write_out)
            store8(a.out + 8 * i, sum);
        store8(sums + 8 * i, sum);
        squares[i] = dot8(sum, sum);
    }
    __syncthreads();
    int warps = blockDim.x / 32, each = max(warps / a.rows, 1); /* warps a row */
    for (int t = warp_id() / each; t < a.rows; t += warps / each) {
        float ss = 0;
        for (int i = lane_id(); i < pieces; i += 32)
            ss += squares[t * pieces + i];
        float factor = norm_factor(warp_sum(ss), a.d);
        for (int i = warp_id() % each * 32 + lane_id(); i < pieces; i += 32 * each) {
            load8(sum, sums + t * a.d + 8 * i);
#pragma unroll
            for (int j = 0; j < 8; j++)
                sum[j] *= factor;
            store8(y + t * stride + 8 * i, sum);
            if (store)
                store8(a.y + (int64_t)t * a.d + 8 * i, sum);
        }
    }
    __syncthreads();
}

#endif
