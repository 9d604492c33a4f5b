/* heads.h - a row seen as heads: W neighbouring lanes hold one head of 8 W channels.
 *
 * In row.h's layout, vector i of a lane belongs to head (32 i + lane) / W, and the lanes of a
 * head form an aligned group of W = E/8 = 4, 8 or 16. A gate is a dot product of twelve
 * channels with the head's twelve weights; its gradient is collected per lane, lane g of a
 * group taking channels g, g + W, ...
 *
 *     float y[12]; load_y12(y, row of y);
 *     float u = gate_dot(gate, head, y);
 */
#ifndef KERNELS_HEADS_H
#define KERNELS_HEADS_H

#include "host/device.h"
#include "row.h"

enum { GATE = 12, MAX_HEADS = 64 };

/* True if a channel of that quarter of a head is of a key that moved to the next token. */
__device__ __forceinline__ bool key_moves(enum key_offset which, int quarter)
{
    return which == KEY_OFFSET_QUARTERS ? quarter % 2 : which == KEY_OFFSET_HALF && quarter >= 2;
}

/* Returns the number that token t has as its h-th. */
__device__ __forceinline__ float token_number(const struct token_numbers &n, int t, int h)
{
    return n.value[(int64_t)t * n.stride + h];
}

__device__ __forceinline__ void heads_load_gate(float *gate, const gates &g, int heads)
{
    for (int i = threadIdx.x; i < heads * GATE; i += blockDim.x)
        gate[i] = load_any(g.w, g.is_f32, i);
}

/* Channels 0 .. 11 of a row, in every lane. */
__device__ __forceinline__ void load_y12(float (&y)[GATE], const bf16 *p)
{
    uint4 a = *(const uint4 *)p;
    uint2 b = *(const uint2 *)(p + 8);
    float first[8];

    unpack8(first, a);
#pragma unroll
    for (int j = 0; j < 8; j++)
        y[j] = first[j];
    y[8] = bf16_lo(b.x), y[9] = bf16_hi(b.x), y[10] = bf16_lo(b.y), y[11] = bf16_hi(b.y);
}

__device__ __forceinline__ float gate_dot(const float *w, const float (&y)[GATE])
{
    float u = 0;
#pragma unroll
    for (int j = 0; j < GATE; j++)
        u = fmaf(w[j], y[j], u);
    return u;
}
__device__ __forceinline__ void load_gate(float (&w)[GATE], const gates &g, int head)
{
    if (g.is_f32) {
        const float4 *p = (const float4 *)g.w + 3 * head;
#pragma unroll
        for (int j = 0; j < 3; j++) {
            float4 v = p[j];
            w[4 * j] = v.x, w[4 * j + 1] = v.y, w[4 * j + 2] = v.z, w[4 * j + 3] = v.w;
        }
    } else {
        const uint2 *p = (const uint2 *)g.w + 3 * head;
#pragma unroll
        for (int j = 0; j < 3; j++) {
            uint2 v = p[j];
            w[4 * j] = bf16_lo(v.x), w[4 * j + 1] = bf16_hi(v.x);
            w[4 * j + 2] = bf16_lo(v.y), w[4 * j + 3] = bf16_hi(v.y);
        }
    }
}
__device__ __forceinline__ float gate_dot(const gates &g, int head, const float (&y)[GATE])
{
    float w[GATE];
    load_gate(w, g, head);
    return gate_dot(w, y);
}

/* Gradients that a warp collects over its rows for the gates of the heads it sees. */
template <int V, int W> struct gate_grad {
    static constexpr int N = (GATE + W - 1) / W; /* channels a lane */
    float sum[V][N];

    __device__ __forceinline__ void zero()
    {
#pragma unroll
        for (int i = 0; i < V; i++)
#pragma unroll
            for (int n = 0; n < N; n++)
                sum[i][n] = 0;
    }

    static __device__ __forceinline__ int channel(int n) { return lane_id() % W + n * W; }

    /* du[i]: gradient of the gate's pre-activation of the head of vector i (0 beyond the last
     * head), the same in all lanes of the group; y[j] is channel j of the row (bf16). Adds to the
     * sums and gives dy12[n], the gradient of channel(n) summed over the heads. */
    template <typename Y>
    __device__ __forceinline__ void row(float (&dy12)[N], const float (&du)[V], const float *gate,
                                        const Y &y, int heads)
    {
#pragma unroll
        for (int n = 0; n < N; n++) {
            int j = channel(n);
            float s = 0;
            if (j < GATE) {
                float yj = __bfloat162float(y[j]);
#pragma unroll
                for (int i = 0; i < V; i++) {
                    int h = (32 * i + lane_id()) / W;
                    sum[i][n] = fmaf(du[i], yj, sum[i][n]);
                    if (h < heads)
                        s = fmaf(du[i], gate[h * GATE + j], s);
                }
            }
            for (int m = W; m < 32; m *= 2)
                s += __shfl_xor_sync(0xffffffffu, s, m);
            dy12[n] = s;
        }
    }

    /* The block's sums, warps added in order: out[h * 12 + j]. `shared` holds
     * ROW_WARPS * heads * 12 floats. */
    __device__ __forceinline__ void store(float *out, float *shared, int heads)
    {
        float *mine = shared + warp_id() * heads * GATE;
#pragma unroll
        for (int i = 0; i < V; i++)
#pragma unroll
            for (int n = 0; n < N; n++) {
                int h = (32 * i + lane_id()) / W, j = channel(n);
                if (h < heads && j < GATE)
                    mine[h * GATE + j] = sum[i][n];
            }
        __syncthreads();
        for (int i = threadIdx.x; i < heads * GATE; i += blockDim.x) {
            float s = 0;
            for (int w = 0; w < ROW_WARPS; w++)
                s += shared[w * heads * GATE + i];
            out[i] = s;
        }
    }
};

/* Sum over the lanes of a head. */
template <int W> __device__ __forceinline__ float head_sum(float x)
{
#pragma unroll
    for (int m = W / 2; m > 0; m /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, m);
    return x;
}

/* Returns 1 / max(|v|, 1e-4) from |v|^2 (struct xsa, ops.h). */
__device__ __forceinline__ float inverse_length(float vv) { return vv > 1e-8f ? rsqrtf(vv) : 1e4f; }

template <int W> struct lanes {
    static constexpr int value = W;
};

/* f(lanes<E/8>()) for head sizes 32, 64, 128; false for others. */
template <typename F> bool with_head_size(int head_dim, F f)
{
    switch (head_dim) {
    case 32: f(lanes<4>()); return true;
    case 64: f(lanes<8>()); return true;
    case 128: f(lanes<16>()); return true;
    default: return false;
    }
}
#define HEAD_NEED "heads have 32, 64 or 128 channels, and there are at most 64"

#endif
