/* spool.c - see spool.h. */
#include "tokenize/spool.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/file.h"
#include "base/grow.h"

#define BUCKET_BITS 7
#define BUFFER_BYTES (64u << 10)
#define UNIT_TOKENS (1u << 19) /* a unit is full when it has them */

struct record { /* before the tokens of each part */
    uint64_t key, hash;
    int64_t bytes, invalid;
    uint32_t tokens;
    uint32_t flags; /* 1: begins, 2: ends */
};

struct entry {
    uint64_t key;
    int64_t number;
    uint64_t at;
}; /* of a document in a bucket */

struct bucket {
    int fd;
    uint64_t bytes;
    unsigned char *buffer; /* while writing */
    size_t n;
};

struct spool {
    const char *dir;
    bool sorted;
    size_t memory;
    int buckets;
    struct bucket *bucket;
    /* Reading. */
    int present; /* bucket */
    struct entry *entry;
    int64_t entries, next_entry;
    unsigned char *bytes; /* the present bucket, or NULL: it is read from the file piece by piece */
    uint64_t at; /* of the next record, if it continues a document */
    bool inside;
};

int spool_new(struct spool **out, const char *dir, bool sorted, size_t memory)
{
    struct spool *s = calloc(1, sizeof *s);
    int rc;

    *out = NULL;
    if (!s)
        return err_memory();
    s->dir = dir;
    s->sorted = sorted;
    s->memory = memory;
    s->buckets = sorted ? 1 << BUCKET_BITS : 1;
    if (!(s->bucket = calloc((size_t)s->buckets, sizeof *s->bucket))) {
        free(s);
        return err_memory();
    }
    for (int i = 0; i < s->buckets; i++)
        s->bucket[i].fd = -1;
    for (int i = 0; i < s->buckets; i++) {
        struct bucket *b = &s->bucket[i];

        if (!(b->buffer = malloc(BUFFER_BYTES))) {
            spool_free(s);
            return err_memory();
        }
        if ((rc = file_unnamed(dir, &b->fd))) {
            spool_free(s);
            return rc;
        }
    }
    *out = s;
    return 0;
}

void spool_free(struct spool *s)
{
    if (!s)
        return;
    for (int i = 0; i < s->buckets; i++) {
        if (s->bucket[i].fd >= 0)
            close(s->bucket[i].fd);
        free(s->bucket[i].buffer);
    }
    free(s->bucket);
    free(s->entry);
    free(s->bytes);
    free(s);
}

/* --- writing --- */

static int flush(struct spool *s, struct bucket *b)
{
    for (size_t at = 0; at < b->n;) {
        ssize_t k = write(b->fd, b->buffer + at, b->n - at);

        if (k < 0)
            return err_sys("cannot write a temporary file in '%s'", s->dir);
        at += (size_t)k;
    }
    b->bytes += b->n;
    b->n = 0;
    return 0;
}

static int put(struct spool *s, struct bucket *b, const void *p, size_t n)
{
    while (n) {
        size_t k = BUFFER_BYTES - b->n < n ? BUFFER_BYTES - b->n : n;
        int rc;

        memcpy(b->buffer + b->n, p, k);
        b->n += k;
        p = (const char *)p + k;
        n -= k;
        if (b->n == BUFFER_BYTES && (rc = flush(s, b)))
            return rc;
    }
    return 0;
}

int spool_put(struct spool *s, uint64_t key, const struct unit_doc *d, const uint16_t *tokens)
{
    struct bucket *b = &s->bucket[s->sorted ? key >> (64 - BUCKET_BITS) : 0];
    struct record r = { .key = key,
                        .hash = d->hash,
                        .bytes = (int64_t)d->bytes,
                        .invalid = d->invalid,
                        .tokens = (uint32_t)d->tokens,
                        .flags = (d->begins ? 1 : 0) | (d->ends ? 2 : 0) };
    int rc;

    if ((rc = put(s, b, &r, sizeof r)))
        return rc;
    return put(s, b, tokens, 2 * d->tokens);
}

/* --- reading --- */

static int get(struct spool *s, uint64_t at, void *p, size_t n)
{
    const struct bucket *b = &s->bucket[s->present];

    if (s->bytes) {
        memcpy(p, s->bytes + at, n);
        return 0;
    }
    while (n) {
        ssize_t k = pread(b->fd, p, n, (off_t)at);

        if (k <= 0)
            return k ? err_sys("cannot read a temporary file in '%s'", s->dir)
                     : err_set(GPT_SYSTEM, "a temporary file in '%s' is shorter than it was",
                               s->dir);
        p = (char *)p + k;
        n -= (size_t)k;
        at += (uint64_t)k;
    }
    return 0;
}

static int compare_entries(const void *pa, const void *pb)
{
    const struct entry *a = pa, *b = pb;

    return a->key != b->key ? (a->key > b->key) - (a->key < b->key)
                            : (a->number > b->number) - (a->number < b->number);
}

static int add_entry(struct spool *s, uint64_t key, uint64_t at)
{
    if (grow_one(&s->entry, s->entries, sizeof *s->entry))
        return GPT_SYSTEM;
    s->entry[s->entries] = (struct entry){ key, s->entries, at };
    s->entries++;
    return 0;
}

/* Lists the documents of the present bucket and sorts them by key; equal keys keep their order
 * of arrival. */
static int sort_bucket(struct spool *s)
{
    const struct bucket *b = &s->bucket[s->present];
    struct record r;
    int rc;

    s->entries = s->next_entry = 0;
    for (uint64_t at = 0; at < b->bytes; at += sizeof r + 2 * (uint64_t)r.tokens) {
        if ((rc = get(s, at, &r, sizeof r)))
            return rc;
        if ((r.flags & 1) && (rc = add_entry(s, r.key, at)))
            return rc;
    }
    if (s->entries)
        qsort(s->entry, (size_t)s->entries, sizeof *s->entry, compare_entries);
    return 0;
}

/* Makes the bucket at s->present ready. */
static int enter_bucket(struct spool *s)
{
    const struct bucket *b = &s->bucket[s->present];
    unsigned char *bytes;
    int rc;

    free(s->bytes);
    s->bytes = NULL;
    s->at = 0;
    if (!s->sorted)
        return 0;
    /* If memory for the whole bucket is lacking, it is read piece by piece. */
    if (b->bytes && b->bytes <= s->memory && (bytes = malloc(b->bytes))) {
        if ((rc = get(s, 0, bytes, b->bytes))) {
            free(bytes);
            return rc;
        }
        s->bytes = bytes;
    }
    return sort_bucket(s);
}

int spool_rewind(struct spool *s)
{
    for (int i = 0; i < s->buckets; i++) {
        int rc = flush(s, &s->bucket[i]);

        if (rc)
            return rc;
        free(s->bucket[i].buffer);
        s->bucket[i].buffer = NULL;
    }
    s->present = 0;
    s->inside = false;
    return enter_bucket(s);
}

/* Where the next record is; false at the end of all. */
static int find_next(struct spool *s, bool *more)
{
    int rc;

    *more = true;
    for (;;) {
        if (s->inside || (!s->sorted && s->at < s->bucket[0].bytes))
            return 0;
        if (s->sorted && s->next_entry < s->entries) {
            s->at = s->entry[s->next_entry++].at;
            return 0;
        }
        if (++s->present >= s->buckets) {
            *more = false;
            return 0;
        }
        if ((rc = enter_bucket(s)))
            return rc;
    }
}

static int add_part(struct unit *u, const struct record *r)
{
    struct unit_doc d = { .begins = r->flags & 1,
                          .ends = (r->flags & 2) != 0,
                          .hash = r->hash,
                          .bytes = (size_t)r->bytes,
                          .token = u->tokens,
                          .tokens = r->tokens,
                          .invalid = r->invalid };
    int rc;

    if ((rc = unit_reserve_tokens(u, r->tokens)))
        return rc;
    return unit_add_document(u, &d);
}

int spool_next(struct spool *s, struct unit *u)
{
    struct record r;
    bool more = true;
    int rc;

    u->docs = 0;
    u->tokens = 0;
    while (u->tokens < UNIT_TOKENS) {
        if ((rc = find_next(s, &more)))
            return rc;
        if (!more)
            break;
        if ((rc = get(s, s->at, &r, sizeof r)) || (rc = add_part(u, &r)) ||
            (rc = get(s, s->at + sizeof r, u->token + u->tokens, 2 * (size_t)r.tokens)))
            return rc;
        u->tokens += r.tokens;
        s->at += sizeof r + 2 * (uint64_t)r.tokens;
        s->inside = !(r.flags & 2);
    }
    u->end = !more && !u->docs;
    return 0;
}
