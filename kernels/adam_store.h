/* adam_store.h - device code for numbers as Adam keeps them: f32, bf16, and f16 and e4m3 times the
 * scale of their row; rounded to nearest, or as drawn words decide (optimizers.md 3.3).
 *
 *     load_kept<8>(m, q.m.data, q.m.type, at, scale);
 *     store_kept<8>(q.m.data, q.m.type, at, m, scale, drawn ? d.m : NULL, false);
 *
 * A type is a number of enum dtype; where it is a constant only its own code is compiled.
 */
#ifndef KERNELS_ADAM_STORE_H
#define KERNELS_ADAM_STORE_H

#include "optim.h"
#include "philox.h"

struct kept {
    void *data;
    float *scale; /* (rows), or NULL */
    uint8_t type; /* enum dtype; DT_NONE: none */
};

/* -- codes and numbers -------------------------------------------------------------------------- */

/* A format's fields moved to f32's, whose exponent is biased by more: exact, subnormals too. */
__device__ __forceinline__ float f16_value(uint32_t h)
{
    float x = mul(__uint_as_float((h & 0x7fff) << 13), 0x1p112f);
    uint32_t u = (h & 0x7c00) == 0x7c00 ? 0x7f800000 | (h & 0x3ff) << 13 : __float_as_uint(x);
    return __uint_as_float(u | (h & 0x8000) << 16);
}
__device__ __forceinline__ float e4m3_value(uint32_t c)
{
    float x = mul(__uint_as_float((c & 0x7f) << 20), 0x1p120f);
    uint32_t u = (c & 0x7f) == 0x7f ? 0x7fc00000 : __float_as_uint(x);
    return __uint_as_float(u | (c & 0x80) << 24);
}

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
        mantissa += drawn ? draw & ((1u << shift) - 1) : half + odd;
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

template <int WIDTH> struct draws {
    uint32_t m[WIDTH], v[WIDTH];

    __device__ __forceinline__ void draw(uint64_t seed, uint64_t stream, uint64_t first)
    {
        uint32_t words[4];
#pragma unroll
        for (int e = 0; e < WIDTH; e++) {
            bool odd = (first + e) & 1;
            if (e == 0 || !odd)
                philox(seed, stream, (first + e) / 2, words);
            m[e] = odd ? words[2] : words[0];
            v[e] = odd ? words[3] : words[1];
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
__device__ __forceinline__ void load_bytes(uint32_t (&x)[WIDTH], const uint8_t *p)
{
    if constexpr (WIDTH == 8) {
        uint2 u = *(const uint2 *)p;
#pragma unroll
        for (int e = 0; e < 4; e++)
            x[e] = u.x >> 8 * e & 0xff, x[4 + e] = u.y >> 8 * e & 0xff;
    } else {
        x[0] = *p;
    }
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

template <int WIDTH>
__device__ __forceinline__ void load_kept(float (&x)[WIDTH], const void *p, int type, int64_t at,
                                          float scale)
{
    uint32_t code[WIDTH];
    if (type == DT_F32) {
        load<WIDTH>(x, (const float *)p + at);
    } else if (type == DT_BF16) {
        load<WIDTH>(x, (const bf16 *)p + at);
    } else if (type == DT_F16) {
        load_words<WIDTH>(code, (const uint16_t *)p + at);
#pragma unroll
        for (int e = 0; e < WIDTH; e++)
            x[e] = mul(f16_value(code[e]), scale);
    } else {
        load_bytes<WIDTH>(code, (const uint8_t *)p + at);
#pragma unroll
        for (int e = 0; e < WIDTH; e++)
            x[e] = mul(e4m3_value(code[e]), scale);
    }
}

/* draw: a word an element; NULL: to nearest. second: in f16 and e4m3 what is not 0 does not become
 * 0. Dividing by a power of two and multiplying by its reciprocal round alike. */
template <int WIDTH>
__device__ __forceinline__ void store_kept(void *p, int type, int64_t at, const float (&x)[WIDTH],
                                           float scale, const uint32_t *draw, bool second)
{
    uint32_t code[WIDTH];
    if (type == DT_F32) {
        store<WIDTH>((float *)p + at, x);
        return;
    }
    if (type == DT_BF16 && !draw) {
        store<WIDTH>((bf16 *)p + at, x);
        return;
    }
    bool scaled = type != DT_BF16;
    float by = __uint_as_float((254u << 23) - __float_as_uint(scale));
#pragma unroll
    for (int e = 0; e < WIDTH; e++) {
        code[e] = encode(type, scaled ? mul(x[e], by) : x[e], draw != NULL, draw ? draw[e] : 0);
        if (second && scaled && code[e] == 0 && x[e] > 0)
            code[e] = 1;
    }
    if (type == DT_E4M3)
        store_bytes<WIDTH>((uint8_t *)p + at, code);
    else
        store_words<WIDTH>((uint16_t *)p + at, code);
}

#endif
