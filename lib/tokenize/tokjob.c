/* tokjob.c - a job: its memory, where it begins, its one or two passes. */
#include "tokenize/tokjob.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/progress.h"
#include "tokenize/tokjob_impl.h"

/* --- memory --- */

/* What is taken at most, in MiB, on 64-bit machines. A unit of input may hold a
 * line of 2 MiB, its text and three times as much in tokens, each grown by
 * halves; a thread has a cache of words, a frame, a repaired document and the
 * compressor. */
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

/* Repair: each split begins with its first damaged shard and stops behind its
 * last. Where validation comes first the two are one stream, which validation
 * must not leave before its end. */
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

/* Else each split goes on behind its last shard that is whole. */
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
    if (j->c->val_first_tokens) /* one stream: both where the last shard ended */
        j->cutter[SPLIT_VAL].skip = j->cutter[SPLIT_TRAIN].skip = last;
}

static void place_cutters(struct job *j)
{
    const struct tokjob_config *c = j->c;

    j->val_left = c->val_first_tokens;
    for (int s = 0; s < 2; s++) {
        /* As the records have it: validation is shard 0, training begins with 1. */
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

/* --- passes --- */

static int run_pass(struct job *j, const struct stages *s)
{
    struct stages plain = stages_plain(s);

    j->pass_start = now_seconds();
    return pipeline_run(j->pipeline, j->c->level ? s : &plain, j);
}

/* What documents must be encoded is known only if they are written as they come. */
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
    folder_release(&j->folder);
    free(j);
}

/* Whether the input had what the shards of an earlier run are of. */
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
    if (!j->folder.damaged && !j->folder.complete && (rc = folder_finish(&j->folder)))
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
        (rc = source_open(&j->source, &c->source)) || (rc = folder_open(&j->folder, c)))
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
