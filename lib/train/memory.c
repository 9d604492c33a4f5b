/* memory.c - the memory of a run: taken, counted, and compared with what there is. */
#include <math.h>
#include <stdlib.h>
#include "train/rank.h"

/* What has been allocated since the last call. */
static size_t since(const struct rank *k, size_t *before)
{
    size_t now = k->ops->allocated(k->ops), n = now - *before;
    *before = now;
    return n;
}

int rank_weights(struct rank *k, struct run_memory *m)
{
    const struct recipe *r = k->run->recipe;
    struct ops *o = k->ops;
    size_t before = o->allocated(o);
    int rc;

    if ((rc = banks_init(&k->banks, r, o, k->rank, k->world)))
        return rc;
    size_t copies = (size_t)(head_fp8_bytes(r) + layers_fp8_bytes(r));
    m->weights = since(k, &before) + copies;
    if ((rc = model_init(&k->model, &k->banks, batch_largest(r).tokens,
                         r->data.val.tokens ? (int)r->data.val.chunk : 0)))
        return rc;
    m->activations = since(k, &before) - copies;
    return o->status(o);
}

int rank_states(struct rank *k, struct run_memory *m)
{
    const struct recipe *r = k->run->recipe;
    struct ops *o = k->ops;
    size_t before = o->allocated(o);
    int rc;

    if ((rc = optim_init(&k->optim, r, &k->banks, o, k->comm)))
        return rc;
    m->optimizer = since(k, &before);
    k->slot_bytes = batch_slot_bytes(r, batch_largest(r).tokens, true);
    k->slots = o->alloc(o, 2 * (size_t)k->micros * k->slot_bytes, "batches");
    if (r->data.val.tokens)
        k->val_slot =
            o->alloc(o, batch_slot_bytes(r, r->data.val.chunk, false), "validation batch");
    k->loss = o->alloc(o, LOSSES * sizeof *k->loss, "loss");
    k->model.next = recipe_objective_differs(r);
    k->optim.loss = k->loss;
    k->bad = o->alloc(o, sizeof *k->bad, "flag");
    m->batches = since(k, &before);
    return o->status(o);
}

/* -- counting -------------------------------------------------------------------------- */

/* A batch in the slot, of a device that does not read it. */
static struct batch blank_batch(struct rank *k, char *slot, int64_t tokens, bool csr)
{
    struct chunk_shape shape = batch_chunk(k->run->recipe, (int)tokens, csr);
    struct chunk c;
    chunk_place(&c, slot, &shape);
    return batch_upload(k, slot, &c, false);
}

static int count_step(struct rank *k, struct step_schedule *p)
{
    struct batch b[MAX_MICRO];
    for (int m = 0; m < k->micros; m++)
        b[m] = blank_batch(k, k->slots, p->chunk_tokens, true);
    p->untie = false; /* would move states between ranks, without memory of its own */
    model_set(&k->model, p);
    optim_prepare(&k->optim, p);
    int rc = step_launch(k, p, b);
    optim_finish(&k->optim, p);
    optim_outcome(&k->optim, p, false);
    return rc;
}

/* Steps of each stage, in which other parameters move, with and without the tie, and a validation. */
static int count_ops(struct rank *k)
{
    const struct recipe *r = k->run->recipe;
    bool *seen = calloc((size_t)(MAX_STAGES * k->optim.plans.n), sizeof *seen);
    struct step_schedule p;
    int total = schedule_total(r), rc = seen ? 0 : err_memory();

    for (int s = 0; s < total && !rc; s++) {
        schedule_at(r, s, &p);
        bool *known = &seen[p.stage * k->optim.plans.n + step_plan_of(&k->optim.plans, &p)->queued];
        if (!*known)
            rc = count_step(k, &p);
        *known = true;
    }
    free(seen);
    if (rc || !r->data.val.tokens)
        return rc;
    schedule_at(r, total, &p);
    p.sequence = (int)r->data.val.chunk;
    model_set(&k->model, &p);
    struct batch b = blank_batch(k, k->val_slot, r->data.val.chunk, false);
    model_eval(&k->model, &b, k->loss);
    return k->ops->status(k->ops);
}

static int count_first(struct rank *k)
{
    struct step_schedule p;
    schedule_at(k->run->recipe, 0, &p);
    return count_step(k, &p);
}

/* A rank of the run, alone on a counting device: its memory, or, with k->order, one step. */
static int count_rank(struct rank *k, struct run_memory *m)
{
    const struct recipe *r = k->run->recipe;
    int rc = comm_threads_new(&k->comm, 1);
    if (rc)
        return rc;
    k->comm->rank = k->rank;
    k->comm->world = k->world;
    size_t before = k->ops->allocated(k->ops);
    if (!(rc = rank_weights(k, m)) && !(rc = rank_states(k, m))) {
        size_t parts = k->ops->allocated(k->ops) - before;
        step_plans_free(&k->optim.plans); /* an exchange would wait for other ranks */
        rc = step_plans_make(&k->optim.plans, r, k->world, false);
        rc = rc ? rc : k->order ? count_first(k) : count_ops(k);
        m->ops = k->ops->allocated(k->ops) - parts;
    }
    optim_release(&k->optim);
    k->comm->free(k->comm);
    return rc;
}

static void most_of(struct run_memory *m, const struct run_memory *n)
{
    m->weights = m->weights > n->weights ? m->weights : n->weights;
    m->activations = m->activations > n->activations ? m->activations : n->activations;
    m->optimizer = m->optimizer > n->optimizer ? m->optimizer : n->optimizer;
    m->batches = m->batches > n->batches ? m->batches : n->batches;
    m->ops = m->ops > n->ops ? m->ops : n->ops;
}

static int count_on(const struct recipe *r, const struct backend *be, int rank,
                    struct run_memory *m, struct run_order *order)
{
    struct backend counting = { .name = be->name };
    struct run_options opt = { .backend = &counting, .no_graph = true };
    struct run run = { .opt = &opt, .recipe = r };
    struct rank *k = calloc(1, sizeof *k);
    if (!k)
        return err_memory();
    *k = (struct rank){ .run = &run,
                        .rank = rank,
                        .world = be->world,
                        .micros = rank_micros(r->data.chunks, rank, be->world),
                        .order = order };
    int rc = be->ops_counting(&k->ops, 0, be->group);
    if (!rc) {
        rc = count_rank(k, m);
        k->ops->free(k->ops);
    }
    free(k);
    return rc;
}

/* Ranks may own different numbers of matrices. */
int run_memory(struct run_memory *m, const struct recipe *r, const struct backend *be)
{
    int rc = 0;
    *m = (struct run_memory){ 0 };
    for (int rank = 0; rank < be->world && !rc; rank++) {
        struct run_memory one = { 0 };
        if (!(rc = count_on(r, be, rank, &one, NULL)))
            most_of(m, &one);
    }
    return rc;
}

int run_order(struct run_order *o, const struct recipe *r, const struct backend *be)
{
    struct run_memory m;
    o->n = 0;
    return count_on(r, be, 0, &m, o);
}

/* -- what there is --------------------------------------------------------------------- */

/* What the ranks need and have where a rank's device has least. */
struct balance {
    struct run_memory memory;
    double needed, available;
    int rank; /* the one that has least; -1: all have the same memory */
};

static int balance_of(struct balance *b, const struct recipe *r, const struct backend *be,
                      int ranks)
{
    double left;
    int rc = run_memory(&b->memory, r, be);

    b->needed = run_memory_sum(&b->memory) * (be->one_memory ? ranks : 1);
    b->available = be->memory > 0 ? be->memory : INFINITY;
    b->rank = -1;
    for (int i = 0; i < (be->one_memory ? 1 : ranks) && !rc; i++)
        if (!(rc = be->available(&left, i, be->group)) && left < b->available) {
            b->available = left;
            b->rank = be->one_memory || be->world == 1 ? -1 : be->first + i;
        }
    return rc;
}

/* Whether the recipe runs with these keys, and then what it needs. */
static bool try_keys(const struct recipe *r, const struct backend *be, int ranks,
                     const struct run_fit *fit, struct balance *b)
{
    const char *set[FIT_KEYS];
    struct recipe *changed;

    for (int i = 0; i < fit->n; i++)
        set[i] = fit->set[i];
    if (recipe_parse(&changed, r->name, recipe_canonical(r), set, fit->n))
        return false;
    bool ok = !check_ranks(changed, be->world) && !balance_of(b, changed, be, ranks);
    recipe_free(changed);
    return ok && b->needed <= b->available;
}

/* Fewer rows of logits at a time, which changes nothing but rounding (and nothing on a CPU); else as
 * few more micro-batches as fit. */
static void propose(const struct recipe *r, const struct backend *be, int ranks,
                    struct run_fit *fit, struct balance *b)
{
    enum { MOST_ROWS = 16384, LEAST_ROWS = 2048 };
    int64_t tokens = (int64_t)batch_largest(r).tokens * r->data.chunks;
    for (int chunks = r->data.chunks; chunks <= MAX_MICRO * be->world; chunks *= 2)
        for (int rows = 2 * MOST_ROWS; rows >= LEAST_ROWS; rows /= 2) { /* first: as it is */
            bool block = rows <= MOST_ROWS;
            if (block && (be->one_memory || rows >= tokens / chunks ||
                          (r->precision.head.block && rows >= r->precision.head.block)))
                continue;
            fit->n = 0;
            if (chunks > r->data.chunks)
                snprintf(fit->set[fit->n++], FIT_KEY_SIZE, "data.chunks=%d", chunks);
            if (block)
                snprintf(fit->set[fit->n++], FIT_KEY_SIZE, "precision.head_block=%d", rows);
            if (fit->n && try_keys(r, be, ranks, fit, b))
                return;
        }
    fit->n = 0;
}

int run_fits(const struct recipe *r, const struct backend *be, int ranks, struct run_fit *fit)
{
    struct balance b, then;
    char whose[32] = "", proposal[160] = "; no number of micro-batches would fit";
    int rc;

    *fit = (struct run_fit){ 0 };
    if ((rc = check_ranks(r, be->world)) || (rc = balance_of(&b, r, be, ranks)))
        return rc;
    fit->memory = b.memory;
    if (b.needed <= b.available)
        return 0;
    propose(r, be, ranks, fit, &then);
    double unit = b.needed < 1 << 30 ? 1 << 20 : 1 << 30;
    if (fit->n) {
        fit->memory = then.memory;
        snprintf(proposal, sizeof proposal, "; %s%s%s would need %.1f (--fit takes it)",
                 fit->set[0], fit->n > 1 ? " and " : "", fit->n > 1 ? fit->set[1] : "",
                 then.needed / unit);
    }
    if (b.rank >= 0)
        snprintf(whose, sizeof whose, " to rank %d", b.rank);
    return err_set(GPT_SYSTEM, "too little memory%s: the run needs %.1f %s, %.1f available%s%s%s",
                   be->one_memory ? " on the CPU" : "", b.needed / unit,
                   unit > 1 << 20 ? "GiB" : "MiB", b.available / unit, whose, proposal,
                   be->one_memory ? "; --gpus N computes on GPUs" : "");
}
