/* simd.h - code for several instruction sets in one program, chosen when it runs.
 *
 *     SIMD_VERSIONS(scale, (float *x, int n, float f), (x, n, f))
 *     {
 *         for (int i = 0; i < n; i++)
 *             x[i] *= f;
 *     }
 *
 * defines scale() with the body that follows, compiled for each set; it calls the version for the
 * processor. The compiler contracts nothing (Makefile, FP), and the body's constant `fused` says
 * whether simd_mad() rounds once. So all sets that have a fused multiply-add give the same bits,
 * and a body without simd_mad() gives them everywhere. The environment variable GPT_SIMD names a
 * smaller set, for tests: none, fma or avx512.
 *
 * Threads: any.
 */
#ifndef OPS_SIMD_H
#define OPS_SIMD_H

#include <stdbool.h>
#include "base/err.h"

enum simd {
    SIMD_NONE, /* what the compiler targets; products round twice a step if that has no FMA */
    SIMD_FMA, /* x86-64: AVX2 and FMA; aarch64 always */
    SIMD_AVX512, /* x86-64: AVX-512 F, BW, DQ, VL */
    SIMD_SETS
};

/* Returns the greatest of this processor, or a smaller one that GPT_SIMD or simd_limit() names. */
enum simd simd_get(void);
/* GPT_USAGE: GPT_SIMD names no set. */
int simd_check(void) MUST_CHECK;
void simd_limit(enum simd most);

#define SIMD_INLINE static inline __attribute__((always_inline))
#define SIMD_LIST(...) __VA_ARGS__
#define SIMD_BODY(name, parameters) \
    SIMD_INLINE void name##_body(__attribute__((unused)) const bool fused, SIMD_LIST parameters)
#define SIMD_CALL(name, fused, arguments) name##_body(fused, SIMD_LIST arguments)
#ifdef __x86_64__
#define SIMD_TARGET_FMA __attribute__((target("avx2,fma")))
#ifdef __clang__
#define SIMD_TARGET_AVX512 \
    __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl"), min_vector_width(512)))
#else
#define SIMD_TARGET_AVX512 \
    __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")))
#endif
#define SIMD_VERSIONS(name, parameters, arguments) \
    SIMD_BODY(name, parameters); \
    SIMD_TARGET_AVX512 static void name##_avx512 parameters { SIMD_CALL(name, true, arguments); } \
    SIMD_TARGET_FMA static void name##_fma parameters { SIMD_CALL(name, true, arguments); } \
    static void name parameters \
    { \
        switch (simd_get()) { \
        case SIMD_AVX512: name##_avx512 arguments; break; \
        case SIMD_FMA: name##_fma arguments; break; \
        default: SIMD_CALL(name, false, arguments); \
        } \
    } \
    SIMD_BODY(name, parameters)
#else
#define SIMD_VERSIONS(name, parameters, arguments) \
    SIMD_BODY(name, parameters); \
    static void name parameters { SIMD_CALL(name, SIMD_PLAIN_FUSES, arguments); } \
    SIMD_BODY(name, parameters)
#endif
#ifdef __aarch64__
#define SIMD_PLAIN_FUSES true
#else
#define SIMD_PLAIN_FUSES false
#endif

/* a b + c with one rounding where the set can, else with two. */
SIMD_INLINE float simd_mad(const bool fused, float a, float b, float c)
{
    return fused ? __builtin_fmaf(a, b, c) : a * b + c;
}

#endif
