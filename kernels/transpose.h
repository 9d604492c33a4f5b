/* transpose.h - the op transpose on some of the multiprocessors.
 *
 * At most `sms` of them (0: all), so that a concurrent collective finds some free.
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
