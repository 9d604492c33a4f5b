/* head_fp8.h - fp8 copies of matrices, as they are and transposed (head_fp8.cu).
 *
 * fp8 tensor cores read both operands contiguous along the sum, so what enters
 * two products with different sums exists twice.
 */
#ifndef KERNELS_HEAD_FP8_H
#define KERNELS_HEAD_FP8_H

#include <cuda_fp8.h>
#include "host/device.h"

/* dst (R',C) = e4m3(src (R,C) / scale), dst_t (C,R') its transpose; rows R .. R'-1 are zeros.
 * C and, with dst_t, R' are multiples of 16. Either may be none. */
void head_quantize(struct cuda_ops *c, struct tensor dst, struct tensor dst_t, struct tensor src,
                   float scale);
/* Columns first .. first + R' - 1 of dst_t (C, any) = src^T, where src has R' rows of C bytes,
 * ld bytes apart, of which those from `rows` on count as zeros. */
void head_transpose(struct cuda_ops *c, struct tensor dst_t, int64_t first, struct tensor src,
                    int64_t ld, int64_t rows);

/* Transposes each of n matrices of codes: src (n R, C), dst_t (n C, R); R and C are multiples of
 * 16. */
void fp8_transpose_each(struct cuda_ops *c, struct tensor dst_t, struct tensor src, int n);

/* Two numbers as codes, the first in the low byte. Below compute capability 8.9 (where a weight's
 * fp8 copy is still written, though no product reads it) by arithmetic. */
__device__ __forceinline__ uint16_t pack_e4m3x2(float lo, float hi)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
    uint16_t x;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(x) : "f"(hi), "f"(lo));
    return x;
#else
    return __nv_cvt_float2_to_fp8x2(make_float2(lo, hi), __NV_SATFINITE, __NV_E4M3);
#endif
}
/* Codes of lo / unit and hi / unit, inverse = 1 / unit rounded: the quotients have the bits of a division as far as
 * codes tell numbers apart. */
__device__ __forceinline__ uint16_t quotients_e4m3x2(float lo, float hi, float unit, float inverse)
{
    const float most = 512; /* beyond the last code; infinities would become NaN */
    float a = fminf(fmaxf(lo * inverse, -most), most);
    float b = fminf(fmaxf(hi * inverse, -most), most);
    return pack_e4m3x2(fmaf(fmaf(-a, unit, lo), inverse, a), fmaf(fmaf(-b, unit, hi), inverse, b));
}
__device__ __forceinline__ uint16_t pack_e5m2x2(float lo, float hi)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
    uint16_t x;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(x) : "f"(hi), "f"(lo));
    return x;
#else
    return __nv_cvt_float2_to_fp8x2(make_float2(lo, hi), __NV_SATFINITE, __NV_E5M2);
#endif
}
__device__ __forceinline__ uint32_t pack_e4m3x4(float a, float b, float c, float d)
{
    return pack_e4m3x2(a, b) | (uint32_t)pack_e4m3x2(c, d) << 16;
}
__device__ __forceinline__ uint32_t pack_e5m2x4(float a, float b, float c, float d)
{
    return pack_e5m2x2(a, b) | (uint32_t)pack_e5m2x2(c, d) << 16;
}
__device__ __forceinline__ uint2 pack_e5m2(const float (&x)[8])
{
    return make_uint2(pack_e5m2x4(x[0], x[1], x[2], x[3]), pack_e5m2x4(x[4], x[5], x[6], x[7]));
}

#endif
