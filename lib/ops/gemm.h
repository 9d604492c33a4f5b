/* gemm.h - products of f32 matrices.
 *
 * An element of c is the sum over k in blocks of 256: within a block one chain of fused
 * multiply-adds in order, the blocks' sums added in order. So its bits depend on a row of a and a
 * column of b alone: they are the same for each instruction set that has a fused multiply-add, for
 * parts of c computed by themselves, and for any number of threads. A library's are not: oneDNN,
 * OpenBLAS and BLIS choose the order by processor and by shape. (Without a fused multiply-add -
 * x86-64 before 2013 - products round before they are added.)
 *
 * Threads: any.
 */
#ifndef OPS_GEMM_H
#define OPS_GEMM_H

#include <stdbool.h>
#include <stdint.h>

/* c (m,n) = alpha op(a) op(b) + beta c, row-major; op(a) is (m,k), op(b) is (k,n); ta, tb:
 * stored transposed. c is not read when beta is 0. */
void gemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
          int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc);

/* Computes gemm()'s product of operands rounded to bf16, with sums in f32: in AMX tiles where the
 * processor and Linux have them and GPT_SIMD does not limit it, in an order of theirs; else in
 * gemm()'s. */
void gemm_bf16(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
               int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc);
bool gemm_has_amx(void);
/* gemm_bf16() in tiles; only where they are. */
void gemm_amx(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
              int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc);

/* "AVX-512", "AVX2", "NEON", or "SSE2" and "plain C", which are slow. */
const char *gemm_kernels(bool *slow);

#endif
