/* transpose.h - the transposing copy that leaves multiprocessors to others.
 *
 * As the op transpose (op_list.h), on at most `sms` multiprocessors (0: all): beside a collective whose
 * blocks need some of their own.
 */
#ifndef KERNELS_TRANSPOSE_H
#define KERNELS_TRANSPOSE_H

#ifdef __cplusplus
extern "C" {
#endif
#include "ops/ops.h"

void gpu_transpose_sms(struct ops *o, struct tensor dst, struct tensor src, real mix, int sms);

#ifdef __cplusplus
}
#endif
#endif
