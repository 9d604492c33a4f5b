/* shard_maker.c - see shard_maker.h. A test that cannot make its input ends. */
#include "shard_maker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "base/rng.h"
#include "data/corpus.h"
#include "data/frames.h"
#include "data/shard_index.h"

static void give_up(const char *path)
{
    fprintf(stderr, "cannot write '%s'\n", path);
    exit(4);
}

struct tokens random_tokens(uint64_t seed, int n, int mean, int lead)
{
    struct rng r = rng_make(seed, 1);
    struct tokens t = { malloc((size_t)n * 2 + 2), n };

    for (int i = 0; i < n; i++)
        t.v[i] = (uint16_t)(i >= lead && (i == lead ||
                                          rng_below(&r, 2 * (uint64_t)i, (uint64_t)mean) == 0)
                                ? BOS
                                : rng_below(&r, 2 * (uint64_t)i + 1, 50000));
    return t;
}

void put_bytes(const char *path, const void *a, size_t na, const void *b, size_t nb)
{
    FILE *f = fopen(path, "wb");

    if (!f || fwrite(a, 1, na, f) != na || fwrite(b, 1, nb, f) != nb || fclose(f))
        give_up(path);
}

void shard_header(int32_t h[256], int n)
{
    memset(h, 0, 1024);
    h[0] = SHARD_MAGIC;
    h[1] = 1;
    h[2] = n;
}

void put_shard(const char *path, struct tokens t)
{
    int32_t h[256];

    shard_header(h, t.n);
    put_bytes(path, h, sizeof h, t.v, 2 * (size_t)t.n);
}

void put_index(const char *shard, struct tokens t)
{
    struct shard_index x = { 0 };
    char *path = shard_index_path(shard);
    int rc = 0;

    for (int i = 0; i < t.n; i++)
        if (t.v[i] == BOS)
            rc |= shard_index_add(&x, i);
    if (rc || shard_index_write(&x, path, t.n, NULL))
        give_up(path);
    shard_index_release(&x);
    free(path);
}

void put_zst(const char *path, struct tokens t, size_t bytes, bool table)
{
    size_t n = 1024 + 2 * (size_t)t.n, room = ZSTD_compressBound(n), k;
    char *plain = malloc(n), *raw = malloc(room), *tab = NULL;
    struct frames f = { 0 };
    int32_t h[256];
    FILE *out = fopen(path, "wb");
    ZSTD_CCtx *z = ZSTD_createCCtx();

    ZSTD_CCtx_setParameter(z, ZSTD_c_checksumFlag, 1);
    shard_header(h, t.n);
    memcpy(plain, h, 1024);
    memcpy(plain + 1024, t.v, 2 * (size_t)t.n);
    for (size_t at = 0; at < n; at += bytes) {
        size_t m = n - at < bytes ? n - at : bytes;

        k = ZSTD_compress2(z, raw, room, plain + at, m);
        fwrite(raw, 1, k, out);
        if (frames_add(&f, (uint32_t)k, (uint32_t)m))
            give_up(path);
    }
    if (table) {
        if (frames_table(&f, &tab, &k))
            give_up(path);
        fwrite(tab, 1, k, out);
    }
    if (fclose(out))
        give_up(path);
    ZSTD_freeCCtx(z);
    frames_release(&f);
    free(plain);
    free(raw);
    free(tab);
}
