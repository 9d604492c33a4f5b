/* bigram_test.c - the hash of pairs of tokens: the vectors of record-74.md 3 and record-89.md 3, and its formula
 * worked out slowly in 64 bits on random tokens and table sizes. */
#include <stdlib.h>

#include "base/rng.h"
#include "check.h"
#include "data/bigram.h"

#define ROWS 251520 /* record 74's */
#define ROWS_89 377280

static void check_vector(const int32_t *tok, int rows, const int32_t *want, int n)
{
    int32_t row[16];

    memset(row, 0x80, sizeof row);
    bigram_rows(tok, n, rows, row);
    for (int t = 0; t < n; t++)
        CHECK_EQ(row[t], want[t]);
    for (int t = n; t < 16; t++)
        CHECK_EQ(row[t], (int32_t)0x80808080);
}

static void test_vectors(void)
{
    static const int32_t a[] = { 50256, 464, 2068, 7586, 21831, 50256, 50256, 0, 0, 1 };
    static const int32_t b[] = { 1, 50256, 50256, 464 }, c[] = { 0, 0, 0, 0 };

    check_vector(
        a, ROWS,
        (const int32_t[]){ 251519, 204580, 28927, 57630, 129154, 77266, 35060, 8169, 0, 36313 },
        10);
    check_vector(
        a, ROWS_89,
        (const int32_t[]){ 377279, 86771, 28822, 182963, 128375, 75495, 33688, 6358, 0, 36313 },
        10);
    check_vector(b, ROWS_89, (const int32_t[]){ 377279, 98067, 33688, 143001 }, 4);
    check_vector(c, ROWS_89, (const int32_t[]){ 377279, 330959, 0, 0 }, 4);
    check_vector(b, ROWS, (const int32_t[]){ 251519, 5862, 35060, 19030 }, 4);
    check_vector(c, ROWS, (const int32_t[]){ 251519, 193815, 0, 0 }, 4);
    check_vector(a, ROWS, (const int32_t[]){ 251519 }, 1);
    check_vector(a, ROWS, NULL, 0);
}

/* As int32: the low 32 bits, 2^31 and above standing for negative numbers. */
static int64_t wrap(int64_t x)
{
    int64_t low = x % (INT64_C(1) << 32);

    if (low < 0)
        low += INT64_C(1) << 32;
    return low >= INT64_C(1) << 31 ? low - (INT64_C(1) << 32) : low;
}

static int64_t slow(int64_t token, int64_t before, int64_t m)
{
    int64_t x = wrap(36313 * token) ^ wrap(27191 * before), q = x / m;

    while (q * m > x) /* floor, where C's division goes towards zero */
        q--;
    return x - q * m;
}

/* Tokens up to 2^30 overflow at every position, not only at the second. */
static void test_random(uint64_t seed)
{
    enum { T = 400 };
    struct rng r = rng_make(seed, 1);
    int32_t tok[T], row[T], again[T];
    int rows = seed < 20 ? ROWS : 2 + (int)rng_below(&r, 0, seed % 2 ? 5 : 1 << 24);
    int bits = seed % 3 ? 16 : 30, bad = 0;

    for (int t = 0; t < T; t++)
        tok[t] = (int32_t)rng_below(&r, 1 + (uint64_t)t, UINT64_C(1) << bits);
    bigram_rows(tok, T, rows, row);
    CHECK_EQ(row[0], rows - 1);
    CHECK_EQ(row[1], slow(tok[1], rows - 1, rows - 1));
    for (int t = 2; t < T; t++)
        bad += row[t] != slow(tok[t], tok[t - 1], rows - 1);
    CHECK_EQ(bad, 0);
    tok[0] ^= 1; /* is looked at by nobody */
    tok[1] = (int32_t)rng_below(&r, T + 1, UINT64_C(1) << bits);
    bigram_rows(tok, T, rows, again);
    CHECK_EQ(again[0], row[0]);
    CHECK(!memcmp(again + 3, row + 3, sizeof row - 3 * sizeof *row));
}

int main(void)
{
    test_vectors();
    for (uint64_t seed = 1; seed < 200; seed++)
        test_random(seed);
    return check_done();
}
