/* gemm.h - x w^T with the MLP's squared ReLU, or its derivative, a residual or nothing as epilogue
 * (gemm.cu).
 *
 * x (T,K), w (F,K), all else (T,F), all bf16; K and F are multiples of 8. x8 and w8 e4m3, of x's
 * and w's shape; K is a multiple of 16.
 */
#ifndef KERNELS_SM90_GEMM_H
#define KERNELS_SM90_GEMM_H

#include "host/device.h"

/* Computes post = max(bf16(x w^T),0)^2. Of codes, x and w e4m3: of f x w^T, f in device memory, and
 * post8, unless it is none, e4m3(post / FP8_POST_UNIT). */
void gemm_relu2(struct cuda_ops *c, struct tensor post, struct tensor post8, struct tensor x,
                struct tensor w, const float *f);
/* Computes dpre = 2 scale (x w^T) sqrt(post); dpre may be post. scale in device memory; NULL: 1. Of
 * codes, x e5m2, w e4m3: of f x w^T, and g8 = e5m2(u dpre), f and u in device memory; `alone`: dpre is not
 * written. post8 (T,F) = e4m3(post / FP8_POST_UNIT), or none. */
void gemm_relu2_bwd(struct cuda_ops *c, struct tensor dpre, struct tensor g8, struct tensor post8,
                    struct tensor x, struct tensor w, const float *scale, const float *f,
                    const float *u, struct tensor post, bool alone);

/* Computes out = scale x w^T + in, which may be out. scale in device memory; NULL: 1. */
void gemm_sum(struct cuda_ops *c, struct tensor out, struct tensor x, struct tensor w,
              const float *scale, struct tensor in);

/* Computes out = scale x w^T + bias + in, which may be out; without in post = max(scale x w^T + bias,0)^2.
 * bias (1,F) f32 or bf16. scale in device memory; NULL: 1. */
void gemm_bias(struct cuda_ops *c, struct tensor out, struct tensor x, struct tensor w,
               const float *scale, struct tensor bias, struct tensor in);
/* Computes dpre = 2 scale (x w) sqrt(post), w (K,F), and sums (gemm_sums_rows(T),F), whose columns add up
 * to dpre's; sums NULL: none. */
void gemm_bias_relu2_bwd(struct cuda_ops *c, struct tensor dpre, float *sums, struct tensor x,
                         struct tensor w, const float *scale, struct tensor post);
size_t gemm_sums_rows(int64_t tokens);

/* Computes out = scale x_scale w8.scale x8 w8^T (+ in, which may be out; of e4m3 alone): x8 e4m3 or
 * e5m2, w8 e4m3. The scales in device memory; NULL: 1. */
void gemm_fp8(struct cuda_ops *c, struct tensor out, struct tensor x8, const float *x_scale,
              struct fp8_weight w8, const float *scale, struct tensor in);

#endif
