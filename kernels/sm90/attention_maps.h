/* attention_maps.h - what attention's Hopper kernels get beside struct attention_call: tensor maps
 * (attention_maps.cu makes them), and how they are launched.
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

/* Launches kernel with (call, maps) so that it may start before its predecessor has ended. */
template <typename M>
static cudaError_t launch_behind(void (*kernel)(struct attention_call, M), int blocks, int threads,
                                 int shared_bytes, cudaStream_t stream,
                                 const struct attention_call *c, const M *maps)
{
    cudaLaunchAttribute attribute = {};
    cudaLaunchConfig_t config = {};
    cudaError_t e =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    if (e != cudaSuccess)
        return e;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = blocks;
    config.blockDim = threads;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, *c, *maps);
}

#endif
