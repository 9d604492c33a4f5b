/* gemm.c - panels of b are packed, rows of a run past them (gemm_tile.h).
 *
 * A panel (BLOCK_K x 8 to 32 columns) stays in L1, a block of a (BLOCK_M x BLOCK_K) in L2, and where
 * a has several blocks the panels of STRIP columns too, packed once for all of them. b is not packed
 * where its rows lie so that a panel's do not share cache sets. a is read where it
 * stands if its rows are near each other or b has few columns, else copied so that its rows do not
 * share cache sets.
 */
#include "ops/gemm.h"

#include <string.h>
#include "types/dtype.h"
#include "ops/simd.h"

#ifdef __x86_64__
#include <immintrin.h>
#elif defined __aarch64__
#include <arm_neon.h>
#endif

enum { BLOCK_K = 256, BLOCK_M = 224, MAX_ROWS = 14, MAX_COLS = 32, NEAR = 320 /* floats */ };
enum { PAD = 16, BLOCK_FLOATS = BLOCK_K * (BLOCK_K + PAD) }; /* BLOCK_M <= BLOCK_K */
enum { STRIP = 256 }; /* columns */

typedef void tile_fn(int rows, bool ta, int64_t k, const float *a, int64_t lda, const float *panel,
                     int64_t ldp, float alpha, float beta, float *c, int64_t ldc);

struct kernel {
    const char *name;
    bool slow;
    int rows, cols;
    tile_fn *tile;
};

#define TILE_NAME(x) none_##x
#define TILE_TARGET
#define TILE_LANES 4
#define TILE_VECTORS 2
#ifdef __aarch64__
#define TILE_ROWS 12
#define TILE_FMA(a, b, c) vfmaq_f32(c, a, b)
static const char none_name[] = "NEON";
static const bool none_slow = false;
#else
#define TILE_ROWS 6
#define TILE_FMA(a, b, c) ((a) * (b) + (c))
#ifdef __x86_64__
static const char none_name[] = "SSE2";
#else
static const char none_name[] = "plain C";
#endif
static const bool none_slow = true;
#endif
#include "ops/gemm_tile.h"

#ifdef __x86_64__
#define TILE_NAME(x) fma_##x
#define TILE_TARGET SIMD_TARGET_FMA
#define TILE_LANES 8
#define TILE_VECTORS 2
#define TILE_ROWS 6
#define TILE_FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#include "ops/gemm_tile.h"

#define TILE_NAME(x) avx512_##x
#define TILE_TARGET SIMD_TARGET_AVX512
#define TILE_LANES 16
#define TILE_VECTORS 2
#define TILE_ROWS 14
#define TILE_FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#include "ops/gemm_tile.h"
#endif

static const struct kernel kernels[SIMD_SETS] = {
    [SIMD_NONE] = { none_name, none_slow, none_ROWS, none_COLS, none_tile },
#ifdef __x86_64__
    [SIMD_FMA] = { "AVX2", false, fma_ROWS, fma_COLS, fma_tile },
    [SIMD_AVX512] = { "AVX-512", false, avx512_ROWS, avx512_COLS, avx512_tile },
#elif defined __aarch64__
    [SIMD_FMA] = { none_name, none_slow, none_ROWS, none_COLS, none_tile },
#endif
};

const char *gemm_kernels(bool *slow)
{
    const struct kernel *g = &kernels[simd_get()];
    *slow = g->slow;
    return g->name;
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

typedef float four __attribute__((vector_size(16), aligned(4), may_alias));

/* d (4,4) = s^T. */
static inline void transpose_four(float *d, int64_t ldd, const float *s, int64_t lds)
{
    four r[4], u[4];
    for (int i = 0; i < 4; i++)
        r[i] = *(const four *)(s + i * lds);
    u[0] = __builtin_shufflevector(r[0], r[1], 0, 4, 1, 5);
    u[1] = __builtin_shufflevector(r[2], r[3], 0, 4, 1, 5);
    u[2] = __builtin_shufflevector(r[0], r[1], 2, 6, 3, 7);
    u[3] = __builtin_shufflevector(r[2], r[3], 2, 6, 3, 7);
    for (int i = 0; i < 4; i += 2) {
        *(four *)(d + i * ldd) = __builtin_shufflevector(u[i], u[i + 1], 0, 1, 4, 5);
        *(four *)(d + (i + 1) * ldd) = __builtin_shufflevector(u[i], u[i + 1], 2, 3, 6, 7);
    }
}

/* Too short for memcpy(). */
static inline void copy_row(float *d, const float *s, int64_t n)
{
    for (; n >= 8; n -= 8, d += 8, s += 8) {
        *(four *)d = *(const four *)s;
        *(four *)(d + 4) = *(const four *)(s + 4);
    }
    for (; n > 0; n--)
        *d++ = *s++;
}

/* panel (k,cols) from n <= cols columns of op(b), the others zero. */
static void pack(float *panel, int64_t cols, bool tb, int64_t k, int64_t n, const float *b,
                 int64_t ldb)
{
    int64_t whole_k = tb ? k & ~3LL : 0, whole_n = tb ? n & ~3LL : 0;

    if (n < cols)
        memset(panel, 0, (size_t)(k * cols) * sizeof *panel);
    for (int64_t j = 0; j < whole_n; j += 4)
        for (int64_t t = 0; t < whole_k; t += 4)
            transpose_four(panel + t * cols + j, cols, b + j * ldb + t, ldb);
    for (int64_t t = 0; t < k && !tb; t++)
        copy_row(panel + t * cols, b + t * ldb, n);
    for (int64_t t = 0; t < k && tb; t++)
        for (int64_t j = t < whole_k ? whole_n : 0; j < n; j++)
            panel[t * cols + j] = b[j * ldb + t];
}

/* The columns of c that a last panel does not fill: by way of a tile of its own. */
static void narrow_tile(const struct kernel *g, int rows, bool ta, int64_t k, const float *a,
                        int64_t lda, const float *panel, float alpha, float beta, float *c,
                        int64_t ldc, int64_t n)
{
    float tile[MAX_ROWS * MAX_COLS];

    g->tile(rows, ta, k, a, lda, panel, g->cols, alpha, 0, tile, g->cols);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < n; j++) {
            float x = tile[i * g->cols + j], *out = c + i * ldc + j;
            *out = beta == 0 ? x : x + beta * *out;
        }
}

/* Rows of this length go through all sets of an L1 cache of lines of 16 floats, on few pages. */
static bool spread(int64_t ld) { return ld <= NEAR && ld % 32 == 16; }

static void round_all(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = bf16_round(x[i]);
}

/* op(b) of a strip, (k,n) with k <= BLOCK_K and n <= STRIP. */
struct strip {
    bool bf16, tb;
    int64_t n, k, ldb;
    const float *b;
    float *room; /* of one panel, or of all */
    bool packed; /* all of them */
};

/* Returns panel j where it stands, or packed. */
static const float *panel_of(const struct kernel *g, const struct strip *s, int64_t j, int64_t *ldp)
{
    int64_t cols = least(s->n - j, g->cols);
    const float *from = s->tb ? s->b + j * s->ldb : s->b + j;
    float *to = s->packed ? s->room + j * s->k : s->room;

    if (cols == g->cols && !s->tb && spread(s->ldb) && !s->bf16) {
        *ldp = s->ldb;
        return from;
    }
    *ldp = g->cols;
    if (s->packed)
        return to;
    pack(to, g->cols, s->tb, s->k, cols, from, s->ldb);
    if (s->bf16)
        round_all(to, s->k * g->cols);
    return to;
}

/* Packs the panels for blocks of a to come. */
static void pack_strip(const struct kernel *g, struct strip *s)
{
    struct strip one = *s;
    int64_t ldp;

    for (int64_t j = 0; j < s->n; j += g->cols) {
        one.room = s->room + j * s->k;
        panel_of(g, &one, j, &ldp);
    }
    s->packed = true;
}

/* c (m,n) from one block of a and a strip: m <= BLOCK_M. */
static void block(const struct kernel *g, const struct strip *s, bool ta, int64_t m, float alpha,
                  const float *a, int64_t lda, float beta, float *c, int64_t ldc)
{
    int64_t tiles = (m + g->rows - 1) / g->rows, k = s->k;

    for (int64_t j = 0; j < s->n; j += g->cols) {
        int64_t cols = least(s->n - j, g->cols), ldp;
        const float *p = panel_of(g, s, j, &ldp);
        for (int64_t t = 0; t < tiles; t++) {
            int64_t i = m * t / tiles, rows = m * (t + 1) / tiles - i;
            const float *at = ta ? a + i : a + i * lda;
            if (cols == g->cols)
                g->tile((int)rows, ta, k, at, lda, p, ldp, alpha, beta, c + i * ldc + j, ldc);
            else
                narrow_tile(g, (int)rows, ta, k, at, lda, p, alpha, beta, c + i * ldc + j, ldc,
                            cols);
        }
    }
}

static const float *copy_block(float *copy, int64_t *ld, bool bf16, bool ta, int64_t m, int64_t k,
                               const float *a, int64_t lda)
{
    int64_t rows = ta ? k : m, cols = ta ? m : k;

    *ld = (ta ? BLOCK_M : BLOCK_K) + PAD;
    for (int64_t i = 0; i < rows; i++)
        memcpy(copy + i * *ld, a + i * lda, (size_t)cols * sizeof *copy);
    for (int64_t i = 0; bf16 && i < rows; i++)
        round_all(copy + i * *ld, cols);
    return copy;
}

static void product(bool bf16, bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha,
                    const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c,
                    int64_t ldc)
{
    const struct kernel *g = &kernels[simd_get()];
    float copy[BLOCK_FLOATS] __attribute__((aligned(64)));
    float room[BLOCK_K * STRIP] __attribute__((aligned(64)));

    for (int64_t t = 0; t < k || t == 0; t += BLOCK_K)
        for (int64_t j = 0; j < n; j += STRIP) {
            struct strip s = { .bf16 = bf16, .tb = tb, .ldb = ldb };
            s.n = least(n - j, STRIP);
            s.k = least(k - t, BLOCK_K);
            s.b = tb ? b + j * ldb + t : b + t * ldb + j;
            s.room = room;
            if (m > BLOCK_M)
                pack_strip(g, &s);
            for (int64_t i = 0; i < m; i += BLOCK_M) {
                int64_t rows = least(m - i, BLOCK_M), ld = lda;
                const float *from = ta ? a + t * lda + i : a + i * lda + t;
                if (bf16 || (lda > NEAR && s.n > 3 * g->cols && rows > g->rows))
                    from = copy_block(copy, &ld, bf16, ta, rows, s.k, from, lda);
                block(g, &s, ta, rows, alpha, from, ld, t ? 1 : beta, c + i * ldc + j, ldc);
            }
        }
}

void gemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
          int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc)
{
    product(false, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

void gemm_bf16(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
               int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc)
{
    if (gemm_has_amx())
        gemm_amx(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    else
        product(true, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
