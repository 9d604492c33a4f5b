/* loader.c - BOS-aligned batches, prepared a step ahead by a thread.
 *
 * Two slots: one that the ranks use and one that the thread fills. The thread
 * may fill the slot of step s+1 when every local rank has asked for step s.
 * Tokens are copied out of the shard as they are found, so a shard that is a
 * stream need not be kept.
 */
#include "data/loader.h"

#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include "base/hash.h"
#include "data/corpus.h"
#include "data/shard_stream.h"

#define STREAM_WINDOW (8 << 20) /* tokens read ahead of a stream: 16 MiB */

struct slot {
    struct step_batch batch;
    struct chunk *chunk; /* [max.chunks] */
    struct piece *piece; /* [max.chunks][bound] */
    int *pieces; /* [max.chunks] */
    uint16_t *token; /* [max.chunks][max.tokens + 1]: the pieces, one behind the other */
    char *memory; /* blocks of the local chunks */
    int64_t step; /* that it holds, -1: none */
    int code; /* in place of a batch, with its message */
    char message[1024];
};

struct loader {
    struct loader_config c;
    struct corpus corpus;
    int bos, bound;
    size_t block_bytes;
    char *memory;
    struct slot slot[2];
    struct loader_pos next; /* of the step to be prepared; the thread's */
    int64_t entered; /* index of the stream's shard that is `now`; -1: none yet */
    struct shard *now, *ahead; /* shard next.shard, and the one after if it is another */
    int64_t ahead_index;
    char now_name[256];

    pthread_mutex_t lock;
    pthread_cond_t moved;
    pthread_t thread;
    bool started, stop;
    int64_t first; /* step of the first batch */
    int64_t *asked; /* [local_ranks] step that each rank holds; first-1 before */
    int64_t filled; /* last step in a slot */
};

/* --- shards in their order --- */

/* From a document on, if an index beside it says where that is. */
static int open_shard(struct loader *l, int64_t i, int64_t document, struct shard **s)
{
    const struct corpus_shard *f = &l->corpus.shard[i];
    struct shard_index index = { 0 };
    struct shard_want want = { .vocab = l->c.vocab,
                               .bos = l->bos,
                               .threads = l->c.threads,
                               .expect = f->tokens,
                               .frames = l->c.no_verify ? NULL : f->frames,
                               .document = document };
    char *path = shard_index_path(f->path);
    int rc = path ? 0 : err_memory();

    if (!rc && !access(path, F_OK) &&
        !(rc = shard_index_read(&index, path, f->tokens, *f->hash ? f->hash : NULL)))
        want.index = &index;
    if (!rc)
        rc = shard_open(s, f->path, &want);
    shard_index_release(&index);
    free(path);
    return rc;
}

/* Starts to read the shard after `now`. */
static int look_ahead(struct loader *l)
{
    int64_t i = l->next.shard, after = i + 1 < l->corpus.n ? i + 1 : l->c.cycle ? 0 : -1;
    int rc;

    if (after < 0 || after == i || (l->ahead && l->ahead_index == after))
        return 0;
    shard_close(l->ahead);
    l->ahead = NULL;
    if ((rc = open_shard(l, after, 0, &l->ahead)))
        return rc;
    l->ahead_index = after;
    return 0;
}

/* Reads the stream's present shard to its end, keeping nothing. */
static int leave_streamed(struct loader *l)
{
    int rc = 0;

    if (l->now)
        rc = shard_skip(l->now, shard_size(l->now));
    shard_close(l->now);
    l->now = NULL;
    return rc;
}

/* As enter_shard, of a stream, in which that shard lies ahead. */
static int enter_streamed(struct loader *l)
{
    struct shard_want want = { .vocab = l->c.vocab, .bos = l->bos, .window = STREAM_WINDOW };
    int rc = 0;

    while (!rc && l->entered < l->next.shard) {
        if ((rc = leave_streamed(l)) || (rc = shard_stream_next(l->c.stream, &l->now, &want)))
            break;
        l->entered++;
    }
    return rc != GPT_NO ? rc
                        : err_set(GPT_INPUT,
                                  "%s: expected tokens for step %lld, found the end after %lld "
                                  "tokens",
                                  l->c.data, (long long)l->next.step + 1,
                                  (long long)shard_stream_tokens(l->c.stream));
}

/* Makes `now` the shard at next.shard. */
static int enter_shard(struct loader *l)
{
    int64_t i = l->next.shard;
    int rc;

    if (l->c.stream)
        return enter_streamed(l);
    if (l->now && !strcmp(shard_path(l->now), l->corpus.shard[i].path) &&
        l->next.document >= shard_first_document(l->now)) {
        ; /* the same shard, at this document or from its first */
    } else if (l->ahead && l->ahead_index == i) {
        shard_close(l->now);
        l->now = l->ahead;
        l->ahead = NULL;
    } else {
        shard_close(l->now);
        l->now = NULL;
        if ((rc = open_shard(l, i, l->next.document, &l->now)))
            return rc;
    }
    /* Not before the first batch, which would wait for it. */
    return l->next.step > l->first ? look_ahead(l) : 0;
}

/* --- one step --- */

static int too_many_pieces(const struct loader *l, int chunk, int tokens, int bound)
{
    return err_set(GPT_INPUT,
                   "%s: step %lld, chunk %d: expected at most %d documents in %d tokens, "
                   "found more: join short documents, or set more data.chunks",
                   shard_path(l->now), (long long)l->next.step + 1, chunk, bound - 1, tokens);
}

/* Of chunk k: T + 1 of them. */
static uint16_t *tokens_of(const struct loader *l, const struct slot *s, int k)
{
    return s->token + (size_t)k * ((size_t)l->c.max.tokens + 1);
}

/* Does the step after next.step begin where this one ends? */
static bool moves_on(const struct loader *l)
{
    return l->c.repeat < 2 || (l->next.step + 1) % l->c.repeat == 0;
}

/* Takes the pieces of all chunks of a step from the present shard and advances *document. *full
 * is false if the shard ends first. */
static int take_pieces(struct loader *l, struct slot *s, const struct batch_shape *w, int bound,
                       int64_t *document, bool *full)
{
    int rc;

    *full = false;
    for (int k = 0; k < w->chunks; k++) {
        struct piece *piece = s->piece + (size_t)k * (size_t)l->bound;
        uint16_t *token = tokens_of(l, s, k);
        int64_t length = 0;

        s->pieces[k] = 0;
        while (length <= w->tokens) {
            int64_t room = w->tokens - length + 1, begin, end;

            if ((rc = shard_document(l->now, *document, w->cap && w->cap < room ? w->cap : room,
                                     &begin, &end)))
                return rc;
            if (begin < 0)
                return 0;
            if (s->pieces[k] == bound - 1)
                return too_many_pieces(l, k, w->tokens, bound);
            piece[s->pieces[k]++] = (struct piece){ (uint32_t)begin, (uint32_t)end };
            memcpy(token + length, shard_tokens(l->now) + begin,
                   (size_t)(end - begin) * sizeof *token);
            if (moves_on(l))
                shard_forget(l->now, end);
            length += end - begin;
            ++*document;
        }
    }
    *full = true;
    return 0;
}

static int no_batch(const struct loader *l, const struct batch_shape *w)
{
    return err_set(GPT_INPUT,
                   "%s: expected a shard of enough documents for a step, %d x %d tokens, "
                   "each cut at %d; found none in %d shard%s (the last, %s, has %lld tokens and "
                   "%lld document starts, token %d)",
                   l->c.data, w->chunks, w->tokens, w->cap ? w->cap : w->tokens + 1, l->corpus.n,
                   l->corpus.n == 1 ? "" : "s", shard_path(l->now), (long long)shard_size(l->now),
                   (long long)shard_documents(l->now), l->bos);
}

/* Finds the step's pieces, in the first shard from next on that holds them. */
static int find_pieces(struct loader *l, struct slot *s, const struct batch_shape *w, int bound,
                       int64_t *document)
{
    bool full;
    int rc;

    for (int tried = 0;; tried++) {
        *document = l->next.document;
        if ((rc = enter_shard(l)) || (rc = take_pieces(l, s, w, bound, document, &full)))
            return rc;
        if (full)
            return 0;
        /* The first shard was perhaps entered in its middle, so it is tried once more from its
         * start. */
        if (!l->c.stream && tried >= l->corpus.n)
            return no_batch(l, w);
        l->next.document = 0;
        if (++l->next.shard < l->corpus.n || l->c.stream)
            continue;
        if (!l->c.cycle && l->next.step == 0)
            return no_batch(l, w);
        if (!l->c.cycle)
            return err_set(GPT_INPUT,
                           "%s: expected tokens for step %lld, found that all %d shard%s "
                           "%s used up (data.cycle: start over)",
                           l->c.data, (long long)l->next.step + 1, l->corpus.n,
                           l->corpus.n == 1 ? "" : "s", l->corpus.n == 1 ? "is" : "are");
        l->next.shard = 0;
        l->next.epoch++;
    }
}

static struct chunk_shape chunk_shape(const struct loader_config *c, int tokens, int bound)
{
    return (struct chunk_shape){ .tokens = tokens,
                                 .bound = bound,
                                 .vocab = c->vocab,
                                 .bigram_rows = c->bigram_rows,
                                 .csr = c->csr };
}

/* token: the T + 1 tokens of the pieces. */
static void fill_chunk(struct chunk *c, const uint16_t *token, const struct piece *piece, int n)
{
    int32_t *tok = (int32_t *)c->tok, *tgt = (int32_t *)c->tgt, *cu = (int32_t *)c->cu;
    int at = 0;

    for (int t = 0; t < c->tokens; t++) {
        tok[t] = token[t];
        tgt[t] = token[t + 1];
    }
    cu[0] = 0;
    for (int i = 0; i < n; i++) {
        at += (int)(piece[i].end - piece[i].begin);
        cu[i + 1] = at < c->tokens ? at : c->tokens;
    }
    for (int i = n + 1; i < c->bound; i++)
        cu[i] = c->tokens;
    c->docs = n;
    c->piece = piece;
}

static bool is_local(const struct loader_config *c, int chunk)
{
    int rank = chunk % c->world;

    return rank >= c->first_rank && rank < c->first_rank + c->local_ranks;
}

static int check_shape(const struct loader *l, const struct batch_shape *w, int bound)
{
    if (w->chunks < l->c.world || w->chunks > l->c.max.chunks || w->tokens < 1 ||
        w->tokens > l->c.max.tokens || bound < 2 || bound > l->bound || w->cap < 0)
        return err_set(GPT_USAGE,
                       "step %lld: expected at most %d chunks, one for each of %d ranks at least, "
                       "of at most %d tokens and %d documents; found %d, %d, %d",
                       (long long)l->next.step + 1, l->c.max.chunks, l->c.world, l->c.max.tokens,
                       l->bound - 1, w->chunks, w->tokens, bound - 1);
    return 0;
}

/* Tokens of the stream before the step's first piece, and up to the end of its last one. */
static void tell_passed(const struct loader *l, struct slot *s)
{
    int64_t before = shard_stream_tokens(l->c.stream) - shard_size(l->now);
    int last = s->batch.chunks - 1;

    s->batch.shard = l->c.data;
    s->batch.from = before + s->piece[0].begin;
    s->batch.upto =
        before + s->piece[(size_t)last * (size_t)l->bound + (size_t)s->pieces[last] - 1].end;
}

/* Fills a slot with step next.step and advances next. */
static int prepare(struct loader *l, struct slot *s)
{
    struct batch_shape w = l->c.shape ? l->c.shape(l->c.ctx, l->next.step) : l->c.max;
    int bound = w.bound ? w.bound : cu_bound(w.tokens), local = 0, rc;
    struct chunk_shape shape = chunk_shape(&l->c, w.tokens, bound);
    int64_t document;

    if (!w.tokens)
        return err_set(GPT_USAGE, "there is no step %lld", (long long)l->next.step + 1);
    if ((rc = check_shape(l, &w, bound)) || (rc = find_pieces(l, s, &w, bound, &document)))
        return rc;
    for (int k = 0; k < w.chunks; k++) {
        struct chunk *c = &s->chunk[k];

        memset(c, 0, sizeof *c);
        if (!is_local(&l->c, k))
            continue;
        chunk_place(c, s->memory + (size_t)local++ * l->block_bytes, &shape);
        fill_chunk(c, tokens_of(l, s, k), s->piece + (size_t)k * (size_t)l->bound, s->pieces[k]);
        chunk_index(c, &shape);
    }
    s->batch = (struct step_batch){
        .step = l->next.step, .chunks = w.chunks, .chunk = s->chunk, .at = l->next
    };
    if (l->c.stream)
        tell_passed(l, s);
    else
        s->batch.shard = l->corpus.shard[l->next.shard].name;
    if (moves_on(l))
        l->next.document = document;
    l->next.step++;
    s->batch.after = l->next;
    return 0;
}

/* --- the thread --- */

static bool all_asked(const struct loader *l, int64_t step)
{
    for (int r = 0; r < l->c.local_ranks; r++)
        if (l->asked[r] < step)
            return false;
    return true;
}

static bool interrupted(const struct loader *l)
{
    struct pollfd p = { .fd = l->c.wake, .events = POLLIN };

    return l->c.stream && l->c.wake >= 0 && poll(&p, 1, 0) > 0;
}

static void *loader_thread(void *arg)
{
    struct loader *l = arg;
    int rc = 0;

    pthread_mutex_lock(&l->lock);
    while (!l->stop && !rc) {
        int64_t step = l->filled + 1;
        struct slot *s = &l->slot[step & 1];

        /* Slot `step & 1` held step-2. It is free when all ranks hold step-1. */
        if (step > l->first + 1 && !all_asked(l, step - 1)) {
            pthread_cond_wait(&l->moved, &l->lock);
            continue;
        }
        pthread_mutex_unlock(&l->lock);
        rc = prepare(l, s);
        if (rc && interrupted(l))
            rc = LOADER_STOPPED;
        pthread_mutex_lock(&l->lock);
        s->step = step;
        s->code = rc;
        snprintf(s->message, sizeof s->message, "%s", rc ? err_message() : "");
        l->filled = step;
        pthread_cond_broadcast(&l->moved);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* --- interface --- */

static int local_chunks(const struct loader_config *c)
{
    int n = 0;
    for (int k = 0; k < c->max.chunks; k++)
        n += is_local(c, k);
    return n;
}

static int max_bound(const struct loader_config *c)
{
    return c->max.bound ? c->max.bound : cu_bound(c->max.tokens);
}

static size_t max_block_bytes(const struct loader_config *c)
{
    struct chunk_shape s = chunk_shape(c, c->max.tokens, max_bound(c));

    return chunk_block_bytes(&s);
}

static int allocate(struct loader *l)
{
    size_t n = (size_t)l->c.max.chunks, half = (size_t)local_chunks(&l->c) * max_block_bytes(&l->c);

    l->memory = aligned_alloc(4096, (2 * half + 4095) & ~(size_t)4095);
    l->asked = malloc((size_t)l->c.local_ranks * sizeof *l->asked);
    for (int i = 0; i < 2; i++) {
        struct slot *s = &l->slot[i];

        s->chunk = calloc(n, sizeof *s->chunk);
        s->piece = calloc(n * (size_t)l->bound, sizeof *s->piece);
        s->pieces = calloc(n, sizeof *s->pieces);
        s->token = calloc(n * ((size_t)l->c.max.tokens + 1), sizeof *s->token);
        if (!s->chunk || !s->piece || !s->pieces || !s->token || !l->memory || !l->asked)
            return err_memory();
        s->memory = l->memory + (size_t)i * half;
        s->step = -1;
    }
    return 0;
}

static int check_config(const struct loader_config *c)
{
    if (c->world < 1 || c->local_ranks < 1 || c->first_rank < 0 ||
        c->first_rank + c->local_ranks > c->world)
        return err_set(GPT_USAGE, "loader: expected ranks within 0 to %d, found %d to %d",
                       c->world - 1, c->first_rank, c->first_rank + c->local_ranks - 1);
    if (c->max.chunks < c->world)
        return err_set(GPT_USAGE, "loader: expected a chunk a step for each of %d ranks, found %d",
                       c->world, c->max.chunks);
    if (c->bigram_rows < 0 || c->bigram_rows == 1)
        return err_set(GPT_USAGE, "loader: expected no bigram table or two rows at least, found %d",
                       c->bigram_rows);
    if (c->stream && c->cycle)
        return err_set(GPT_USAGE,
                       "%s: a stream passes once, so data.cycle must be no (-s data.cycle=no)",
                       c->data);
    if (c->vocab < 1 || c->max.tokens < 1)
        return err_set(GPT_USAGE,
                       "loader: expected a vocabulary and a number of tokens, found %d, %d",
                       c->vocab, c->max.tokens);
    return 0;
}

/* A stream has no MANIFEST. Its id is also that of what was taken from it before. */
static void stream_facts(struct corpus *c, const struct shard_stream *t)
{
    char text[64];
    int n = snprintf(text, sizeof text, "%s %lld", shard_stream_id(t),
                     (long long)shard_stream_tokens(t));

    c->bos = CORPUS_BOS;
    xxh_hex_of(text, (size_t)n, c->id);
}

int loader_new(struct loader **out, const struct loader_config *c)
{
    struct loader *l;
    int rc;

    *out = NULL;
    if ((rc = check_config(c)))
        return rc;
    if (!(l = calloc(1, sizeof *l)))
        return err_memory();
    l->c = *c;
    l->bound = max_bound(c);
    l->block_bytes = max_block_bytes(c);
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->moved, NULL);
    l->entered = -1;
    if (c->stream)
        stream_facts(&l->corpus, c->stream);
    else if ((rc = corpus_open(&l->corpus, c->data, SPLIT_TRAIN)))
        goto fail;
    l->bos = c->bos >= 0 ? c->bos : l->corpus.bos;
    if ((rc = corpus_check_vocab(&l->corpus, c->data, c->vocab, l->bos)) || (rc = allocate(l)))
        goto fail;
    *out = l;
    return 0;
fail:
    loader_free(l);
    return rc;
}

int loader_seek(struct loader *l, const struct loader_pos *at)
{
    if (l->started)
        return err_set(GPT_USAGE, "loader: expected to be moved before the first step");
    if (at->step < 0 || at->epoch < 0 || at->document < 0 || at->shard < 0 ||
        (at->shard >= l->corpus.n && !l->c.stream))
        return err_set(GPT_INPUT,
                       "%s: expected a position within %d shards, found shard %lld, "
                       "document %lld",
                       l->c.data, l->corpus.n, (long long)at->shard, (long long)at->document);
    l->next = *at;
    return 0;
}

int64_t loader_most_steps(const struct loader *l)
{
    int64_t left = 0, step = l->next.step;
    int shard = (int)l->next.shard - 1;

    if (l->c.cycle || l->c.stream || !l->c.shape)
        return INT64_MAX;
    for (;; step++) {
        struct batch_shape w = l->c.shape(l->c.ctx, step);
        int64_t need = (int64_t)w.chunks * w.tokens;

        if (!need)
            return INT64_MAX;
        for (; left < need; left = l->corpus.shard[shard].tokens)
            if (++shard >= l->corpus.n)
                return step;
        if (l->c.repeat < 2 || (step + 1) % l->c.repeat == 0)
            left -= need;
    }
}

/* With the lock. */
static int start(struct loader *l)
{
    int e;

    if (l->started)
        return 0;
    l->first = l->next.step;
    l->filled = l->first - 1;
    for (int r = 0; r < l->c.local_ranks; r++)
        l->asked[r] = l->first - 1;
    if ((e = pthread_create(&l->thread, NULL, loader_thread, l)))
        return err_set(GPT_SYSTEM, "cannot start a thread: %s", strerror(e));
    l->started = true;
    return 0;
}

/* With the lock: a stream's step is given out only when those that end its update are there, too, so
 * that no run ends between two updates, where it could not be saved. */
static int wait_for_rest(struct loader *l, int64_t step)
{
    const struct slot *rest = &l->slot[(step + 1) & 1];

    if (!l->c.stream || l->c.update != 2 || step % 2 ||
        (l->c.shape && !l->c.shape(l->c.ctx, step + 1).tokens))
        return 0;
    while (!l->stop && l->filled <= step)
        pthread_cond_wait(&l->moved, &l->lock);
    return rest->code > 0 ? err_set(rest->code, "%s", rest->message) : rest->code;
}

int loader_next(struct loader *l, int rank, const struct step_batch **b)
{
    int r = rank - l->c.first_rank, rc;
    int64_t step;
    struct slot *s;

    *b = NULL;
    if (r < 0 || r >= l->c.local_ranks)
        return err_set(GPT_USAGE, "loader: expected a rank from %d to %d, found %d",
                       l->c.first_rank, l->c.first_rank + l->c.local_ranks - 1, rank);
    pthread_mutex_lock(&l->lock);
    if ((rc = start(l)))
        goto out;
    step = l->asked[r] + 1;
    s = &l->slot[step & 1];
    /* asked[r] does not advance past a failed step, so the next call fails in the same way. */
    while (!l->stop && l->filled < step)
        pthread_cond_wait(&l->moved, &l->lock);
    if (l->stop)
        rc = err_set(GPT_SYSTEM, "loader: stopped");
    else if (s->code < 0)
        rc = s->code;
    else if (s->code)
        rc = err_set(s->code, "%s", s->message);
    else {
        l->asked[r] = step;
        *b = &s->batch;
        pthread_cond_broadcast(&l->moved);
        rc = wait_for_rest(l, step);
    }
out:
    pthread_mutex_unlock(&l->lock);
    return rc;
}

void loader_stop(struct loader *l)
{
    pthread_mutex_lock(&l->lock);
    l->stop = true;
    pthread_cond_broadcast(&l->moved);
    pthread_mutex_unlock(&l->lock);
    if (l->c.stream && l->c.wake >= 0)
        eventfd_write(l->c.wake, 1);
}

void loader_free(struct loader *l)
{
    if (!l)
        return;
    loader_stop(l);
    if (l->started)
        pthread_join(l->thread, NULL);
    shard_close(l->now);
    shard_close(l->ahead);
    for (int i = 0; i < 2; i++) {
        free(l->slot[i].chunk);
        free(l->slot[i].piece);
        free(l->slot[i].pieces);
        free(l->slot[i].token);
    }
    free(l->memory);
    free(l->asked);
    corpus_release(&l->corpus);
    pthread_mutex_destroy(&l->lock);
    pthread_cond_destroy(&l->moved);
    free(l);
}

const char *loader_id(const struct loader *l) { return l->corpus.id; }

const char *loader_tokenizer(const struct loader *l) { return l->corpus.tokenizer; }
