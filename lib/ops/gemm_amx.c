/* gemm_amx.c - products of operands rounded to bf16, in the matrix registers of x86-64.
 *
 * Both operands are rounded into tiles of 1 KiB, 16 x 16 pairs of k: rows of pairs for op(a), pairs
 * of rows for op(b). A block of 32 x 32 of c is summed in four registers and goes by way of the
 * stack, where alpha and beta come in.
 */
#include "ops/gemm.h"

#ifdef __x86_64__

#include <cpuid.h>
#include <immintrin.h>
#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "types/dtype.h"
#include "ops/simd.h"

enum { SIDE = 16, DEPTH = 2 * SIDE, TILE = SIDE * SIDE }; /* of a tile; TILE in pairs */
enum { BLOCK = 256, STRIPS = BLOCK / SIDE, TILES = BLOCK / DEPTH };

#ifdef __clang__
#define AMX_TARGET \
    __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,amx-tile,amx-bf16")))
#else
#define AMX_TARGET \
    __attribute__(( \
        target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,amx-tile,amx-bf16,prefer-vector-" \
               "width=512")))
#endif

static bool allowed;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* The registers are 8 KiB a thread, which Linux gives to processes that ask. */
static void ask(void)
{
    enum { AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24, REQUEST = 0x1023, TILE_DATA = 18 };
    unsigned a, b, c, d;

    allowed = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & AMX_BF16) && (d & AMX_TILE) &&
              syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
}

bool gemm_has_amx(void)
{
    pthread_once(&once, ask);
    return allowed && simd_get() == SIMD_AVX512;
}

struct config {
    uint8_t palette, start, none[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* 16 rows of 32 numbers, x (rows,k), in order of k; what x does not have is 0. */
SIMD_INLINE void rows_of_pairs(uint32_t *tile, const float *x, int64_t ld, int64_t rows, int64_t k)
{
    uint16_t *out = (uint16_t *)tile;

    if (rows < SIDE || k < DEPTH)
        memset(tile, 0, TILE * sizeof *tile);
    for (int64_t i = 0; i < least(rows, SIDE); i++)
        for (int64_t t = 0; t < least(k, DEPTH); t++)
            out[i * DEPTH + t] = bf16_from_f32(x[i * ld + t]);
}

/* Packs pairs of rows of x (k,cols): pair p of column j at 16 p + j. */
SIMD_INLINE void pairs_of_rows(uint32_t *tile, const float *x, int64_t ld, int64_t cols, int64_t k)
{
    int64_t n = least(cols, SIDE);

    if (cols < SIDE || k < DEPTH)
        memset(tile, 0, TILE * sizeof *tile);
    for (int64_t p = 0; p < least(k / 2, SIDE); p++)
        for (int64_t j = 0; j < n; j++)
            tile[p * SIDE + j] = bf16_from_f32(x[2 * p * ld + j]) |
                                 (uint32_t)bf16_from_f32(x[(2 * p + 1) * ld + j]) << 16;
    for (int64_t j = 0; k < DEPTH && k % 2 && j < n; j++)
        tile[k / 2 * SIDE + j] = bf16_from_f32(x[(k - 1) * ld + j]);
}

/* A strip of 16 rows of op(a), or of columns of op(b): tiles one behind another. */
AMX_TARGET static void pack(uint32_t *out, bool across, bool of_b, const float *x, int64_t ld,
                            int64_t n, int64_t k)
{
    uint32_t tile[TILE];

    for (int64_t t = 0; t < k; t += DEPTH, out += TILE) {
        uint32_t *to = across == of_b ? out : tile;
        if (across)
            pairs_of_rows(to, x + t * ld, ld, n, k - t);
        else
            rows_of_pairs(to, x + t, ld, n, k - t);
        for (int i = 0; to == tile && i < SIDE; i++)
            for (int j = 0; j < SIDE; j++)
                out[i * SIDE + j] = tile[j * SIDE + i];
    }
}

/* out (32,32) from two strips each. */
AMX_TARGET static void multiply(float *out, const uint32_t *a, const uint32_t *b, int tiles)
{
    const uint32_t *a1 = a + TILES * TILE, *b1 = b + TILES * TILE;

    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int t = 0; t < tiles * TILE; t += TILE) {
        _tile_loadd(4, a + t, 64);
        _tile_loadd(5, a1 + t, 64);
        _tile_loadd(6, b + t, 64);
        _tile_loadd(7, b1 + t, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, out, 128);
    _tile_stored(1, out + SIDE, 128);
    _tile_stored(2, out + SIDE * 32, 128);
    _tile_stored(3, out + SIDE * 32 + SIDE, 128);
}

AMX_TARGET static void store(float *c, int64_t ldc, const float *x, int64_t m, int64_t n,
                             float alpha, float beta)
{
    for (int64_t i = 0; i < m; i++, c += ldc, x += 32)
        for (int64_t j = 0; j < n; j++)
            c[j] = beta == 0 ? alpha * x[j] : alpha * x[j] + beta * c[j];
}

/* m, k <= BLOCK. */
AMX_TARGET static void block(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha,
                             const float *a, int64_t lda, const float *b, int64_t ldb, float beta,
                             float *c, int64_t ldc)
{
    enum { STRIP = TILES * TILE };
    uint32_t pa[STRIPS * STRIP] __attribute__((aligned(64)));
    uint32_t pb[2 * STRIP] __attribute__((aligned(64)));
    float out[32 * 32] __attribute__((aligned(64)));
    int tiles = (int)((k + DEPTH - 1) / DEPTH);

    for (int64_t i = 0; i < (m + 31) / 32 * 32; i += SIDE)
        pack(pa + i / SIDE * STRIP, ta, false, ta ? a + i : a + i * lda, lda, m - i, k);
    for (int64_t j = 0; j < n; j += 32) {
        for (int64_t s = 0; s < 32; s += SIDE)
            pack(pb + s / SIDE * STRIP, !tb, true, tb ? b + (j + s) * ldb : b + j + s, ldb,
                 n - j - s, k);
        for (int64_t i = 0; i < m; i += 32) {
            multiply(out, pa + i / SIDE * STRIP, pb, tiles);
            store(c + i * ldc + j, ldc, out, least(m - i, 32), least(n - j, 32), alpha, beta);
        }
    }
}

AMX_TARGET void gemm_amx(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha,
                         const float *a, int64_t lda, const float *b, int64_t ldb, float beta,
                         float *c, int64_t ldc)
{
    struct config config = { .palette = 1 };

    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = 64;
        config.rows[i] = SIDE;
    }
    _tile_loadconfig(&config);
    for (int64_t t = 0; t < k || t == 0; t += BLOCK)
        for (int64_t i = 0; i < m; i += BLOCK)
            block(ta, tb, least(m - i, BLOCK), n, least(k - t, BLOCK), alpha,
                  ta ? a + t * lda + i : a + i * lda + t, lda, tb ? b + t : b + t * ldb, ldb,
                  t ? 1 : beta, c + i * ldc, ldc);
    _tile_release();
}

#else

bool gemm_has_amx(void) { return false; }

void gemm_amx(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
              int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc)
{
    (void)ta, (void)tb, (void)m, (void)n, (void)k, (void)alpha, (void)a, (void)lda, (void)b;
    (void)ldb, (void)beta, (void)c, (void)ldc;
}

#endif
