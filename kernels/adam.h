/* adam.h - Adam that leaves an fp8 copy of the weight behind, in the same pass.
 *
 *     gpu_adam_fp8(o, w, g, m, v, 0.5, 0.95, 1e-10, step, w8, scale, scale_inv, amax);
 *
 * As ops.h adam; besides w8 = e4m3(w / *scale), saturating, of the new weight as stored;
 * *amax = max |w|; *scale_inv = 1 / *scale, exactly rounded. scale, scale_inv and amax: one float
 * each, in device memory. Source: optimizer-peers.md (TransformerEngine's FusedAdam).
 */
#ifndef KERNELS_ADAM_H
#define KERNELS_ADAM_H

#ifdef __cplusplus
extern "C" {
#endif
#include "ops/ops.h"

void gpu_adam_fp8(struct ops *o, struct tensor w, struct tensor g, struct tensor m,
                  struct tensor v, double beta1, double beta2, double eps,
                  const struct adam_step *a, struct tensor w8, const float *scale,
                  float *scale_inv, float *amax);

#ifdef __cplusplus
}
#endif
#endif
