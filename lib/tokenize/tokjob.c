/* tokjob.c - see tokjob.h: how tokens are cut into shards, what each stage of the pipeline does, and
 * the one or two passes. */
#include "tokenize/tokjob.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/progress.h"
#include "base/rng.h"
#include "data/shard_write.h"
#include "tokenize/pipeline.h"
#include "tokenize/shard_folder.h"
#include "tokenize/spool.h"

/* --- cutting tokens into frames and shards --- */

/* One a split: where in which shard the next token goes. */
struct cutter {
    enum split split;
    int64_t shard_tokens;
    int index; /* of the next or present shard */
    struct out_frame *frame; /* being filled; NULL: a new one is needed */
    bool open; /* a shard has been begun */
    struct manifest_shard line; /* of that shard */
};

/* Tokens of a document part to append; moved along as they are taken. */
struct part {
    const uint16_t *token;
    size_t n;
    struct position at; /* document, and tokens of it before these */
    bool ends; /* the document ends with them */
    int64_t invalid; /* sequences that are not UTF-8, for the shard of the first token */
    uint64_t input; /* of all documents up to this one: input_hash */
};

static void begin_shard(struct cutter *k, const struct part *p)
{
    memset(&k->line, 0, sizeof k->line);
    k->line.split = k->split;
    k->line.from = p->at;
    k->open = true;
    k->frame->first = true;
}

/* Appends what fits into the frame. True if the frame is complete (cutter_take). */
static bool cutter_put(struct cutter *k, struct part *p)
{
    struct out_frame *f = k->frame;
    size_t room = FRAME_TOKENS - f->n / 2, n;

    if (!k->open)
        begin_shard(k, p);
    if ((int64_t)room > k->shard_tokens - k->line.tokens)
        room = (size_t)(k->shard_tokens - k->line.tokens);
    n = p->n < room ? p->n : room;
    memcpy(f->plain + f->n, p->token, 2 * n);
    f->n += 2 * n;
    k->line.tokens += (int64_t)n;
    k->line.documents += p->at.token == 0;
    k->line.invalid += p->invalid;
    p->invalid = 0;
    p->token += n;
    p->n -= n;
    p->at.token += (int64_t)n;
    k->line.to = p->at;
    if (!p->n && p->ends)
        k->line.to = (struct position){ p->at.document + 1, 0 };
    k->line.input = p->input;
    f->last = k->line.tokens == k->shard_tokens;
    return f->last || n == room;
}

/* Takes the frame out; the last frame of a shard carries its line. To end a shard early, set
 * frame->last before. */
static struct out_frame *cutter_take(struct cutter *k)
{
    struct out_frame *f = k->frame;

    f->split = k->split;
    f->index = k->index;
    if (f->last) {
        f->line = k->line;
        k->open = false;
        k->index++;
    }
    k->frame = NULL;
    return f;
}

/* --- a job --- */

struct job {
    const struct tokjob_config *c;
    struct tokjob_result *result;
    struct source *source;
    struct spool *spool; /* between two passes; NULL: there is one */
    struct pipeline *pipeline;
    struct shard_folder folder;
    struct shard_writer writer[2];
    struct cutter cutter[2];
    int64_t val_left; /* val_first: tokens still to go to validation */
    struct val_pick pick;
    uint64_t val_below; /* documents with a lower hash are validation; 0: by val_fraction */
    int threads, units;
    struct encoder *encoder[MAX_THREADS], *run_encoder; /* the last for units that are runs */
    ZSTD_CCtx *z[MAX_THREADS];
    /* The cutting stage: the document, and what is left of its part in the unit. */
    int64_t document; /* its number, in the order of this pass */
    int64_t document_tokens; /* so far */
    uint64_t input; /* input_hash so far */
    int cut_doc; /* of the unit */
    bool cut_begun;
    struct part cut_part;
    double start, pass_start;
    atomic_ullong read_bytes; /* for progress */
    atomic_llong text_bytes, tokens, put_tokens;
};

/* --- memory --- */

/* Upper bounds of memory in MiB on 64-bit machines. A unit of input may hold a line of 2 MiB,
 * its text and three times as much in tokens; a thread has a cache of words, a frame, a repaired
 * document and the compressor. */
#define FIXED_MIB 40
#define UNIT_MIB 12
#define THREAD_MIB 26
#define SPOOL_MIB (24 + 64) /* its buffers, and a part of a bucket */

static int compressor_mib(int level) { return !level ? 0 : level < 6 ? 4 : level < 13 ? 12 : 32; }

static int64_t memory_mib(int threads, int units, int level, bool spool)
{
    return FIXED_MIB + (int64_t)threads * (THREAD_MIB + compressor_mib(level)) +
           (int64_t)units * UNIT_MIB + (spool ? SPOOL_MIB : 0);
}

/* Chooses as many threads and units in flight as the memory allows. */
static int fit_memory(struct job *j, bool spool)
{
    int64_t have = j->c->memory >> 20;
    int level = j->c->level;

    j->threads = j->c->threads < MAX_THREADS ? j->c->threads : MAX_THREADS;
    j->units = 2 * j->threads + 2;
    if (!j->c->memory)
        return 0;
    while (j->threads > 1 && memory_mib(j->threads, j->threads + 1, level, spool) > have)
        j->threads--;
    j->units = 2 * j->threads + 2;
    while (j->units > j->threads + 1 && memory_mib(j->threads, j->units, level, spool) > have)
        j->units--;
    if (memory_mib(j->threads, j->units, level, spool) > have)
        return err_set(GPT_USAGE, "--memory: expected at least %lld MiB, found %lld MiB",
                       (long long)memory_mib(1, 2, level, spool), (long long)have);
    return 0;
}

static int allocate(struct job *j)
{
    int rc;

    if ((rc = pipeline_new(&j->pipeline, j->threads, j->units, j->c->level > 0)) ||
        (rc = encoder_new(&j->run_encoder, &j->c->encode)))
        return rc;
    for (int i = 0; i < j->threads; i++)
        if ((rc = encoder_new(&j->encoder[i], &j->c->encode)))
            return rc;
        else if (j->c->level && !(j->z[i] = ZSTD_createCCtx()))
            return err_memory();
    return 0;
}

static void make_cutters(struct job *j)
{
    const struct tokjob_config *c = j->c;

    for (int s = 0; s < 2; s++) {
        /* Validation is shard 0 and training begins with 1, as in the records. */
        j->cutter[s] = (struct cutter){ .split = (enum split)s,
                                        .shard_tokens = c->shard_tokens,
                                        .index = s == SPLIT_TRAIN };
        j->writer[s] = (struct shard_writer){ .dir = j->folder.dir,
                                              .prefix = c->prefix,
                                              .level = c->level,
                                              .shard_tokens = c->shard_tokens,
                                              .with_index = c->with_index,
                                              .bos = c->encode.vocab->bos };
    }
    j->val_left = c->val_first_tokens;
    if (j->val_left && j->val_left < c->shard_tokens)
        j->cutter[SPLIT_VAL].shard_tokens = j->val_left;
}

/* --- reading and encoding --- */

static int read_source(void *ctx, struct unit *u, bool *encoded)
{
    struct job *j = ctx;
    int rc;

    if ((rc = source_next(j->source, u)))
        return rc;
    atomic_store(&j->read_bytes, source_read_bytes(j->source));
    *encoded = !u->end && u->run;
    /* One thread at a time reads, so runs are encoded in their order. */
    return *encoded ? encode_unit(j->run_encoder, u) : 0;
}

static int read_spool(void *ctx, struct unit *u, bool *encoded)
{
    struct job *j = ctx;

    *encoded = true;
    return spool_next(j->spool, u);
}

static int encode(void *ctx, int worker, struct unit *u)
{
    struct job *j = ctx;

    return encode_unit(j->encoder[worker], u);
}

/* --- counting, once for each part of a document and each unit --- */

static int count_part(struct job *j, const struct unit *u, const struct unit_doc *d)
{
    struct token_stats *s = j->c->stats;

    atomic_fetch_add(&j->text_bytes, (long long)d->bytes);
    atomic_fetch_add(&j->tokens, (long long)d->tokens);
    j->document_tokens = (d->begins ? 0 : j->document_tokens) + (int64_t)d->tokens;
    if (s) {
        s->text_bytes += (int64_t)d->bytes;
        token_stats_add(s, u->token + d->token, d->tokens);
        if (d->ends)
            token_stats_document(s, j->document_tokens);
    }
    return j->pick.want && d->ends ? val_pick_add(&j->pick, d->hash, j->document_tokens) : 0;
}

static void count_skipped(struct job *j, const struct unit *u)
{
    struct tokjob_result *r = j->result;

    if (u->skipped && !r->skipped)
        memcpy(r->first_skipped, u->first_skipped, sizeof r->first_skipped);
    r->skipped += u->skipped;
}

/* --- cutting units --- */

static void hand_on(struct job *j, struct cutter *k)
{
    struct out_frame *f = cutter_take(k);

    if (f->last && k->split == SPLIT_VAL && j->c->val_first_tokens) {
        j->val_left -= f->line.tokens;
        if (j->val_left < k->shard_tokens)
            k->shard_tokens = j->val_left;
    }
    pipeline_put(j->pipeline, f);
}

static struct cutter *choose(struct job *j, uint64_t hash)
{
    bool val;

    if (j->c->val_first_tokens)
        val = j->val_left > 0;
    else if (j->val_below)
        val = hash < j->val_below;
    else /* 2^64 as a double is exact; fraction 1 takes all. */
        val = (double)hash < j->c->val_fraction * 18446744073709551616.0;
    return &j->cutter[val ? SPLIT_VAL : SPLIT_TRAIN];
}

static int begin_part(struct job *j, const struct unit *u, const struct unit_doc *d)
{
    if (d->begins) {
        j->document++;
        j->input = input_hash(j->input, d->hash);
    }
    j->cut_part = (struct part){ .token = u->token + d->token,
                                 .n = d->tokens,
                                 .ends = d->ends,
                                 .invalid = d->invalid,
                                 .input = j->input,
                                 .at = { j->document, d->begins ? 0 : j->cut_part.at.token } };
    if (!j->spool)
        return count_part(j, u, d);
    atomic_fetch_add(&j->put_tokens, (long long)d->tokens);
    return 0;
}

/* Appends the present part to frames; false if no frame is free. */
static bool cut_part(struct job *j, uint64_t hash)
{
    while (j->cut_part.n) {
        struct cutter *k = choose(j, hash);

        if (!k->frame && !(k->frame = pipeline_spare(j->pipeline)))
            return false;
        if (cutter_put(k, &j->cut_part))
            hand_on(j, k);
    }
    return true;
}

/* Ends the shards that are open, at the end of the input; false if no frame is free. */
static bool end_shards(struct job *j)
{
    for (int s = 0; s < 2; s++) {
        struct cutter *k = &j->cutter[s];

        if (!k->open)
            continue;
        if (!k->frame && !(k->frame = pipeline_spare(j->pipeline)))
            return false;
        k->frame->last = true;
        hand_on(j, k);
    }
    return true;
}

/* Cuts the rest of a unit into frames; *done is false if no frame was free before its end. */
static int cut_to_shards(void *ctx, const struct unit *u, bool *done)
{
    struct job *j = ctx;
    int rc;

    *done = false;
    if (!u) {
        *done = end_shards(j);
        return 0;
    }
    for (; j->cut_doc < u->docs; j->cut_doc++) {
        const struct unit_doc *d = &u->doc[j->cut_doc];

        if (!j->cut_begun && (rc = begin_part(j, u, d)))
            return rc;
        j->cut_begun = true;
        if (!cut_part(j, d->hash))
            return 0;
        j->cut_begun = false;
    }
    if (!j->spool)
        count_skipped(j, u);
    j->cut_doc = 0;
    *done = true;
    return 0;
}

/* The first of two passes: puts documents into the spool, under a key that is random but for the
 * seed, or in their order. */
static int cut_to_spool(void *ctx, const struct unit *u, bool *done)
{
    struct job *j = ctx;
    struct rng r = rng_make(j->c->seed, 0);
    int rc = 0;

    *done = true;
    for (int i = 0; u && i < u->docs && !rc; i++) {
        const struct unit_doc *d = &u->doc[i];
        uint32_t x[4] = { 0 };

        j->document += d->begins;
        if (j->c->shuffle)
            rng_block(&r, (uint64_t)j->document, x);
        if (!(rc = count_part(j, u, d)))
            rc = spool_put(j->spool, (uint64_t)x[0] << 32 | x[1], d, u->token + d->token);
    }
    if (u)
        count_skipped(j, u);
    return rc;
}

/* --- packing and writing --- */

static int pack(void *ctx, int worker, struct out_frame *f)
{
    struct job *j = ctx;

    return f->n ? shard_pack(j->z[worker], j->c->level, f->plain, f->n, f->raw, &f->raw_n) : 0;
}

static int begin_file(struct job *j, const struct out_frame *f)
{
    if (!strcmp(j->c->out, "-") && j->c->shard_tokens == INT32_MAX && j->folder.manifest.n)
        return err_set(GPT_INPUT,
                       "expected at most %lld tokens for one shard on standard output, "
                       "found more: --shard-tokens N writes several",
                       (long long)j->c->shard_tokens);
    return shard_writer_open(&j->writer[f->split], f->split, f->index);
}

static int write_frame(void *ctx, struct out_frame *f)
{
    struct job *j = ctx;
    struct shard_writer *w = &j->writer[f->split];
    int rc = 0;

    f->line.name = (char *)"";
    if (j->c->out) {
        if (f->first && (rc = begin_file(j, f)))
            return rc;
        if (f->n && (rc = shard_writer_put(w, f->plain, f->n, f->raw, f->raw_n)))
            return rc;
        if (f->last)
            rc = shard_writer_finish(w, f->line.tokens, &f->line);
    }
    return !rc && f->last ? manifest_add(&j->folder.manifest, &f->line) : rc;
}

static void report(void *ctx)
{
    struct job *j = ctx;
    double now = now_seconds();
    struct tokjob_progress p = {
        .read_bytes = atomic_load(&j->read_bytes),
        .total_bytes = source_total_bytes(j->source),
        .text_bytes = atomic_load(&j->text_bytes),
        .tokens = atomic_load(&j->tokens),
        .put_tokens = atomic_load(&j->put_tokens),
        .seconds = now - j->start,
        .pass_seconds = now - j->pass_start,
    };

    if (j->c->progress)
        j->c->progress(j->c->ctx, &p);
}

/* --- passes --- */

static int run_pass(struct job *j, int (*read)(void *, struct unit *, bool *),
                    int (*cut)(void *, const struct unit *, bool *))
{
    struct stages s = { read, encode, cut, j->c->level ? pack : NULL, write_frame, report };

    j->document = -1;
    j->pass_start = now_seconds();
    return pipeline_run(j->pipeline, &s, j);
}

static int two_passes(struct job *j)
{
    bool folder = j->c->out && strcmp(j->c->out, "-");
    size_t bucket = (j->c->memory ? j->c->memory >> 20 : 1024) > 512 ? 256u << 20 : 64u << 20;
    int rc;

    if ((rc = spool_new(&j->spool, folder ? j->c->out : temporary_dir(), j->c->shuffle, bucket)))
        return rc;
    j->pick.want = j->c->val_tokens;
    if ((rc = run_pass(j, read_source, cut_to_spool)) || (rc = spool_rewind(j->spool)))
        return rc;
    if (j->pick.want && (rc = val_pick_below(&j->pick, &j->val_below)))
        return rc;
    return run_pass(j, read_spool, cut_to_shards);
}

static int finish(struct job *j)
{
    struct manifest *m = &j->folder.manifest;
    struct tokjob_result *r = j->result;
    int rc;

    if (!m->n)
        return err_set(GPT_INPUT, "%s: expected a document, found none", j->c->source.path[0]);
    m->skipped = r->skipped;
    if ((rc = shard_folder_finish(&j->folder)))
        return rc;
    for (int i = 0; i < m->n; i++)
        if (m->shard[i].split == SPLIT_VAL) {
            r->val_documents += m->shard[i].documents;
            r->val_tokens += m->shard[i].tokens;
        }
    r->documents = m->documents;
    r->tokens = m->tokens;
    r->invalid = m->invalid;
    r->shards = m->n;
    r->text_bytes = atomic_load(&j->text_bytes);
    r->seconds = now_seconds() - j->start;
    return 0;
}

static void release(struct job *j)
{
    for (int s = 0; s < 2; s++)
        shard_writer_abort(&j->writer[s]);
    for (int i = 0; i < j->threads; i++) {
        encoder_free(j->encoder[i]);
        ZSTD_freeCCtx(j->z[i]);
    }
    encoder_free(j->run_encoder);
    pipeline_free(j->pipeline);
    spool_free(j->spool);
    val_pick_release(&j->pick);
    source_close(j->source);
    shard_folder_release(&j->folder);
    free(j);
}

int tokjob_run(const struct tokjob_config *c, struct tokjob_result *r)
{
    struct job *j = calloc(1, sizeof *j);
    bool spool = c->shuffle || c->val_tokens;
    int rc;

    memset(r, 0, sizeof *r);
    if (!j)
        return err_memory();
    j->c = c;
    j->result = r;
    j->start = now_seconds();
    if ((rc = fit_memory(j, spool)) || (rc = allocate(j)) ||
        (rc = source_open(&j->source, &c->source)) || (rc = shard_folder_open(&j->folder, c)))
        goto out;
    make_cutters(j);
    if (!(rc = spool ? two_passes(j) : run_pass(j, read_source, cut_to_shards)))
        rc = finish(j);
out:
    r->cleared = j->folder.cleared;
    if (j->source)
        r->notes = *source_notes(j->source);
    release(j);
    return rc;
}
