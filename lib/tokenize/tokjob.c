/* tokjob.c - see tokjob.h: where the shards begin, what each stage of the pipeline does, and the
 * one or two passes. */
#include "tokenize/tokjob.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
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
    int stop; /* shards from this index on are not wanted */
    struct position skip; /* tokens before this are in shards of an earlier run */
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
    bool counted; /* its invalid sequences are */
    int64_t invalid;
    uint64_t input; /* of all documents up to this one: input_hash */
};

/* Drops tokens that are in shards of an earlier run. */
static void skip_known(const struct cutter *k, struct part *p)
{
    int64_t known = p->at.document < k->skip.document   ? (int64_t)p->n
                    : p->at.document > k->skip.document ? 0
                                                        : k->skip.token - p->at.token;

    if (known <= 0)
        return;
    if (known > (int64_t)p->n)
        known = (int64_t)p->n;
    p->token += known;
    p->n -= (size_t)known;
    p->at.token += known;
    p->counted = true; /* with its first token, in that shard */
}

static void begin_shard(struct cutter *k, const struct part *p)
{
    memset(&k->line, 0, sizeof k->line);
    k->line.split = k->split;
    k->line.from = p->at;
    k->open = true;
    k->frame->first = true;
}

/* Appends what fits into the frame. *full: it is complete (cutter_take). */
static void cutter_put(struct cutter *k, struct part *p, bool *full)
{
    struct out_frame *f = k->frame;
    size_t room, n;

    *full = false;
    skip_known(k, p);
    if (!p->n)
        return;
    if (!k->open)
        begin_shard(k, p);
    room = FRAME_TOKENS - f->n / 2;
    if ((int64_t)room > k->shard_tokens - k->line.tokens)
        room = (size_t)(k->shard_tokens - k->line.tokens);
    n = p->n < room ? p->n : room;
    memcpy(f->plain + f->n, p->token, 2 * n);
    f->n += 2 * n;
    k->line.tokens += (int64_t)n;
    k->line.documents += p->at.token == 0;
    if (!p->counted)
        k->line.invalid += p->invalid;
    p->counted = true;
    p->token += n;
    p->n -= n;
    p->at.token += (int64_t)n;
    k->line.to = p->at;
    if (!p->n && p->ends)
        k->line.to = (struct position){ p->at.document + 1, 0 };
    k->line.input = p->input;
    f->last = k->line.tokens == k->shard_tokens;
    *full = f->last || n == room;
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
    struct encode_config encode; /* c's, and what is found out on the way */
    struct source *source;
    struct spool *spool; /* between two passes; NULL: there is one */
    struct pipeline *pipeline;
    struct shard_folder folder;
    struct shard_writer writer[2];
    struct cutter cutter[2];
    int64_t val_left; /* val_first: tokens still to go to validation */
    int threads, units;
    struct encoder *encoder[MAX_THREADS], *run_encoder; /* the last for units that are runs */
    ZSTD_CCtx *z[MAX_THREADS];
    struct val_pick pick;
    /* The cutting stage: document of the unit, and what is left of it. */
    int cut_doc;
    bool cut_begun;
    struct part cut_part;
    int64_t document_tokens; /* of the present document so far */
    uint64_t input; /* input_hash so far */
    int agreed; /* of the shards kept, with the input so far */
    atomic_bool enough; /* all shards that are wanted are cut */
    struct tokjob_result *result; /* its counters are the cutting stage's */
    double start, pass_start;
    atomic_ullong read_bytes; /* for progress */
    atomic_llong seen_text, seen_tokens, put_tokens;
};

/* --- memory --- */

/* Upper bounds of memory in MiB on 64-bit machines. A unit of input may hold a line of 2 MiB,
 * its text and three times as much in tokens; a thread has a cache of words, a frame, a repaired
 * document and the compressor. */
#define FIXED_MIB 40
#define UNIT_MIB 12
#define THREAD_MIB 20
#define SPOOL_MIB (24 + 64) /* its buffers, and a part of a bucket */

static int compressor_mib(int level) { return !level ? 0 : level < 6 ? 4 : level < 13 ? 12 : 32; }

static int64_t memory_mib(int threads, int units, int level, bool spool)
{
    return FIXED_MIB + (int64_t)threads * (THREAD_MIB + compressor_mib(level)) +
           (int64_t)units * UNIT_MIB + (spool ? SPOOL_MIB : 0);
}

/* As many threads and units in flight as the memory allows. */
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
        (rc = encoder_new(&j->run_encoder, &j->encode)))
        return rc;
    for (int i = 0; i < j->threads; i++)
        if ((rc = encoder_new(&j->encoder[i], &j->encode)))
            return rc;
        else if (j->c->level && !(j->z[i] = ZSTD_createCCtx()))
            return err_memory();
    return 0;
}

/* --- where shards go on --- */

/* Repair: each split begins with its first damaged shard and stops after its last. With
 * val_first the two splits are one stream, so that validation is cut to its end if training
 * follows. */
static void place_for_repair(struct job *j)
{
    const struct manifest *m = &j->folder.manifest;
    int first[2] = { -1, -1 }, last[2] = { -1, -1 }, before[2] = { 0, 0 };

    for (int i = 0; i < m->n; i++) {
        int s = m->shard[i].split;

        if (j->folder.damaged[i]) {
            first[s] = first[s] < 0 ? i : first[s];
            last[s] = i;
        }
        before[s] += first[s] < 0;
        if (first[s] < 0 && s == SPLIT_VAL)
            j->val_left -= m->shard[i].tokens;
    }
    for (int s = 0; s < 2; s++) {
        struct cutter *k = &j->cutter[s];

        k->stop = 0;
        if (first[s] < 0) {
            k->skip.document = INT64_MAX;
            continue;
        }
        k->stop = k->index + before[s] + last[s] - first[s] + 1;
        k->index += before[s];
        k->skip = m->shard[first[s]].from;
    }
    if (j->c->val_first_tokens && first[SPLIT_VAL] >= 0 && first[SPLIT_TRAIN] >= 0)
        j->cutter[SPLIT_VAL].stop = INT_MAX;
}

/* Without a repair each split continues after its last complete shard. */
static void place_behind(struct job *j)
{
    const struct manifest *m = &j->folder.manifest;
    struct position last = { 0, 0 };

    for (int i = 0; i < m->n; i++) {
        const struct manifest_shard *s = &m->shard[i];

        j->cutter[s->split].index++;
        j->cutter[s->split].skip = last = s->to;
        if (s->split == SPLIT_VAL)
            j->val_left -= s->tokens;
    }
    if (j->c->val_first_tokens) /* one stream: both continue where the last shard ended */
        j->cutter[SPLIT_VAL].skip = j->cutter[SPLIT_TRAIN].skip = last;
}

static void place_cutters(struct job *j)
{
    const struct tokjob_config *c = j->c;

    j->val_left = c->val_first_tokens;
    for (int s = 0; s < 2; s++) {
        /* As in the records, validation is shard 0 and training begins with 1. */
        j->cutter[s] = (struct cutter){ .split = (enum split)s,
                                        .shard_tokens = c->shard_tokens,
                                        .index = s == SPLIT_TRAIN,
                                        .stop = INT_MAX };
        j->writer[s] = (struct shard_writer){ .dir = c->out,
                                              .prefix = c->prefix,
                                              .level = c->level,
                                              .shard_tokens = c->shard_tokens,
                                              .with_index = c->with_index,
                                              .bos = c->encode.vocab->bos };
    }
    if (j->folder.damaged)
        place_for_repair(j);
    else
        place_behind(j);
    if (j->val_left < j->cutter[SPLIT_VAL].shard_tokens && c->val_first_tokens)
        j->cutter[SPLIT_VAL].shard_tokens = j->val_left;
}

/* --- reading and encoding --- */

static int read_source(void *ctx, struct unit *u, bool *encoded)
{
    struct job *j = ctx;
    int rc;

    if (atomic_load(&j->enough)) {
        u->end = true;
        return 0;
    }
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
    if (atomic_load(&j->enough)) {
        u->end = true;
        return 0;
    }
    return spool_next(j->spool, u);
}

static int encode(void *ctx, int worker, struct unit *u)
{
    struct job *j = ctx;

    return encode_unit(j->encoder[worker], u);
}

/* --- counting --- */

/* Of a document's part that was encoded. */
static int count_part(struct job *j, const struct unit *u, const struct unit_doc *d)
{
    struct token_stats *s = j->c->stats;

    j->result->text_bytes += (int64_t)d->bytes;
    j->result->encoded_tokens += (int64_t)d->tokens;
    atomic_store(&j->seen_text, j->result->text_bytes);
    atomic_store(&j->seen_tokens, j->result->encoded_tokens);
    j->document_tokens = (d->begins ? 0 : j->document_tokens) + (int64_t)d->tokens;
    if (s) {
        s->text_bytes += (int64_t)d->bytes;
        token_stats_add(s, u->token + d->token, d->tokens);
        if (d->ends)
            token_stats_document(s, j->document_tokens);
    }
    return j->pick.want && d->ends ? val_pick_add(&j->pick, d->hash, j->document_tokens) : 0;
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
    if (j->cutter[0].index >= j->cutter[0].stop && j->cutter[1].index >= j->cutter[1].stop)
        atomic_store(&j->enough, true);
}

static struct cutter *choose(struct job *j, const struct unit_doc *d)
{
    if (j->c->val_first_tokens)
        return &j->cutter[j->val_left ? SPLIT_VAL : SPLIT_TRAIN];
    return &j->cutter[document_split(&j->encode, d->hash)];
}

/* Appends the present part to frames; false if no frame is free. */
static bool cut_part(struct job *j, const struct unit_doc *d)
{
    struct part *p = &j->cut_part;

    while (p->n) {
        struct cutter *k = choose(j, d);
        bool full;

        if (k->index >= k->stop) {
            p->at.token += (int64_t)p->n;
            p->n = 0;
            break;
        }
        if (!k->frame && !(k->frame = pipeline_spare(j->pipeline)))
            return false;
        cutter_put(k, p, &full);
        if (full)
            hand_on(j, k);
    }
    return true;
}

/* At the end of the input: ends the shards that are open. */
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

/* At the start of a document: checks that shards of an earlier run which end in it were made of
 * this input. (No shard is added before all of those have been checked.) */
static int follow_input(struct job *j, const struct unit_doc *d)
{
    const struct shard_folder *f = &j->folder;

    j->input = input_hash(j->input, d->hash);
    for (; j->agreed < f->kept; j->agreed++) {
        const struct manifest_shard *s = &f->manifest.shard[j->agreed];

        if (s->to.document - !s->to.token != d->number)
            break;
        if (s->input != j->input)
            return err_set(GPT_INPUT,
                           "%s: made of another input: of this the first %lld documents "
                           "have the hash %016llx, expected %016llx",
                           s->name, (long long)d->number + 1, (unsigned long long)j->input,
                           (unsigned long long)s->input);
    }
    return 0;
}

/* Cuts the rest of a unit into frames; *done is false if no frame was free before its end. */
static int cut_unit(struct job *j, const struct unit *u, bool counts, bool *done)
{
    struct part *p = &j->cut_part;
    int rc;

    *done = false;
    if (!u) {
        *done = end_shards(j);
        return 0;
    }
    for (; j->cut_doc < u->docs; j->cut_doc++) {
        const struct unit_doc *d = &u->doc[j->cut_doc];

        if (!j->cut_begun) {
            if (d->begins && (rc = follow_input(j, d)))
                return rc;
            *p = (struct part){ .token = u->token + d->token,
                                .n = d->tokens,
                                .ends = d->ends,
                                .invalid = d->invalid,
                                .input = j->input,
                                .at = { d->number, d->begins ? 0 : p->at.token } };
            j->cut_begun = true;
            if (counts && !d->skipped && (rc = count_part(j, u, d)))
                return rc;
            if (!counts)
                atomic_fetch_add(&j->put_tokens, (long long)d->tokens);
        }
        if (!cut_part(j, d))
            return 0;
        j->cut_begun = false;
    }
    j->cut_doc = 0;
    *done = true;
    return 0;
}

static int cut_counting(void *ctx, const struct unit *u, bool *done)
{
    return cut_unit(ctx, u, true, done);
}

static int cut_counted(void *ctx, const struct unit *u, bool *done)
{
    return cut_unit(ctx, u, false, done);
}

/* The first of two passes: documents to the spool, under a key that is random
 * but for the seed, or in their order. */
static int cut_to_spool(void *ctx, const struct unit *u, bool *done)
{
    struct job *j = ctx;
    struct rng r = rng_make(j->c->seed, 0);
    int rc = 0;

    *done = true;
    for (int i = 0; u && i < u->docs && !rc; i++) {
        const struct unit_doc *d = &u->doc[i];
        uint32_t x[4] = { 0 };

        if (j->c->shuffle)
            rng_block(&r, (uint64_t)d->number, x);
        if (!(rc = count_part(j, u, d)))
            rc = spool_put(j->spool, (uint64_t)x[0] << 32 | x[1], d, u->token + d->token);
    }
    return rc;
}

/* --- packing and writing --- */

static int pack(void *ctx, int worker, struct out_frame *f)
{
    struct job *j = ctx;

    return f->n ? shard_pack(j->z[worker], j->c->level, f->plain, f->n, f->raw, &f->raw_n) : 0;
}

/* For a repair by a MANIFEST: whether the frame's shard is to be made again, and the hash that
 * it must have. */
static void look_up_damaged(struct job *j, const struct out_frame *f, bool *wanted, char hash[33])
{
    char name[256];
    int i;

    *wanted = true;
    hash[0] = 0;
    if (!j->folder.damaged)
        return;
    shard_name(name, sizeof name, j->c->prefix, f->split, f->index, j->c->level);
    i = shard_folder_find(&j->folder, name);
    *wanted = i >= 0 && j->folder.damaged[i];
    if (*wanted)
        memcpy(hash, j->folder.manifest.shard[i].hash, 33);
}

/* For a repair without one: a shard that exists must be equal to the one made. */
static int finish_as_found(struct job *j, struct shard_writer *w, struct manifest_shard *line)
{
    char *path = path_join(w->dir, w->name);
    bool found = path && !access(path, F_OK);
    int rc = path ? 0 : err_memory();

    if (found && (rc = shard_hash(path, line->hash)) == GPT_INPUT)
        rc = err_set(rc, "%s; once it is removed, --repair makes it again", err_message());
    if (!rc && (rc = shard_writer_finish(w, line->tokens, line)) == GPT_INPUT && found)
        rc = err_set(rc,
                     "%s: expected what this input and these options make, found other "
                     "tokens; if it is damaged and not of another job, remove it, and --repair "
                     "makes it again",
                     path);
    j->result->repaired += !rc && !found;
    free(path);
    return rc;
}

static int write_frame(void *ctx, struct out_frame *f)
{
    struct job *j = ctx;
    struct shard_writer *w = &j->writer[f->split];
    bool wanted;
    int rc;

    if (!j->c->out) {
        f->line.name = (char *)"";
        return f->last ? shard_folder_add(&j->folder, &f->line) : 0;
    }
    look_up_damaged(j, f, &wanted, f->line.hash);
    if (!wanted)
        return 0;
    if (f->first && !strcmp(j->c->out, "-") && j->c->shard_tokens == INT32_MAX &&
        j->folder.manifest.n)
        return err_set(GPT_INPUT,
                       "expected at most %lld tokens for one shard on standard output, "
                       "found more: --shard-tokens N writes several",
                       (long long)j->c->shard_tokens);
    if (f->first && (rc = shard_writer_open(w, f->split, f->index)))
        return rc;
    if (f->n && (rc = shard_writer_put(w, f->plain, f->n, f->raw, f->raw_n)))
        return rc;
    if (!f->last)
        return 0;
    if ((rc = j->folder.remaking ? finish_as_found(j, w, &f->line)
                                 : shard_writer_finish(w, f->line.tokens, &f->line)))
        return rc;
    if (j->folder.damaged) {
        j->result->repaired++;
        return 0;
    }
    return shard_folder_add(&j->folder, &f->line);
}

static void report(void *ctx)
{
    struct job *j = ctx;
    double now = now_seconds();
    struct tokjob_progress p = {
        .read_bytes = atomic_load(&j->read_bytes),
        .total_bytes = source_total_bytes(j->source),
        .text_bytes = atomic_load(&j->seen_text),
        .tokens = atomic_load(&j->seen_tokens),
        .put_tokens = atomic_load(&j->put_tokens),
        .seconds = now - j->start,
        .pass_seconds = now - j->pass_start,
    };

    if (j->c->progress)
        j->c->progress(j->c->ctx, &p);
}

static const struct stages stages_direct = { read_source, encode,      cut_counting,
                                             pack,        write_frame, report };
static const struct stages stages_to_spool = { read_source, encode,      cut_to_spool,
                                               pack,        write_frame, report };
static const struct stages stages_from_spool = { read_spool, encode,      cut_counted,
                                                 pack,       write_frame, report };

/* --- passes --- */

static int run_pass(struct job *j, const struct stages *s)
{
    struct stages stages = *s;

    if (!j->c->level)
        stages.pack = NULL;
    j->pass_start = now_seconds();
    return pipeline_run(j->pipeline, &stages, j);
}

/* Documents before the first shard to be written need no encoding. With two passes that is not
 * known in time. */
static int one_pass(struct job *j)
{
    for (int s = 0; s < 2; s++)
        j->encode.wanted_from[s] = j->cutter[s].skip.document;
    if (j->c->val_first_tokens)
        j->encode.wanted_from[SPLIT_TRAIN] = j->encode.wanted_from[SPLIT_VAL] =
            j->cutter[SPLIT_VAL].skip.document < j->cutter[SPLIT_TRAIN].skip.document
                ? j->cutter[SPLIT_VAL].skip.document
                : j->cutter[SPLIT_TRAIN].skip.document;
    return run_pass(j, &stages_direct);
}

static int two_passes(struct job *j)
{
    bool folder = j->c->out && strcmp(j->c->out, "-");
    size_t bucket = (j->c->memory ? j->c->memory >> 20 : 1024) > 512 ? 256u << 20 : 64u << 20;
    int rc;

    if ((rc = spool_new(&j->spool, folder ? j->c->out : temporary_dir(), j->c->shuffle, bucket)))
        return rc;
    j->pick.want = j->c->val_tokens;
    if ((rc = run_pass(j, &stages_to_spool)) || (rc = spool_rewind(j->spool)))
        return rc;
    if (j->pick.want && (rc = val_pick_below(&j->pick, &j->encode.val_below)))
        return rc;
    return run_pass(j, &stages_from_spool);
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

/* Checks that the input did not end before the shards of an earlier run do. */
static int check_input_end(const struct job *j)
{
    const struct manifest *m = &j->folder.manifest;

    for (int i = 0, left = j->result->repaired; j->folder.damaged && i < m->n; i++)
        if (j->folder.damaged[i] && left-- <= 0)
            return err_set(GPT_INPUT, "%s: expected to make it again, but the input ended before",
                           m->shard[i].name);
    if (j->agreed < j->folder.kept)
        return err_set(GPT_INPUT, "%s: made of another input: this ended before its last document",
                       m->shard[j->agreed].name);
    return 0;
}

static int finish(struct job *j)
{
    const struct manifest *m = &j->folder.manifest;
    struct tokjob_result *r = j->result;
    int rc;

    if (!m->n)
        return err_set(GPT_INPUT, "%s: expected a document, found none", j->c->source.path[0]);
    if (!j->folder.complete && (rc = check_input_end(j)))
        return rc;
    if (!j->folder.damaged && !j->folder.complete && (rc = shard_folder_finish(&j->folder)))
        return rc;
    r->documents = m->documents;
    r->tokens = m->tokens;
    r->invalid = m->invalid;
    r->shards = m->n;
    r->kept = j->folder.kept;
    r->remade = j->folder.remaking;
    r->seconds = now_seconds() - j->start;
    return 0;
}

static bool nothing_to_do(const struct job *j)
{
    for (int i = 0; j->folder.damaged && i < j->folder.manifest.n; i++)
        if (j->folder.damaged[i])
            return false;
    return j->folder.damaged || j->folder.complete;
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
    j->encode = c->encode;
    j->result = r;
    j->start = now_seconds();
    if ((rc = fit_memory(j, spool)) || (rc = allocate(j)) ||
        (rc = source_open(&j->source, &c->source)) || (rc = shard_folder_open(&j->folder, c)))
        goto out;
    place_cutters(j);
    if (!nothing_to_do(j))
        rc = spool ? two_passes(j) : one_pass(j);
    if (!rc)
        rc = finish(j);
out:
    release(j);
    return rc;
}
