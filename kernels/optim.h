/* optim.h - what the optimizer kernels share: eight elements of any float type at a time, and
 * arithmetic that rounds once an operation, so that results have the bits of the C reference.
 *
 * The compiler may contract a * b + c into one rounding; it leaves these as they are:
 *
 *     m = add(mul(beta1, m), mul(rest1, g));
 *
 * A tensor is read by threads that take 8 elements each. Where rows or addresses do not allow
 * 16-byte accesses the same kernel runs with WIDTH 1.
 */
#ifndef KERNELS_OPTIM_H
#define KERNELS_OPTIM_H

#include "behind.h"
#include "host/device.h"
#include "vec.h"

/* Returns a grid for n matrices of so many elements: blockIdx.y is the matrix, along x are at most as many blocks as
 * fill the GPU, of which one takes a_block elements at a time. */
static inline dim3 matrices_grid(const struct cuda_ops *c, int64_t elements, int a_block, int n)
{
    return dim3((int)min((int64_t)div_up(8 * c->sms, n), (elements - 1) / a_block + 1), n);
}

__device__ __forceinline__ float add(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ float sub(float a, float b) { return __fsub_rn(a, b); }
__device__ __forceinline__ float mul(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ float quot(float a, float b) { return __fdiv_rn(a, b); }
__device__ __forceinline__ float root(float a) { return __fsqrt_rn(a); }

/* root and quot where nothing over- or underflows: x in [2^-101, 2^60], b from a root of such a
 * number on, |a| in [2^-80, 2^60]. The same steps as the compiler's own, without its branch for
 * other numbers, so that several run at once; the bits are equal (tests/gpu/gpu_arith_test.cu). */
__device__ __forceinline__ float root_within(float x)
{
#ifdef __CUDA_ARCH__
    float r;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    float s = mul(x, r);
    return __fmaf_rn(__fmaf_rn(-s, s, x), mul(r, 0.5f), s);
#else
    return root(x);
#endif
}
__device__ __forceinline__ float quot_within(float a, float b)
{
#ifdef __CUDA_ARCH__
    float r, q;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(b));
    r = __fmaf_rn(r, __fmaf_rn(-b, r, 1), r);
    q = mul(a, r);
    q = __fmaf_rn(r, __fmaf_rn(-b, q, a), q);
    return __fmaf_rn(r, __fmaf_rn(-b, q, a), q);
#else
    return quot(a, b);
#endif
}

__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ float widen(bf16 x) { return __bfloat162float(x); }
__device__ __forceinline__ void narrow(float *p, float x) { *p = x; }
__device__ __forceinline__ void narrow(bf16 *p, float x) { *p = __float2bfloat16_rn(x); }
/* x as a T holds it. */
template <typename T> __device__ __forceinline__ float as_stored(float x)
{
    T t;
    narrow(&t, x);
    return widen(t);
}

/* WIDTH elements from p: 8 by 16-byte accesses, or one. */
template <int WIDTH, typename T> __device__ __forceinline__ void load(float (&x)[WIDTH], const T *p)
{
    if constexpr (WIDTH == 8)
        load8(x, p);
    else
        x[0] = widen(*p);
}
template <int WIDTH, typename T>
__device__ __forceinline__ void store(T *p, const float (&x)[WIDTH])
{
    if constexpr (WIDTH == 8)
        store8_whole(p, x);
    else
        narrow(p, x[0]);
}

/* True if threads may take 8 elements at a time where units of `count` elements follow each other. */
static inline bool wide(struct tensor t, int64_t count)
{
    return !t.data || (count % 8 == 0 && (uintptr_t)t.data % 16 == 0);
}

static inline bool is_float(struct tensor t) { return t.dtype == DT_F32 || t.dtype == DT_BF16; }

/* Calls f with a pointer of t's own element type: with_type(t, [&](auto *p) { ... }). */
template <typename F> static inline void with_type(struct tensor t, F f)
{
    if (t.dtype == DT_BF16)
        f((bf16 *)t.data);
    else
        f((float *)t.data);
}

#endif
