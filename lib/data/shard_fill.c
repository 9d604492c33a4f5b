/* shard_fill.c - the threads that read a shard, decode, check and index it. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zstd.h>

#include "base/grow.h"
#include "base/zio.h"
#include "data/shard_read_impl.h"

/* --- loading a piece --- */

static int load_plain(struct shard *s, const struct piece_range *p)
{
    for (uint64_t at = p->begin; at < p->end;) {
        ssize_t k = pread(s->fd, s->bytes + at, p->end - at, (off_t)at);

        if (k < 0)
            return err_sys("cannot read '%s'", s->path);
        if (k == 0)
            return err_set(GPT_INPUT, "%s: truncated: expected %llu bytes, found %llu", s->path,
                           (unsigned long long)p->end, (unsigned long long)at);
        at += (uint64_t)k;
    }
    return 0;
}

/* raw: the thread's buffer, grown as needed. */
static int load_frame(struct shard *s, const struct frame *f, ZSTD_DCtx *z, void **raw,
                      size_t *room)
{
    size_t k;

    if (grow_to(raw, room, f->raw_bytes, 1))
        return GPT_SYSTEM;
    for (size_t at = 0; at < f->raw_bytes; at += k) {
        ssize_t got = pread(s->fd, (char *)*raw + at, f->raw_bytes - at, (off_t)(f->raw + at));

        if (got < 0)
            return err_sys("cannot read '%s'", s->path);
        if (got == 0)
            return err_set(GPT_INPUT, "%s: offset %llu: expected a frame of %u bytes, found %zu",
                           s->path, (unsigned long long)f->raw, f->raw_bytes, at);
        k = (size_t)got;
    }
    k = ZSTD_decompressDCtx(z, s->bytes + f->plain, f->plain_bytes, *raw, f->raw_bytes);
    if (ZSTD_isError(k))
        return err_set(GPT_INPUT, "%s: offset %llu: expected a frame of %u bytes, found damage: %s",
                       s->path, (unsigned long long)f->raw, f->plain_bytes, ZSTD_getErrorName(k));
    if (k != f->plain_bytes)
        return err_set(GPT_INPUT, "%s: offset %llu: expected a frame of %u bytes, found %zu",
                       s->path, (unsigned long long)f->raw, f->plain_bytes, k);
    return 0;
}

static int load_piece(struct shard *s, int i, ZSTD_DCtx *z, void **raw, size_t *room)
{
    return s->frames.n ? load_frame(s, &s->frames.frame[i], z, raw, room)
                       : load_plain(s, &s->piece[i]);
}

/* --- checking and indexing --- */

static int bad_token(const struct shard *s, const uint16_t *tok, int64_t at)
{
    while (tok[at] < s->want.vocab)
        at++;
    return err_set(GPT_INPUT, "%s: offset %lld: token %lld: expected an id below %d, found %d",
                   s->path, (long long)(SHARD_HEADER_BYTES + 2 * at), (long long)at, s->want.vocab,
                   tok[at]);
}

static int add_start(struct shard *s, int64_t at)
{
    uint32_t **block = &s->starts[s->indexed >> STARTS_BITS];

    if (!*block && !(*block = malloc(sizeof **block << STARTS_BITS)))
        return err_memory();
    (*block)[s->indexed++ & ((1 << STARTS_BITS) - 1)] = (uint32_t)at;
    return 0;
}

/* Tokens begin .. end-1, by the one thread that has the role, without the lock. */
static int scan(struct shard *s, int64_t begin, int64_t end)
{
    const uint16_t *tok = shard_tokens(s);
    const uint16_t bos = (uint16_t)s->want.bos;
    int rc;

    for (int64_t at = begin; at < end; at += 256) {
        int n = end - at < 256 ? (int)(end - at) : 256;
        unsigned above = 0, starts = 0;

        for (int i = 0; i < n; i++) { /* vectorised: no branch */
            above |= tok[at + i] >= s->want.vocab;
            starts |= tok[at + i] == bos;
        }
        starts &= !s->index.start;
        if (above)
            return bad_token(s, tok, at);
        for (int i = 0; starts && i < n; i++)
            if (tok[at + i] == bos && (rc = add_start(s, at + i)))
                return rc;
    }
    return 0;
}

/* --- threads --- */

static void fail(struct shard *s, int rc)
{
    if (!s->code) {
        s->code = rc;
        snprintf(s->message, sizeof s->message, "%s", err_message());
    }
    pthread_cond_broadcast(&s->moved);
}

/* Takes the next thing to do; called and returns with the lock. */
static bool work(struct shard *s, ZSTD_DCtx *z, void **raw, size_t *room)
{
    int rc;

    if (s->stop || s->code || s->scanned == s->pieces)
        return false;
    if (!s->scanning && s->piece[s->scanned].done) {
        int64_t begin = s->ready, end = tokens_before(s, s->piece[s->scanned].end);

        s->scanning = true;
        pthread_mutex_unlock(&s->lock);
        rc = scan(s, begin, end);
        pthread_mutex_lock(&s->lock);
        s->scanning = false;
        if (rc)
            fail(s, rc);
        else {
            s->scanned++;
            s->documents = s->indexed;
            s->ready = s->scanned == s->pieces ? s->n : end;
            pthread_cond_broadcast(&s->moved);
        }
    } else if (s->claimed < s->pieces) {
        int i = s->claimed++;

        pthread_mutex_unlock(&s->lock);
        rc = load_piece(s, i, z, raw, room);
        pthread_mutex_lock(&s->lock);
        s->piece[i].done = true;
        if (rc)
            fail(s, rc);
        else
            pthread_cond_broadcast(&s->moved);
    } else {
        pthread_cond_wait(&s->moved, &s->lock);
    }
    return true;
}

static void *reader_thread(void *arg)
{
    struct shard *s = arg;
    ZSTD_DCtx *z = ZSTD_createDCtx();
    void *raw = NULL;
    size_t room = 0;

    pthread_mutex_lock(&s->lock);
    if (!z)
        fail(s, err_memory());
    while (work(s, z, &raw, &room))
        ;
    pthread_mutex_unlock(&s->lock);
    ZSTD_freeDCtx(z);
    free(raw);
    return NULL;
}

/* A stream without a table: one thread reads, checks and indexes. */
static void *stream_thread(void *arg)
{
    struct shard *s = arg;
    struct zreader *z = NULL;
    int rc = zreader_open(&z, s->path);
    bool stop = false;

    for (int i = 0; i < s->pieces && !rc && !stop; i++) {
        const struct piece_range *p = &s->piece[i];
        int64_t end = tokens_before(s, p->end), begin = tokens_before(s, p->begin);
        size_t got;

        rc = zreader_read(z, s->bytes + p->begin, p->end - p->begin, &got);
        if (!rc && got < p->end - p->begin)
            rc =
                err_set(GPT_INPUT, "%s: truncated: expected %lld bytes for %lld tokens, found %llu",
                        s->path, (long long)(SHARD_HEADER_BYTES + 2 * s->n), (long long)s->n,
                        (unsigned long long)(p->begin + got));
        if (!rc)
            rc = scan(s, begin, end);
        pthread_mutex_lock(&s->lock);
        s->scanned = i + 1;
        if (!rc) {
            s->documents = s->indexed;
            s->ready = end;
        }
        stop = s->stop;
        pthread_cond_broadcast(&s->moved);
        pthread_mutex_unlock(&s->lock);
    }
    zreader_close(z);
    pthread_mutex_lock(&s->lock);
    if (rc)
        fail(s, rc);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

int shard_start_threads(struct shard *s, bool stream)
{
    int want = stream ? 1 : s->want.threads ? s->want.threads : 2;

    if (want > MAX_READERS)
        want = MAX_READERS;
    for (; s->threads < want; s->threads++) {
        int e =
            pthread_create(&s->thread[s->threads], NULL, stream ? stream_thread : reader_thread, s);

        if (e && !s->threads)
            return err_set(GPT_SYSTEM, "cannot start a thread: %s", strerror(e));
        if (e)
            break;
    }
    return 0;
}
