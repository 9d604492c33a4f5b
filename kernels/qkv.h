/* qkv.h - a head of q or k from its projection: norm and rotation; W = E/8 lanes hold it (heads.h), of
 * which the last ones are idle where it is narrower than a head of v.
 */
#ifndef KERNELS_QKV_H
#define KERNELS_QKV_H

#include "heads.h"

/* Which heads, and which channels of a head, a lane holds. */
template <int W> struct head_lane {
    static __device__ __forceinline__ int head(int i) { return (32 * i + lane_id()) / W; }
    static __device__ __forceinline__ int channel() { return lane_id() % W * 8; }
    static __device__ __forceinline__ bool rotates(int turned) { return channel() < turned; }
    static __device__ __forceinline__ bool offset(enum key_offset which, int size = 8 * W)
    {
        return key_moves(which, channel() / (size / 4));
    }
};

/* A row of heads of q or k: of channels as v's heads have, or NARROW, of s.qk_dim. */
template <int V, int W, bool NARROW> struct qk_row {
    static __device__ __forceinline__ int size(const qkv_args &s)
    {
        return NARROW ? s.qk_dim : 8 * W;
    }
    static __device__ __forceinline__ int width(const qkv_args &s) { return s.heads * size(s); }
    /* Where vector i of the lane lies in the row; true if the row has it. */
    static __device__ __forceinline__ int at(int i, const qkv_args &s)
    {
        return NARROW ? head_lane<W>::head(i) * s.qk_dim + head_lane<W>::channel() : row<V>::at(i);
    }
    static __device__ __forceinline__ bool has(int i, const qkv_args &s)
    {
        return head_lane<W>::head(i) < s.heads && (!NARROW || head_lane<W>::channel() < s.qk_dim);
    }
    static __device__ __forceinline__ void load(packed_row<V> &x, const bf16 *p, const qkv_args &s)
    {
#pragma unroll
        for (int i = 0; i < V; i++)
            x.u[i] = has(i, s) ? *(const uint4 *)(p + at(i, s)) : make_uint4(0, 0, 0, 0);
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
    int64_t at = p * s.turned + head_lane<W>::channel();
    uint4 u = make_uint4(0x3f80, 0x3f80, 0x3f80, 0x3f80);

    if (s.rope_f32 && head_lane<W>::rotates(s.turned)) {
        float x[8];
        load8(x, (const float *)s.rope + at);
        return turn{ { x[0], x[2], x[4], x[6] }, { x[1], x[3], x[5], x[7] } };
    }
    if (head_lane<W>::rotates(s.turned))
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

/* Returns the factor of a head of `size` channels. */
template <int W> __device__ __forceinline__ float norm_head(float (&x)[8], int size = 8 * W)
{
    float r = norm_factor(head_sum<W>(dot8(x, x)), size);
#pragma unroll
    for (int j = 0; j < 8; j++)
        x[j] *= r;
    return r;
}

/* The gradients of raw q and k, dqkv (T,2Q+D), from those of q and k; of v with dv, else its part is
 * not written. Any of dq, dk, dv may be NULL. add: those of q and k are added to. With m's dqkv8 codes are written
 * in their place. */
void cuda_raw_grads(struct cuda_ops *c, struct tensor dqkv, bool add, const void *dq,
                    const void *dk, const void *dv, struct tensor q, struct tensor k,
                    const struct qk_made *m);

#endif
