/* real.h - arithmetic of the plain C ops: elements of any float type, and BLAS.
 *
 * An op computes in `real` (ops.h: float; double for finite differences) and
 * meets other element types only where it reads a weight or writes a weight
 * gradient. Reading is exact; writing rounds once, to nearest even. (In the
 * double build a bf16 is written through float, in two roundings: the tests
 * there keep weights in f64.)
 *
 *     const real *wr = real_view(o, 0, w);                // w itself, or a copy in slot 0
 *     real_gemm(false, true, T, O, I, 1, x, I, wr, I, 0, y, O);
 *     real_write(dw, 0, g, tensor_count(dw), add);
 *
 * Threads: pure functions, except that real_view uses the scratch of `o`.
 */
#ifndef OPS_REAL_H
#define OPS_REAL_H

#include <assert.h>
#include <math.h>
#include "ops/ops.h"

static const real norm_eps = (real)0x1p-23; /* of RMS norm, record-61.md 2.1 */

static inline bool is_real(struct tensor t) { return t.dtype == DT_REAL; }
static inline bool has(struct tensor t) { return t.data != NULL; }
/* Rows of an activation: asserts the type, does not check the shape. */
static inline real *real_ptr(struct tensor t)
{
    assert(!has(t) || is_real(t));
    return t.data;
}

/* Element i, of f64, f32 or bf16. For loops over many, use real_read. */
static inline real real_get(struct tensor t, int64_t i)
{
    switch (t.dtype) {
    case DT_F32: return (real)((const float *)t.data)[i];
    case DT_BF16: return bf16_to_f32(((const uint16_t *)t.data)[i]);
    default: assert(t.dtype == DT_F64); return (real)((const double *)t.data)[i];
    }
}
static inline void real_set(struct tensor t, int64_t i, real x)
{
    switch (t.dtype) {
    case DT_F32: ((float *)t.data)[i] = (float)x; break;
    case DT_BF16: ((uint16_t *)t.data)[i] = bf16_from_f32((float)x); break;
    default: assert(t.dtype == DT_F64); ((double *)t.data)[i] = x;
    }
}

/* n elements from index `first` on. */
void real_read(real *dst, struct tensor t, int64_t first, int64_t n);
/* t = src, or t = t + src with one rounding of the sum. */
void real_write(struct tensor t, int64_t first, const real *src, int64_t n, bool add);
/* All of t as numbers: its own memory when it is real, else a copy in that scratch
 * slot. NULL when t is none or the device has failed. */
const real *real_view(struct ops *o, int slot, struct tensor t);

/* c (m,n) = alpha op(a) op(b) + beta c, row-major; op(a) is (m,k), op(b) is (k,n); ta, tb:
 * stored transposed. c is not read when beta is 0. One thread: the same call gives the same
 * bits. */
void real_gemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, real alpha, const real *a,
               int64_t lda, const real *b, int64_t ldb, real beta, real *c, int64_t ldc);

/* sum a_i b_i: sixteen running sums, which the compiler keeps in vector registers. */
real real_dot(const real *a, const real *b, int64_t n);

#ifdef GPT_OPS_DOUBLE
static inline real real_sqrt(real x) { return sqrt(x); }
static inline real real_log(real x) { return log(x); }
static inline real real_exp(real x) { return exp(x); }
#else
static inline real real_sqrt(real x) { return sqrtf(x); }
static inline real real_log(real x) { return logf(x); }
/* exp to 2 units in the last place for |x| <= 87 (clamped there; NaN stays NaN), written so
 * that loops over it become vector code, which those over expf do not. x = n ln 2 + r with
 * |r| <= ln 2 / 2; e^r by its Taylor series to r^7 / 7!. */
static inline real real_exp(real x)
{
    x = x < -87 ? -87 : x;
    x = x > 87 ? 87 : x;
    float shifted = x * 0x1.715476p+0f + 0x1.8p23f; /* rounds to integer in the low bits */
    float n = shifted - 0x1.8p23f;
    float r = x - n * 0x1.62e4p-1f - n * 0x1.7f7d1cp-20f;
    float p = 1.f / 5040;
    p = p * r + 1.f / 720;
    p = p * r + 1.f / 120;
    p = p * r + 1.f / 24;
    p = p * r + 1.f / 6;
    p = p * r + 0.5f;
    p = p * r + 1;
    p = p * r + 1;
    return p * f32_from_bits((f32_bits(shifted) + 127) << 23);
}
#endif
static inline real sigmoid(real u) { return 1 / (1 + real_exp(-u)); }

#endif
