/* shard_read.c - see shard_read.h. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "data/shard_read_impl.h"

#define PIECE_BYTES (1u << 20) /* of a .bin, as a frame of a .bin.zst */

/* --- opening --- */

static int cut_into_pieces(struct shard *s)
{
    uint64_t bytes = SHARD_HEADER_BYTES + 2 * (uint64_t)s->n;

    s->room = bytes;
    s->pieces = (int)((bytes + PIECE_BYTES - 1) / PIECE_BYTES);
    if (s->frames.n) {
        if (s->frames.plain_bytes < bytes)
            return err_set(GPT_INPUT,
                           "%s: truncated: expected %llu bytes for %lld tokens, found "
                           "frames of %llu",
                           s->path, (unsigned long long)bytes, (long long)s->n,
                           (unsigned long long)s->frames.plain_bytes);
        for (s->pieces = 0; s->frames.frame[s->pieces].plain < bytes;)
            if (++s->pieces == s->frames.n)
                break;
        s->room = s->frames.frame[s->pieces - 1].plain + s->frames.frame[s->pieces - 1].plain_bytes;
    }
    if (!(s->piece = calloc((size_t)s->pieces, sizeof *s->piece)))
        return err_memory();
    for (int i = 0; i < s->pieces; i++) {
        struct piece_range *p = &s->piece[i];
        const struct frame *f = s->frames.n ? &s->frames.frame[i] : NULL;

        p->begin = f ? f->plain : (uint64_t)i * PIECE_BYTES;
        p->end = f                                ? f->plain + f->plain_bytes
                 : p->begin + PIECE_BYTES < bytes ? p->begin + PIECE_BYTES
                                                  : bytes;
    }
    return 0;
}

/* Sets fd if the file can be read in pieces, and the table of its frames. */
static int open_file(struct shard *s, bool *plain)
{
    unsigned char magic[4];

    if ((s->fd = open(s->path, O_RDONLY | O_CLOEXEC)) < 0)
        return err_sys("cannot open '%s'", s->path);
    if (pread(s->fd, magic, 4, 0) != 4) /* a pipe: the header came through zreader */
        return err_set(GPT_INPUT, "%s: expected a file that can be read from the middle", s->path);
    *plain = magic[0] == (SHARD_MAGIC & 255) && magic[1] == (SHARD_MAGIC >> 8 & 255);
    return *plain ? 0 : frames_read(&s->frames, s->fd, s->path);
}

/* Takes the index over, and begins with the piece that has the document. */
static int use_index(struct shard *s)
{
    int64_t first = s->want.document;

    s->index = *s->want.index;
    memset(s->want.index, 0, sizeof s->index);
    while (s->index.documents && s->index.start[s->index.documents - 1] >= s->n)
        s->index.documents--; /* beyond the limit */
    for (int64_t i = 0; i << STARTS_BITS < s->index.documents; i++)
        s->starts[i] = s->index.start + (i << STARTS_BITS);
    s->indexed = s->documents = s->index.documents;
    if (!s->index.documents)
        return 0;
    if (first >= s->index.documents)
        s->want.document = first = s->index.documents - 1;
    while (s->scanned + 1 < s->pieces &&
           tokens_before(s, s->piece[s->scanned].end) <= s->index.start[first])
        s->scanned++;
    s->claimed = s->scanned;
    s->ready = tokens_before(s, s->piece[s->scanned].begin);
    return 0;
}

int shard_open(struct shard **out, const char *path, const struct shard_want *want)
{
    struct shard *s = calloc(1, sizeof *s);
    int64_t tokens;
    bool plain = false;
    int rc;

    *out = NULL;
    if (!s)
        return err_memory();
    s->fd = -1;
    s->want = *want;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->moved, NULL);
    rc = (s->path = strdup(path)) ? shard_check_header(path, &tokens) : err_memory();
    if (!rc && want->expect && tokens != want->expect)
        rc = err_set(GPT_INPUT,
                     "%s: offset 8: expected %lld tokens, found %lld: changed since it "
                     "was opened",
                     path, (long long)want->expect, (long long)tokens);
    if (rc)
        goto fail;
    s->n = want->limit && want->limit < tokens ? want->limit : tokens;
    if ((rc = open_file(s, &plain)) || (rc = cut_into_pieces(s)))
        goto fail;
    rc = err_memory();
    if (!plain && !s->frames.n)
        s->want.document = 0; /* a stream is read from the front */
    if (!(s->starts = calloc((size_t)(s->n >> STARTS_BITS) + 1, sizeof *s->starts)) ||
        !(s->bytes = aligned_alloc(4096, (s->room + 4095) & ~(size_t)4095)))
        goto fail;
    madvise(s->bytes, (s->room + 4095) & ~(size_t)4095, MADV_HUGEPAGE);
    if (want->index && (rc = use_index(s)))
        goto fail;
    if ((rc = shard_start_threads(s, !plain && !s->frames.n)))
        goto fail;
    *out = s;
    return 0;
fail:
    shard_close(s);
    return rc;
}

void shard_close(struct shard *s)
{
    if (!s)
        return;
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_broadcast(&s->moved);
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < s->threads; i++)
        pthread_join(s->thread[i], NULL);
    for (int64_t i = 0; s->starts && !s->index.start && i <= s->n >> STARTS_BITS; i++)
        free(s->starts[i]);
    shard_index_release(&s->index);
    if (s->fd >= 0)
        close(s->fd);
    frames_release(&s->frames);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->moved);
    free(s->starts);
    free(s->piece);
    free(s->bytes);
    free(s->path);
    free(s);
}

/* --- reading --- */

/* With the lock: whether n tokens are ready; waits for it. */
static int wait_locked(struct shard *s, int64_t n)
{
    while (s->ready < n && !s->code)
        pthread_cond_wait(&s->moved, &s->lock);
    return s->ready >= n ? 0 : err_set(s->code, "%s", s->message);
}

int shard_wait(struct shard *s, int64_t n)
{
    int rc;

    pthread_mutex_lock(&s->lock);
    rc = wait_locked(s, n < s->n ? n : s->n);
    pthread_mutex_unlock(&s->lock);
    return rc;
}

static int64_t start_of(const struct shard *s, int64_t i)
{
    return s->starts[i >> STARTS_BITS][i & ((1 << STARTS_BITS) - 1)];
}

int shard_document(struct shard *s, int64_t i, int64_t limit, int64_t *begin, int64_t *end)
{
    int rc = 0;

    *begin = *end = -1;
    pthread_mutex_lock(&s->lock);
    while (s->documents <= i && s->ready < s->n && !rc)
        rc = wait_locked(s, s->ready + 1);
    if (!rc && s->documents > i) {
        *begin = start_of(s, i);
        while (s->documents <= i + 1 && s->ready < s->n && s->ready - *begin < limit && !rc)
            rc = wait_locked(s, s->ready + 1);
        *end = s->documents > i + 1 ? start_of(s, i + 1) : s->ready;
        if (*end - *begin > limit)
            *end = *begin + limit;
        if (!rc)
            rc = wait_locked(s, *end);
    }
    pthread_mutex_unlock(&s->lock);
    if (!rc && *begin >= 0 && shard_tokens(s)[*begin] != s->want.bos)
        return err_set(GPT_INPUT,
                       "%s: token %lld: expected a document start as the index says, "
                       "found %d",
                       s->path, (long long)*begin, shard_tokens(s)[*begin]);
    return rc;
}

const uint16_t *shard_tokens(const struct shard *s)
{
    return (const uint16_t *)(s->bytes + SHARD_HEADER_BYTES);
}

int64_t shard_documents(struct shard *s)
{
    int64_t n;

    pthread_mutex_lock(&s->lock);
    n = s->documents;
    pthread_mutex_unlock(&s->lock);
    return n;
}

int64_t shard_first_document(const struct shard *s)
{
    return s->index.start ? s->want.document : 0;
}

const void *shard_bytes(const struct shard *s) { return s->bytes; }
int64_t shard_size(const struct shard *s) { return s->n; }
const char *shard_path(const struct shard *s) { return s->path; }
