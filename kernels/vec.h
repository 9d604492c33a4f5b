/* vec.h - device code shared by the kernels: 16-byte accesses, sums over a warp or a block.
 *
 * A row of bf16 is read eight elements (16 bytes) a lane; arithmetic is fp32.
 *
 *     float x[8];
 *     load8(x, row + 8 * lane);
 *     float ss = warp_sum(dot8(x, x));
 *     store8(out + 8 * lane, x);
 *
 * All sums have one fixed order, so results do not change from run to run.
 */
#ifndef KERNELS_VEC_H
#define KERNELS_VEC_H

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

typedef __nv_bfloat16 bf16;

__device__ __forceinline__ float bf16_lo(uint32_t u) { return __uint_as_float(u << 16); }
__device__ __forceinline__ float bf16_hi(uint32_t u) { return __uint_as_float(u & 0xffff0000u); }
__device__ __forceinline__ uint32_t bf16_pack(float lo, float hi)
{
    uint32_t u;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(u) : "f"(hi), "f"(lo));
    return u;
}
__device__ __forceinline__ uint32_t f16_pack(float lo, float hi)
{
    __half2_raw h = __floats2half2_rn(lo, hi);
    return h.x | (uint32_t)h.y << 16;
}
__device__ __forceinline__ float2 f16_pair(uint32_t u)
{
    return __half22float2(__half2(__half2_raw{ (uint16_t)u, (uint16_t)(u >> 16) }));
}
__device__ __forceinline__ void unpack8(float (&x)[8], uint4 u)
{
    x[0] = bf16_lo(u.x), x[1] = bf16_hi(u.x), x[2] = bf16_lo(u.y), x[3] = bf16_hi(u.y);
    x[4] = bf16_lo(u.z), x[5] = bf16_hi(u.z), x[6] = bf16_lo(u.w), x[7] = bf16_hi(u.w);
}
__device__ __forceinline__ uint4 pack8(const float (&x)[8])
{
    return make_uint4(bf16_pack(x[0], x[1]), bf16_pack(x[2], x[3]), bf16_pack(x[4], x[5]),
                      bf16_pack(x[6], x[7]));
}
__device__ __forceinline__ void load8(float (&x)[8], const bf16 *p)
{
    unpack8(x, *(const uint4 *)p);
}
/* One store of 16 bytes, p a multiple of 16. An assignment may become four stores of 4: nvcc takes
 * the struct apart and does not always put it together again. Loads do not move across this one, so
 * where a warp has one row and loads ahead, store8 is as fast or faster. */
__device__ __forceinline__ void store16(void *p, uint4 u)
{
#ifdef __CUDA_ARCH__
    asm volatile("st.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(u.x), "r"(u.y), "r"(u.z),
                 "r"(u.w)
                 : "memory");
#else
    *(uint4 *)p = u;
#endif
}
__device__ __forceinline__ void store8(bf16 *p, const float (&x)[8]) { *(uint4 *)p = pack8(x); }
__device__ __forceinline__ void load8(float (&x)[8], const float *p)
{
    float4 a = ((const float4 *)p)[0], b = ((const float4 *)p)[1];
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
}
__device__ __forceinline__ void store8(float *p, const float (&x)[8])
{
    ((float4 *)p)[0] = make_float4(x[0], x[1], x[2], x[3]);
    ((float4 *)p)[1] = make_float4(x[4], x[5], x[6], x[7]);
}

/* store8 by store16. */
__device__ __forceinline__ void store8_whole(bf16 *p, const float (&x)[8]) { store16(p, pack8(x)); }
__device__ __forceinline__ void store8_whole(float *p, const float (&x)[8])
{
#pragma unroll
    for (int i = 0; i < 8; i += 4)
        store16(p + i, make_uint4(__float_as_uint(x[i]), __float_as_uint(x[i + 1]),
                                  __float_as_uint(x[i + 2]), __float_as_uint(x[i + 3])));
}

/* One number of a small array (gate weights) whose dtype is known at run time only. */
__device__ __forceinline__ float load_any(const void *p, bool is_f32, int i)
{
    return is_f32 ? ((const float *)p)[i] : __bfloat162float(((const bf16 *)p)[i]);
}

__device__ __forceinline__ float dot8(const float (&a)[8], const float (&b)[8])
{
    float s = 0;
#pragma unroll
    for (int i = 0; i < 8; i++)
        s = fmaf(a[i], b[i], s);
    return s;
}

/* Sum over the warp, or aligned groups of `width` lanes, in every lane. T: float, double. */
template <typename T> __device__ __forceinline__ T warp_sum(T x, int width = 32)
{
    for (int m = width / 2; m > 0; m /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, m);
    return x;
}
__device__ __forceinline__ float warp_max(float x, int width = 32)
{
    for (int m = width / 2; m > 0; m /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, m));
    return x;
}

/* Sum over a block of whole warps; every thread gets it. `warps` is shared memory of
 * 32 numbers; two calls in a row need two arrays or a barrier between. */
template <typename T> __device__ __forceinline__ T block_sum(T x, T *warps)
{
    x = warp_sum(x);
    if (threadIdx.x % 32 == 0)
        warps[threadIdx.x / 32] = x;
    __syncthreads();
    x = threadIdx.x % 32 < (blockDim.x + 31) / 32 ? warps[threadIdx.x % 32] : 0;
    return warp_sum(x);
}

/* True in every thread of the block that arrives last, when what all blocks wrote before is
 * visible (read it with __ldcg). `ticket` is cuda_ops.ticket: 0 before and after. */
__device__ __forceinline__ bool last_block(unsigned *ticket)
{
    __shared__ bool last;

    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(ticket, 1) == gridDim.x - 1;
        if (last)
            *ticket = 0;
    }
    __syncthreads();
    if (last)
        __threadfence();
    return last;
}

__device__ __forceinline__ float exp2_approx(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float sqrt_approx(float x)
{
    float y;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float rcp_approx(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float relu(float x) { return x < 0 ? 0 : x; } /* of NaN: NaN */
__device__ __forceinline__ float sigmoid(float u) { return 1.0f / (1.0f + __expf(-u)); }

constexpr float NORM_EPS = 1.1920928955078125e-7f; /* 2^-23, record-61.md 2.1 */

#endif
