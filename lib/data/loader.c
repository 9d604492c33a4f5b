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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include "base/hash.h"
#include "data/shard_stream.h"

#define STREAM_WINDOW (8 << 20) /* tokens read ahead of a stream: 16 MiB */

struct slot {
    struct step_batch batch;
    struct chunk *chunk; /* [max.chunks] */
    struct piece *piece; /* [max.chunks][bound] */
    int *pieces; /* [max.chunks] */
    uint16_t *token; /* [max.chunks][max.tokens + 1]: the pieces, one behind the other */
    uint16_t *target; /* the same, of the tokens behind them; NULL: the next in `token` */
    int64_t from, upto; /* tokens of the stream before the first piece, up to the last one's end */
    int64_t last; /* the end of the last piece in its shard */
    struct pass ended;
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
    struct cutter cutter; /* of the shard `now` */
    int64_t tokens; /* of all training shards; 0 of a stream */
    double passes; /* over them, of the steps prepared */

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
                               .whole = cut_reads_on(l->c.cut),
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

static int find_document(void *shard, int64_t i, int64_t limit, int64_t *begin, int64_t *end)
{
    return shard_document(shard, i, limit, begin, end);
}

static int wait_for(void *shard, int64_t n) { return shard_wait(shard, n); }

static void leave_shard(struct loader *l)
{
    shard_close(l->now);
    l->now = NULL;
}

/* Makes s the shard `now`. */
static void take_shard(struct loader *l, struct shard *s)
{
    shard_close(l->now);
    l->now = s;
    cutter_enter(&l->cutter, &(struct documents){ find_document, s, shard_size(s), wait_for });
}

/* Starts to read the shard after shard i. */
static int look_ahead(struct loader *l, int64_t i)
{
    int64_t after = i + 1 < l->corpus.n ? i + 1 : l->c.cycle ? 0 : -1;
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

/* Forgets a document's tokens before *at, which a run that continues there has used. */
static int forget_used(struct loader *l, const struct cut_at *at)
{
    int64_t begin, end;
    int rc = at->round ? shard_document(l->now, at->document, 1, &begin, &end) : 0;

    if (!rc && at->round && begin >= 0)
        shard_forget(l->now, begin + at->round * l->c.piece);
    if (!rc && l->c.cut == CUT_ROWS)
        shard_forget(l->now, at->token);
    return rc;
}

/* Enters the next shard of a stream, which lies ahead. */
static int enter_streamed(struct loader *l, const struct loader_pos *at)
{
    struct shard_want want = {
        .vocab = l->c.vocab, .bos = l->bos, .whole = cut_reads_on(l->c.cut), .window = STREAM_WINDOW
    };
    int rc = 0;

    while (l->entered < at->shard) {
        struct shard *s;

        if (l->now && (rc = shard_skip(l->now, shard_size(l->now))))
            return rc;
        leave_shard(l);
        if ((rc = shard_stream_next(l->c.stream, &s, &want)))
            break;
        take_shard(l, s);
        l->entered++;
    }
    return rc != GPT_NO ? rc ? rc : forget_used(l, &at->at)
                        : err_set(GPT_INPUT,
                                  "%s: expected tokens for step %lld, found the end after %lld "
                                  "tokens",
                                  l->c.data, (long long)l->next.step + 1,
                                  (long long)shard_stream_tokens(l->c.stream));
}

/* Makes `now` the shard at `at`. */
static int enter_shard(struct loader *l, const struct loader_pos *at)
{
    /* Later rounds take all documents. */
    int64_t i = at->shard, first = cut_continues(l->c.cut) ? 0 : at->at.document;
    struct shard *s;
    int rc;

    if (l->c.stream)
        return enter_streamed(l, at);
    if (l->now && !strcmp(shard_path(l->now), l->corpus.shard[i].path) &&
        first >= shard_first_document(l->now)) {
        ; /* the same shard, at this document or from its first */
    } else if (l->ahead && l->ahead_index == i) {
        take_shard(l, l->ahead);
        l->ahead = NULL;
    } else {
        leave_shard(l);
        if ((rc = open_shard(l, i, first, &s)))
            return rc;
        take_shard(l, s);
    }
    /* Not before the first batch, which would wait for it. */
    return l->next.step > l->first ? look_ahead(l, i) : 0;
}

/* --- one step --- */

/* Returns the T + 1 tokens of chunk k. */
static uint16_t *of_chunk(const struct loader *l, uint16_t *tokens, int k)
{
    return tokens + (size_t)k * ((size_t)l->c.max.tokens + 1);
}

/* True if the step after this one begins where it ends. */
static bool moves_after(const struct loader *l, int64_t step)
{
    return l->c.repeat < 2 || (step + 1 - l->c.repeat_from) % l->c.repeat == 0;
}

static bool moves_on(const struct loader *l) { return moves_after(l, l->next.step); }

/* True if a step that a shard's end interrupts takes the rest from the next one. A stream cannot go
 * back to repeat it. */
static bool goes_on(const struct loader *l)
{
    return cut_continues(l->c.cut) && !(l->c.stream && l->c.repeat > 1);
}

struct taking {
    struct loader *l;
    struct slot *s;
    struct loader_pos *at;
};

/* Copies a piece to its place. */
static void take(void *ctx, const struct filling *f, int64_t begin, int64_t end)
{
    struct taking *t = ctx;
    struct loader *l = t->l;
    struct slot *s = t->s;
    const uint16_t *token = shard_tokens(l->now);
    size_t bytes = (size_t)(end - begin) * sizeof *token;
    int64_t before = l->c.stream ? shard_stream_tokens(l->c.stream) - shard_size(l->now) : 0;

    s->piece[(size_t)f->chunk * (size_t)l->bound + (size_t)f->pieces] =
        (struct piece){ (uint32_t)begin, (uint32_t)end };
    s->pieces[f->chunk] = f->pieces + 1;
    memcpy(of_chunk(l, s->token, f->chunk) + f->length, token + begin, bytes);
    if (s->target) {
        memcpy(of_chunk(l, s->target, f->chunk) + f->length, token + begin + 1, bytes);
        t->at->used += t->at->used < 0 ? 0 : end - begin;
    }
    if (!f->chunk && !f->pieces)
        s->from = before + begin;
    s->upto = before + end;
    s->last = end;
    if (moves_on(l))
        shard_forget(l->now, end);
}

static int no_batch(const struct loader *l, const struct batch_shape *w)
{
    if (l->c.cut == CUT_ROWS)
        return err_set(
            GPT_INPUT,
            "%s: expected a shard of more than %lld tokens, those of a step, %d x %d, and "
            "one; found none in %d shard%s (the last, %s, has %lld)",
            l->c.data, (long long)w->chunks * w->tokens + 1, w->chunks, w->tokens, l->corpus.n,
            l->corpus.n == 1 ? "" : "s", shard_path(l->now), (long long)shard_size(l->now));
    return err_set(GPT_INPUT,
                   "%s: expected a shard of enough documents for a step, %d x %d tokens, "
                   "each cut at %d; found none in %d shard%s (the last, %s, has %lld tokens and "
                   "%lld document starts, token %d)%s",
                   l->c.data, w->chunks, w->tokens, w->cap ? w->cap : w->tokens + 1, l->corpus.n,
                   l->corpus.n == 1 ? "" : "s", shard_path(l->now), (long long)shard_size(l->now),
                   (long long)shard_documents(l->now), l->bos,
                   cut_continues(l->c.cut) ? ""
                                           : ": -s data.cut=pieces uses all of a document, and "
                                             "needs no document start");
}

/* Moves *at to the next shard. s->ended: the pass that ends with this one. */
static int next_shard(struct loader *l, struct slot *s, struct loader_pos *at)
{
    at->at = (struct cut_at){ 0 };
    if (++at->shard < l->corpus.n || l->c.stream)
        return 0;
    if (!l->c.cycle)
        return err_set(GPT_INPUT,
                       "%s: expected tokens for step %lld, found that all %d shard%s "
                       "%s used up (data.cycle: start over)",
                       l->c.data, (long long)l->next.step + 1, l->corpus.n,
                       l->corpus.n == 1 ? "" : "s", l->corpus.n == 1 ? "is" : "are");
    at->shard = 0;
    at->epoch++;
    s->ended = (struct pass){ .number = at->epoch, .used = at->used, .tokens = l->tokens };
    at->used = 0;
    return 0;
}

/* Finds the step's pieces from next on, in the first shard that holds them all, or in as many as it
 * takes. *at: where the step ends. */
static int find_pieces(struct loader *l, struct slot *s, const struct batch_shape *w, int bound,
                       struct loader_pos *at)
{
    struct filling f = { 0 }, before;
    struct taking t = { l, s, at };
    int rc;

    *at = l->next;
    s->ended = (struct pass){ 0 };
    for (int tried = 0;; tried++) {
        before = f;
        if ((rc = enter_shard(l, at)) ||
            (rc = cutter_fill(&l->cutter, w, bound, &f, &at->at, take, &t)) != GPT_NO)
            return rc != CUT_CROWDED
                       ? rc
                       : cut_crowded(shard_path(l->now), l->next.step, f.chunk, bound, w->tokens);
        if (!goes_on(l))
            f = (struct filling){ 0 };
        else if (f.chunk != before.chunk || f.length != before.length)
            tried = 0;
        /* The first shard was perhaps entered in its middle, so it is tried once more from its
         * start. */
        if (!l->c.stream && (tried >= l->corpus.n ||
                             (at->shard + 1 == l->corpus.n && !l->c.cycle && !l->next.step)))
            return no_batch(l, w);
        if ((rc = next_shard(l, s, at)))
            return rc;
        if (!goes_on(l))
            l->next = *at;
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

/* token: the T + 1 tokens of the pieces, or T of them and their targets. */
static void fill_chunk(struct chunk *c, const uint16_t *token, const uint16_t *target,
                       const struct piece *piece, int n)
{
    int32_t *tok = (int32_t *)c->tok, *tgt = (int32_t *)c->tgt, *cu = (int32_t *)c->cu;
    int at = 0;

    if (!target)
        target = token + 1;
    for (int t = 0; t < c->tokens; t++) {
        tok[t] = token[t];
        tgt[t] = target[t];
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

/* Passes over the data up to *at, before which the step's last piece ended. */
static double passes_at(const struct loader *l, const struct slot *s, const struct loader_pos *at)
{
    int64_t done = s->last;

    for (int64_t i = 0; i < at->shard && !l->c.stream; i++)
        done += l->corpus.shard[i].tokens;
    if (cut_continues(l->c.cut) && at->used >= 0)
        done = at->used;
    return l->tokens ? (double)at->epoch + (double)done / (double)l->tokens : 0;
}

/* Fills a slot with step next.step and advances next. */
static int prepare(struct loader *l, struct slot *s)
{
    struct batch_shape w = l->c.shape ? l->c.shape(l->c.ctx, l->next.step) : l->c.max;
    int bound = w.bound ? w.bound : cu_bound(w.tokens, 0), local = 0, rc;
    struct chunk_shape shape = chunk_shape(&l->c, w.tokens, bound);
    struct loader_pos after;

    if (!w.tokens)
        return err_set(GPT_USAGE, "there is no step %lld", (long long)l->next.step + 1);
    if ((rc = check_shape(l, &w, bound)) || (rc = find_pieces(l, s, &w, bound, &after)))
        return rc;
    for (int k = 0; k < w.chunks; k++) {
        struct chunk *c = &s->chunk[k];

        memset(c, 0, sizeof *c);
        if (!is_local(&l->c, k))
            continue;
        chunk_place(c, s->memory + (size_t)local++ * l->block_bytes, &shape);
        fill_chunk(c, of_chunk(l, s->token, k), s->target ? of_chunk(l, s->target, k) : NULL,
                   s->piece + (size_t)k * (size_t)l->bound, s->pieces[k]);
        chunk_index(c, &shape);
    }
    if (!s->target && after.used >= 0)
        after.used += (int64_t)w.chunks * w.tokens;
    s->batch = (struct step_batch){ .step = l->next.step,
                                    .chunks = w.chunks,
                                    .chunk = s->chunk,
                                    .at = l->next,
                                    .from = s->from,
                                    .upto = s->upto };
    if (moves_on(l)) {
        l->passes = passes_at(l, s, &after);
        after.step = l->next.step;
        l->next = after;
    }
    if (moves_on(l) || !goes_on(l))
        s->batch.ended = s->ended;
    s->batch.passes = l->passes;
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
    return c->max.bound ? c->max.bound : cu_bound(c->max.tokens, 0);
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
        if (cut_reads_on(l->c.cut) && !(s->target = calloc(n * ((size_t)l->c.max.tokens + 1), 2)))
            return err_memory();
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
    if (c->vocab < 1 || c->max.tokens < 1 || (c->cut == CUT_PIECES && c->piece < 1))
        return err_set(GPT_USAGE,
                       "loader: expected a vocabulary, a number of tokens and a size of pieces, "
                       "found %d, %d, %d",
                       c->vocab, c->max.tokens, c->piece);
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
    l->cutter = (struct cutter){ .cut = c->cut, .piece = c->piece, .stream = c->stream != NULL };
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->moved, NULL);
    l->entered = -1;
    if (c->stream)
        stream_facts(&l->corpus, c->stream);
    else if ((rc = corpus_open(&l->corpus, c->data, SPLIT_TRAIN, &c->choice)))
        goto fail;
    l->bos = c->bos >= 0 ? c->bos : l->corpus.bos;
    for (int i = 0; i < l->corpus.n; i++)
        l->tokens += l->corpus.shard[i].tokens;
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
    if (at->step < 0 || at->epoch < 0 || at->shard < 0 || at->at.document < 0 || at->at.round < 0 ||
        at->at.token < 0 || at->used < -1 || (at->shard >= l->corpus.n && !l->c.stream))
        return err_set(GPT_INPUT,
                       "%s: expected a position within %d shards, found shard %lld, "
                       "document %lld, piece %lld, token %lld",
                       l->c.data, l->corpus.n, (long long)at->shard, (long long)at->at.document,
                       (long long)at->at.round, (long long)at->at.token);
    if (l->c.cut == CUT_ROWS && (at->at.document || at->at.round))
        return err_set(
            GPT_INPUT,
            "%s: expected data.cut as the run had it: the position is in a document, not "
            "in a row",
            l->c.data);
    if ((at->at.round || at->at.token) && !cut_reads_on(l->c.cut))
        return err_set(GPT_INPUT,
                       "%s: expected data.cut = pieces, as the run had: the position is within a "
                       "document",
                       l->c.data);
    l->next = *at;
    return 0;
}

int64_t loader_most_steps(const struct loader *l)
{
    int64_t left = 0, step = l->next.step;
    /* Tokens of a shard that no step has, at least. */
    int shard = (int)l->next.shard - 1, last = l->c.cut == CUT_ROWS ? 2 : cut_continues(l->c.cut);

    if (l->c.cycle || l->c.stream || !l->c.shape)
        return INT64_MAX;
    for (;; step++) {
        struct batch_shape w = l->c.shape(l->c.ctx, step);
        int64_t need = (int64_t)w.chunks * w.tokens;

        if (!need)
            return INT64_MAX;
        while (left < need) {
            if (++shard >= l->corpus.n)
                return step;
            left = goes_on(l) ? left : 0;
            if (l->corpus.shard[shard].tokens > last)
                left += l->corpus.shard[shard].tokens - last;
        }
        if (moves_after(l, step))
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
        free(l->slot[i].target);
    }
    cutter_release(&l->cutter);
    free(l->memory);
    free(l->asked);
    corpus_release(&l->corpus);
    pthread_mutex_destroy(&l->lock);
    pthread_cond_destroy(&l->moved);
    free(l);
}

const char *loader_id(const struct loader *l) { return l->corpus.id; }

const struct corpus *loader_files(const struct loader *l) { return &l->corpus; }

const char *loader_tokenizer(const struct loader *l) { return l->corpus.tokenizer; }
