/* tensor_map.h - the driver's encoder of tensor maps (what the copy engine reads and writes by),
 * found through the runtime so that libcuda need not be linked. NULL: the driver has none.
 */
#ifndef KERNELS_SM90_TENSOR_MAP_H
#define KERNELS_SM90_TENSOR_MAP_H

#include <cuda.h>
#include <cuda_runtime.h>

typedef decltype(&cuTensorMapEncodeTiled) encode_fn;

static inline encode_fn tensor_map_encoder()
{
    static const encode_fn found = [] {
        void *f = NULL;
        cudaDriverEntryPointQueryResult result;
        cudaError_t e = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000,
                                                         cudaEnableDefault, &result);
        return e == cudaSuccess && result == cudaDriverEntryPointSuccess ? (encode_fn)f : NULL;
    }();
    return found;
}

#endif
