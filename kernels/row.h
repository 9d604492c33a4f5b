/* row.h - one warp holds one row of channels, bf16 or f32 in memory, V vectors of eight a lane.
 *
 * Vector i of a lane is vector 32 i + lane of the row, so that a warp reads 512
 * contiguous bytes at a time. Rows may be any multiple of 8 long; lanes beyond
 * the end hold zeros and store nothing.
 *
 *     row<V> x;
 *     x.load(p + t * d, d);
 *     float r = rsqrtf(warp_sum(x.dot(x)) / d + NORM_EPS);
 *
 * On the host, with_vectors(d, f) calls f(vectors<V>()) with the V for d.
 */
#ifndef KERNELS_ROW_H
#define KERNELS_ROW_H

#include <stdint.h>
#include "vec.h"

enum { ROW_WARPS = 8, ROW_THREADS = 32 * ROW_WARPS }; /* rows, threads a block */

__device__ __forceinline__ int lane_id() { return threadIdx.x % 32; }
__device__ __forceinline__ int warp_id() { return threadIdx.x / 32; }

/* A row as it lies in memory: a third of the registers, for loads that should be in flight. */
template <int V> struct packed_row {
    uint4 u[V];

    __device__ __forceinline__ void load(const bf16 *p, int d)
    {
#pragma unroll
        for (int i = 0; i < V; i++) {
            int at = 8 * (32 * i + lane_id());
            u[i] = at < d ? *(const uint4 *)(p + at) : make_uint4(0, 0, 0, 0);
        }
    }
    __device__ __forceinline__ void store(bf16 *p, int d) const
    {
#pragma unroll
        for (int i = 0; i < V; i++) {
            int at = 8 * (32 * i + lane_id());
            if (at < d)
                *(uint4 *)(p + at) = u[i];
        }
    }
};

template <int V> struct row {
    float x[V][8];

    static __device__ __forceinline__ int at(int i) { return 8 * (32 * i + lane_id()); }

    __device__ __forceinline__ void load(const bf16 *p, int d)
    {
        packed_row<V> u;
        u.load(p, d);
        unpack(u);
    }
    __device__ __forceinline__ void load(const float *p, int d)
    {
        zero();
#pragma unroll
        for (int i = 0; i < V; i++)
            if (at(i) < d)
                load8(x[i], p + at(i));
    }
    __device__ __forceinline__ void unpack(const packed_row<V> &p)
    {
#pragma unroll
        for (int i = 0; i < V; i++)
            unpack8(x[i], p.u[i]);
    }
    template <typename T> __device__ __forceinline__ void store(T *p, int d) const
    {
#pragma unroll
        for (int i = 0; i < V; i++)
            if (at(i) < d)
                store8(p + at(i), x[i]);
    }
    __device__ __forceinline__ void zero()
    {
#pragma unroll
        for (int i = 0; i < V; i++)
#pragma unroll
            for (int j = 0; j < 8; j++)
                x[i][j] = 0;
    }
    /* this = s this */
    __device__ __forceinline__ void scale(float s)
    {
#pragma unroll
        for (int i = 0; i < V; i++)
#pragma unroll
            for (int j = 0; j < 8; j++)
                x[i][j] *= s;
    }
    /* this += s b */
    __device__ __forceinline__ void add(float s, const row &b)
    {
#pragma unroll
        for (int i = 0; i < V; i++)
#pragma unroll
            for (int j = 0; j < 8; j++)
                x[i][j] = fmaf(s, b.x[i][j], x[i][j]);
    }
    /* The lane's part of the dot product. */
    __device__ __forceinline__ float dot(const row &b) const
    {
        float s = 0;
#pragma unroll
        for (int i = 0; i < V; i++)
            s += dot8(x[i], b.x[i]);
        return s;
    }
};

__device__ __forceinline__ float norm_factor(float sum_squares, int n)
{
    return rsqrtf(sum_squares / n + NORM_EPS);
}

/* dy becomes Norm'(dy; x) = r (dy - r^2 mean(dy x) x), both rows of d channels. */
template <int V> __device__ __forceinline__ void norm_row_bwd(row<V> &dy, const row<V> &x, int d)
{
    float r = norm_factor(warp_sum(x.dot(x)), d);
    float c = r * r * warp_sum(dy.dot(x)) / d;

    dy.add(-c, x);
    dy.scale(r);
}

/* Channels 0 .. 11 of a row, lane j < 12 holding number j; other lanes hold 0. */
__device__ __forceinline__ float lane12(const bf16 *p)
{
    return lane_id() < 12 ? __bfloat162float(p[lane_id()]) : 0;
}
__device__ __forceinline__ float lane12(const void *p, bool is_f32)
{
    return lane_id() < 12 ? load_any(p, is_f32, lane_id()) : 0;
}

template <int V> struct vectors {
    static constexpr int value = V;
};

enum { ROW_MOST = 2048 }; /* channels: 8 vectors of 8 a lane */
/* Calls f(vectors<V>()) with 256 V >= d; false when the row is too long. */
template <typename F> bool with_vectors(int64_t d, F f)
{
    if (d <= 256)
        f(vectors<1>());
    else if (d <= 512)
        f(vectors<2>());
    else if (d <= 768)
        f(vectors<3>());
    else if (d <= 1024)
        f(vectors<4>());
    else if (d <= ROW_MOST)
        f(vectors<8>());
    else
        return false;
    return true;
}
#define ROW_FITS(c, d) \
    CUDA_NEED(c, (d) % 8 == 0 && (d) <= ROW_MOST, \
              "rows are a multiple of 8 and at most 2048 bf16 channels")

#endif
