/* attention_maps.h - the tensor maps that attention's Hopper kernels get beside struct
 * attention_call (attention_maps.cu makes them).
 */
#ifndef KERNELS_SM90_ATTENTION_MAPS_H
#define KERNELS_SM90_ATTENTION_MAPS_H

#include <cuda.h>
#include "attention_plan.cuh"

/* Maps of (rows, heads * E) bf16 cut into boxes of 64 rows and one panel. */
struct forward_maps {
    CUtensorMap q, k, v, out, by_query;
};
/* The TMA maps of backward: q, k, v, dout as in forward; dq, dk, dv with a token's rows as a
 * dimension of their own. lse2, delta: (heads, padded) f32 cut into boxes of 64. by_*: (items + 1,
 * 4) int32, by rows: work reaches the warpgroups as their data does, which racecheck can follow. */
struct backward_maps {
    CUtensorMap k, v, q, dout, dq, dk, dv, lse2, delta, by_key, by_query;
};

cudaError_t attention_launch_forward(cudaStream_t stream, const struct attention_call *c,
                                     const struct forward_maps *maps);
cudaError_t attention_launch_backward(cudaStream_t stream, const struct attention_call *c,
                                      const struct backward_maps *maps);

#endif
