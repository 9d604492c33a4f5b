/* gemm_tile.h - the inner loop of products for one instruction set: gemm.c includes it once for
 * each, with these defined:
 *
 *     TILE_NAME(x)   the name of x for this set
 *     TILE_TARGET    attribute of its functions
 *     TILE_LANES     floats a vector
 *     TILE_VECTORS   vectors a row of the tile
 *     TILE_ROWS      rows of the tile, at most: TILE_ROWS x TILE_VECTORS sums stay in registers
 *     TILE_FMA(a, b, c)   a b + c of vectors, one rounding
 *
 * An element of the tile is one chain of multiply-adds over k, in order: its bits depend neither on
 * the set nor on the shape of the tile.
 */
#ifdef __clang__
#define TILE_UNROLL _Pragma("unroll")
#else
#define TILE_UNROLL _Pragma("GCC unroll 16")
#endif

typedef float TILE_NAME(vec) __attribute__((vector_size(4 * TILE_LANES), aligned(4), may_alias));

enum { TILE_NAME(ROWS) = TILE_ROWS, TILE_NAME(COLS) = TILE_LANES * TILE_VECTORS };

/* rows (a constant where this is expanded) of c = alpha a panel + beta c; a is (rows,k) with lda
 * from row to row, or with ta (k,rows) with lda from k to k. panel is (k, COLS) with ldp from k to
 * k. */
TILE_TARGET static inline __attribute__((always_inline)) void TILE_NAME(rows)(
    const int rows, const bool ta, int64_t k, const float *a, int64_t lda, const float *panel,
    int64_t ldp, float alpha, float beta, float *c, int64_t ldc)
{
    TILE_NAME(vec) sum[TILE_ROWS][TILE_VECTORS];
    const float *from[(TILE_ROWS + 2) / 3] = { a }; /* every third row: others by an index of lda */

    TILE_UNROLL
    for (int i = 0; i < rows; i++) {
        TILE_UNROLL
        for (int j = 0; j < TILE_VECTORS; j++)
            sum[i][j] = (TILE_NAME(vec)){ 0 };
    }
    TILE_UNROLL
    for (int i = 0; i < (rows + 2) / 3; i++)
        from[i] = a + 3 * i * lda;
    TILE_UNROLL
    for (int i = 0; i < rows; i++) {
        TILE_UNROLL
        for (int j = 0; j < TILE_NAME(COLS); j += 16)
            __builtin_prefetch(c + i * ldc + j, 1);
    }
    for (int64_t t = 0; t < k; t++) {
        TILE_NAME(vec) b[TILE_VECTORS];
        TILE_UNROLL
        for (int j = 0; j < TILE_VECTORS; j++)
            b[j] = *(const TILE_NAME(vec) *)(panel + t * ldp + j * TILE_LANES);
        TILE_UNROLL
        for (int j = 0; j < TILE_NAME(COLS); j += 16)
            __builtin_prefetch(panel + t * ldp + TILE_NAME(COLS) + j, 0, 2);
        TILE_UNROLL
        for (int i = 0; i < rows; i++) {
            float x = ta ? a[t * lda + i] : from[i / 3][i % 3 * lda + t];
            TILE_NAME(vec) all = x - (TILE_NAME(vec)){ 0 };
            TILE_UNROLL
            for (int j = 0; j < TILE_VECTORS; j++)
                sum[i][j] = TILE_FMA(all, b[j], sum[i][j]);
        }
    }
    TILE_UNROLL
    for (int i = 0; i < rows; i++) {
        TILE_UNROLL
        for (int j = 0; j < TILE_VECTORS; j++) {
            TILE_NAME(vec) *out = (TILE_NAME(vec) *)(c + i * ldc + j * TILE_LANES);
            *out = beta == 0 ? alpha * sum[i][j] : alpha * sum[i][j] + beta * *out;
        }
    }
}

TILE_TARGET static void TILE_NAME(tile)(int rows, bool ta, int64_t k, const float *a, int64_t lda,
                                        const float *panel, int64_t ldp, float alpha, float beta,
                                        float *c, int64_t ldc)
{
    switch (rows + (ta ? 16 : 0)) {
#define TILE_CASE(n) \
    case n: \
        if (n <= TILE_ROWS) \
            TILE_NAME(rows) \
        (n <= TILE_ROWS ? n : 1, false, k, a, lda, panel, ldp, alpha, beta, c, ldc); \
        break; \
    case n + 16: \
        if (n <= TILE_ROWS) \
            TILE_NAME(rows) \
        (n <= TILE_ROWS ? n : 1, true, k, a, lda, panel, ldp, alpha, beta, c, ldc); \
        break;
        TILE_CASE(1)
        TILE_CASE(2)
        TILE_CASE(3)
        TILE_CASE(4)
        TILE_CASE(5)
        TILE_CASE(6)
        TILE_CASE(7)
        TILE_CASE(8)
        TILE_CASE(9) TILE_CASE(10) TILE_CASE(11) TILE_CASE(12) TILE_CASE(13) TILE_CASE(14)
#undef TILE_CASE
    }
}

#undef TILE_NAME
#undef TILE_TARGET
#undef TILE_LANES
#undef TILE_VECTORS
#undef TILE_ROWS
#undef TILE_FMA
#undef TILE_UNROLL
