/* qkv_gemm.h - op qkv in one kernel (qkv_gemm.cu). */
#ifndef KERNELS_SM90_QKV_GEMM_H
#define KERNELS_SM90_QKV_GEMM_H

#include "host/device.h"

enum { QKV_GEMM_HEAD = 128 }; /* channels of a head */

/* q, k, v and factors of a, whose qkv is not read, of x (T,D) and w (2Q+D,D), bf16: heads of
 * QKV_GEMM_HEAD channels, or an even number of heads whose q and k have half as many, all of which turn; row t at
 * position t, no cache. scale in device memory; NULL: 1. codes: NULL, or
 * operands in e4m3 in place of x and w, without biases and with angles in bf16. */
void qkv_gemm(struct cuda_ops *c, struct tensor x, struct tensor w, const float *scale,
              const struct fp8_operands *codes, const struct qkv_args *a);

#endif
