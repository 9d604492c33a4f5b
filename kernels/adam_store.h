/* adam_store.h - device code for numbers as Adam keeps them: f32, bf16, and f16 and e4m3 times the
 * scale of their row; rounded to nearest, or as drawn words decide (optimizers.md 3.3).
 *
 *     load_kept<8>(m, q.m.data, q.m.type, at, scale);
 *     store_kept<8>(q.m.data, q.m.type, at, m, scale, drawn, d.m, false, finite);
 *
 * A type is a number of enum dtype; where it is a constant only its own code is compiled.
 */
#ifndef KERNELS_ADAM_STORE_H
#define KERNELS_ADAM_STORE_H

#include <cuda_fp16.h>
#include "head_fp8.h"
#include "optim.h"
#include "philox.h"

struct kept {
    void *data;
    float *scale; /* (rows), or NULL */
    uint8_t type; /* enum dtype; DT_NONE: none */
};

/* -- codes and numbers -------------------------------------------------------------------------- */

struct format {
    int mantissa, emin, sign;
    uint32_t largest, overflow, infinity, nan; /* codes of finite, of what is larger, ... */
};
__device__ __forceinline__ format format_of(int type)
{
    return type == DT_E4M3  ? format{ 3, -6, 7, 0x7e, 0x7e, 0x7e, 0x7f }
           : type == DT_F16 ? format{ 10, -14, 15, 0x7bff, 0x7c00, 0x7c00, 0x7e00 }
                            : format{ 7, -126, 15, 0x7f7f, 0x7f80, 0x7f80, 0x7fc0 };
}

/* lib/ops/adam.c and lib/base/dtype.c round the same way: codes count upwards through subnormals
 * and normals, so a carry out of the mantissa is right. */
__device__ __forceinline__ uint32_t encode(int type, float x, bool drawn, uint32_t draw)
{
    format f = format_of(type);
    if (type == DT_BF16 && drawn && isfinite(x)) { /* its exponents are those of f32 */
        uint32_t u = __float_as_uint(x), code = ((u & 0x7fffffff) + (draw >> 16)) >> 16;
        return (u >> 31) << 15 | min(code, 0x7f7fu);
    }
    uint32_t u = __float_as_uint(x), size = u & 0x7fffffff, field = size >> 23;
    uint32_t mantissa = (size & 0x7fffff) | (field ? 0x800000 : 0), code = 0;
    int e = field ? (int)field - 127 : -126, shift = 23 - f.mantissa;

    if (size > 0x7f800000)
        return type == DT_E4M3 ? f.nan : (u >> 31) << f.sign | f.nan;
    if (e < f.emin) {
        shift += f.emin - e;
        e = f.emin;
    }
    if (shift <= (drawn ? 31 : 24)) {
        uint32_t half = (1u << (shift - 1)) - 1, odd = mantissa >> shift & 1;
        mantissa += drawn ? draw >> (32 - shift) : half + odd;
        code = ((uint32_t)(e - f.emin) << f.mantissa) + (mantissa >> shift);
    }
    if (code > f.largest)
        code = drawn ? f.largest : f.overflow;
    if (size == 0x7f800000)
        code = f.infinity;
    return (u >> 31) << f.sign | code;
}
__device__ __forceinline__ uint32_t encode_nearest(int type, float x)
{
    return encode(type, x, false, 0);
}

/* The bf16 beside an f32 master: halves away from zero. */
__device__ __forceinline__ uint32_t rounded_away(float x)
{
    uint32_t u = __float_as_uint(x);
    return (u & 0x7fffffff) > 0x7f800000 ? u >> 16 | 0x40 : (u + 0x8000) >> 16;
}

/* The least power of two, 2^-126 at least, times which the type's largest number reaches most,
 * given as bits. */
__device__ __forceinline__ float scale_for(int type, uint32_t most)
{
    uint32_t top = type == DT_E4M3 ? 0x600000 : 0x7fe000;
    int k = (int)(most >> 23) - 127 - (type == DT_E4M3 ? 8 : 15) + ((most & 0x7fffff) > top);
    if (most >= 0x7f800000)
        return 1;
    return __uint_as_float((uint32_t)(k < -126 ? 1 : k + 127) << 23);
}

/* -- drawn words -------------------------------------------------------------------------------- */

/* Of WIDTH elements from `first` on, a multiple of 4 where WIDTH is: a word an element, half of it a
 * moment. */
template <int WIDTH> struct draws {
    uint32_t m[WIDTH], v[WIDTH];

    __device__ __forceinline__ void draw(uint64_t seed, uint64_t stream, uint64_t first)
    {
        uint32_t words[4];
#pragma unroll
        for (int e = 0; e < WIDTH; e++) {
            if (e % 4 == 0)
                philox(seed, stream, (first + e) / 4, words);
            uint32_t at = WIDTH == 1 ? first % 4 : e % 4;
            uint32_t word = at == 0 ? words[0] : at == 1 ? words[1] : at == 2 ? words[2] : words[3];
            m[e] = word << 16 | 0x8000;
            v[e] = (word & 0xffff0000u) | 0x8000;
        }
    }
};

/* -- memory --------------------------------------------------------------------------------------- */

template <int WIDTH>
__device__ __forceinline__ void load_words(uint32_t (&x)[WIDTH], const uint16_t *p)
{
    if constexpr (WIDTH == 8) {
        uint4 u = *(const uint4 *)p;
        x[0] = u.x & 0xffff, x[1] = u.x >> 16, x[2] = u.y & 0xffff, x[3] = u.y >> 16;
        x[4] = u.z & 0xffff, x[5] = u.z >> 16, x[6] = u.w & 0xffff, x[7] = u.w >> 16;
    } else {
        x[0] = *p;
    }
}
template <int WIDTH>
__device__ __forceinline__ void store_words(uint16_t *p, const uint32_t (&x)[WIDTH])
{
    if constexpr (WIDTH == 8)
        *(uint4 *)p =
            make_uint4(x[0] | x[1] << 16, x[2] | x[3] << 16, x[4] | x[5] << 16, x[6] | x[7] << 16);
    else
        *p = (uint16_t)x[0];
}
template <int WIDTH>
__device__ __forceinline__ void store_bytes(uint8_t *p, const uint32_t (&x)[WIDTH])
{
    if constexpr (WIDTH == 8)
        *(uint2 *)p = make_uint2(x[0] | x[1] << 8 | x[2] << 16 | x[3] << 24,
                                 x[4] | x[5] << 8 | x[6] << 16 | x[7] << 24);
    else
        *p = (uint8_t)x[0];
}

/* Codes as the numbers that they are, exactly; e4m3 by way of f16. */
__device__ __forceinline__ void widen_pair(float &lo, float &hi, __half2_raw h)
{
    float2 f = __half22float2(__half2(h));
    lo = f.x, hi = f.y;
}
template <int WIDTH> __device__ __forceinline__ void load_f16(float (&x)[WIDTH], const uint16_t *p)
{
    if constexpr (WIDTH == 8) {
        uint4 u = *(const uint4 *)p;
        uint32_t word[4] = { u.x, u.y, u.z, u.w };
#pragma unroll
        for (int i = 0; i < 4; i++)
            widen_pair(x[2 * i], x[2 * i + 1],
                       __half2_raw{ (uint16_t)word[i], (uint16_t)(word[i] >> 16) });
    } else {
        x[0] = __half2float(__half(__half_raw{ *p }));
    }
}
template <int WIDTH> __device__ __forceinline__ void load_e4m3(float (&x)[WIDTH], const uint8_t *p)
{
    if constexpr (WIDTH == 8) {
        uint2 u = *(const uint2 *)p;
#pragma unroll
        for (int i = 0; i < 4; i++)
            widen_pair(x[2 * i], x[2 * i + 1],
                       __nv_cvt_fp8x2_to_halfraw2((uint16_t)((i < 2 ? u.x : u.y) >> 16 * (i % 2)),
                                                  __NV_E4M3));
    } else {
        x[0] = __half2float(__half(__nv_cvt_fp8_to_halfraw(*p, __NV_E4M3)));
    }
}

template <int WIDTH>
__device__ __forceinline__ void load_kept(float (&x)[WIDTH], const void *p, int type, int64_t at,
                                          float scale)
{
    if (type == DT_F32) {
        load<WIDTH>(x, (const float *)p + at);
        return;
    }
    if (type == DT_BF16) {
        load<WIDTH>(x, (const bf16 *)p + at);
        return;
    }
    if (type == DT_F16)
        load_f16<WIDTH>(x, (const uint16_t *)p + at);
    else
        load_e4m3<WIDTH>(x, (const uint8_t *)p + at);
#pragma unroll
    for (int e = 0; e < WIDTH; e++)
        x[e] = mul(x[e], scale);
}

/* Of numbers without NaN, eight at once, to nearest by the GPU's own conversions: the bits of
 * encode(). */
__device__ __forceinline__ void store_f16(uint16_t *p, const float (&y)[8])
{
    __half2_raw h[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        h[i] = __floats2half2_rn(y[2 * i], y[2 * i + 1]);
    *(uint4 *)p = make_uint4(h[0].x | h[0].y << 16, h[1].x | h[1].y << 16, h[2].x | h[2].y << 16,
                             h[3].x | h[3].y << 16);
}
__device__ __forceinline__ void store_e4m3(uint8_t *p, const float (&y)[8])
{
    *(uint2 *)p =
        make_uint2(pack_e4m3x4(y[0], y[1], y[2], y[3]), pack_e4m3x4(y[4], y[5], y[6], y[7]));
}

/* drawn: a word an element; else to nearest. second: in f16 and e4m3 what is not 0 does not become
 * 0. finite: no x is a NaN. Dividing by a power of two and multiplying by its reciprocal round
 * alike. */
template <int WIDTH>
__device__ __forceinline__ void store_kept(void *p, int type, int64_t at, const float (&x)[WIDTH],
                                           float scale, bool drawn, const uint32_t (&draw)[WIDTH],
                                           bool second, bool finite)
{
    if (type == DT_F32) {
        store<WIDTH>((float *)p + at, x);
        return;
    }
    if (type == DT_BF16 && !drawn) {
        store<WIDTH>((bf16 *)p + at, x);
        return;
    }
    bool scaled = type != DT_BF16;
    float by = __uint_as_float((254u << 23) - __float_as_uint(scale)), y[WIDTH];
    float least = type == DT_E4M3 ? 0x1p-9f : 0x1p-24f; /* to nearest, what is below is 0 or 1 */
    uint32_t code[WIDTH];
#pragma unroll
    for (int e = 0; e < WIDTH; e++) {
        y[e] = scaled ? mul(x[e], by) : x[e];
        if (second && scaled && !drawn && x[e] > 0)
            y[e] = fmaxf(y[e], least);
    }
    if constexpr (WIDTH == 8)
        if (scaled && !drawn && finite) {
            if (type == DT_E4M3)
                store_e4m3((uint8_t *)p + at, y);
            else
                store_f16((uint16_t *)p + at, y);
            return;
        }
#pragma unroll
    for (int e = 0; e < WIDTH; e++) {
        code[e] = encode(type, y[e], drawn, draw[e]);
        if (second && scaled && code[e] == 0 && x[e] > 0)
            code[e] = 1;
    }
    if (type == DT_E4M3)
        store_bytes<WIDTH>((uint8_t *)p + at, code);
    else
        store_words<WIDTH>((uint16_t *)p + at, code);
}

/* To nearest. */
template <int WIDTH>
__device__ __forceinline__ void store_nearest(void *p, int type, int64_t at,
                                              const float (&x)[WIDTH], float scale, bool finite)
{
    const uint32_t none[WIDTH] = {};
    store_kept<WIDTH>(p, type, at, x, scale, false, none, false, finite);
}

#endif
