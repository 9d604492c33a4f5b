/* shard_read.c - see shard_read.h.
 *
 * The file is a list of pieces: frames of a .bin.zst, or the same stretches of a .bin or of a
 * stream without a table of frames. Threads claim pieces, load them in any order and hold each
 * against the MANIFEST's hash while the processor's cache still has it. A thread that finds the
 * next piece in order loaded checks its tokens, indexes and publishes them (ready). A stream has
 * one thread.
 */
#include "data/shard_read.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <zstd.h>
#include "base/grow.h"
#include "base/hash.h"
#include "base/zio.h"
#include "data/corpus.h"
#include "data/frames.h"
#include "data/manifest.h"

#define STARTS_BITS 16 /* document starts a block of the index */
#define MAX_READERS 16

struct piece_range {
    uint64_t begin, end;
    bool done;
}; /* plain bytes of the file */

struct shard {
    char *path;
    struct shard_want want;
    int fd; /* -1: a stream without a table, through zreader */
    struct zreader *stream; /* that the caller reads on from; NULL: the file's own */
    bool whole; /* the stream of a file is read to its end */
    int64_t n, total; /* tokens to have, and of the file */
    unsigned char *bytes; /* the plain file, as far as wanted */
    size_t room;
    struct frames frames;
    struct piece_range *piece;
    int pieces, claimed, scanned;
    bool scanning, stop;
    uint32_t **starts; /* blocks, so that readers need no lock */
    struct shard_index index; /* or blocks of this, if start is set */
    int64_t indexed; /* documents in starts; of the thread that scans */
    int64_t documents, ready; /* what of it, and of the tokens, is published */
    int64_t wanted; /* tokens that somebody has waited for */
    int64_t forgotten; /* tokens that are not needed any more */
    size_t returned; /* bytes given back to the system */
    int code; /* of the first failure, and its message */
    char message[1024];
    pthread_mutex_t lock;
    pthread_cond_t moved;
    pthread_t thread[MAX_READERS];
    int threads;
};

/* Tokens that lie before a byte of the plain file, of those wanted. */
static inline int64_t tokens_before(const struct shard *s, uint64_t byte)
{
    int64_t n = byte < SHARD_HEADER_BYTES ? 0 : (int64_t)(byte - SHARD_HEADER_BYTES) / 2;

    return n < s->n ? n : s->n;
}

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

/* A header has zeros after its three numbers, which are checked when the file is opened. */
static int check_zeros(const struct shard *s)
{
    for (int at = 12; at < SHARD_HEADER_BYTES; at++)
        if (s->bytes[at])
            return err_set(GPT_INPUT, "%s: offset %d: expected a zero, found %d", s->path, at,
                           s->bytes[at]);
    return 0;
}

/* Compares what was loaded with the MANIFEST. */
static int check_hash(const struct shard *s, const struct piece_range *p)
{
    uint64_t begin = p->begin ? p->begin - SHARD_HEADER_BYTES : 0,
             end = p->end - SHARD_HEADER_BYTES;
    uint64_t frame = begin / SHARD_FRAME_BYTES, all = 2 * (uint64_t)s->total;
    uint64_t next = (frame + 1) * SHARD_FRAME_BYTES;
    char hash[33];
    int rc;

    if (!s->want.frames)
        return 0;
    if (!p->begin && (rc = check_zeros(s)))
        return rc;
    if (begin == end) /* the header's frame */
        return 0;
    if (begin % SHARD_FRAME_BYTES || end != (next < all ? next : all))
        return err_set(GPT_INPUT,
                       "%s: offset %llu: expected frames of %d bytes, as the MANIFEST has them, "
                       "found another",
                       s->path, (unsigned long long)p->begin, SHARD_FRAME_BYTES);
    xxh_hex_of(s->bytes + SHARD_HEADER_BYTES + begin, end - begin, hash);
    if (!memcmp(hash, s->want.frames + frame * FRAME_HASH_CHARS, 32))
        return 0;
    return err_set(GPT_INPUT,
                   "%s: frame %llu, tokens %llu to %llu: expected the hash %.32s of the MANIFEST, "
                   "found %s: changed since it was written",
                   s->path, (unsigned long long)frame + 1, (unsigned long long)begin / 2,
                   (unsigned long long)end / 2 - 1, s->want.frames + frame * FRAME_HASH_CHARS,
                   hash);
}

static int load_piece(struct shard *s, int i, ZSTD_DCtx *z, void **raw, size_t *room)
{
    int rc = s->frames.n ? load_frame(s, &s->frames.frame[i], z, raw, room)
                         : load_plain(s, &s->piece[i]);

    return rc ? rc : check_hash(s, &s->piece[i]);
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
        if (!at && s->want.whole && !s->index.start && tok[0] != bos && (rc = add_start(s, 0)))
            return rc;
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

/* Gives back the memory of tokens that are forgotten; the caller has the lock. */
static void give_back(struct shard *s)
{
    int64_t upto = s->forgotten < s->ready ? s->forgotten : s->ready;
    size_t bytes = (SHARD_HEADER_BYTES + 2 * (size_t)upto) & ~(size_t)(SHARD_FRAME_BYTES - 1);

    if (!s->want.window || bytes <= s->returned)
        return;
    madvise(s->bytes + s->returned, bytes - s->returned, MADV_DONTNEED);
    s->returned = bytes;
}

/* Waits until there is room for what follows the first `byte` bytes, or somebody waits for it;
 * false: stop. */
static bool may_read(struct shard *s, uint64_t byte)
{
    bool go;

    pthread_mutex_lock(&s->lock);
    while (!s->stop && s->want.window && s->ready >= s->wanted &&
           tokens_before(s, byte) - s->forgotten >= s->want.window)
        pthread_cond_wait(&s->moved, &s->lock);
    go = !s->stop;
    pthread_mutex_unlock(&s->lock);
    return go;
}

/* Reads a file's next piece, or of another stream what is there; *at advances by it. */
static int read_next(struct shard *s, struct zreader *z, uint64_t *at, uint64_t end)
{
    const struct piece_range *p = s->piece ? &s->piece[s->scanned++] : NULL;
    uint64_t left = end - *at;
    size_t n = p ? p->end - p->begin : left < SHARD_FRAME_BYTES ? left : SHARD_FRAME_BYTES;
    char beyond[8];
    size_t got = 0, more = 0;
    int rc = (p ? zreader_read : zreader_some)(z, s->bytes + *at, n, &got);

    if (!rc && (p ? got < n : !got))
        rc = err_set(GPT_INPUT, "%s: truncated: expected %llu bytes for %lld tokens, found %llu",
                     s->path, (unsigned long long)end, (long long)s->n,
                     (unsigned long long)(*at + got));
    if (!rc && *at + got == end && s->whole)
        rc = zreader_read(z, beyond, sizeof beyond, &more); /* checks the last frame's checksum */
    if (!rc && more)
        rc = shard_check_end(beyond, more, s->path);
    if (!rc && p)
        rc = check_hash(s, p);
    if (!rc)
        rc = scan(s, tokens_before(s, *at), tokens_before(s, *at + got));
    *at += got;
    return rc;
}

/* A stream without a table: one thread reads, checks and indexes. */
static void *stream_thread(void *arg)
{
    struct shard *s = arg;
    struct zreader *own = NULL;
    uint64_t at = s->stream ? SHARD_HEADER_BYTES : 0, end = s->room;
    int rc = s->stream ? 0 : zreader_open(&own, s->path);

    while (!rc && at < end && may_read(s, at)) {
        rc = read_next(s, own ? own : s->stream, &at, end);
        pthread_mutex_lock(&s->lock);
        if (!rc) {
            s->documents = s->indexed;
            s->ready = tokens_before(s, at);
            give_back(s);
            pthread_cond_broadcast(&s->moved);
        }
        pthread_mutex_unlock(&s->lock);
    }
    zreader_close(own);
    pthread_mutex_lock(&s->lock);
    if (rc)
        fail(s, rc);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* Threads on the pieces, or one on a stream. */
static int start_threads(struct shard *s, bool stream)
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

/* --- opening --- */

/* Returns the end of piece i of a .bin: the header and the first frame's bytes, then a frame's.
 * What is wanted ends within the last, which is read to its own end if it has a hash. */
static uint64_t piece_end(const struct shard *s, int i, uint64_t bytes)
{
    uint64_t end = SHARD_HEADER_BYTES + (uint64_t)(i + 1) * SHARD_FRAME_BYTES;
    uint64_t most = s->want.frames ? SHARD_HEADER_BYTES + 2 * (uint64_t)s->total : bytes;

    return end < most ? end : most;
}

static int cut_into_pieces(struct shard *s)
{
    uint64_t bytes = SHARD_HEADER_BYTES + 2 * (uint64_t)s->n;

    s->pieces = (int)((bytes - SHARD_HEADER_BYTES + SHARD_FRAME_BYTES - 1) / SHARD_FRAME_BYTES);
    s->pieces += !s->pieces;
    s->room = piece_end(s, s->pieces - 1, bytes);
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

        p->begin = f ? f->plain : i ? s->piece[i - 1].end : 0;
        p->end = f ? f->plain + f->plain_bytes : piece_end(s, i, bytes);
    }
    return 0;
}

/* Sets fd if the file can be read in pieces, and the table of its frames. */
static int open_file(struct shard *s, bool *plain)
{
    unsigned char magic[4];
    int fd;

    if (!strcmp(s->path, "-"))
        return 0;
    if ((fd = s->fd = open(s->path, O_RDONLY | O_CLOEXEC)) < 0)
        return err_sys("cannot open '%s'", s->path);
    if (pread(fd, magic, 4, 0) != 4) /* a pipe: the header came through zreader */
        return err_set(GPT_INPUT, "%s: expected a file that can be read from the middle, or -",
                       s->path);
    *plain = !zio_compressed(magic, 4);
    return *plain ? 0 : frames_read(&s->frames, fd, s->path);
}

/* Takes ownership of the index and starts at the piece that holds the document. */
static int use_index(struct shard *s)
{
    int64_t first = s->want.document;

    if (s->want.whole && s->n && shard_index_begin(s->want.index))
        return GPT_SYSTEM;
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

static struct shard *new_shard(const char *path, const struct shard_want *want)
{
    struct shard *s = calloc(1, sizeof *s);

    if (!s)
        return NULL;
    s->fd = -1;
    s->want = *want;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->moved, NULL);
    if ((s->path = strdup(path)))
        return s;
    shard_close(s);
    return NULL;
}

/* Room for the tokens. Of a window, memory is taken page by page, as it is written. */
static int allocate(struct shard *s)
{
    size_t bytes = (s->room + 4095) & ~(size_t)4095;

    if (s->want.window) {
        void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

        s->bytes = p == MAP_FAILED ? NULL : p;
    } else if ((s->bytes = aligned_alloc(4096, bytes))) {
        madvise(s->bytes, bytes, MADV_HUGEPAGE);
    }
    s->starts = calloc((size_t)(s->n >> STARTS_BITS) + 1, sizeof *s->starts);
    return s->bytes && s->starts ? 0 : err_memory();
}

int shard_open(struct shard **out, const char *path, const struct shard_want *want)
{
    struct shard *s = new_shard(path, want);
    int64_t tokens;
    bool plain = false;
    int rc;

    *out = NULL;
    if (!s)
        return err_memory();
    rc = shard_check_header(path, &tokens);
    if (!rc && want->expect && tokens != want->expect)
        rc = err_set(GPT_INPUT,
                     "%s: offset 8: expected %lld tokens, found %lld: changed since it "
                     "was opened",
                     path, (long long)want->expect, (long long)tokens);
    if (rc)
        goto fail;
    s->total = tokens;
    s->n = want->limit && want->limit < tokens ? want->limit : tokens;
    s->whole = s->n == tokens;
    if ((rc = open_file(s, &plain)) || (rc = cut_into_pieces(s)))
        goto fail;
    if (!plain && !s->frames.n)
        s->want.document = 0; /* a stream is read from the front */
    else
        s->want.window = 0;
    if ((rc = allocate(s)) || (want->index && (rc = use_index(s))) ||
        (rc = start_threads(s, !plain && !s->frames.n)))
        goto fail;
    *out = s;
    return 0;
fail:
    shard_close(s);
    return rc;
}

int shard_open_next(struct shard **out, struct zreader *z, const char *name, int64_t tokens,
                    const struct shard_want *want)
{
    struct shard *s = new_shard(name, want);
    int rc;

    *out = NULL;
    if (!s)
        return err_memory();
    s->stream = z;
    s->n = tokens;
    s->room = SHARD_HEADER_BYTES + 2 * (size_t)tokens;
    if ((rc = allocate(s)) || (rc = start_threads(s, true))) {
        shard_close(s);
        return rc;
    }
    *out = s;
    return 0;
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
    if (s->bytes && s->want.window)
        munmap(s->bytes, (s->room + 4095) & ~(size_t)4095);
    else
        free(s->bytes);
    free(s->path);
    free(s);
}

/* --- reading --- */

/* Waits until n tokens are ready; the caller has the lock. */
static int wait_locked(struct shard *s, int64_t n)
{
    if (n > s->wanted) {
        s->wanted = n;
        pthread_cond_broadcast(&s->moved);
    }
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

static void forget_locked(struct shard *s, int64_t n)
{
    if (n <= s->forgotten)
        return;
    s->forgotten = n;
    give_back(s);
    pthread_cond_broadcast(&s->moved);
}

void shard_forget(struct shard *s, int64_t n)
{
    pthread_mutex_lock(&s->lock);
    forget_locked(s, n);
    pthread_mutex_unlock(&s->lock);
}

int shard_skip(struct shard *s, int64_t n)
{
    shard_forget(s, n);
    return shard_wait(s, n);
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
    while (s->documents <= i && s->ready < s->n && !rc) {
        forget_locked(s, s->ready); /* document i begins later */
        rc = wait_locked(s, s->ready + 1);
    }
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
    if (!rc && s->index.start && *begin >= (s->want.whole ? 1 : 0) &&
        shard_tokens(s)[*begin] != s->want.bos)
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
