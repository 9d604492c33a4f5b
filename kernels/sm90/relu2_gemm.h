/* relu2_gemm.h - x w^T with the MLP's squared ReLU, or its derivative, on the way out
 * (relu2_gemm.cu).
 *
 * x (T,K), w (F,K), all else (T,F), all bf16; K and F are multiples of 8.
 */
#ifndef KERNELS_SM90_RELU2_GEMM_H
#define KERNELS_SM90_RELU2_GEMM_H

#include "host/device.h"

/* post = max(x w^T,0)^2. */
void relu2_gemm_forward(struct cuda_ops *c, struct tensor post, struct tensor x, struct tensor w);
/* dpre = 2 scale (x w^T) sqrt(post); dpre may be post. scale in device memory; NULL: 1. */
void relu2_gemm_backward(struct cuda_ops *c, struct tensor dpre, struct tensor x, struct tensor w,
                         const float *scale, struct tensor post);

#endif
