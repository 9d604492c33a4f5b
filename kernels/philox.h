/* philox.h - drawn words, the same as lib/base/rng.c's. */
#ifndef KERNELS_PHILOX_H
#define KERNELS_PHILOX_H

#include <cuda_runtime.h>
#include <stdint.h>

/* Philox 4x32-10: four words of (seed, stream, index). */
__device__ __forceinline__ void philox(uint64_t seed, uint64_t stream, uint64_t index,
                                       uint32_t (&c)[4])
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    c[0] = (uint32_t)index, c[1] = (uint32_t)(index >> 32);
    c[2] = (uint32_t)stream, c[3] = (uint32_t)(stream >> 32);
#pragma unroll
    for (int i = 0; i < 10; i++, k0 += 0x9e3779b9, k1 += 0xbb67ae85) {
        uint64_t a = (uint64_t)0xd2511f53 * c[0], b = (uint64_t)0xcd9e8d57 * c[2];
        c[0] = (uint32_t)(b >> 32) ^ c[1] ^ k0;
        c[1] = (uint32_t)b;
        c[2] = (uint32_t)(a >> 32) ^ c[3] ^ k1;
        c[3] = (uint32_t)a;
    }
}

#endif
