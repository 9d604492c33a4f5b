/* adam_store.h - device code for numbers as Adam keeps them: f32, bf16, and f16 and e4m3 times the
 * scale of their row; rounded to nearest, or as drawn bits decide (optimizers.md 3.3).
 *
 *     load_kept<8>(m, q.m.data, q.m.type, at, scale);
 *     store_kept<8>(q.m.data, q.m.type, at, m, scale, drawn, d.m, false, ordinary);
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
    const float *top; /* what all new scales hold; NULL: each row's largest number */
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

/* lib/ops/adam.c and lib/types/dtype.c round the same way: codes count upwards through subnormals
 * and normals, so a carry out of the mantissa is right. draw: 16 bits. */
__device__ __forceinline__ uint32_t encode(int type, float x, bool drawn, uint32_t draw)
{
    format f = format_of(type);
    uint32_t u = __float_as_uint(x), size = u & 0x7fffffff, field = size >> 23;
    uint32_t mantissa = (size & 0x7fffff) | (field ? 0x800000 : 0), code = 0;
    int e = field ? (int)field - 127 : -126, shift = 23 - f.mantissa;

    if (size > 0x7f800000)
        return type == DT_E4M3 ? f.nan : (u >> 31) << f.sign | f.nan;
    if (e < f.emin) {
        shift += f.emin - e;
        e = f.emin;
    }
    if (shift <= (drawn ? 41 : 24)) {
        uint64_t half = (1ull << (shift - 1)) - 1, odd = (uint64_t)mantissa >> shift & 1;
        uint64_t more = drawn ? (uint64_t)(2 * draw + 1) << shift >> 17 : half + odd;
        code = ((uint32_t)(e - f.emin) << f.mantissa) + (uint32_t)((mantissa + more) >> shift);
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

/* The number of encode() to f16 with a draw, without the sign, of |y| that does not exceed f16's largest number:
 * y + draw of its unit, cut to whole units, which two roundings towards zero leave; what was added for that,
 * 2^up power and a unit, goes again without rounding. */
__device__ __forceinline__ float round_drawn_f16(float y, uint32_t draw)
{
    constexpr int mantissa = 10, up = 23 - mantissa;
    uint32_t power = max(__float_as_uint(y) & 0x7f800000, (127 - 14) << 23);
    float one_and_draw =
        __uint_as_float((127 - mantissa) << 23 | draw << 7 | 0x40); /* units / power */
    float sum = __fmaf_rz(one_and_draw, __uint_as_float(power), fabsf(y));
    float units = __fmaf_rz(__uint_as_float(power), (float)(1 << up), sum);
    constexpr float added = (float)(1 << up) + 1.0f / (1 << mantissa); /* 24 bits */
    return fmaf(__uint_as_float(power), -added, units);
}

/* The least power of two, 2^-126 at least, times which the type's largest number reaches most,
 * given as bits. */
__device__ __forceinline__ float scale_for(int type, uint32_t most)
{
    uint32_t top = type == DT_E4M3 ? 0x600000 : 0x7fe000;
    int k = (int)((most + (0x7fffff - top)) >> 23) - (type == DT_E4M3 ? 8 : 15);
    return most >= 0x7f800000 ? 1 : __uint_as_float((uint32_t)max(k, 1) << 23);
}

__device__ __forceinline__ float least_of(int type) { return type == DT_E4M3 ? 0x1p-9f : 0x1p-24f; }

/* -- drawn bits --------------------------------------------------------------------------------- */

/* 16 of each of WIDTH elements from `first` on, a multiple of 8 where WIDTH is, two in a word. */
template <int WIDTH> struct draws {
    uint32_t words[(WIDTH + 1) / 2];

    /* stream: of the parameter; the upper half of philox's. */
    __device__ __forceinline__ void draw(const round_keys &key, uint32_t stream, uint32_t update,
                                         uint64_t first)
    {
        uint32_t c[4] = { (uint32_t)(first / 8), (uint32_t)(first >> 35), update, stream };
        philox(key, c);
        if constexpr (WIDTH == 8) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                words[i] = c[i];
        } else {
            uint32_t at = first % 8 / 2;
            uint32_t word = at == 0 ? c[0] : at == 1 ? c[1] : at == 2 ? c[2] : c[3];
            words[0] = word >> 16 * (first % 2);
        }
    }
};
/* R of element e; the second moment's are those of the first with their bytes exchanged. */
__device__ __forceinline__ uint32_t drawn_bits(const uint32_t *words, int e, bool second)
{
    return __byte_perm(words[e / 2], 0,
                       second ? (e % 2 ? 0x4423 : 0x4401) : (e % 2 ? 0x4432 : 0x4410));
}
/* 2^8 (R + 1/2) */
__device__ __forceinline__ uint32_t drawn_and_half(const uint32_t *words, int e, bool second)
{
    return __byte_perm(words[e / 2], 0x80,
                       second ? (e % 2 ? 0x5234 : 0x5014) : (e % 2 ? 0x5324 : 0x5104));
}

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
        store16(p, make_uint4(__byte_perm(x[0], x[1], 0x5410), __byte_perm(x[2], x[3], 0x5410),
                              __byte_perm(x[4], x[5], 0x5410), __byte_perm(x[6], x[7], 0x5410)));
    else
        *p = (uint16_t)x[0];
}
template <int WIDTH>
__device__ __forceinline__ void store_bytes(uint8_t *p, const uint32_t (&x)[WIDTH])
{
    if constexpr (WIDTH == 8)
        *(uint2 *)p = make_uint2(x[0] + (x[1] << 8) + (x[2] << 16) + (x[3] << 24),
                                 x[4] + (x[5] << 8) + (x[6] << 16) + (x[7] << 24));
    else
        *p = (uint8_t)x[0];
}

/* Codes as the numbers that they are, exactly; e4m3 by way of f16. */
__device__ __forceinline__ void widen_pair(float &lo, float &hi, __half2_raw h)
{
    float2 f = __half22float2(__half2(h));
    lo = f.x, hi = f.y;
}
__device__ __forceinline__ void unpack_f16(float (&x)[8], uint4 u)
{
    uint32_t word[4] = { u.x, u.y, u.z, u.w };
#pragma unroll
    for (int i = 0; i < 4; i++)
        widen_pair(x[2 * i], x[2 * i + 1],
                   __half2_raw{ (uint16_t)word[i], (uint16_t)(word[i] >> 16) });
}
__device__ __forceinline__ void unpack_e4m3(float (&x)[8], uint2 u)
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        widen_pair(
            x[2 * i], x[2 * i + 1],
            __nv_cvt_fp8x2_to_halfraw2((uint16_t)((i < 2 ? u.x : u.y) >> 16 * (i % 2)), __NV_E4M3));
}
template <int WIDTH> __device__ __forceinline__ void load_f16(float (&x)[WIDTH], const uint16_t *p)
{
    if constexpr (WIDTH == 8)
        unpack_f16(x, *(const uint4 *)p);
    else
        x[0] = __half2float(__half(__half_raw{ *p }));
}
template <int WIDTH> __device__ __forceinline__ void load_e4m3(float (&x)[WIDTH], const uint8_t *p)
{
    if constexpr (WIDTH == 8)
        unpack_e4m3(x, *(const uint2 *)p);
    else
        x[0] = __half2float(__half(__nv_cvt_fp8_to_halfraw(*p, __NV_E4M3)));
}

__device__ __forceinline__ bool has_scale(int type) { return type == DT_F16 || type == DT_E4M3; }

/* Loads numbers of any stored type; those of f16 and e4m3 without their scale. */
template <int WIDTH>
__device__ __forceinline__ void load_unscaled(float (&x)[WIDTH], const void *p, int type,
                                              int64_t at)
{
    if (type == DT_F32)
        load<WIDTH>(x, (const float *)p + at);
    else if (type == DT_BF16)
        load<WIDTH>(x, (const bf16 *)p + at);
    else if (type == DT_F16)
        load_f16<WIDTH>(x, (const uint16_t *)p + at);
    else
        load_e4m3<WIDTH>(x, (const uint8_t *)p + at);
}
template <int WIDTH>
__device__ __forceinline__ void load_kept(float (&x)[WIDTH], const void *p, int type, int64_t at,
                                          float scale)
{
    load_unscaled<WIDTH>(x, p, type, at);
    if (has_scale(type))
#pragma unroll
        for (int e = 0; e < WIDTH; e++)
            x[e] = mul(x[e], scale);
}

/* Eight to nearest by the GPU's own conversions: the bits of encode(), but those of a NaN in f16. */
__device__ __forceinline__ void store_f16(uint16_t *p, const float (&y)[8])
{
    __half2_raw h[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        h[i] = __floats2half2_rn(y[2 * i], y[2 * i + 1]);
    store16(p, make_uint4(h[0].x | h[0].y << 16, h[1].x | h[1].y << 16, h[2].x | h[2].y << 16,
                          h[3].x | h[3].y << 16));
}
__device__ __forceinline__ void store_e4m3(uint8_t *p, const float (&y)[8])
{
    *(uint2 *)p =
        make_uint2(pack_e4m3x4(y[0], y[1], y[2], y[3]), pack_e4m3x4(y[4], y[5], y[6], y[7]));
}

/* Eight moments in bf16 or f16 that are neither zero nor near the ends of f32's range, in a row of finite
 * numbers. */
__device__ __forceinline__ void store_drawn(void *p, int type, int64_t at, const float (&y)[8],
                                            const uint32_t (&draw)[4], bool second)
{
    uint32_t code[8];
    float x[8];
#pragma unroll
    for (int e = 0; e < 8; e++) {
        uint32_t bits = drawn_bits(draw, e, second);
        if (type == DT_BF16) { /* its exponents are those of f32 */
            code[e] = (__float_as_uint(y[e]) + bits) >> 16;
            continue;
        }
        x[e] = round_drawn_f16(y[e], bits);
        x[e] = second ? fmaxf(x[e], least_of(type)) : copysignf(x[e], y[e]);
    }
    if (type == DT_BF16)
        store_words<8>((uint16_t *)p + at, code);
    else
        store_f16((uint16_t *)p + at, x);
}

/* The bits of x times a power of two, rounded towards zero. */
__device__ __forceinline__ uint32_t scaled_bits(float x, float by)
{
    return __float_as_uint(__fmaf_rz(x, by, 0));
}

/* Eight moments that are finite, drawn; a v is not 0. 2^-100 <= scale <= 2^20; least: of |x|. Times
 * 2^(emin + 126) / scale the exponents of e4m3 and f16 are those of f32, e4m3's subnormals included: what
 * f32 then cuts off is less than any R could carry. Their codes are the bits but the lower 20 and 13. */
__device__ __forceinline__ void store_drawn_e4m3(uint8_t *p, const float (&x)[8], float scale,
                                                 const uint32_t (&draw)[4], bool second)
{
    float by = mul(__uint_as_float((254u << 23) - __float_as_uint(scale)), 0x1p-120f);
    uint32_t sum[8], code[2];
#pragma unroll
    for (int e = 0; e < 8; e++) {
        sum[e] = (scaled_bits(x[e], by) << 4) + drawn_and_half(draw, e, second);
        if (!second)
            sum[e] |= __float_as_uint(x[e]) & 0x80000000;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t *s = sum + 4 * i;
        code[i] = __byte_perm(__byte_perm(s[0], s[1], 0x73), __byte_perm(s[2], s[3], 0x73), 0x5410);
        if (second) /* 1 where a byte is 0 */
            code[i] |= (0x80808080 - code[i]) >> 7 & 0x01010101;
    }
    *(uint2 *)p = make_uint2(code[0], code[1]);
}
__device__ __forceinline__ void store_drawn_usual(void *p, int type, int64_t at,
                                                  const float (&x)[8], float scale,
                                                  const uint32_t (&draw)[4], bool second,
                                                  float least)
{
    if (type == DT_E4M3) {
        store_drawn_e4m3((uint8_t *)p + at, x, scale, draw, second);
        return;
    }
    float by = __uint_as_float((254u << 23) - __float_as_uint(scale));
    uint32_t sum[8];
    if (type == DT_F16 && !(mul(least, by) >= 0x1p-14f)) {
        float y[8];
#pragma unroll
        for (int e = 0; e < 8; e++)
            y[e] = mul(x[e], by);
        store_drawn(p, type, at, y, draw, second);
        return;
    }
    by = mul(by, 0x1p-112f);
#pragma unroll
    for (int e = 0; e < 8; e++) {
        uint32_t bits = drawn_bits(draw, e, second);
        if (type == DT_BF16) { /* its exponents are those of f32 */
            sum[e] = __float_as_uint(x[e]) + bits;
            continue;
        }
        sum[e] = (scaled_bits(x[e], by) << 3) + bits;
        if (!second)
            sum[e] |= __float_as_uint(x[e]) & 0x80000000;
    }
    store16((uint16_t *)p + at,
            make_uint4(__byte_perm(sum[0], sum[1], 0x7632), __byte_perm(sum[2], sum[3], 0x7632),
                       __byte_perm(sum[4], sum[5], 0x7632), __byte_perm(sum[6], sum[7], 0x7632)));
}

/* drawn: as those bits say; else to nearest. second: in f16 and e4m3 what is not 0 does not become 0.
 * ordinary: as for store_drawn. Dividing by a power of two and multiplying by its reciprocal round alike. */
template <int WIDTH>
__device__ __forceinline__ void store_kept(void *p, int type, int64_t at, const float (&x)[WIDTH],
                                           float scale, bool drawn,
                                           const uint32_t (&draw)[(WIDTH + 1) / 2], bool second,
                                           bool ordinary)
{
    if (type == DT_F32) {
        store<WIDTH>((float *)p + at, x);
        return;
    }
    if (type == DT_BF16 && !drawn) {
        store<WIDTH>((bf16 *)p + at, x);
        return;
    }
    if constexpr (WIDTH == 8)
        if (ordinary && drawn && type == DT_E4M3 && scale <= 0x1p20f) {
            store_drawn_e4m3((uint8_t *)p + at, x, scale, draw, second);
            return;
        }
    bool scaled = type != DT_BF16;
    float by = __uint_as_float((254u << 23) - __float_as_uint(scale)), y[WIDTH];
    uint32_t code[WIDTH];
#pragma unroll
    for (int e = 0; e < WIDTH; e++)
        y[e] = scaled ? mul(x[e], by) : x[e];
    if constexpr (WIDTH == 8)
        if (ordinary && !(drawn && type == DT_E4M3)) {
            if (drawn) {
                store_drawn(p, type, at, y, draw, second);
                return;
            }
#pragma unroll
            for (int e = 0; e < 8; e++)
                y[e] = second ? fmaxf(y[e], least_of(type)) : y[e]; /* what is below is 0 or 1 */
            if (type == DT_E4M3)
                store_e4m3((uint8_t *)p + at, y);
            else
                store_f16((uint16_t *)p + at, y);
            return;
        }
#pragma unroll
    for (int e = 0; e < WIDTH; e++) {
        code[e] = encode(type, y[e], drawn, drawn_bits(draw, e, second));
        if (second && scaled && code[e] == 0 && x[e] > 0)
            code[e] = 1;
    }
    if (type == DT_E4M3)
        store_bytes<WIDTH>((uint8_t *)p + at, code);
    else
        store_words<WIDTH>((uint16_t *)p + at, code);
}

/* To nearest; of a weight or a master, which may be any number, or finite. */
template <int WIDTH>
__device__ __forceinline__ void store_nearest(void *p, int type, int64_t at,
                                              const float (&x)[WIDTH], float scale, bool finite)
{
    const uint32_t none[(WIDTH + 1) / 2] = {};
    bool ordinary = true;
    if (type == DT_F16 && !finite)
#pragma unroll
        for (int e = 0; e < WIDTH; e++)
            ordinary &= x[e] == x[e];
    store_kept<WIDTH>(p, type, at, x, scale, false, none, false, ordinary);
}

#endif
