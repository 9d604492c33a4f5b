/* fp8_copy.h - device code that writes a weight's fp8 copy (ops.h, struct fp8_copy), for adam.cu
 * and quantize.cu.
 *
 *     uint32_t most = 0;
 *     for (...)
 *         write_codes<8>(out, at, stored, &most);       // stored: w as it is in memory
 *     fold_amax(out, most);                             // all threads of the block
 *
 * amax is kept as the bits of a number >= 0, whose order is that of numbers, with NaN above all:
 * a maximum of integers, so the order of blocks does not matter. The launcher clears it.
 */
#ifndef KERNELS_FP8_COPY_H
#define KERNELS_FP8_COPY_H

#include "head_fp8.h"
#include "optim.h"

struct fp8_out {
    uint8_t *codes;
    float scale_inv;
    uint32_t *amax;
};

template <int WIDTH>
__device__ __forceinline__ void write_codes(const fp8_out &out, int64_t at, const float (&x)[WIDTH],
                                            uint32_t *most)
{
    float q[WIDTH];

#pragma unroll
    for (int e = 0; e < WIDTH; e++) {
        *most = max(*most, __float_as_uint(x[e]) & 0x7fffffff);
        q[e] = quot(x[e], out.scale_inv);
    }
    if constexpr (WIDTH == 8)
        *(uint2 *)(out.codes + at) =
            make_uint2(pack_e4m3x4(q[0], q[1], q[2], q[3]), pack_e4m3x4(q[4], q[5], q[6], q[7]));
    else
        out.codes[at] = (uint8_t)pack_e4m3x4(q[0], 0, 0, 0);
}

__device__ __forceinline__ void fold_amax(const fp8_out &out, uint32_t most)
{
    __shared__ uint32_t warps[32];

    most = __reduce_max_sync(0xffffffffu, most);
    if (threadIdx.x % 32 == 0)
        warps[threadIdx.x / 32] = most;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 1; i < blockDim.x / 32; i++)
            most = max(most, warps[i]);
        atomicMax(out.amax, most);
    }
}

/* Clears amax; false after a failure. */
static inline bool fp8_out_begin(struct cuda_ops *c, const struct fp8_copy *copy, fp8_out *out)
{
    *out = fp8_out{ (uint8_t *)copy->codes.data, copy->scale_inv, (uint32_t *)copy->amax };
    return CUDA_TRY(c, cudaMemsetAsync(copy->amax, 0, sizeof *copy->amax, c->stream));
}

#endif
