/* dtype.h - element types and their exact conversions.
 *
 * Rounding is to nearest even where nothing else is said. fp8 conversions saturate (e4m3 "fn"
 * at E4M3_MAX, e5m2 at E5M2_MAX) and keep NaN. Pure functions, safe in any thread.
 */
#ifndef TYPES_DTYPE_H
#define TYPES_DTYPE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum dtype {
    DT_NONE,
    DT_F64,
    DT_F32,
    DT_BF16,
    DT_F16,
    DT_E4M3,
    DT_E5M2,
    DT_I64,
    DT_I32,
    DT_I16,
    DT_U16,
    DT_I8,
    DT_U8,
    DT_BOOL,
    DT_U64,
    DT_U32
};

enum { E4M3_MAX = 448, E5M2_MAX = 57344 }; /* the largest numbers of fp8 types */

size_t dtype_size(enum dtype t); /* bytes an element; 0 for DT_NONE */
const char *dtype_name(enum dtype t); /* "f32", "bf16", ... as recipes write it */
enum dtype dtype_parse(const char *name); /* DT_NONE when unknown */

static inline uint32_t f32_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}
static inline float f32_from_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, 4);
    return x;
}

static inline float bf16_to_f32(uint16_t b) { return f32_from_bits((uint32_t)b << 16); }
static inline uint16_t bf16_from_f32(float x)
{
    uint32_t u = f32_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16) | 0x0040; /* quiet NaN */
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
}
/* To nearest, halves away from zero: beside low halves a tie to even could not be told apart. */
static inline uint16_t bf16_from_f32_away(float x)
{
    return x == x ? (uint16_t)((f32_bits(x) + 0x8000) >> 16) : bf16_from_f32(x);
}
/* The value of x after rounding to bf16. */
static inline float bf16_round(float x) { return bf16_to_f32(bf16_from_f32(x)); }

float f16_to_f32(uint16_t h);
uint16_t f16_from_f32(float x);
float e4m3_to_f32(uint8_t b);
uint8_t e4m3_from_f32(float x);
/* Returns the scale of numbers kept in f16 or e4m3: the least power of two, 2^-126 at least, times
 * which the type's largest number reaches most; 1 where most is not finite. */
float dtype_scale(enum dtype t, float most);
float e5m2_to_f32(uint8_t b);
uint8_t e5m2_from_f32(float x);

#endif
