/* attention_rows.cuh - what attention does with sums that lie as a product of 16 rows and N columns
 * leaves them in a warp, on any path: softmax, masks, rounding.
 *
 * A thread has N / 2 sums of two rows: x[4 q + 2 h + e] is row lane / 4 + 8 h, column
 * 8 q + 2 (lane % 4) + e. wgmma (a warp of it) and mma.sync agree on this. Packed to bf16, two
 * neighbours a register, they are operand a of the next product: registers 4 k .. 4 k + 3 its
 * step k of 16 columns.
 */
#ifndef KERNELS_ATTENTION_ROWS_CUH
#define KERNELS_ATTENTION_ROWS_CUH

#include <math.h>
#include <stdint.h>
#include "vec.h"

template <int N> __device__ __forceinline__ void set_zero(float (&x)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] = 0;
}

/* Over the 4 lanes that hold one row of a product. */
__device__ __forceinline__ float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ __forceinline__ float quad_sum(float x)
{
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

/* Columns outside lo .. lo + len of their row become -infinity. first: column of sum 0 of this
 * thread; lo, len: of its two rows. */
template <int N>
__device__ __forceinline__ void mask_block(float (&s)[N], int first, const int (&lo)[2],
                                           const int (&len)[2])
{
    const int at[2] = { first - lo[0], first - lo[1] };
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int r = i / 2 % 2;
        if ((unsigned)(at[r] + (i / 4 * 8 + i % 2)) > (unsigned)len[r])
            s[i] = -INFINITY;
    }
}

/* A thread's two rows in the online softmax; base 2, in units of scale log2(e). */
struct online {
    float max[2], sum[2], alpha[2];
    bool rescale;

    /* P = 2^(unit S - unit max), and what it adds to the sums. */
    __device__ __forceinline__ void weigh(float (&p)[32], const float (&s)[32], float unit,
                                          float (&add)[4])
    {
        const float shift[2] = { max[0] * unit, max[1] * unit };
        add[0] = add[1] = add[2] = add[3] = 0;
#pragma unroll
        for (int i = 0; i < 32; i++) {
            p[i] = exp2_approx(fmaf(s[i], unit, -shift[i / 2 % 2]));
            add[i % 4] += p[i];
        }
    }
    __device__ __forceinline__ static void maxima(float (&m)[2], const float (&s)[32])
    {
        float t[4] = { s[0], s[1], s[2], s[3] };
#pragma unroll
        for (int i = 4; i < 32; i++)
            t[i % 4] = fmaxf(t[i % 4], s[i]);
        m[0] = quad_max(fmaxf(t[0], t[1]));
        m[1] = quad_max(fmaxf(t[2], t[3]));
    }
    /* The first block of a row, which has its own key and so a finite maximum. */
    __device__ __forceinline__ void begin(float (&p)[32], const float (&s)[32], float unit)
    {
        float add[4];
        maxima(max, s);
        weigh(p, s, unit, add);
        sum[0] = add[0] + add[1];
        sum[1] = add[2] + add[3];
    }
    /* A further one: weighed by the maximum so far while the new one is still sought, and
     * again if that is larger by more than 2^8, which is rare. Then rescale says that
     * older sums are to be multiplied by alpha. */
    __device__ __forceinline__ void go_on(float (&p)[32], const float (&s)[32], float unit)
    {
        float m[2], add[4];
        weigh(p, s, unit, add);
        maxima(m, s);
        rescale = __any_sync(~0u, (m[0] - max[0]) * unit > 8 || (m[1] - max[1]) * unit > 8);
        if (rescale) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float top = fmaxf(max[r], m[r]);
                alpha[r] = exp2_approx((max[r] - top) * unit);
                max[r] = top;
                sum[r] *= alpha[r];
            }
            weigh(p, s, unit, add);
        }
        sum[0] += add[0] + add[1];
        sum[1] += add[2] + add[3];
    }
};

/* N = 64: 32 sums in 16 registers, and so on. */
template <int R>
__device__ __forceinline__ void pack_rows(uint32_t (&p)[R], const float (&s)[2 * R])
{
#pragma unroll
    for (int i = 0; i < R; i++)
        p[i] = bf16_pack(s[2 * i], s[2 * i + 1]);
}

/* Sums of 16 rows and E columns times scale (by row half) as bf16. */
template <int E>
__device__ __forceinline__ void round_rows(uint32_t (&p)[E / 4], const float (&d)[E / 2],
                                           float scale0, float scale1)
{
#pragma unroll
    for (int i = 0; i < E / 4; i++) {
        const float scale = i % 2 ? scale1 : scale0;
        p[i] = bf16_pack(d[2 * i] * scale, d[2 * i + 1] * scale);
    }
}

#endif
