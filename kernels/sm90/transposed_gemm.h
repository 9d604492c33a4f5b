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
/* The transpose of that product: out (M,N) = alpha (b a)^T, f32; a may be e4m3, then b is e5m2. Rows of b are a
 * multiple of 16, too. */
void transposed_gemm_turned(struct cuda_ops *c, struct tensor out, struct tensor b, struct tensor a,
                            float alpha);

#ifdef __cplusplus
}
#endif
#endif
