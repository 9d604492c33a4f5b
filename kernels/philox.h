/* philox.h - drawn words, the same as lib/base/rng.c's. */
#ifndef KERNELS_PHILOX_H
#define KERNELS_PHILOX_H

#include <cuda_runtime.h>
#include <stdint.h>

enum { PHILOX_ROUNDS = 10 };

/* What each round adds; of one seed. */
struct round_keys {
    uint32_t k[PHILOX_ROUNDS][2];

    __host__ __device__ __forceinline__ explicit round_keys(uint64_t seed)
    {
        uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
#pragma unroll
        for (int i = 0; i < PHILOX_ROUNDS; i++, k0 += 0x9e3779b9, k1 += 0xbb67ae85)
            k[i][0] = k0, k[i][1] = k1;
    }
};

/* Philox 4x32-10 of c: the two words of an index and those of a stream. */
__device__ __forceinline__ void philox(const round_keys &key, uint32_t (&c)[4])
{
#pragma unroll
    for (int i = 0; i < PHILOX_ROUNDS; i++) {
        uint64_t a = (uint64_t)0xd2511f53 * c[0], b = (uint64_t)0xcd9e8d57 * c[2];
        c[0] = (uint32_t)(b >> 32) ^ c[1] ^ key.k[i][0];
        c[1] = (uint32_t)b;
        c[2] = (uint32_t)(a >> 32) ^ c[3] ^ key.k[i][1];
        c[3] = (uint32_t)a;
    }
}

/* Four words of (seed, stream, index). */
__device__ __forceinline__ void philox(uint64_t seed, uint64_t stream, uint64_t index,
                                       uint32_t (&c)[4])
{
    c[0] = (uint32_t)index, c[1] = (uint32_t)(index >> 32);
    c[2] = (uint32_t)stream, c[3] = (uint32_t)(stream >> 32);
    philox(round_keys(seed), c);
}

#endif
