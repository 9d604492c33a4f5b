#include "base/rng.h"

#include <math.h>

/* Constants of Philox 4x32 (Salmon, Moraes, Dror, Shaw: "Parallel random
 * numbers: as easy as 1, 2, 3", SC 2011): two multipliers, two Weyl increments. */
enum { ROUNDS = 10 };
static const uint32_t MUL0 = 0xd2511f53, MUL1 = 0xcd9e8d57, WEYL0 = 0x9e3779b9, WEYL1 = 0xbb67ae85;

void rng_block(const struct rng *r, uint64_t index, uint32_t out[4])
{
    uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32);
    uint32_t c2 = (uint32_t)r->stream, c3 = (uint32_t)(r->stream >> 32);
    uint32_t k0 = (uint32_t)r->seed, k1 = (uint32_t)(r->seed >> 32);
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t p0 = (uint64_t)MUL0 * c0, p1 = (uint64_t)MUL1 * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += WEYL0;
        k1 += WEYL1;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

float rng_uniform(const struct rng *r, uint64_t index)
{
    uint32_t x[4];
    rng_block(r, index, x);
    return (float)(x[0] >> 8) * 0x1p-24f;
}

float rng_normal(const struct rng *r, uint64_t index)
{
    uint32_t x[4];
    rng_block(r, index, x);
    double u = (x[0] + 1.0) * 0x1p-32;           /* in (0,1]: the logarithm is finite */
    double v = x[1] * 0x1p-32;
    return (float)(sqrt(-2 * log(u)) * cos(2 * 3.14159265358979323846 * v));
}

uint64_t rng_below(const struct rng *r, uint64_t index, uint64_t n)
{
    uint32_t x[4];
    rng_block(r, index, x);
    uint64_t u = (uint64_t)x[1] << 32 | x[0];
    return (uint64_t)((unsigned __int128)u * n >> 64);
}
