/* mix.h - a row of a mix and its norm, by one warp: by itself (mix_norm.cu), or in each block of the
 * product that reads it (few_rows.cu), with the same bits.
 */
#ifndef KERNELS_MIX_H
#define KERNELS_MIX_H

#include "host/device.h"
#include "row.h"

/* Of at most N terms. */
template <int N> struct mix_coefs {
    float of[N];
    __device__ __forceinline__ void load(const mix_args &a)
    {
#pragma unroll
        for (int k = 0; k < N; k++)
            of[k] = k < a.n && a.coef[k] ? a.sign[k] * *a.coef[k] : a.sign[k];
    }
};

/* Row t of the norm, or of the sum where there is no norm; both stored if wanted. */
template <int V, int N>
__device__ __forceinline__ void mix_row(row<V> &sum, const mix_args &a, const mix_coefs<N> &coef,
                                        int t, bool store)
{
    packed_row<V> in[N];
    row<V> x;
    int64_t at = (int64_t)t * a.d;

#pragma unroll
    for (int k = 0; k < N; k++)
        if (k < a.n)
            in[k].load(a.x[k] + at, a.d);
    sum.zero();
#pragma unroll
    for (int k = 0; k < N; k++)
        if (k < a.n) {
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

#endif
