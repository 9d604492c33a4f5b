/* transposed_gemm.h - a product of 8-bit codes whose sum runs along the rows of one operand
 * (transposed_gemm.cu).
 */
#ifndef KERNELS_SM90_TRANSPOSED_GEMM_H
#define KERNELS_SM90_TRANSPOSED_GEMM_H

#ifdef __cplusplus
extern "C" {
#endif
#include "ops/ops.h"

struct cuda_ops;

/* out (N,M) = alpha b a (+ out): b (N,K) e4m3, a (K,M) e5m2, as they lie; out f32 or bf16. M and
 * the columns of b are multiples of 16; b may have more columns than a has rows. */
void transposed_gemm(struct cuda_ops *c, struct tensor out, struct tensor b, struct tensor a,
                     float alpha, bool add);
/* The transpose of that product in parts of k, whose sum is alpha (b a)^T: out (parts M,N), f32, of as many as
 * transposed_gemm_parts() says, or of fewer, each with a part of k. a and b are e4m3, or one of them e5m2. Rows of b
 * are a multiple of 16, too. */
void transposed_gemm_turned(struct cuda_ops *c, struct tensor out, struct tensor b, struct tensor a,
                            float alpha);
/* Returns in how many parts the product is fastest. */
int transposed_gemm_parts(const struct cuda_ops *c, int64_t m, int64_t n, int64_t k);

#ifdef __cplusplus
}
#endif
#endif
