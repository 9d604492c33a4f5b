/* rng.h - counter-based random numbers (Philox 4x32-10, Salmon et al., SC 2011).
 *
 * A draw depends on (seed, stream, index) alone, so tensors can be filled in
 * any order, by any number of ranks, with the same values.
 *
 *     struct rng r = rng_make(seed, stream);    // stream: one a tensor
 *     x = rng_uniform(&r, i);                   // in [0,1), 24 bits
 *     z = rng_normal(&r, i);                    // Box-Muller on two words of index i
 *     rng_normals(&r, i, n, z);                 // the same of i .. i + n - 1, in vectors
 *
 * Logarithm and cosine are our own, so values do not depend on the C library.
 */
#ifndef BASE_RNG_H
#define BASE_RNG_H

#include <stdint.h>

struct rng {
    uint64_t seed, stream;
};

static inline struct rng rng_make(uint64_t seed, uint64_t stream)
{
    struct rng r = { seed, stream };
    return r;
}
void rng_block(const struct rng *r, uint64_t index, uint32_t out[4]);
float rng_uniform(const struct rng *r, uint64_t index);
float rng_normal(const struct rng *r, uint64_t index);
void rng_uniforms(const struct rng *r, uint64_t first, int64_t n, float *out);
void rng_normals(const struct rng *r, uint64_t first, int64_t n, float *out);
uint64_t rng_below(const struct rng *r, uint64_t index, uint64_t n); /* 0 .. n-1 */

#endif
