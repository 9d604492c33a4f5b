/* simd.h - code for several instruction sets in one program, chosen when it runs.
 *
 *     SIMD_VERSIONS(scale, (float *x, int n, float f), (x, n, f))
 *     {
 *         for (int i = 0; i < n; i++)
 *             x[i] *= f;
 *     }
 *
 * defines scale() with the body that follows, compiled for each set; it calls the version for the
 * processor. All of them give the same bits: the compiler contracts nothing (Makefile, FP). The
 * environment variable GPT_SIMD names a smaller set, for tests: none, fma or avx512.
 *
 * Threads: any.
 */
#ifndef OPS_SIMD_H
#define OPS_SIMD_H

enum simd {
    SIMD_NONE, /* what the compiler targets; products round twice a step if that has no FMA */
    SIMD_FMA, /* x86-64: AVX2 and FMA; aarch64 always */
    SIMD_AVX512, /* x86-64: AVX-512 F, BW, DQ, VL */
    SIMD_SETS
};

/* The greatest of this processor, or a smaller one that GPT_SIMD or simd_limit() names. */
enum simd simd_get(void);
void simd_limit(enum simd most);

#define SIMD_INLINE static inline __attribute__((always_inline))
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
    SIMD_INLINE void name##_body parameters; \
    SIMD_TARGET_AVX512 static void name##_avx512 parameters { name##_body arguments; } \
    SIMD_TARGET_FMA static void name##_fma parameters { name##_body arguments; } \
    static void name parameters \
    { \
        switch (simd_get()) { \
        case SIMD_AVX512: name##_avx512 arguments; break; \
        case SIMD_FMA: name##_fma arguments; break; \
        default: name##_body arguments; \
        } \
    } \
    SIMD_INLINE void name##_body parameters
#else
#define SIMD_VERSIONS(name, parameters, arguments) static void name parameters
#endif

#endif
