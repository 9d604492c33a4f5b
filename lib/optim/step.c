/* step.c - one step: reduce in scatter order, update in work order, gather. */
#include "optim/step.h"

#include <assert.h>
#include "optim/rules.h"
#include "optim/untie.h"

/* -- one parameter ------------------------------------------------------------------- */

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

static void reduce(struct optim *z, int i)
{
    struct optim_param *q = &z->p[i];

    if (q->shard)
        reduce_shards(z, i, true);
    else if (!q->begun)
        q->reduced[q->n_reduced++] = z->comm->all_reduce(z->comm, z->banks->p[i].g);
    q->begun = true;
}

/* Replicated gradients that stand beside one another are one group. */
static void reduce_list(struct optim *z, const struct action *a)
{
    bool open = false;
    for (int k = 0; k < a->n; k++) {
        bool replicated = !z->p[a->param[k]].shard;
        if (replicated != open)
            z->comm->group(z->comm, open = replicated);
        reduce(z, a->param[k]);
    }
    if (open)
        z->comm->group(z->comm, false);
}

static struct adam_param adam_param(const struct optim *z, int i, struct fp8_copy *copy)
{
    const struct recipe *r = z->recipe;
    const struct optim_param *q = &z->p[i];
    const struct param *p = &z->banks->p[i];
    struct adam_param a = optim_weight(z, i, copy);

    a.g = p->g_own, a.m = q->exp_avg, a.v = q->exp_avg_sq;
    a.master = optim_master(q);
    a.truncate = p->spec->truncate || q->mantissa.data;
    a.largest = q->tops.data ? tensor_rows(q->tops, z->comm->rank, 1).data : NULL;
    a.beta1 = p->spec->beta1, a.beta2 = p->spec->beta2;
    a.decay = (enum adam_decay)r->optimizer.adam.decay;
    a.eps_inside = r->optimizer.adam.eps_at == EPS_INSIDE;
    a.rounding = p->spec->stochastic ? ROUND_STOCHASTIC : ROUND_NEAREST;
    a.seed = (uint64_t)r->seed, a.stream = (uint64_t)i;
    a.first = p->own_first * param_unit_rows(p) * p->w_own.cols;
    a.step = z->hyper->adam[i];
    return a;
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

/* Behind the update of a weight with a delayed scale. */
static void record_largest(struct optim *z, int i)
{
    struct optim_param *q = &z->p[i];
    if (q->amax_top)
        add_largest(z, i, q->amax_top, q->amax_history, q->amaxes);
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
    for (int k = 0; k < n; k++)
        a[k] = adam_param(z, list[k], &copy[k]);
    find_scales(z, list, a, n);
    z->ops->adam(z->ops, a, n);
    for (int k = 0; k < n; k++)
        record_largest(z, list[k]);
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

/* Adds the embedding's gradient to the tied head's. */
static void mix_tied(struct optim *z)
{
    struct param *head = &z->banks->p[z->recipe->order.tied_head];
    struct param *embed = &z->banks->p[z->recipe->order.tied_embed];

    z->ops->transpose(z->ops, head->g, embed->g, &z->hyper->tied_mix);
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

/* -- waits and early reductions ------------------------------------------------------------ */

static void done(struct optim *z, enum act act, int i)
{
    if (z->on_done)
        z->on_done(z->ctx, act, i);
}

void optim_need(struct optim *z, int i)
{
    struct optim_param *q = &z->p[i];
    z->comm->wait(z->comm, q->gathered);
    z->comm->wait(z->comm, q->gathered_fp8);
    if (q->gathered)
        done(z, ACT_NEED, i);
    q->gathered = q->gathered_fp8 = 0;
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

void optim_reduce_early(struct optim *z, int i, int64_t first, int64_t n)
{
    struct optim_param *q = &z->p[i];

    if (!in_set(z->plan->early, i))
        return;
    if (!q->shard) {
        if (n == z->banks->p[i]
                     .g.rows) /* one collective for the whole gradient: not a layer of a bank */
            reduce(z, i);
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
    q->begun = false;
}

void optim_touch(struct optim *z, const int32_t *row, int n)
{
    if (z->sparse)
        sparse_touch(z->sparse, row, n);
}

int optim_exchange(struct optim *z)
{
    return sparse_exchange(z->sparse, z->comm, z->banks->p[z->sparse_param].g);
}

/* The decision on this step (optimizers.md 2.5), from all gradients that it applies: each rank's own
 * parts, replicated ones from rank 0 alone. */
static void decide(struct optim *z, const struct action *a)
{
    const struct recipe *r = z->recipe;
    struct tensor own[MAX_PARAMS], sum = tensor_of(&z->gate->squares, DT_REAL, 1, 1);
    int n = 0;

    for (int k = 0; k < a->n; k++) {
        int i = a->param[k];
        wait_reduced(z, i);
        if (z->p[i].shard || z->comm->rank == 0)
            own[n++] = z->banks->p[i].g_own;
    }
    z->ops->squares(z->ops, &z->gate->squares, own, n);
    z->comm->wait(z->comm, z->comm->all_reduce(z->comm, sum)); /* a mean */
    z->ops->step_gate(z->ops, &z->gate->gate, &z->gate->squares, (real)z->comm->world,
                      (real)r->optimizer.clip, (real)(1 / r->optimizer.loss_scale));
}

/* Reduces the gradient of parameter i, in place, and waits for it. */
static int reduce_now(struct optim *z, int i)
{
    int rc = 0;
    if (z->sparse && i == z->sparse_param)
        rc = optim_exchange(z);
    else
        reduce(z, i);
    if (!rc)
        wait_reduced(z, i);
    return rc;
}

int optim_set_aside(struct optim *z, int steps)
{
    const struct recipe *r = z->recipe;
    int rc = 0;

    for (int k = 0; k < r->n_params && !rc; k++) {
        int i = r->order.scatter[k];
        if (recipe_waits(&r->params[i], steps) && !(rc = reduce_now(z, i)))
            z->p[i].waits = true;
    }
    return rc;
}

int optim_whole_gradients(struct optim *z)
{
    int rc = 0;
    for (int k = 0; k < z->recipe->n_params && !rc; k++) {
        int i = z->recipe->order.scatter[k];
        struct tensor g = z->banks->p[i].g;
        if (!(rc = reduce_now(z, i)) && z->p[i].shard)
            z->comm->wait(z->comm,
                          z->comm->all_gather(z->comm, g, optim_chunks(&z->p[i], z->comm)));
    }
    return rc;
}

void optim_expects(struct optim *z, int i, bool waits)
{
    z->ops->zero(z->ops, z->banks->p[i].g);
    z->p[i].waits = waits;
}

/* A rank's part is one of world in the mean; what is whole on every rank is its own mean. */
double optim_share(const struct optim *z, int i) { return z->p[i].shard ? z->comm->world : 1; }

static void update(struct optim *z, const struct action *a)
{
    int adam[MAX_PARAMS], n = 0;

    for (int k = 0; k < a->n; k++) {
        rules_update(z, a->param[k], a->chains);
        if (in_set(z->plan->adam, a->param[k]))
            adam[n++] = a->param[k];
        else
            record_largest(z, a->param[k]);
    }
    update_adam(z, adam, n);
    for (int k = 0; k < a->n; k++)
        done(z, ACT_UPDATE, a->param[k]);
}

static uint32_t set_of(const struct action *a)
{
    uint32_t set = 0;
    for (int k = 0; k < a->n; k++)
        set |= UINT32_C(1) << a->param[k];
    return set;
}

/* -- the step -------------------------------------------------------------------------- */

static void around(struct optim *z, int i) { optim_around(z, i, false); }

static void act(struct optim *z, const struct action *a)
{
    typedef void each(struct optim *, int);
    static each *const of_one[ACTS] = {
        [ACT_GATHER] = gather_weight, [ACT_NEED] = optim_need,   [ACT_WAIT_BEGUN] = wait_tickets,
        [ACT_AROUND] = around,        [ACT_WAIT] = wait_reduced,
    };
    for (int k = 0; k < a->n && of_one[a->act]; k++)
        of_one[a->act](z, a->param[k]);
    switch (a->act) {
    case ACT_REDUCE: reduce_list(z, a); break;
    case ACT_FRESH: banks_begin(z->banks, set_of(a)); break;
    case ACT_MIX_TIED: mix_tied(z); break;
    case ACT_DECIDE: decide(z, a); break;
    case ACT_BRANCH: z->ops->branch(z->ops, a->branch); break;
    case ACT_JOIN: z->ops->join(z->ops); break;
    case ACT_UPDATE: update(z, a); break;
    case ACT_COPY_TIED:
        copy_tied(z);
        done(z, ACT_COPY_TIED, a->param[0]);
        break;
    case ACT_CLEAR: banks_clear(z->banks, set_of(a)); break;
    default: break; /* done above; ACT_EXCHANGE is the host's: optim_exchange */
    }
}

static void act_part(struct optim *z, enum part part)
{
    const struct step_plan *p = z->plan;
    for (int k = p->begin[part]; k < p->begin[part + 1]; k++)
        act(z, &p->action[k]);
}

void optim_begin(struct optim *z) { act_part(z, PART_BEGIN); }

bool optim_exchanges(const struct optim *z) { return z->plan->exchanges; }

void optim_pause(struct optim *z) { act_part(z, PART_PAUSE); }

void optim_step(struct optim *z)
{
    if (!z->gate && z->loss)
        z->ops->step_gate(z->ops, z->guard, z->loss, 1, 0, 1);
    act_part(z, PART_UPDATE);
}

void optim_settle(struct optim *z)
{
    for (int k = 0; k < z->recipe->order.n_late; k++) {
        gather_weight(z, z->recipe->order.late[k]);
        optim_need(z, z->recipe->order.late[k]);
    }
}

/* -- after the step ---------------------------------------------------------------------- */

void optim_finish(struct optim *z, const struct step_schedule *at)
{
    for (int i = 0; i < z->recipe->n_params; i++) {
        z->p[i].counted = in_set(z->plan->adam, i);
        z->p[i].count += z->p[i].counted;
    }
    z->open += z->gate != NULL;
    if (at->untie && z->recipe->order.tied_head >= 0)
        optim_untie(z);
}

void optim_outcome(struct optim *z, const struct step_schedule *at, bool skipped)
{
    const struct recipe *r = z->recipe;
    uint32_t adam = step_plan_of(&z->plans, at)->adam;

    if (!z->gate)
        return;
    z->open--;
    for (int i = 0; i < r->n_params && skipped; i++)
        z->p[i].count -= in_set(adam, i) || (at->untie && i == r->order.tied_embed &&
                                             r->schedule.untie_state == UNTIE_CARRY);
}
