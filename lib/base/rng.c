#include "base/rng.h"

#include <math.h>
#include <string.h>
#ifdef __AVX2__
#include <immintrin.h>
#endif

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

#ifdef __AVX2__

/* The words of four indices, each in the lower half of a lane: a product reads lower halves alone, so what else
 * stands in the upper ones does not matter. */
struct lanes {
    __m256i c0, c1, c2, c3;
};

static inline struct lanes lanes_of(const struct rng *r, __m256i index)
{
    return (struct lanes){ index, _mm256_srli_epi64(index, 32),
                           _mm256_set1_epi64x((int64_t)(r->stream & UINT32_MAX)),
                           _mm256_set1_epi64x((int64_t)(r->stream >> 32)) };
}

static inline void lanes_round(struct lanes *x, __m256i k0, __m256i k1)
{
    __m256i p0 = _mm256_mul_epu32(x->c0, _mm256_set1_epi64x(MUL0));
    __m256i p1 = _mm256_mul_epu32(x->c2, _mm256_set1_epi64x(MUL1));
    x->c0 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p1, 32), x->c1), k0);
    x->c2 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p0, 32), x->c3), k1);
    x->c1 = p1;
    x->c3 = p0;
}

/* Stores lower halves: those of a are elements 0, 1, 4, 5, those of b 2, 3, 6, 7. */
static inline void store_eight(uint32_t *out, __m256i a, __m256i b)
{
    __m256 both = _mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0x88);
    _mm256_storeu_si256((__m256i *)out, _mm256_castps_si256(both));
}

/* First and second words of WIDE indices. */
static void wide_block(const struct rng *r, uint64_t first, uint32_t w[2][WIDE])
{
    for (int j = 0; j < WIDE; j += 8) {
        __m256i at = _mm256_set1_epi64x((int64_t)(first + (uint64_t)j));
        struct lanes a = lanes_of(r, _mm256_add_epi64(at, _mm256_setr_epi64x(0, 1, 4, 5)));
        struct lanes b = lanes_of(r, _mm256_add_epi64(at, _mm256_setr_epi64x(2, 3, 6, 7)));
        uint32_t k0 = (uint32_t)r->seed, k1 = (uint32_t)(r->seed >> 32);
        for (int i = 0; i < ROUNDS; i++, k0 += WEYL0, k1 += WEYL1) {
            __m256i key0 = _mm256_set1_epi64x(k0), key1 = _mm256_set1_epi64x(k1);
            lanes_round(&a, key0, key1);
            lanes_round(&b, key0, key1);
        }
        store_eight(w[0] + j, a.c0, b.c0);
        store_eight(w[1] + j, a.c1, b.c1);
    }
}

#else

/* First and second words of WIDE indices, round by round. */
static void wide_block(const struct rng *r, uint64_t first, uint32_t w[2][WIDE])
{
    uint32_t k0 = (uint32_t)r->seed, k1 = (uint32_t)(r->seed >> 32), c2[WIDE], c3[WIDE];
    for (int j = 0; j < WIDE; j++) {
        uint64_t index = first + (uint64_t)j;
        w[0][j] = (uint32_t)index, w[1][j] = (uint32_t)(index >> 32);
        c2[j] = (uint32_t)r->stream, c3[j] = (uint32_t)(r->stream >> 32);
    }
    for (int i = 0; i < ROUNDS; i++, k0 += WEYL0, k1 += WEYL1)
        for (int j = 0; j < WIDE; j++)
            philox_round(&w[0][j], &w[1][j], &c2[j], &c3[j], k0, k1);
}

#endif

void rng_uniforms(const struct rng *r, uint64_t first, int64_t n, float *out)
{
    uint32_t w[2][WIDE];
    float u[WIDE];
    for (int64_t i = 0; i < n; i += WIDE) {
        wide_block(r, first + (uint64_t)i, w);
        for (int j = 0; j < WIDE; j++)
            u[j] = uniform(w[0][j]);
        memcpy(out + i, u, (size_t)(n - i < WIDE ? n - i : WIDE) * sizeof *u);
    }
}

void rng_normals(const struct rng *r, uint64_t first, int64_t n, float *out)
{
    uint32_t w[2][WIDE];
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
