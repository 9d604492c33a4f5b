/* tokjob.c - the pipeline of a job; tokjob.h says how it works. */
#include "data/tokjob.h"

#include <stdlib.h>
#include <string.h>

#include "base/progress.h"
#include "data/tokjob_impl.h"

enum unit_state { UNIT_FREE, UNIT_BUSY, UNIT_ENCODED };
enum frame_state { FRAME_FULL, FRAME_PACKING, FRAME_PACKED };
enum task { TASK_NONE, TASK_WRITE, TASK_PACK, TASK_CUT, TASK_READ, TASK_DONE };

#define MAX_THREADS 256
#define MAX_UNITS (2 * MAX_THREADS + 2)
#define MAX_FRAMES (MAX_THREADS + 6)

struct queued { struct out_frame *frame; enum frame_state state; };

struct job {
    const struct tokjob_config *c;
    struct source *source;
    struct encoder *run_encoder;         /* of who reads, for units that are runs */
    struct shard_folder folder;
    struct shard_writer writer[2];
    struct cutter cutter[2];
    int64_t val_left;                    /* val_first: tokens that validation still wants */

    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct unit unit[MAX_UNITS];         /* unit i of the input is in slot i % units */
    enum unit_state unit_state[MAX_UNITS];
    int units;
    int64_t next_read, next_cut;
    bool reading, cutting, writing, input_end, flushed;
    int cut_doc;                         /* document of the unit being cut, */
    bool cut_begun;                      /* and what is left of it: */
    struct part cut_part;
    int64_t document_tokens;             /* of the present document so far, for the histogram */
    struct out_frame *spare[MAX_FRAMES];
    int spares;
    struct queued queue[MAX_FRAMES];     /* ring, in the order of the files */
    int64_t next_write, queued;
    int frames;
    struct out_frame *frame_memory;

    struct tokjob_result *result;        /* its counters belong to the cutting role */
    struct tokjob_progress seen;         /* what is published of them */
    double start;
    int code;
    char message[1024];
};

/* A thread of the job, and what it alone uses. */
struct worker {
    struct job *j;
    struct encoder *encoder;
    ZSTD_CCtx *z;
    pthread_t thread;
    bool main;
};

/* --- cutting --- */

static struct out_frame *spare_frame(struct job *j)
{
    struct out_frame *f = NULL;

    pthread_mutex_lock(&j->lock);
    if (j->spares)
        f = j->spare[--j->spares];
    pthread_mutex_unlock(&j->lock);
    if (f) {
        f->first = f->last = false;
        f->n = f->raw_n = 0;
    }
    return f;
}

static void hand_on(struct job *j, struct cutter *k)
{
    struct out_frame *f = cutter_take(k);

    if (f->last && k->split == SPLIT_VAL && j->c->val_first_tokens) {
        j->val_left -= f->line.tokens;
        if (j->val_left < k->shard_tokens)
            k->shard_tokens = j->val_left;
    }
    pthread_mutex_lock(&j->lock);
    j->queue[j->queued % j->frames].frame = f;
    j->queue[j->queued++ % j->frames].state = j->c->level ? FRAME_FULL : FRAME_PACKED;
    pthread_cond_broadcast(&j->changed);
    pthread_mutex_unlock(&j->lock);
}

static struct cutter *choose(struct job *j, const struct unit_doc *d)
{
    if (j->c->val_first_tokens)
        return &j->cutter[j->val_left ? SPLIT_VAL : SPLIT_TRAIN];
    return &j->cutter[document_split(&j->c->encode, d->hash)];
}

/* Appends the present part; false if frames ran out. */
static bool cut_part(struct job *j, const struct unit_doc *d)
{
    struct part *p = &j->cut_part;

    while (p->n) {
        struct cutter *k = choose(j, d);
        bool full;

        if (!k->frame && !(k->frame = spare_frame(j)))
            return false;
        cutter_put(k, p, &full);
        if (full)
            hand_on(j, k);
    }
    return true;
}

static int count_document(struct job *j, const struct unit *u, const struct unit_doc *d)
{
    struct token_stats *s = j->c->stats;

    j->result->text_bytes += (int64_t)d->bytes;
    j->result->encoded_tokens += (int64_t)d->tokens;
    j->document_tokens = (d->begins ? 0 : j->document_tokens) + (int64_t)d->tokens;
    if (s) {
        s->text_bytes += (int64_t)d->bytes;
        token_stats_add(s, u->token + d->token, d->tokens);
        if (d->ends)
            token_stats_document(s, j->document_tokens);
    }
    return j->c->pick && d->ends ? val_pick_add(j->c->pick, d->hash, j->document_tokens) : 0;
}

/* Cuts what is left of a unit; *done is false if frames ran out before its end. */
static int cut_unit(struct job *j, const struct unit *u, bool *done)
{
    struct part *p = &j->cut_part;
    int rc;

    *done = false;
    for (; j->cut_doc < u->docs; j->cut_doc++) {
        const struct unit_doc *d = &u->doc[j->cut_doc];

        if (!j->cut_begun) {
            *p = (struct part){ .token = u->token + d->token, .n = d->tokens, .ends = d->ends,
                                .invalid = d->invalid,
                                .at = { d->number, d->begins ? 0 : p->at.token } };
            j->cut_begun = true;
            if (!d->skipped && (rc = count_document(j, u, d)))
                return rc;
        }
        if (!cut_part(j, d))
            return 0;
        j->cut_begun = false;
    }
    j->cut_doc = 0;
    *done = true;
    return 0;
}

/* At the end of the input: ends the shards that are open. */
static bool end_shards(struct job *j)
{
    for (int s = 0; s < 2; s++) {
        struct cutter *k = &j->cutter[s];

        if (!k->open)
            continue;
        if (!k->frame && !(k->frame = spare_frame(j)))
            return false;
        k->frame->last = true;
        hand_on(j, k);
    }
    return true;
}

/* --- packing and writing --- */

static int pack(struct worker *w, struct out_frame *f)
{
    size_t room = ZSTD_compressBound(FRAME_BYTES);

    if (!f->n)
        return 0;
    return shard_pack(w->z, w->j->c->level, f->plain, f->n, f->raw, room, &f->raw_n);
}

static int write_frame(struct job *j, struct out_frame *f)
{
    struct shard_writer *w = &j->writer[f->split];
    int rc;

    if (!j->c->out) {
        f->line.name = (char *)"";
        return f->last ? folder_add(&j->folder, &f->line) : 0;
    }
    if (f->first && !strcmp(j->c->out, "-") && j->folder.manifest.n)
        return err_set(GPT_INPUT, "expected at most %lld tokens for one shard on standard output, "
                       "found more", (long long)j->c->shard_tokens);
    if (f->first && (rc = shard_writer_open(w, f->split, f->index)))
        return rc;
    if (f->n && (rc = shard_writer_put(w, f->plain, f->n, f->raw, f->raw_n)))
        return rc;
    if (!f->last)
        return 0;
    if ((rc = shard_writer_finish(w, f->line.tokens, &f->line)))
        return rc;
    return folder_add(&j->folder, &f->line);
}

/* --- taking turns --- */

static enum task next_task(const struct job *j)
{
    bool queue = j->next_write < j->queued;

    if (queue && !j->writing && j->queue[j->next_write % j->frames].state == FRAME_PACKED)
        return TASK_WRITE;
    for (int64_t i = j->next_write; i < j->queued; i++)
        if (j->queue[i % j->frames].state == FRAME_FULL)
            return TASK_PACK;
    if (!j->cutting && j->spares) {
        if (j->next_cut < j->next_read && j->unit_state[j->next_cut % j->units] == UNIT_ENCODED)
            return TASK_CUT;
        if (j->input_end && j->next_cut == j->next_read && !j->flushed)
            return TASK_CUT;
    }
    if (!j->reading && !j->input_end && j->next_read - j->next_cut < j->units)
        return TASK_READ;
    return j->flushed && !queue ? TASK_DONE : TASK_NONE;
}

/* Each of these is called with the lock and gives it back while it works. */

static int do_write(struct job *j)
{
    struct out_frame *f = j->queue[j->next_write % j->frames].frame;
    int rc;

    j->writing = true;
    pthread_mutex_unlock(&j->lock);
    rc = write_frame(j, f);
    pthread_mutex_lock(&j->lock);
    j->writing = false;
    j->next_write++;
    j->spare[j->spares++] = f;
    return rc;
}

static int do_pack(struct worker *w)
{
    struct job *j = w->j;
    struct queued *q;
    int64_t i = j->next_write;
    int rc;

    while (j->queue[i % j->frames].state != FRAME_FULL)
        i++;
    q = &j->queue[i % j->frames];
    q->state = FRAME_PACKING;
    pthread_mutex_unlock(&j->lock);
    rc = pack(w, q->frame);
    pthread_mutex_lock(&j->lock);
    q->state = FRAME_PACKED;
    return rc;
}

static int do_cut(struct job *j)
{
    bool flush = j->next_cut == j->next_read, done;
    int slot = (int)(j->next_cut % j->units), rc = 0;

    j->cutting = true;
    pthread_mutex_unlock(&j->lock);
    if (flush)
        done = end_shards(j);
    else
        rc = cut_unit(j, &j->unit[slot], &done);
    pthread_mutex_lock(&j->lock);
    j->cutting = false;
    j->seen.text_bytes = j->result->text_bytes;
    j->seen.tokens = j->result->encoded_tokens;
    if (done && flush)
        j->flushed = true;
    if (done && !flush) {
        j->unit_state[slot] = UNIT_FREE;
        j->next_cut++;
    }
    return rc;
}

static int do_read(struct worker *w)
{
    struct job *j = w->j;
    int slot = (int)(j->next_read % j->units), rc;
    struct unit *u = &j->unit[slot];
    uint64_t read;

    j->reading = true;
    pthread_mutex_unlock(&j->lock);
    rc = source_next(j->source, u);
    read = source_read_bytes(j->source);
    if (!rc && !u->end && u->run)        /* encoded while nobody else reads: in order */
        rc = encode_unit(j->run_encoder, u);
    pthread_mutex_lock(&j->lock);
    j->seen.read_bytes = read;
    j->reading = false;
    if (rc)
        return rc;
    if (u->end) {
        j->input_end = true;
        return 0;
    }
    j->unit_state[slot] = u->run ? UNIT_ENCODED : UNIT_BUSY;
    j->next_read++;
    if (u->run)
        return 0;
    pthread_cond_broadcast(&j->changed);
    pthread_mutex_unlock(&j->lock);
    rc = encode_unit(w->encoder, u);
    pthread_mutex_lock(&j->lock);
    j->unit_state[slot] = UNIT_ENCODED;
    return rc;
}

static void report(struct worker *w)
{
    struct job *j = w->j;

    if (!w->main || !j->c->progress)
        return;
    j->seen.seconds = now_seconds() - j->start;
    j->c->progress(j->c->ctx, &j->seen);
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct job *j = w->j;

    pthread_mutex_lock(&j->lock);
    while (!j->code) {
        enum task t = next_task(j);
        int rc = 0;

        if (t == TASK_DONE)
            break;
        if (t == TASK_NONE) {
            pthread_cond_wait(&j->changed, &j->lock);
            continue;
        }
        rc = t == TASK_WRITE ? do_write(j) : t == TASK_PACK ? do_pack(w)
           : t == TASK_CUT ? do_cut(j) : do_read(w);
        if (rc && !j->code) {
            j->code = rc;
            snprintf(j->message, sizeof j->message, "%s", err_message());
        }
        report(w);
        pthread_cond_broadcast(&j->changed);
    }
    pthread_cond_broadcast(&j->changed);
    pthread_mutex_unlock(&j->lock);
    return NULL;
}

/* --- a job --- */

static int no_memory(void)
{
    return err_set(GPT_SYSTEM, "out of memory for the job");
}

static int allocate(struct job *j)
{
    j->units = 2 * j->c->threads + 2;
    j->frames = j->c->threads + 6;
    if (!(j->frame_memory = calloc((size_t)j->frames, sizeof *j->frame_memory)))
        return no_memory();
    for (int i = 0; i < j->frames; i++) {
        struct out_frame *f = &j->frame_memory[i];

        if (!(f->plain = malloc(FRAME_BYTES))
            || (j->c->level && !(f->raw = malloc(ZSTD_compressBound(FRAME_BYTES)))))
            return no_memory();
        j->spare[j->spares++] = f;
    }
    return 0;
}

/* Each split goes on behind its last shard that is whole. */
static void place_cutters(struct job *j, struct encode_config *e)
{
    const struct tokjob_config *c = j->c;
    const struct manifest *m = &j->folder.manifest;
    struct position last = { 0, 0 };

    j->val_left = c->val_first_tokens;
    for (int s = 0; s < 2; s++) {
        /* As the records have it: validation is shard 0, training begins with 1. */
        j->cutter[s] = (struct cutter){ .split = (enum split)s, .shard_tokens = c->shard_tokens,
                                        .index = s == SPLIT_TRAIN };
        j->writer[s] = (struct shard_writer){ .dir = c->out, .prefix = c->prefix, .level = c->level,
                                              .shard_tokens = c->shard_tokens };
    }
    for (int i = 0; i < m->n; i++) {
        const struct manifest_shard *s = &m->shard[i];

        j->cutter[s->split].index++;
        j->cutter[s->split].skip = last = s->to;
        if (s->split == SPLIT_VAL)
            j->val_left -= s->tokens;
    }
    if (c->val_first_tokens) {
        /* One stream: both go on where the last shard of either ended. */
        j->cutter[SPLIT_VAL].skip = j->cutter[SPLIT_TRAIN].skip = last;
        if (j->val_left < c->shard_tokens)
            j->cutter[SPLIT_VAL].shard_tokens = j->val_left;
    }
    for (int s = 0; s < 2; s++)
        e->wanted_from[s] = j->cutter[s].skip.document;
}

static int run_workers(struct job *j, const struct encode_config *e)
{
    struct worker *w = calloc((size_t)j->c->threads, sizeof *w);
    int rc = 0, started = 1;

    if (!w)
        return no_memory();
    rc = encoder_new(&j->run_encoder, e);
    for (int i = 0; i < j->c->threads && !rc; i++) {
        w[i].j = j;
        w[i].main = i == 0;
        if (!(w[i].z = ZSTD_createCCtx()))
            rc = no_memory();
        else
            rc = encoder_new(&w[i].encoder, e);
    }
    for (; !rc && started < j->c->threads; started++)
        if (pthread_create(&w[started].thread, NULL, worker_main, &w[started]))
            break;               /* fewer threads do the same */
    if (!rc)
        worker_main(&w[0]);
    for (int i = 1; i < started; i++)
        pthread_join(w[i].thread, NULL);
    for (int i = 0; i < j->c->threads; i++) {
        encoder_free(w[i].encoder);
        ZSTD_freeCCtx(w[i].z);
    }
    encoder_free(j->run_encoder);
    free(w);
    return rc ? rc : j->code ? err_set(j->code, "%s", j->message) : 0;
}

static void release(struct job *j)
{
    for (int s = 0; s < 2; s++)
        shard_writer_abort(&j->writer[s]);
    for (int i = 0; i < j->frames && j->frame_memory; i++) {
        free(j->frame_memory[i].plain);
        free(j->frame_memory[i].raw);
    }
    for (int i = 0; i < j->units; i++)
        unit_release(&j->unit[i]);
    free(j->frame_memory);
    source_close(j->source);
    folder_release(&j->folder);
    pthread_mutex_destroy(&j->lock);
    pthread_cond_destroy(&j->changed);
    free(j);
}

int tokjob_run(const struct tokjob_config *c, struct tokjob_result *r)
{
    struct encode_config e = c->encode;
    struct job *j = calloc(1, sizeof *j);
    int rc;

    memset(r, 0, sizeof *r);
    if (!j)
        return no_memory();
    j->c = c;
    j->result = r;
    j->start = now_seconds();
    pthread_mutex_init(&j->lock, NULL);
    pthread_cond_init(&j->changed, NULL);
    if ((rc = allocate(j)) || (rc = source_open(&j->source, &c->source))
        || (rc = folder_open(&j->folder, c)))
        goto out;
    j->seen.total_bytes = source_total_bytes(j->source);
    place_cutters(j, &e);
    if ((rc = run_workers(j, &e)))
        goto out;
    if (!j->folder.manifest.n)
        rc = err_set(GPT_INPUT, "%s: expected a document, found none", c->source.path[0]);
    else
        rc = folder_finish(&j->folder);
    r->documents = j->folder.manifest.documents;
    r->tokens = j->folder.manifest.tokens;
    r->invalid = j->folder.manifest.invalid;
    r->shards = j->folder.manifest.n;
    r->kept = j->folder.kept;
    r->seconds = now_seconds() - j->start;
out:
    release(j);
    return rc;
}
