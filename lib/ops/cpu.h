/* cpu.h - inside of the plain C device: its state, scratch memory, arithmetic, its ops.
 *
 * Every op NAME of op_list.h is a function cpu_NAME in lib/ops/NAME.c (a backward
 * lives beside its forward). An op begins like this:
 *
 *     void cpu_linear(struct ops *o, struct tensor y, ...)
 *     {
 *         const real *wr = real_view(o, 0, w);               // w itself, or a copy in slot 0
 *         real *g = cpu_scratch(o, 1, tensor_count(dw));
 *         if (cpu_failed(o))                                 // also true when no memory was left
 *             return;
 *         real_gemm(o, false, true, T, O, I, 1, x, I, wr, I, 0, y, O);
 *         real_write(dw, 0, g, tensor_count(dw), add);
 *
 * Scratch slots grow and are kept until free(), so nothing allocates in the
 * steady state. What a slot holds is lost when the op returns; things that an
 * op uses at the same time need different slots.
 *
 * An op computes in `real` (ops.h: float; double for finite differences). Other
 * element types occur only where it reads a weight or writes a weight gradient.
 * Reading is exact; writing rounds once, to nearest even. (In the double build a
 * bf16 is written through float, in two roundings: the tests there keep weights
 * in f64.)
 *
 * Threads: as struct ops, one rank's thread, which cpu_split() joins by others.
 */
#ifndef OPS_CPU_H
#define OPS_CPU_H

#include <assert.h>
#include <math.h>
#include "base/pool.h"
#include "ops/ops.h"
#include "ops/simd.h"

enum { CPU_SLOTS = 12 };

struct cpu_scratch {
    void *data;
    size_t bytes;
};

struct cpu {
    struct ops o; /* first: struct ops * is struct cpu * */
    int failure; /* code of the first failure, 0 while none */
    char message[256];
    void **blocks; /* what alloc() gave */
    int n_blocks;
    size_t bytes;
    struct pool *pool;
    int counting; /* the threads of a device that only counts memory; 0: it computes */
    struct cpu_scratch scratch[CPU_SLOTS];
    char fetch[FETCH_MAX][FETCH_BYTES];
    unsigned fetch_in, fetch_out;
};

/* count numbers, uninitialised, 64-byte aligned; NULL once the device has failed. */
real *cpu_scratch(struct ops *o, int slot, int64_t count);
/* Returns scratch memory by its bytes, for what is not real. */
void *cpu_scratch_bytes(struct ops *o, int slot, size_t bytes);
/* True once the device has failed, and on one that only counts memory, where no pointer may be read. */
bool cpu_failed(const struct ops *o);
/* Keeps the first failure. */
void cpu_fail(struct ops *o, int code, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* Calls work for each `block` of 0 .. n-1 on the device's threads, `thread` of cpu_threads().
 * Blocks do not depend on the number of threads, and work sums nothing across them: so neither do
 * results. */
void cpu_split(struct ops *o, int64_t n, int64_t block,
               void (*work)(void *arg, int64_t first, int64_t count, int thread), void *arg);
int cpu_threads(const struct ops *o);
enum { CPU_ROWS = 64, CPU_PIECE = 1 << 14 }; /* of activations, elements: a thread takes so many */

/* -- arithmetic -------------------------------------------------------------------- */

static inline bool is_real(struct tensor t) { return t.dtype == DT_REAL; }
static inline bool has(struct tensor t) { return t.data != NULL; }
/* Rows of an activation: asserts the type, does not check the shape. */
static inline real *real_ptr(struct tensor t)
{
    assert(!has(t) || is_real(t));
    return t.data;
}
/* The cache's row of a call's row t. */
static inline int64_t cached_row(const struct kv_cache *c, int64_t t)
{
    return (int64_t)c->slot[t] * c->capacity + c->pos[t] % c->capacity;
}

/* Element i, of f64, f32, bf16, f16 or u16. For loops over many, use real_read. */
static inline real real_get(struct tensor t, int64_t i)
{
    switch (t.dtype) {
    case DT_F32: return (real)((const float *)t.data)[i];
    case DT_BF16: return bf16_to_f32(((const uint16_t *)t.data)[i]);
    case DT_F16: return f16_to_f32(((const uint16_t *)t.data)[i]);
    case DT_U16: return ((const uint16_t *)t.data)[i];
    case DT_U8: return ((const uint8_t *)t.data)[i];
    default: assert(t.dtype == DT_F64); return (real)((const double *)t.data)[i];
    }
}
static inline void real_set(struct tensor t, int64_t i, real x)
{
    switch (t.dtype) {
    case DT_F32: ((float *)t.data)[i] = (float)x; break;
    case DT_BF16: ((uint16_t *)t.data)[i] = bf16_from_f32((float)x); break;
    case DT_F16: ((uint16_t *)t.data)[i] = f16_from_f32((float)x); break;
    case DT_U16: ((uint16_t *)t.data)[i] = (uint16_t)x; break;
    case DT_U8: ((uint8_t *)t.data)[i] = (uint8_t)x; break;
    default: assert(t.dtype == DT_F64); ((double *)t.data)[i] = x;
    }
}

/* n elements from index `first` on. */
void real_read(real *dst, struct tensor t, int64_t first, int64_t n);
/* t = src, or t = t + src with one rounding of the sum. */
void real_write(struct tensor t, int64_t first, const real *src, int64_t n, bool add);
/* Rounds n numbers to bf16, but for the double build, which has no roundings. */
void real_round(real *x, int64_t n);
/* Returns all of t as numbers: its own memory when it is real, else a copy in that scratch
 * slot. NULL when t is none or the device has failed. */
const real *real_view(struct ops *o, int slot, struct tensor t);

/* gemm() of gemm.h, or with o->bf16_products gemm_bf16(), on the threads of o; in the double build
 * of doubles. */
void real_gemm(struct ops *o, bool ta, bool tb, int64_t m, int64_t n, int64_t k, real alpha,
               const real *a, int64_t lda, const real *b, int64_t ldb, real beta, real *c,
               int64_t ldc);

/* Computes real_gemm()'s product on the calling thread. */
void real_gemm_here(bool bf16, bool ta, bool tb, int64_t m, int64_t n, int64_t k, real alpha,
                    const real *a, int64_t lda, const real *b, int64_t ldb, real beta, real *c,
                    int64_t ldc);

/* sum a_i b_i: sixteen running sums, which the compiler keeps in vector registers. */
real real_dot(const real *a, const real *b, int64_t n);

#ifdef GPT_OPS_DOUBLE
static inline real real_sqrt(real x) { return sqrt(x); }
static inline real real_log(real x) { return log(x); }
static inline real real_mad(bool fused, real a, real b, real c) { return (void)fused, a * b + c; }
static inline real real_exp(bool fused, real x) { return (void)fused, exp(x); }
static inline real real_exp2(bool fused, real x) { return (void)fused, exp2(x); }
static inline real real_limit(bool fused, real x) { return (void)fused, x; }
#else
static inline real real_sqrt(real x) { return sqrtf(x); }
static inline real real_log(real x) { return logf(x); }
SIMD_INLINE real real_mad(bool fused, real a, real b, real c) { return simd_mad(fused, a, b, c); }
/* exp to 1.5 units in the last place (2 where products round: simd.h) of x, which is taken as -87
 * or 87 beyond, and NaN of NaN, written so that loops over it become vector code, which those over
 * expf do not. x = n ln 2 + r with |r| <= ln 2 / 2; of e^r = 1 + r + r^2 q(r), q is the polynomial
 * that meets it at Chebyshev's five points: that and its rounded coefficients cost 1e-8. */
SIMD_INLINE real real_exp(bool fused, real x)
{
    x = x < -87 ? -87 : x;
    x = x > 87 ? 87 : x;
    float shifted = simd_mad(fused, x, 0x1.715476p+0f, 0x1.8p23f); /* integer in the low bits */
    float n = shifted - 0x1.8p23f;
    float r = simd_mad(fused, n, -0x1.7f7d1cp-20f, simd_mad(fused, n, -0x1.62e4p-1f, x));
    float r2 = r * r, low = simd_mad(fused, r, 0x1.5554dep-3f, 0.5f);
    float high = simd_mad(fused, r, 0x1.120b62p-7f, 0x1.55551ap-5f);
    float q = simd_mad(fused, simd_mad(fused, r2, 0x1.6d10fcp-10f, high), r2, low);
    float p = 1 + simd_mad(fused, q, r2, r);
    return p * f32_from_bits((f32_bits(shifted) + 127) << 23);
}
/* 2^x to 4 units in the last place for |x| <= 126, and NaN of NaN: 2^n 2^r with |r| <= 1/2, of 2^r
 * the polynomial that meets it at Chebyshev's six points: that and its rounded coefficients cost
 * 1.6e-7. The number that makes n an integer carries the exponent's bias too. */
SIMD_INLINE real real_exp2(bool fused, real x)
{
    float shifted = x + (0x1.8p23f + 127), r = x - (shifted - (0x1.8p23f + 127));
    float p = simd_mad(fused, 0x1.5f089p-10f, r, 0x1.3d107p-7f);
    p = simd_mad(fused, simd_mad(fused, p, r, 0x1.c6af6cp-5f), r, 0x1.ebf906p-3f);
    p = simd_mad(fused, simd_mad(fused, p, r, 0x1.62e43p-1f), r, 0x1.000002p+0f);
    return p * f32_from_bits(f32_bits(shifted) << 23);
}
/* x within -126 .. 126; NaN of what is no finite number. As integers, because compilers make four
 * comparisons and two selections of the conditions on floats. */
SIMD_INLINE real real_limit(bool fused, real x)
{
    int32_t high = (int32_t)f32_bits(126), bits = (int32_t)f32_bits(x);
    uint32_t low = f32_bits(-126), some = (uint32_t)(bits < high ? bits : high);

    return simd_mad(fused, x, 0, f32_from_bits(some < low ? some : low));
}
#endif
SIMD_INLINE real sigmoid(real u) { return 1 / (1 + real_exp(false, -u)); }
/* Maps u to (-1, 1): u / sqrt(1 + u^2), whose slope is (1 - that squared)^(3/2). */
SIMD_INLINE real root_cap(real u) { return u / real_sqrt(1 + u * u); }

/* -- ops --------------------------------------------------------------------------- */

void cpu_zero(struct ops *o, struct tensor t);

#define OP(name, ...) void cpu_##name(struct ops *o, __VA_ARGS__)
#include "ops/op_list.h"

/* quantize.c: x in an fp8 format: `bits` after the point, smallest normal exponent, greatest
 * number. Adding and taking away 1.5 * 2^23 quanta rounds to whole quanta, to even, and unlike the
 * conversions of dtype.h becomes vector code. NaN stays NaN. */
static inline float fp8_round(float x, int bits, int min_exponent, float max)
{
    uint32_t least = (uint32_t)(min_exponent + 127) << 23, e;
    float shift;

    x = x > max ? max : x;
    x = x < -max ? -max : x;
    e = f32_bits(x) & 0x7f800000u;
    shift = 0x1.8p23f * f32_from_bits((e > least ? e : least) - ((uint32_t)bits << 23));
    return x + shift - shift;
}
/* Returns the number that token t has as its h-th. */
static inline real token_number(const struct token_numbers *n, int64_t t, int64_t h)
{
    return n->value[t * n->stride + h];
}

static inline float e4m3_round(float x) { return fp8_round(x, 3, -6, E4M3_MAX); }
static inline float e5m2_round(float x) { return fp8_round(x, 2, -14, E5M2_MAX); }
/* Codes as numbers, in that scratch slot; as in e4m3_round one that vanishes is +0, whatever its
 * sign. */
const real *cpu_code_view(struct ops *o, int slot, struct tensor codes);
/* The greatest of `most` and |x|, NaN if one is. */
real cpu_amax(const real *x, int64_t n, real most);
/* Computes y = scale (x_scale *w.scale) x8 w8^T of codes (linear.c). */
void cpu_linear_codes(struct ops *o, struct tensor y, const struct fp8_operands *in,
                      const real *scale);
/* Codes of w as it is stored, elements first .. first + n - 1; amax grows. */
void cpu_fp8_write(const struct fp8_copy *copy, struct tensor w, int64_t first, int n);
enum { FP8_BLOCK = 512 }; /* n at most */

#endif
