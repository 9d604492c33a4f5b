#include "base/rng.h"

#include <math.h>
#include <string.h>

/* Constants of Philox 4x32 (Salmon, Moraes, Dror, Shaw: "Parallel random
 * numbers: as easy as 1, 2, 3", SC 2011): two multipliers, two Weyl increments. */
enum { ROUNDS = 10 };
static const uint32_t MUL0 = 0xd2511f53, MUL1 = 0xcd9e8d57, WEYL0 = 0x9e3779b9, WEYL1 = 0xbb67ae85;

static inline void philox_round(uint32_t *c0, uint32_t *c1, uint32_t *c2, uint32_t *c3, uint32_t k0,
                                uint32_t k1)
{
    uint64_t p0 = (uint64_t)MUL0 * *c0, p1 = (uint64_t)MUL1 * *c2;
    *c0 = (uint32_t)(p1 >> 32) ^ *c1 ^ k0;
    *c1 = (uint32_t)p1;
    *c2 = (uint32_t)(p0 >> 32) ^ *c3 ^ k1;
    *c3 = (uint32_t)p0;
}

void rng_block(const struct rng *r, uint64_t index, uint32_t out[4])
{
    uint32_t k0 = (uint32_t)r->seed, k1 = (uint32_t)(r->seed >> 32);
    out[0] = (uint32_t)index, out[1] = (uint32_t)(index >> 32);
    out[2] = (uint32_t)r->stream, out[3] = (uint32_t)(r->stream >> 32);
    for (int i = 0; i < ROUNDS; i++, k0 += WEYL0, k1 += WEYL1)
        philox_round(&out[0], &out[1], &out[2], &out[3], k0, k1);
}

/* -- from words to numbers; without branches, so that loops of them become vectors -------- */

static double of_bits(uint64_t b)
{
    double x;
    memcpy(&x, &b, sizeof x);
    return x;
}

static uint64_t bits_of(double x)
{
    uint64_t b;
    memcpy(&b, &x, sizeof b);
    return b;
}

/* In [0,1). */
static inline float uniform(uint32_t w) { return (float)(w >> 8) * 0x1p-24f; }

/* log((w + 1) / 2^32), to one unit or two in the last place: w + 1 = 2^e m with m around 1,
 * log m = 2 artanh((m - 1) / (m + 1)), whose series needs eleven terms. */
static inline double log_of(uint32_t w)
{
    const uint64_t sqrt_half = 0x3fe6a09e667f3bcd;
    uint64_t b = bits_of((double)w + 1), e = (b - sqrt_half) >> 52;
    double m = of_bits(b - (e << 52)), s = (m - 1) / (m + 1), z = s * s, p = 1.0 / 21;
    for (int i = 19; i > 0; i -= 2)
        p = p * z + 1.0 / i;
    double exponent = of_bits(0x4330000000000000 | e) - 0x1p52; /* e as a double */
    return (exponent - 32) * 0.69314718055994530942 + 2 * s * p;
}

/* cos(2 pi w / 2^32), by the series of sine and cosine on an eighth of a turn to both sides of
 * the nearest quarter. */
static inline double cos_of(uint32_t w)
{
    static const double C[] = { 1,
                                -1.0 / 2,
                                1.0 / 24,
                                -1.0 / 720,
                                1.0 / 40320,
                                -1.0 / 3628800,
                                1.0 / 479001600,
                                -1.0 / 87178291200,
                                1.0 / 20922789888000 };
    static const double S[] = { 1,
                                -1.0 / 6,
                                1.0 / 120,
                                -1.0 / 5040,
                                1.0 / 362880,
                                -1.0 / 39916800,
                                1.0 / 6227020800,
                                -1.0 / 1307674368000,
                                1.0 / 355687428096000 };
    uint32_t quarter = (w + (1u << 29)) >> 30;
    double a = (int32_t)(w - (quarter << 30)) * (2 * 3.14159265358979323846 * 0x1p-32);
    double y = a * a, c = C[8], s = S[8];
    for (int i = 7; i >= 0; i--) {
        c = c * y + C[i];
        s = s * y + S[i];
    }
    double x = quarter & 1 ? s * a : c;
    return (quarter + 1) & 2 ? -x : x;
}

static inline float normal(uint32_t w0, uint32_t w1)
{
    return (float)(sqrt(-2 * log_of(w0)) * cos_of(w1));
}

float rng_uniform(const struct rng *r, uint64_t index)
{
    uint32_t x[4];
    rng_block(r, index, x);
    return uniform(x[0]);
}

float rng_normal(const struct rng *r, uint64_t index)
{
    uint32_t x[4];
    rng_block(r, index, x);
    return normal(x[0], x[1]);
}

/* -- many at a time ---------------------------------------------------------------------- */

enum { WIDE = 64 };

/* Words of WIDE indices, round by round. */
static void wide_block(const struct rng *r, uint64_t first, uint32_t w[4][WIDE])
{
    uint32_t k0 = (uint32_t)r->seed, k1 = (uint32_t)(r->seed >> 32);
    for (int j = 0; j < WIDE; j++) {
        uint64_t index = first + (uint64_t)j;
        w[0][j] = (uint32_t)index, w[1][j] = (uint32_t)(index >> 32);
        w[2][j] = (uint32_t)r->stream, w[3][j] = (uint32_t)(r->stream >> 32);
    }
    for (int i = 0; i < ROUNDS; i++, k0 += WEYL0, k1 += WEYL1)
        for (int j = 0; j < WIDE; j++)
            philox_round(&w[0][j], &w[1][j], &w[2][j], &w[3][j], k0, k1);
}

void rng_uniforms(const struct rng *r, uint64_t first, int64_t n, float *out)
{
    uint32_t w[4][WIDE];
    for (int64_t i = 0; i < n; i += WIDE) {
        wide_block(r, first + (uint64_t)i, w);
        for (int64_t j = 0; j < WIDE && i + j < n; j++)
            out[i + j] = uniform(w[0][j]);
    }
}

void rng_normals(const struct rng *r, uint64_t first, int64_t n, float *out)
{
    uint32_t w[4][WIDE];
    float z[WIDE];
    for (int64_t i = 0; i < n; i += WIDE) {
        wide_block(r, first + (uint64_t)i, w);
        for (int j = 0; j < WIDE; j++)
            z[j] = normal(w[0][j], w[1][j]);
        memcpy(out + i, z, (size_t)(n - i < WIDE ? n - i : WIDE) * sizeof *z);
    }
}

uint64_t rng_below(const struct rng *r, uint64_t index, uint64_t n)
{
    uint32_t x[4];
    rng_block(r, index, x);
    uint64_t u = (uint64_t)x[1] << 32 | x[0];
    return (uint64_t)((unsigned __int128)u * n >> 64);
}
