/* dcoef.h - sums over all rows that give a few numbers: gradients of coefficients.
 *
 * Each thread has N partial sums. They are added in one fixed order: lanes, warps, blocks;
 * the last block to finish adds the blocks' sums, and number k to *dcoef[k] if there is one.
 *
 *     float sum[N] = {};                      // ... over the rows of this thread
 *     add_up<WARPS>(sum, a.dcoef, a.partial, a.ticket);
 *
 * partial: (blocks, N) floats. Every thread of the grid calls it, at the kernel's end.
 */
#ifndef KERNELS_DCOEF_H
#define KERNELS_DCOEF_H

#include "vec.h"

/* Adds sum k of N to *dcoef[k], if that is not NULL. Several dcoef may be equal, as layers may
 * share a scalar: then the thread of the first of them adds all, else threads would overwrite each
 * other. */
template <int N>
__device__ __forceinline__ void add_dcoef(float *const *dcoef, int k, const float *sums)
{
    float s = 0;

    for (int j = 0; j < k; j++)
        if (dcoef[j] == dcoef[k])
            return;
    for (int j = k; j < N; j++)
        if (dcoef[j] == dcoef[k])
            s += sums[j];
    if (dcoef[k])
        *dcoef[k] += s;
}

template <int WARPS, int N>
__device__ __forceinline__ void add_up(float (&sum)[N], float *const *dcoef, float *partial,
                                       unsigned *ticket)
{
    __shared__ float warps[WARPS][N];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    static_assert(N <= 32 * WARPS, "a thread a number");
#pragma unroll
    for (int k = 0; k < N; k++) {
        sum[k] = warp_sum(sum[k]);
        if (lane == 0)
            warps[warp][k] = sum[k];
    }
    __syncthreads();
    if (threadIdx.x < N) {
        float s = 0;
        for (int w = 0; w < WARPS; w++)
            s += warps[w][threadIdx.x];
        partial[blockIdx.x * N + threadIdx.x] = s;
    }
    if (!last_block(ticket))
        return;
    for (int k = warp; k < N; k += WARPS) {
        float s = 0;
        for (int b = lane; b < gridDim.x; b += 32)
            s += __ldcg(partial + b * N + k);
        s = warp_sum(s);
        if (lane == 0)
            warps[0][k] = s;
    }
    __syncthreads();
    if (threadIdx.x < N)
        add_dcoef<N>(dcoef, threadIdx.x, warps[0]);
}

#endif
