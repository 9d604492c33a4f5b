/* shard_index.c - see shard_index.h. */
#include "data/shard_index.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/grow.h"
#include "data/corpus.h"
#include "base/le.h"

#define INDEX_VERSION 2

char *shard_index_path(const char *shard)
{
    size_t n = strlen(shard);
    char *p;

    if (n > 4 && !strcmp(shard + n - 4, ".zst"))
        n -= 4;
    if (n > 4 && !memcmp(shard + n - 4, ".bin", 4))
        n -= 4;
    return asprintf(&p, "%.*s.idx", (int)n, shard) < 0 ? NULL : p;
}

int shard_index_add(struct shard_index *x, int64_t start)
{
    if (grow_to(&x->start, &x->room, x->documents + 1, sizeof *x->start))
        return GPT_SYSTEM;
    x->start[x->documents++] = (uint32_t)start;
    return 0;
}

int shard_index_begin(struct shard_index *x)
{
    if (x->documents && !x->start[0])
        return 0;
    if (grow_to(&x->start, &x->room, x->documents + 1, sizeof *x->start))
        return GPT_SYSTEM;
    memmove(x->start + 1, x->start, (size_t)x->documents * sizeof *x->start);
    x->start[0] = 0;
    x->documents++;
    return 0;
}

void shard_index_release(struct shard_index *x)
{
    free(x->start);
    memset(x, 0, sizeof *x);
}

static void hash_bytes(const char *hash, unsigned char out[16])
{
    memset(out, 0, 16);
    for (int i = 0; hash && i < 16; i++) {
        unsigned x = 0;

        sscanf(hash + 2 * i, "%2x", &x);
        out[i] = (unsigned char)x;
    }
}

int shard_index_write(const struct shard_index *x, const char *path, int64_t tokens,
                      const char *hash)
{
    unsigned char h[SHARD_HEADER_BYTES] = { 0 }, word[4];
    struct output o;
    int rc;

    put_le32(h, SHARD_MAGIC);
    put_le32(h + 4, INDEX_VERSION);
    put_le32(h + 8, (uint32_t)x->documents);
    put_le32(h + 12, (uint32_t)tokens);
    hash_bytes(hash, h + 16);
    if ((rc = output_open(&o, path, true)))
        return rc;
    fwrite(h, 1, sizeof h, o.f);
    for (int64_t i = 0; i < x->documents; i++) {
        put_le32(word, x->start[i]);
        fwrite(word, 1, 4, o.f);
    }
    return output_commit(&o);
}

static const unsigned char unknown[16];

static int check(const unsigned char *p, size_t n, const char *path, int64_t tokens,
                 const char *hash)
{
    unsigned char want[16];
    uint64_t documents;

    if (n < SHARD_HEADER_BYTES || le32(p) != SHARD_MAGIC || le32(p + 4) != INDEX_VERSION)
        return err_set(GPT_INPUT, "%s: expected an index of a shard (numbers %d, %d)", path,
                       SHARD_MAGIC, INDEX_VERSION);
    documents = le32(p + 8);
    if (n != SHARD_HEADER_BYTES + 4 * documents)
        return err_set(GPT_INPUT, "%s: expected %llu bytes for %llu documents, found %zu", path,
                       (unsigned long long)(SHARD_HEADER_BYTES + 4 * documents),
                       (unsigned long long)documents, n);
    hash_bytes(hash, want);
    if (le32(p + 12) != tokens || (hash && memcmp(p + 16, unknown, 16) && memcmp(p + 16, want, 16)))
        return err_set(GPT_INPUT, "%s: is of another shard: remove it, or make it again", path);
    for (size_t at = 32; at < SHARD_HEADER_BYTES; at++)
        if (p[at])
            return err_set(GPT_INPUT, "%s: offset %zu: expected a zero, found %u", path, at, p[at]);
    for (uint64_t i = 0, at = SHARD_HEADER_BYTES; i < documents; i++, at += 4)
        if (le32(p + at) >= tokens || (i && le32(p + at) <= le32(p + at - 4)))
            return err_set(GPT_INPUT,
                           "%s: offset %llu: expected ascending numbers below %lld, found "
                           "%u",
                           path, (unsigned long long)at, (long long)tokens, le32(p + at));
    return 0;
}

int shard_index_read(struct shard_index *x, const char *path, int64_t tokens, const char *hash)
{
    char *file;
    size_t n;
    int rc;

    memset(x, 0, sizeof *x);
    if ((rc = file_read(path, 0, &file, &n)))
        return rc;
    if (!(rc = check((unsigned char *)file, n, path, tokens, hash))) {
        x->hashed = memcmp(file + 16, unknown, 16);
        x->documents = x->room = (int64_t)le32(file + 8);
        if (!(x->start = malloc(4 * (size_t)x->documents + 4)))
            rc = err_memory();
        for (int64_t i = 0; !rc && i < x->documents; i++)
            x->start[i] = le32(file + SHARD_HEADER_BYTES + 4 * i);
    }
    free(file);
    return rc;
}
