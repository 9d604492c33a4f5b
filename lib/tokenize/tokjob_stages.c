/* tokjob_stages.c - what each stage of a pass does. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/progress.h"
#include "tokenize/tokjob_impl.h"

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
    /* Nobody else reads meanwhile, so runs are encoded in their order. */
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

/* --- cutting --- */

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

/* Appends the present part; false if frames ran out. */
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

/* A document begins: shards of an earlier run that end in it must be of this input.
 * (No shard is added before all of those have been passed.) */
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

/* Cuts what is left of a unit; *done is false if frames ran out before its end. */
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

/* For a repair by a MANIFEST: *wanted, and the hash that is to come out. */
static void look_up_damaged(struct job *j, const struct out_frame *f, bool *wanted, char hash[33])
{
    char name[256];
    int i;

    *wanted = true;
    hash[0] = 0;
    if (!j->folder.damaged)
        return;
    shard_name(name, sizeof name, j->c->prefix, f->split, f->index, j->c->level);
    i = folder_find(&j->folder, name);
    *wanted = i >= 0 && j->folder.damaged[i];
    if (*wanted)
        memcpy(hash, j->folder.manifest.shard[i].hash, 33);
}

/* For a repair without one: a shard that is there must come out as it is. */
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
        return f->last ? folder_add(&j->folder, &f->line) : 0;
    }
    look_up_damaged(j, f, &wanted, f->line.hash);
    if (!wanted)
        return 0;
    if (f->first && !strcmp(j->c->out, "-") && j->folder.manifest.n)
        return err_set(GPT_INPUT,
                       "expected at most %lld tokens for one shard on standard output, "
                       "found more",
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
    return folder_add(&j->folder, &f->line);
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

const struct stages stages_direct = {
    read_source, encode, cut_counting, pack, write_frame, report
};
const struct stages stages_to_spool = {
    read_source, encode, cut_to_spool, pack, write_frame, report
};
const struct stages stages_from_spool = {
    read_spool, encode, cut_counted, pack, write_frame, report
};

struct stages stages_plain(const struct stages *s)
{
    struct stages plain = *s;

    plain.pack = NULL;
    return plain;
}
