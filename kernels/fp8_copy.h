/* fp8_copy.h - device code that writes fp8 copies: a weight's (ops.h, struct fp8_copy), for adam.cu
 * and quantize.cu; matrices scaled by their greatest magnitude, for quantize.cu and fp8_input.cu.
 *
 *     uint32_t most = 0;
 *     for (...)
 *         write_codes<8>(out.codes, at, stored, out.scale_inv, &most); // stored: w as it is in memory
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

__device__ __forceinline__ uint2 pack_e4m3(const float (&x)[8])
{
    return make_uint2(pack_e4m3x4(x[0], x[1], x[2], x[3]), pack_e4m3x4(x[4], x[5], x[6], x[7]));
}

template <int WIDTH>
__device__ __forceinline__ void write_codes(uint8_t *codes, int64_t at, const float (&x)[WIDTH],
                                            float scale_inv, uint32_t *most)
{
    float q[WIDTH];

#pragma unroll
    for (int e = 0; e < WIDTH; e++) {
        *most = max(*most, __float_as_uint(x[e]) & 0x7fffffff);
        q[e] = quot(x[e], scale_inv);
    }
    if constexpr (WIDTH == 8)
        *(uint2 *)(codes + at) = pack_e4m3(q);
    else
        codes[at] = (uint8_t)pack_e4m3x4(q[0], 0, 0, 0);
}

/* The greatest of a block's; in every thread. */
__device__ __forceinline__ uint32_t block_max(uint32_t x)
{
    __shared__ uint32_t warps[32];

    x = __reduce_max_sync(0xffffffffu, x);
    if (threadIdx.x % 32 == 0)
        warps[threadIdx.x / 32] = x;
    __syncthreads();
    x = threadIdx.x % 32 < blockDim.x / 32 ? warps[threadIdx.x % 32] : 0;
    return __reduce_max_sync(0xffffffffu, x);
}

/* Bits of the greatest magnitude of two bf16, of eight, as those of the same number in f32. */
__device__ __forceinline__ uint32_t amax2(uint32_t u)
{
    return max(u & 0x7fff0000, u << 16 & 0x7fff0000);
}
__device__ __forceinline__ uint32_t amax8(uint4 u)
{
    return max(max(amax2(u.x), amax2(u.y)), max(amax2(u.z), amax2(u.w)));
}

/* The number that scales are formed of, from those bits. */
__device__ __forceinline__ float fp8_amax(uint32_t bits)
{
    return __uint_as_float(max(bits, __float_as_uint(1e-12f)));
}

__device__ __forceinline__ void fold_amax(const fp8_out &out, uint32_t most)
{
    most = block_max(most);
    if (threadIdx.x == 0)
        atomicMax(out.amax, most);
}

/* Clears amax; false after a failure. */
static inline bool fp8_out_begin(struct cuda_ops *c, const struct fp8_copy *copy, fp8_out *out)
{
    *out = fp8_out{ (uint8_t *)copy->codes.data, copy->scale_inv, (uint32_t *)copy->amax };
    return CUDA_TRY(c, cudaMemsetAsync(copy->amax, 0, sizeof *copy->amax, c->stream));
}

#endif
