/* tensor_map.h - the driver's encoder of tensor maps (what TMA reads and writes by),
 * found through the runtime so that libcuda need not be linked. NULL: the driver has none.
 */
#ifndef KERNELS_SM90_TENSOR_MAP_H
#define KERNELS_SM90_TENSOR_MAP_H

#include <cuda.h>
#include <cuda_runtime.h>
#include "host/device.h"

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

/* Numbers of t in 128 bytes: bf16, or 8 bits. */
static inline int depth_of(struct tensor t) { return t.dtype == DT_BF16 ? 64 : 128; }

/* Boxes of 128 bytes of columns, swizzled, and `rows` rows; what lies outside of t is read as
 * zeros. False: the driver refuses. */
static inline bool map_boxes(CUtensorMap *map, struct tensor t, int rows)
{
    const CUtensorMapDataType type =
        t.dtype == DT_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_UINT8;
    const cuuint64_t size[2] = { (cuuint64_t)t.cols, (cuuint64_t)t.rows };
    const cuuint64_t stride[1] = { (cuuint64_t)tensor_bytes(tensor_rows(t, 0, 1)) };
    const cuuint32_t box[2] = { (cuuint32_t)depth_of(t), (cuuint32_t)rows }, step[2] = { 1, 1 };
    encode_fn encode = tensor_map_encoder();

    return encode &&
           encode(map, type, 2, t.data, size, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                  CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

#endif
