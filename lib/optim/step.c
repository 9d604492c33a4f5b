/* step.c - one step: reduce in scatter order, update in work order, gather. */
#include "optim/step.h"

#include <assert.h>
#include "optim/rules.h"
#include "optim/untie.h"

/* -- one parameter ------------------------------------------------------------------- */

/* Is parameter i updated in this step? A tied embedding follows the head. */
static bool takes_part(const struct optim *z, const struct step_schedule *at, int i)
{
    return recipe_moves(&z->recipe->params[i], at->step) &&
           !(at->tied && i == z->recipe->order.tied_embed);
}

/* Does Adam's op run for it: to move it, or for its moments alone? */
static bool adam_runs(const struct optim *z, const struct step_schedule *at, int i)
{
    return takes_part(z, at, i) && rules_adam_runs(z, i, at);
}

static bool is_tied_head(const struct optim *z, const struct step_schedule *at, int i)
{
    return at->tied && i == z->recipe->order.tied_head;
}

/* One collective for the shards whose gradient is final, and for pieces of others that are worth it (all: for
 * all that is left). */
static void reduce_shards(struct optim *z, int i, bool all)
{
    struct optim_param *q = &z->p[i];
    struct tensor g = z->banks->p[i].g;
    int64_t piece = z->comm->piece, row_bytes = (int64_t)tensor_bytes(tensor_rows(g, 0, 1));
    int world = z->comm->world, whole = 0;
    bool any = false;

    for (int r = 0; r < world; r++) {
        struct shard_rows *s = &q->shard[r];
        int64_t end = s->first + s->rows - s->sent, n = (all ? s->rows : s->ready) - s->sent;
        if (!all && s->ready < s->rows && (!piece || n * row_bytes < piece))
            n = 0;
        q->chunk[r] = (struct span){ end - n, n };
        s->sent += n;
        whole += n == s->rows;
        any |= n > 0;
    }
    if (any)
        q->reduced[q->n_reduced++] =
            z->comm->reduce_scatter(z->comm, g, whole < world || q->uneven ? q->chunk : NULL);
}

/* Is its gradient reduced by optim_exchange, between backward and optim_step? */
static bool is_sparse(const struct optim *z, int i) { return z->sparse && i == z->sparse_param; }

static void reduce(struct optim *z, const struct step_schedule *at, int i)
{
    struct optim_param *q = &z->p[i];
    struct param *p = &z->banks->p[i];

    if (!takes_part(z, at, i))
        return;
    if (is_sparse(z, i)) {
        q->reducing = true;
        return;
    }
    const double *mix = z->recipe->order.tied_mix;
    if (is_tied_head(z, at, i) && (mix[0] != 0 || mix[1] != 0))
        z->ops->transpose(z->ops, p->g, z->banks->p[z->recipe->order.tied_embed].g,
                          &z->hyper->tied_mix);
    if (q->shard)
        reduce_shards(z, i, true);
    else if (!q->reducing)
        q->reduced[q->n_reduced++] = z->comm->all_reduce(z->comm, p->g);
    q->reducing = true;
}

/* The e4m3 that Adam writes: the weight itself, or a copy of it. */
static struct fp8_copy fp8_of(const struct optim *z, int i)
{
    const struct optim_param *q = &z->p[i];
    struct fp8_copy copy = param_own_fp8(&z->banks->p[i]);
    if (q->stored.dtype == DT_E4M3) {
        real scale = (real)recipe_weight_scale(z->recipe, &z->recipe->params[i]);
        copy = (struct fp8_copy){ .codes = q->stored,
                                  .scale_inv = scale,
                                  .amax = q->amax,
                                  .rows = scale > 0 ? NULL : q->stored_scale.data,
                                  .top = q->amax_top };
    }
    return copy;
}

static struct adam_param adam_param(const struct optim *z, int i, const struct fp8_copy *copy)
{
    const struct recipe *r = z->recipe;
    const struct optim_param *q = &z->p[i];
    const struct param *p = &z->banks->p[i];
    bool kept = q->stored.data != NULL;
    return (struct adam_param){
        .w = !kept                       ? p->w_own
             : q->stored.dtype == DT_F16 ? q->stored
                                         : NO_TENSOR,
        .compute = kept ? p->w_own : NO_TENSOR,
        .g = p->g_own,
        /* In a joined rule the mantissa is a master of cut weights. */
        .master = rule_is_adam(&p->spec->rule) ? q->master
                                               : (struct row_scaled){ q->mantissa, NULL, NULL },
        .truncate = p->spec->truncate || !rule_is_adam(&p->spec->rule),
        .m = q->exp_avg,
        .v = q->exp_avg_sq,
        .largest = q->tops.data ? tensor_rows(q->tops, z->comm->rank, 1).data : NULL,
        .copy = copy->codes.data ? copy : NULL,
        .beta1 = p->spec->beta1,
        .beta2 = p->spec->beta2,
        .decay = (enum adam_decay)r->optimizer.adam.decay,
        .eps_inside = r->optimizer.adam.eps_at == EPS_INSIDE,
        .rounding = p->spec->stochastic ? ROUND_STOCHASTIC : ROUND_NEAREST,
        .seed = (uint64_t)r->seed,
        .stream = (uint64_t)i,
        .first = p->own_first * param_unit_rows(p) * p->w_own.cols,
        .step = z->hyper->adam[i],
        .gate = optim_gate(z),
    };
}

/* A row of `each` from every rank goes into the history; of a replicated parameter all ranks have the same. */
static void add_largest(struct optim *z, int i, real *top, struct tensor history,
                        struct tensor each)
{
    if (z->p[i].shard)
        z->comm->wait(z->comm, z->comm->all_gather(z->comm, each, NULL));
    else
        each = tensor_rows(each, z->comm->rank, 1);
    z->ops->amax_history(z->ops, top, history, each, optim_gate(z));
}

/* Before the update, where moments have one scale for all rows. */
static void find_scales(struct optim *z, const int *list, const struct adam_param *a, int n)
{
    int whole = 0;
    for (int k = 0; k < n; k++)
        whole += a[k].largest != NULL;
    if (whole)
        z->ops->adam_largest(z->ops, a, n);
    for (int k = 0; k < n; k++) {
        const struct optim_param *q = &z->p[list[k]];
        if (a[k].largest && q->top != a[k].largest)
            add_largest(z, list[k], q->top, tensor_of(q->top, DT_REAL, 1, 2), q->tops);
    }
}

static void update_adam(struct optim *z, const int *list, int n)
{
    struct adam_param a[ADAM_MAX] = { 0 };
    struct fp8_copy copy[ADAM_MAX];
    assert(n <= ADAM_MAX);
    if (n < 1)
        return;
    for (int k = 0; k < n; k++) {
        copy[k] = fp8_of(z, list[k]);
        a[k] = adam_param(z, list[k], &copy[k]);
    }
    find_scales(z, list, a, n);
    z->ops->adam(z->ops, a, n);
    for (int k = 0; k < n; k++) {
        const struct optim_param *q = &z->p[list[k]];
        if (q->amax_top)
            add_largest(z, list[k], q->amax_top, q->amax_history, q->amaxes);
    }
}

static void update(struct optim *z, const struct step_schedule *at, int i)
{
    rules_update(z, i, at);
    if (adam_runs(z, at, i))
        update_adam(z, &i, 1);
}

/* Those that nothing waits for, replicated ones and all of a single rank, are updated in one launch with
 * those that follow. */
static bool is_listed(const struct optim *z, int i)
{
    const struct param_spec *s = &z->recipe->params[i];
    return rule_is_adam(&s->rule) && (s->comms == COMMS_REPLICATED || z->comm->world == 1);
}

static void gather_weight(struct optim *z, int i)
{
    struct optim_param *q = &z->p[i];
    struct param *p = &z->banks->p[i];

    if (!q->shard)
        return;
    q->gathered = z->comm->all_gather(z->comm, p->w, optim_chunks(q, z->comm));
    if (p->fp8.codes.data)
        q->gathered_fp8 = z->comm->all_gather(z->comm, p->fp8.codes, optim_chunks(q, z->comm));
}

/* A tied head is gathered within the step, which copies it to the embedding. */
static bool gathered_late(const struct optim *z, const struct step_schedule *at, int i)
{
    return z->p[i].late && !is_tied_head(z, at, i);
}

/* Copies the tied head's weight to the embedding, and to its fp8 copy where it has one. */
static void copy_tied(struct optim *z)
{
    struct param *head = &z->banks->p[z->recipe->order.tied_head];
    struct param *embed = &z->banks->p[z->recipe->order.tied_embed];

    z->ops->transpose(z->ops, embed->w, head->w, NULL);
    if (embed->fp8.codes.data)
        z->ops->quantize(z->ops, &embed->fp8, embed->w);
}

/* -- the step -------------------------------------------------------------------------- */

void optim_begin(struct optim *z, const struct step_schedule *at)
{
    const struct recipe *r = z->recipe;

    for (int k = 0; k < r->order.n_late; k++) {
        int i = r->order.late[k];
        bool updated = recipe_moves(&r->params[i], at->step - 1);
        if (updated && gathered_late(z, at, i) && !(at->tied && i == r->order.tied_embed))
            gather_weight(z, i);
    }
}

void optim_need(struct optim *z, int i)
{
    struct optim_param *q = &z->p[i];
    z->comm->wait(z->comm, q->gathered);
    z->comm->wait(z->comm, q->gathered_fp8);
    if (z->on_gathered && q->gathered)
        z->on_gathered(z->ctx, i);
    q->gathered = q->gathered_fp8 = 0;
}

void optim_settle(struct optim *z)
{
    for (int k = 0; k < z->recipe->order.n_late; k++) {
        gather_weight(z, z->recipe->order.late[k]);
        optim_need(z, z->recipe->order.late[k]);
    }
}

/* Rows begin to end are final. Most come from the last to the first; padding comes the other way. */
static void shard_final(struct shard_rows *s, int64_t begin, int64_t end)
{
    int64_t last = s->first + s->rows;
    begin = begin > s->first ? begin : s->first;
    end = end < last ? end : last;
    if (end <= begin)
        return;
    s->final += end - begin;
    if (end == last - s->ready)
        s->ready += end - begin;
    else if (!s->apart.count)
        s->apart = (struct span){ begin, end - begin };
    else if (end == s->apart.first)
        s->apart = (struct span){ begin, s->apart.count + end - begin };
    else if (begin == s->apart.first + s->apart.count)
        s->apart.count += end - begin;
    if (s->apart.count && s->apart.first + s->apart.count == last - s->ready) {
        s->ready += s->apart.count;
        s->apart.count = 0;
    }
    if (s->final >= s->rows)
        s->ready = s->rows;
}

void optim_reduce_early(struct optim *z, const struct step_schedule *at, int i, int64_t first,
                        int64_t n)
{
    struct optim_param *q = &z->p[i];

    if (!z->recipe->params[i].early || !takes_part(z, at, i) || is_tied_head(z, at, i) ||
        is_sparse(z, i))
        return;
    if (!q->shard) {
        if (n == z->banks->p[i]
                     .g.rows) /* one collective for the whole gradient: not a layer of a bank */
            reduce(z, at, i);
        return;
    }
    for (int r = 0; r < z->comm->world; r++)
        shard_final(&q->shard[r], first, first + n);
    reduce_shards(z, i, false);
}

static void wait_tickets(struct optim *z, int i)
{
    struct optim_param *q = &z->p[i];
    for (int k = 0; k < q->n_reduced; k++)
        z->comm->wait(z->comm, q->reduced[k]);
    q->n_reduced = 0;
}

static void wait_reduced(struct optim *z, int i)
{
    struct optim_param *q = &z->p[i];
    wait_tickets(z, i);
    for (int r = 0; q->shard && r < z->comm->world; r++)
        q->shard[r].sent = q->shard[r].final = q->shard[r].ready = q->shard[r].apart.count = 0;
}

void optim_touch(struct optim *z, const int32_t *row, int n)
{
    if (z->sparse)
        sparse_touch(z->sparse, row, n);
}

bool optim_exchanges(const struct optim *z, const struct step_schedule *at)
{
    return z->sparse && takes_part(z, at, z->sparse_param);
}

void optim_pause(struct optim *z)
{
    for (int i = 0; i < z->recipe->n_params; i++) {
        optim_need(z, i);
        wait_tickets(z, i);
    }
}

int optim_exchange(struct optim *z)
{
    return sparse_exchange(z->sparse, z->comm, z->banks->p[z->sparse_param].g);
}

/* The decision on this step (optimizers.md 2.5), from all gradients that it applies: each rank's own
 * parts, replicated ones from rank 0 alone. */
static void decide(struct optim *z)
{
    const struct recipe *r = z->recipe;
    struct tensor own[MAX_PARAMS], sum = tensor_of(&z->gate->squares, DT_REAL, 1, 1);
    int n = 0;

    for (int i = 0; i < r->n_params; i++) {
        if (!z->p[i].reducing)
            continue;
        wait_reduced(z, i);
        if (z->p[i].shard || z->comm->rank == 0)
            own[n++] = z->banks->p[i].g_own;
    }
    z->ops->squares(z->ops, &z->gate->squares, own, n);
    z->comm->wait(z->comm, z->comm->all_reduce(z->comm, sum)); /* a mean */
    z->ops->step_gate(z->ops, &z->gate->gate, &z->gate->squares, (real)z->comm->world,
                      (real)r->optimizer.clip, (real)(1 / r->optimizer.loss_scale));
}

int optim_set_aside(struct optim *z, int steps)
{
    const struct recipe *r = z->recipe;

    for (int k = 0; k < r->n_params; k++) {
        int i = r->order.scatter[k], rc;
        struct optim_param *q = &z->p[i];
        if (!recipe_waits(&r->params[i], steps))
            continue;
        if (is_sparse(z, i)) {
            if ((rc = optim_exchange(z)))
                return rc;
        } else if (q->shard) {
            reduce_shards(z, i, true);
        } else {
            q->reduced[q->n_reduced++] = z->comm->all_reduce(z->comm, z->banks->p[i].g);
        }
        wait_reduced(z, i);
        q->waits = true;
    }
    return 0;
}

void optim_expects(struct optim *z, int i, bool waits)
{
    z->ops->zero(z->ops, z->banks->p[i].g);
    z->p[i].waits = waits;
}

/* A rank's part is one of world in the mean; what is whole on every rank is its own mean. */
double optim_share(const struct optim *z, int i) { return z->p[i].shard ? z->comm->world : 1; }

static void update_and_gather(struct optim *z, const struct step_schedule *at, int i)
{
    wait_reduced(z, i);
    update(z, at, i);
    if (!gathered_late(z, at, i))
        gather_weight(z, i);
}

/* Does it take part in this step, and is it not Adam's? */
static bool is_bank(const struct optim *z, int i)
{
    return z->p[i].reducing && !rule_is_adam(&z->recipe->params[i].rule);
}

/* Are these two banks updated concurrently? Products of a few matrices leave multiprocessors idle
 * at their ends. But a gather within the step hides behind the update of a bank that is late, so it
 * must not start later for it. */
static bool beside(const struct optim *z, const struct step_schedule *at, int i, int j)
{
    bool alike = z->comm->world == 1 || gathered_late(z, at, i) == gathered_late(z, at, j);
    return i != j && is_bank(z, i) && is_bank(z, j) && alike;
}

static bool in_branch(const struct optim *z, const struct step_schedule *at, int i)
{
    for (int j = 0; j < z->recipe->n_params; j++)
        if (beside(z, at, i, j))
            return true;
    return false;
}

/* Bank i, the step's n-th from 0; before: the one updated last, -1: none. */
static void update_bank(struct optim *z, const struct step_schedule *at, int i, int before, int n)
{
    bool branch = in_branch(z, at, i);

    if (before >= 0 && !beside(z, at, i, before))
        z->ops->join(z->ops);
    if (branch)
        z->ops->branch(z->ops, n % BRANCHES);
    update_and_gather(z, at, i);
    if (branch)
        z->ops->branch(z->ops, TRUNK);
}

void optim_step(struct optim *z, const struct step_schedule *at)
{
    const struct recipe *r = z->recipe;
    int head = r->order.tied_head, listed[MAX_PARAMS], n_listed = 0, n_banks = 0, before = -1;

    for (int k = 0; k < r->order.n_late; k++) /* those that the forward has not waited for */
        optim_need(z, r->order.late[k]);
    for (int k = 0; k < r->n_params; k++)
        reduce(z, at, r->order.scatter[k]);
    if (z->gate)
        decide(z);
    else if (z->loss)
        z->ops->step_gate(z->ops, z->guard, z->loss, 1, 0, 1);

    for (int k = 0; k < r->n_params; k++) {
        int i = r->order.work[k];
        if (!z->p[i].reducing)
            continue;
        if (is_listed(z, i)) {
            wait_reduced(z, i);
            listed[n_listed++] = i;
            continue;
        }
        if (z->comm->world > 1) {
            update_adam(z, listed, n_listed);
            n_listed = 0;
        }
        if (is_bank(z, i)) {
            update_bank(z, at, i, before, n_banks++);
            before = i;
        } else {
            update_and_gather(z, at, i);
        }
    }
    update_adam(z, listed, n_listed);
    z->ops->join(z->ops);

    /* The embedding is copied from the whole head. */
    if (at->tied && head >= 0 && recipe_moves(&r->params[head], at->step)) {
        optim_need(z, head);
        copy_tied(z);
    }
    for (int k = 0; k < r->n_params; k++) {
        optim_need(z, r->order.work[k]);
        z->p[r->order.work[k]].reducing = false;
    }
    banks_clear(z->banks, at->step);
}

/* -- after the step ---------------------------------------------------------------------- */

void optim_finish(struct optim *z, const struct step_schedule *at)
{
    const struct recipe *r = z->recipe;

    for (int i = 0; i < r->n_params; i++) {
        z->p[i].counted = adam_runs(z, at, i);
        z->p[i].count += z->p[i].counted;
    }
    z->open += z->gate != NULL;
    if (!at->untie || r->order.tied_head < 0)
        return;
    assert(recipe_moves(&r->params[r->order.tied_head],
                        at->step)); /* else the gradients, used as scratch, would still be needed */
    optim_untie(z);
}

void optim_outcome(struct optim *z, const struct step_schedule *at, bool skipped)
{
    const struct recipe *r = z->recipe;

    if (!z->gate)
        return;
    z->open--;
    for (int i = 0; i < r->n_params && skipped; i++)
        z->p[i].count -= adam_runs(z, at, i) || (at->untie && i == r->order.tied_embed &&
                                                 r->schedule.untie_state == UNTIE_CARRY);
}
