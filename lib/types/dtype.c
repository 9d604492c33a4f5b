#include "types/dtype.h"

#include <math.h>

static const struct {
    const char *name;
    size_t size;
} types[] = {
    [DT_NONE] = { "none", 0 }, [DT_F64] = { "f64", 8 },   [DT_F32] = { "f32", 4 },
    [DT_BF16] = { "bf16", 2 }, [DT_F16] = { "f16", 2 },   [DT_E4M3] = { "e4m3", 1 },
    [DT_E5M2] = { "e5m2", 1 }, [DT_I64] = { "i64", 8 },   [DT_I32] = { "i32", 4 },
    [DT_I16] = { "i16", 2 },   [DT_U16] = { "u16", 2 },   [DT_I8] = { "i8", 1 },
    [DT_U8] = { "u8", 1 },     [DT_BOOL] = { "bool", 1 }, [DT_U64] = { "u64", 8 },
    [DT_U32] = { "u32", 4 },
};
enum { NTYPES = sizeof types / sizeof types[0] };

size_t dtype_size(enum dtype t) { return (unsigned)t < NTYPES ? types[t].size : 0; }

const char *dtype_name(enum dtype t) { return (unsigned)t < NTYPES ? types[t].name : "none"; }

enum dtype dtype_parse(const char *name)
{
    for (int t = DT_NONE + 1; t < NTYPES; t++)
        if (!strcmp(types[t].name, name))
            return t;
    return DT_NONE;
}

/* The code, without sign, of finite |x| in a binary format of mbits mantissa
 * bits whose smallest normal number is 2^emin. Codes count upwards through
 * subnormals and normals alike, so a carry out of the mantissa is right, and a
 * code past the largest finite one means overflow. */
static uint32_t encode(uint32_t magnitude, int mbits, int emin)
{
    int biased = (int)(magnitude >> 23);
    uint32_t mant = magnitude & 0x7fffff;
    if (biased)
        mant |= 0x800000;
    else
        biased = 1;
    int e = biased - 127, shift = 23 - mbits;
    if (e < emin) {
        shift += emin - e;
        e = emin;
    }
    if (shift > 24)
        return 0; /* below half of the smallest subnormal */
    uint32_t q = mant >> shift, rest = mant & ((1u << shift) - 1), half = 1u << (shift - 1);
    q += rest > half || (rest == half && (q & 1));
    return ((uint32_t)(e - emin) << mbits) + q;
}

/* The value of a finite code. */
static float decode(uint32_t code, int mbits, int emin)
{
    uint32_t e = code >> mbits, mant = code & ((1u << mbits) - 1);
    if (e)
        mant |= 1u << mbits;
    else
        e = 1;
    return ldexpf((float)mant, emin + (int)e - 1 - mbits);
}

float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, code = h & 0x7fff;
    if (code >= 0x7c00) {
        uint32_t payload = (uint32_t)(code & 0x3ff) << 13;
        return f32_from_bits(sign | 0x7f800000 | payload | (payload ? 0x400000 : 0));
    }
    return f32_from_bits(sign | f32_bits(decode(code, 10, -14)));
}

uint16_t f16_from_f32(float x)
{
    uint32_t u = f32_bits(x), magnitude = u & 0x7fffffff, sign = u >> 16 & 0x8000;
    if (magnitude > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
    if (magnitude == 0x7f800000)
        return (uint16_t)(sign | 0x7c00);
    uint32_t code = encode(magnitude, 10, -14);
    return (uint16_t)(sign | (code < 0x7c00 ? code : 0x7c00));
}

/* e4m3 "fn": no infinities; only 0x7f and 0xff are NaN. */
float e4m3_to_f32(uint8_t b)
{
    uint32_t sign = (uint32_t)(b & 0x80) << 24, code = b & 0x7f;
    if (code == 0x7f)
        return f32_from_bits(sign | 0x7fc00000);
    return f32_from_bits(sign | f32_bits(decode(code, 3, -6)));
}

/* most: the code of the largest finite number. */
static uint8_t fp8_from_f32(float x, int mbits, int emin, uint32_t most)
{
    uint32_t u = f32_bits(x), magnitude = u & 0x7fffffff, sign = u >> 24 & 0x80;
    if (magnitude > 0x7f800000)
        return 0x7f;
    uint32_t code = magnitude < 0x7f800000 ? encode(magnitude, mbits, emin) : most;
    return (uint8_t)(sign | (code < most ? code : most));
}

uint8_t e4m3_from_f32(float x) { return fp8_from_f32(x, 3, -6, 0x7e); }
uint8_t e5m2_from_f32(float x) { return fp8_from_f32(x, 2, -14, 0x7b); }

float e5m2_to_f32(uint8_t b)
{
    return f16_to_f32((uint16_t)(b << 8)); /* e5m2 is the upper half of f16 */
}

float dtype_scale(enum dtype t, float most)
{
    uint32_t u = f32_bits(most), top = t == DT_E4M3 ? 0x600000 : 0x7fe000; /* of 448, of 65504 */
    int k = (int)(u >> 23) - 127 - (t == DT_E4M3 ? 8 : 15) + ((u & 0x7fffff) > top);
    if (u >= 0x7f800000)
        return 1;
    return f32_from_bits((uint32_t)(k < -126 ? 1 : k + 127) << 23);
}
