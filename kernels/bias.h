/* bias.h - sums over rows, for a bias whose product is part of another op (bias.cu, head_loss.cu).
 *
 *     float *partial = (float *)cuda_cut(&at, column_sums_bytes(c, rows, cols));
 *     column_sums_add(c, db, dy, partial);                // db (1,cols) += sum over rows of dy, bf16
 */
#ifndef KERNELS_BIAS_H
#define KERNELS_BIAS_H

#include "host/device.h"

size_t column_sums_bytes(const struct cuda_ops *c, int64_t rows, int64_t cols);
void column_sums_add(struct cuda_ops *c, struct tensor sum, struct tensor x, float *partial);

#endif
