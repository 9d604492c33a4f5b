/* qkv.h - a head of q or k from its projection: norm and rotation; W = E/8 lanes hold it (heads.h).
 */
#ifndef KERNELS_QKV_H
#define KERNELS_QKV_H

#include "heads.h"

/* Which heads, and which channels of a head, a lane holds. */
template <int W> struct head_lane {
    static __device__ __forceinline__ int head(int i) { return (32 * i + lane_id()) / W; }
    static __device__ __forceinline__ int channel() { return lane_id() % W * 8; }
    static __device__ __forceinline__ bool rotates() { return lane_id() % W < W / 2; }
    static __device__ __forceinline__ bool offset(enum key_offset which)
    {
        return key_moves(which, lane_id() % W / (W / 4));
    }
};

/* Four cosines and sines of the lane's pairs in a head of this number: only whether it is odd
 * matters. For lanes that do not rotate: 1 and 0. */
struct turn {
    float c[4], s[4];
};

template <int W> __device__ __forceinline__ turn turn_of(const qkv_args &s, int t, int head)
{
    int64_t at_row = s.pos ? __ldcg(s.pos + t) : t;
    int64_t p = s.paired ? 2 * at_row + (head & 1) : at_row;
    int64_t at = p * (4 * W) + head_lane<W>::channel();
    uint4 u = make_uint4(0x3f80, 0x3f80, 0x3f80, 0x3f80);

    if (s.rope_f32 && head_lane<W>::rotates()) {
        float x[8];
        load8(x, (const float *)s.rope + at);
        return turn{ { x[0], x[2], x[4], x[6] }, { x[1], x[3], x[5], x[7] } };
    }
    if (head_lane<W>::rotates())
        u = *(const uint4 *)((const bf16 *)s.rope + at);
    return turn{ { bf16_lo(u.x), bf16_lo(u.y), bf16_lo(u.z), bf16_lo(u.w) },
                 { bf16_hi(u.x), bf16_hi(u.y), bf16_hi(u.z), bf16_hi(u.w) } };
}

/* Rotates x by -theta; by +theta, the transpose, with sign = -1. */
__device__ __forceinline__ void rotate(float (&x)[8], const turn &r, float sign)
{
#pragma unroll
    for (int m = 0; m < 4; m++) {
        float even = x[2 * m], odd = x[2 * m + 1], s = sign * r.s[m];
        x[2 * m] = r.c[m] * even + s * odd;
        x[2 * m + 1] = r.c[m] * odd - s * even;
    }
}

/* Returns the factor. */
template <int W> __device__ __forceinline__ float norm_head(float (&x)[8])
{
    float r = norm_factor(head_sum<W>(dot8(x, x)), 8 * W);
#pragma unroll
    for (int j = 0; j < 8; j++)
        x[j] *= r;
    return r;
}

/* The gradients of raw q and k, dqkv (T,3D), from those of q and k; of v with dv, else its part is
 * not written. Any of dq, dk, dv may be NULL. add: those of q and k are added to. With m's dqkv8 codes are written
 * in their place. */
void cuda_raw_grads(struct cuda_ops *c, struct tensor dqkv, bool add, const void *dq,
                    const void *dk, const void *dv, struct tensor q, struct tensor k,
                    const struct qk_made *m);

#endif
