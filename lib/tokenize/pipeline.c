/* pipeline.c - see pipeline.h. */
#include "tokenize/pipeline.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "data/shard_write.h"

enum unit_state { UNIT_FREE, UNIT_BUSY, UNIT_ENCODED };
enum frame_state { FRAME_FULL, FRAME_PACKING, FRAME_PACKED };
enum task { TASK_NONE, TASK_WRITE, TASK_PACK, TASK_CUT, TASK_READ, TASK_DONE };

#define MAX_UNITS (2 * MAX_THREADS + 2)
#define MAX_FRAMES (MAX_THREADS + 6)

struct pipeline {
    int threads;
    const struct stages *s;
    void *ctx;
    pthread_mutex_t lock;
    pthread_cond_t changed;

    struct unit unit[MAX_UNITS]; /* unit i of the input is in slot i % units */
    enum unit_state unit_state[MAX_UNITS];
    int units;
    int64_t next_read, next_cut;
    bool reading, cutting, writing, input_end, flushed;

    struct out_frame frame[MAX_FRAMES], *spare[MAX_FRAMES];
    int frames, spares;
    struct queued {
        struct out_frame *frame;
        enum frame_state state;
    } queue[MAX_FRAMES];
    int64_t next_write, queued; /* queue is a ring, in the order of the files */

    int code; /* of a failure, and its message */
    char message[1024];
    int64_t bad_unit; /* that it was of, not to be cut; else INT64_MAX */
};

struct worker {
    struct pipeline *p;
    int number;
    pthread_t thread;
};

int pipeline_new(struct pipeline **out, int threads, int units, bool packs)
{
    struct pipeline *p = calloc(1, sizeof *p);

    *out = p;
    if (!p)
        return err_memory();
    p->threads = threads < MAX_THREADS ? threads : MAX_THREADS;
    p->units = units < MAX_UNITS ? units : MAX_UNITS;
    p->frames = p->threads + 6;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->changed, NULL);
    for (int i = 0; i < p->frames; i++) {
        struct out_frame *f = &p->frame[i];

        f->plain = malloc(FRAME_BYTES);
        f->raw = packs ? malloc(shard_pack_room()) : NULL;
        if (!f->plain || (packs && !f->raw)) {
            pipeline_free(p);
            *out = NULL;
            return err_memory();
        }
    }
    return 0;
}

void pipeline_free(struct pipeline *p)
{
    if (!p)
        return;
    for (int i = 0; i < p->frames; i++) {
        free(p->frame[i].plain);
        free(p->frame[i].raw);
    }
    for (int i = 0; i < p->units; i++)
        unit_release(&p->unit[i]);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->changed);
    free(p);
}

/* --- frames, from the cutting stage --- */

struct out_frame *pipeline_spare(struct pipeline *p)
{
    struct out_frame *f = NULL;

    pthread_mutex_lock(&p->lock);
    if (p->spares)
        f = p->spare[--p->spares];
    pthread_mutex_unlock(&p->lock);
    if (f) {
        f->first = f->last = false;
        f->n = f->raw_n = 0;
    }
    return f;
}

void pipeline_put(struct pipeline *p, struct out_frame *f)
{
    struct queued *q;

    pthread_mutex_lock(&p->lock);
    q = &p->queue[p->queued++ % p->frames];
    q->frame = f;
    q->state = p->s->pack ? FRAME_FULL : FRAME_PACKED;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

/* --- taking turns --- */

static enum task next_task(const struct pipeline *p)
{
    bool queue = p->next_write < p->queued;

    if (queue && !p->writing && p->queue[p->next_write % p->frames].state == FRAME_PACKED)
        return TASK_WRITE;
    for (int64_t i = p->next_write; i < p->queued; i++)
        if (p->queue[i % p->frames].state == FRAME_FULL)
            return TASK_PACK;
    if (!p->cutting && p->spares && p->next_cut < p->bad_unit) {
        if (p->next_cut < p->next_read && p->unit_state[p->next_cut % p->units] == UNIT_ENCODED)
            return TASK_CUT;
        if (p->input_end && p->next_cut == p->next_read && !p->flushed)
            return TASK_CUT;
    }
    if (!p->reading && !p->input_end && p->next_read - p->next_cut < p->units)
        return TASK_READ;
    return (p->flushed || p->next_cut == p->bad_unit) && !queue ? TASK_DONE : TASK_NONE;
}

/* Records a failure, with the lock held: of a unit, if no earlier unit failed, or of packing or
 * writing a frame (-1), which stops the run at once. */
static void fail(struct pipeline *p, int rc, int64_t unit)
{
    if (unit >= p->bad_unit)
        return;
    p->bad_unit = unit;
    p->input_end = true;
    p->code = rc;
    snprintf(p->message, sizeof p->message, "%s", err_message());
}

/* Each of these is called with the lock held, and releases it while it works. */

static int do_write(struct pipeline *p)
{
    struct out_frame *f = p->queue[p->next_write % p->frames].frame;
    int rc;

    p->writing = true;
    pthread_mutex_unlock(&p->lock);
    rc = p->s->write(p->ctx, f);
    pthread_mutex_lock(&p->lock);
    p->writing = false;
    p->next_write++;
    p->spare[p->spares++] = f;
    return rc;
}

static int do_pack(struct worker *w)
{
    struct pipeline *p = w->p;
    struct queued *q;
    int64_t i = p->next_write;
    int rc;

    while (p->queue[i % p->frames].state != FRAME_FULL)
        i++;
    q = &p->queue[i % p->frames];
    q->state = FRAME_PACKING;
    pthread_mutex_unlock(&p->lock);
    rc = p->s->pack(p->ctx, w->number, q->frame);
    pthread_mutex_lock(&p->lock);
    q->state = FRAME_PACKED;
    return rc;
}

static int do_cut(struct pipeline *p)
{
    bool end = p->next_cut == p->next_read, done;
    int slot = (int)(p->next_cut % p->units), rc;

    p->cutting = true;
    pthread_mutex_unlock(&p->lock);
    rc = p->s->cut(p->ctx, end ? NULL : &p->unit[slot], &done);
    pthread_mutex_lock(&p->lock);
    p->cutting = false;
    if (!rc && done && end)
        p->flushed = true;
    if (!rc && done && !end) {
        p->unit_state[slot] = UNIT_FREE;
        p->next_cut++;
    }
    return rc;
}

static void do_read(struct worker *w)
{
    struct pipeline *p = w->p;
    int64_t number = p->next_read;
    int slot = (int)(number % p->units), rc;
    struct unit *u = &p->unit[slot];
    bool encoded = false;

    p->reading = true;
    pthread_mutex_unlock(&p->lock);
    rc = p->s->read(p->ctx, u, &encoded);
    pthread_mutex_lock(&p->lock);
    p->reading = false;
    if (rc)
        fail(p, rc, number);
    p->input_end |= u->end;
    if (rc || u->end)
        return;
    p->unit_state[slot] = encoded ? UNIT_ENCODED : UNIT_BUSY;
    p->next_read++;
    if (encoded)
        return;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    rc = p->s->encode(p->ctx, w->number, u);
    pthread_mutex_lock(&p->lock);
    if (rc)
        fail(p, rc, number);
    p->unit_state[slot] = UNIT_ENCODED;
}

static void do_task(struct worker *w, enum task t)
{
    int rc = 0;

    if (t == TASK_READ)
        do_read(w);
    else
        rc = t == TASK_WRITE ? do_write(w->p) : t == TASK_PACK ? do_pack(w) : do_cut(w->p);
    if (rc)
        fail(w->p, rc, -1);
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct pipeline *p = w->p;

    pthread_mutex_lock(&p->lock);
    while (p->bad_unit >= 0) {
        enum task t = next_task(p);

        if (t == TASK_DONE)
            break;
        if (t == TASK_NONE) {
            pthread_cond_wait(&p->changed, &p->lock);
            continue;
        }
        do_task(w, t);
        if (w->number == 0 && p->s->report) {
            pthread_mutex_unlock(&p->lock);
            p->s->report(p->ctx);
            pthread_mutex_lock(&p->lock);
        }
        pthread_cond_broadcast(&p->changed);
    }
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

int pipeline_run(struct pipeline *p, const struct stages *s, void *ctx)
{
    struct worker w[MAX_THREADS];
    int started = 1;

    p->s = s;
    p->ctx = ctx;
    p->next_read = p->next_cut = p->next_write = p->queued = 0;
    p->input_end = p->flushed = false;
    p->code = 0;
    p->bad_unit = INT64_MAX;
    memset(p->unit_state, 0, sizeof p->unit_state);
    for (p->spares = 0; p->spares < p->frames; p->spares++)
        p->spare[p->spares] = &p->frame[p->spares];
    for (int i = 0; i < p->threads; i++)
        w[i] = (struct worker){ .p = p, .number = i };
    for (; started < p->threads; started++)
        if (pthread_create(&w[started].thread, NULL, worker_main, &w[started]))
            break; /* fewer threads do the same */
    worker_main(&w[0]);
    for (int i = 1; i < started; i++)
        pthread_join(w[i].thread, NULL);
    return p->code ? err_set(p->code, "%s", p->message) : 0;
}
