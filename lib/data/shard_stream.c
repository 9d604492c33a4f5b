/* shard_stream.c - see shard_stream.h. */
#include "data/shard_stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/hash.h"
#include "base/zio.h"
#include "data/corpus.h"

enum { ID_BYTES = 1 << 16 };

struct shard_stream {
    struct zreader *z;
    char path[4096]; /* for messages */
    int64_t shards; /* begun */
    int64_t given; /* tokens of all */
    int64_t left; /* tokens of the present one that were not given out */
    char id[33];
    int64_t id_bytes; /* that it is of */
};

int shard_stream_open(struct shard_stream **out, const char *path, int64_t id_bytes)
{
    struct shard_stream *t = calloc(1, sizeof *t);
    const void *begin;
    int64_t tokens;
    size_t n;
    int rc;

    *out = NULL;
    if (!t)
        return err_memory();
    snprintf(t->path, sizeof t->path, "%s", strcmp(path, "-") ? path : "standard input");
    size_t most = id_bytes > 0 && id_bytes < ID_BYTES ? (size_t)id_bytes : ID_BYTES;
    if (!(rc = zreader_open(&t->z, path)) && !(rc = zreader_peek(t->z, most, &begin, &n)) &&
        !(rc = shard_header_tokens(begin, n, t->path, &tokens))) {
        xxh_hex_of(begin, n, t->id);
        t->id_bytes = (int64_t)n;
    }
    if (rc) {
        shard_stream_close(t);
        return rc;
    }
    *out = t;
    return 0;
}

/* The header of the next shard. */
static int begin_shard(struct shard_stream *t, char *name, size_t room)
{
    unsigned char h[SHARD_HEADER_BYTES];
    size_t got;
    int rc = zreader_read(t->z, h, sizeof h, &got);

    if (rc)
        return rc;
    if (!got)
        return GPT_NO;
    snprintf(name, room, "%s, shard %lld", t->path, (long long)t->shards + 1);
    if ((rc = shard_header_tokens(h, got, name, &t->left)))
        return rc;
    t->shards++;
    return 0;
}

int shard_stream_next(struct shard_stream *t, struct shard **s, const struct shard_want *want)
{
    char name[sizeof t->path + 32];
    int64_t n;
    int rc;

    *s = NULL;
    snprintf(name, sizeof name, "%s, shard %lld", t->path, (long long)t->shards);
    if (!t->left && (rc = begin_shard(t, name, sizeof name)))
        return rc;
    n = want->limit && want->limit < t->left ? want->limit : t->left;
    if ((rc = shard_open_next(s, t->z, name, n, want)))
        return rc;
    t->given += n;
    t->left -= n;
    return 0;
}

int64_t shard_stream_tokens(const struct shard_stream *t) { return t->given; }

const char *shard_stream_id(const struct shard_stream *t) { return t->id; }

int64_t shard_stream_id_bytes(const struct shard_stream *t) { return t->id_bytes; }

bool shard_stream_is_short(const struct shard_stream *t) { return t->id_bytes < ID_BYTES; }

void shard_stream_close(struct shard_stream *t)
{
    if (t)
        zreader_close(t->z);
    free(t);
}
