/* tensor_map.h - tensor maps, by which TMA reads and writes. Their encoder is the driver's, found
 * through the runtime so that libcuda need not be linked.
 */
#ifndef KERNELS_SM90_TENSOR_MAP_H
#define KERNELS_SM90_TENSOR_MAP_H

#include <cuda.h>
#include <cuda_runtime.h>
#include "host/device.h"

/* A tensor in memory, D dimensions, columns first, and the box that a copy moves. Outside of the
 * tensor zeros are read and nothing is written. */
template <int D> struct box_map {
    CUtensorMapDataType type;
    const void *data;
    cuuint64_t size[D],
        stride[D - 1]; /* numbers; bytes from one row, matrix and so on to the next */
    cuuint32_t box[D];
    CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
    CUtensorMapL2promotion promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
};

/* Returns false where the driver knows no tensor maps, or refuses this one. */
template <int D> static inline bool encode_map(CUtensorMap *map, const box_map<D> &m)
{
    static const auto encode = [] {
        void *f = NULL;
        cudaDriverEntryPointQueryResult result;
        cudaError_t e = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000,
                                                         cudaEnableDefault, &result);
        return e == cudaSuccess && result == cudaDriverEntryPointSuccess
                   ? (decltype(&cuTensorMapEncodeTiled))f
                   : NULL;
    }();
    static const cuuint32_t step[] = { 1, 1, 1, 1, 1 };

    return encode && encode(map, m.type, D, (void *)m.data, m.size, m.stride, m.box, step,
                            CU_TENSOR_MAP_INTERLEAVE_NONE, m.swizzle, m.promotion,
                            CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* Returns how many numbers of t, bf16 or 8 bits, 128 bytes hold. */
static inline int depth_of(struct tensor t) { return t.dtype == DT_BF16 ? 64 : 128; }

/* Makes the map of t in boxes of 128 bytes of columns, swizzled, and `rows` rows. */
static inline bool map_boxes(CUtensorMap *map, struct tensor t, int rows)
{
    return encode_map<2>(map, { t.dtype == DT_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                   : CU_TENSOR_MAP_DATA_TYPE_UINT8,
                                t.data,
                                { (cuuint64_t)t.cols, (cuuint64_t)t.rows },
                                { (cuuint64_t)tensor_bytes(tensor_rows(t, 0, 1)) },
                                { (cuuint32_t)depth_of(t), (cuuint32_t)rows } });
}

#endif
