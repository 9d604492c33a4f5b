/* gemm_test.c - products: against f64, also of rounded operands, and the same bits on every instruction
 * set, in parts, and with rows of b that are read where they stand. */
#include "types/dtype.h"
#include "base/rng.h"
#include "check.h"
#include "ops/gemm.h"
#include "ops/simd.h"

enum { LARGEST = 300, LD = LARGEST + 5, FLOATS = LARGEST * LD };
enum { SPREAD = 272 }; /* from row to row: b is not packed */

static float a[FLOATS], b[FLOATS], before[FLOATS], c[FLOATS], other[FLOATS];

static void draw(float *x, uint64_t stream)
{
    struct rng r = rng_make(5, stream);
    for (int64_t i = 0; i < FLOATS; i++)
        x[i] = rng_uniform(&r, (uint64_t)i) - 0.5f;
}

static float (*as_read)(float) = NULL; /* rounds what is multiplied */

static double element(bool ta, bool tb, int i, int j, int k)
{
    double sum = 0;
    for (int t = 0; t < k; t++) {
        float x = a[ta ? t * LD + i : i * LD + t], y = b[tb ? j * LD + t : t * LD + j];
        sum += as_read ? (double)as_read(x) * (double)as_read(y) : (double)x * (double)y;
    }
    return sum;
}

/* A chain of k roundings of sums below k / 4, in blocks: k 2^-24 k / 4 is far more than is seen. */
static void against_f64(bool ta, bool tb, int m, int n, int k, float alpha, float beta)
{
    double tolerance = 1e-7 * (1 + k), worst = 0;

    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            double want = (double)alpha * element(ta, tb, i, j, k);
            if (beta != 0)
                want += (double)beta * (double)before[i * LD + j];
            double off = fabs((double)c[i * LD + j] - want);
            worst = off <= worst ? worst : off;
        }
    check_that(worst <= tolerance, __FILE__, __LINE__, "%d x %d x %d%s%s: off by %g", m, n, k,
               ta ? " ta" : "", tb ? " tb" : "", worst);
    bool beyond = false;
    for (int64_t i = 0; i < FLOATS; i++)
        if (i / LD >= m || i % LD >= n)
            beyond |= memcmp(&c[i], &before[i], sizeof *c) != 0;
    CHECK(!beyond);
}

/* bf16: in tiles where the processor has them, and without. Its sums of f32 have gemm()'s bound. */
static void rounded(bool ta, bool tb, int m, int n, int k, float alpha, float beta)
{
    as_read = bf16_round;
    for (int s = SIMD_NONE; s < SIMD_SETS; s++) {
        simd_limit((enum simd)s);
        memcpy(c, before, sizeof c);
        gemm_bf16(ta, tb, m, n, k, alpha, a, LD, b, LD, beta, c, LD);
        against_f64(ta, tb, m, n, k, alpha, beta);
    }
    simd_limit(SIMD_SETS);
    as_read = NULL;
}

static void where_it_stands(bool ta, int m, int n, int k, float alpha, float beta)
{
    static float spread[LARGEST * SPREAD];

    for (int t = 0; t < k; t++)
        memcpy(spread + (size_t)t * SPREAD, b + (size_t)t * LD, (size_t)n * sizeof *b);
    memcpy(other, before, sizeof other);
    gemm(ta, false, m, n, k, alpha, a, LD, spread, SPREAD, beta, other, LD);
    CHECK(!memcmp(other, c, sizeof c));
}

static void one(bool ta, bool tb, int m, int n, int k, float alpha, float beta)
{
    enum simd most = simd_get();

    if (beta == 0) /* is not read */
        for (int i = 0; i < m; i++)
            for (int j = 0; j < n; j++)
                before[i * LD + j] = NAN;
    memcpy(c, before, sizeof c);
    gemm(ta, tb, m, n, k, alpha, a, LD, b, LD, beta, c, LD);
    against_f64(ta, tb, m, n, k, alpha, beta);
    for (int s = SIMD_FMA; s < (int)most; s++) {
        simd_limit((enum simd)s);
        memcpy(other, before, sizeof other);
        gemm(ta, tb, m, n, k, alpha, a, LD, b, LD, beta, other, LD);
        CHECK(!memcmp(other, c, sizeof c));
    }
    simd_limit(most);
    memcpy(other, before, sizeof other); /* in four parts */
    for (int p = 0; p < 4; p++) {
        int i = p & 1 ? m / 3 : 0, j = p & 2 ? n / 2 : 0;
        gemm(ta, tb, p & 1 ? m - m / 3 : m / 3, p & 2 ? n - n / 2 : n / 2, k, alpha,
             ta ? a + i : a + i * LD, LD, tb ? b + j * LD : b + j, LD, beta, other + i * LD + j,
             LD);
    }
    CHECK(!memcmp(other, c, sizeof c));
    if (!tb && n <= SPREAD)
        where_it_stands(ta, m, n, k, alpha, beta);
    rounded(ta, tb, m, n, k, alpha, beta);
    draw(before, 3);
    simd_limit(SIMD_NONE); /* its roundings may be others */
    memcpy(c, before, sizeof c);
    gemm(ta, tb, m, n, k, alpha, a, LD, b, LD, 1, c, LD);
    against_f64(ta, tb, m, n, k, alpha, 1);
    simd_limit(SIMD_SETS);
}

int main(void)
{
    static const int size[][3] = { { 1, 1, 1 },     { 3, 5, 2 },       { 14, 32, 64 },
                                   { 15, 33, 65 },  { 64, 192, 256 },  { 113, 130, 257 },
                                   { 300, 31, 17 }, { 225, 300, 300 }, { 7, 129, 0 } };

    draw(a, 1);
    draw(b, 2);
    draw(before, 3);
    for (size_t s = 0; s < sizeof size / sizeof *size; s++)
        for (int t = 0; t < 4; t++) {
            one(t & 1, t & 2, size[s][0], size[s][1], size[s][2], 1, 0);
            one(t & 1, t & 2, size[s][0], size[s][1], size[s][2], 0.75f, 1);
            one(t & 1, t & 2, size[s][0], size[s][1], size[s][2], 1, -0.5f);
        }
    return check_done();
}
