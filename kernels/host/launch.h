/* launch.h - a launch with dynamic shared memory, clusters or programmatic dependent launch.
 *
 *     CUDA_TRY(c, launch_kernel({ dim3(blocks), 384, c->stream, bytes, 2 }, kernel, maps, work));
 */
#ifndef KERNELS_HOST_LAUNCH_H
#define KERNELS_HOST_LAUNCH_H

#include <cuda_runtime.h>

struct cuda_launch {
    dim3 grid;
    int threads;
    cudaStream_t stream;
    int shared; /* bytes of dynamic shared memory */
    int cluster; /* CTAs in one; 0, 1: no clusters */
    bool early; /* may start while the kernel before ends, for which it waits itself (behind.h) */
};

template <typename... P, typename... A>
static inline cudaError_t launch_kernel(const struct cuda_launch &l, void (*kernel)(P...),
                                        const A &...args)
{
    cudaLaunchAttribute attr[2];
    cudaLaunchConfig_t config = {};

    config.gridDim = l.grid;
    config.blockDim = dim3(l.threads);
    config.dynamicSmemBytes = l.shared;
    config.stream = l.stream;
    config.attrs = attr;
    if (l.cluster > 1) {
        attr[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
        attr[config.numAttrs++].val.clusterDim = { (unsigned)l.cluster, 1, 1 };
    }
    if (l.early) {
        attr[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attr[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
    }
    cudaError_t e =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, l.shared);
    return e != cudaSuccess ? e : cudaLaunchKernelEx(&config, kernel, P(args)...);
}

#endif
