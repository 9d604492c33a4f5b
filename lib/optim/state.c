/* state.c - the optimizer's memory, the hyperparameters of a step, and the tensors of a checkpoint. */
#include "optim/state.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "ops/store.h"
#include "optim/rules.h"
#include "recipe/share.h"

/* -- memory ------------------------------------------------------------------------ */

/* Sums the states of a role on the rank that owns most. */
static int64_t role_bytes(const struct recipe *r, int i, int world, unsigned roles)
{
    struct state s[MAX_STATES];
    int64_t sum = 0;
    int n = states_of(r, i, s);
    for (int k = 0; k < n; k++)
        sum += roles >> s[k].role & 1 ? states_bytes(r, i, &s[k], world) : 0;
    return sum;
}

int64_t optim_master_bytes(const struct recipe *r, int i, int world)
{
    return role_bytes(r, i, world, 1 << STATE_MASTER);
}

int64_t optim_stored_bytes(const struct recipe *r, int i, int world)
{
    const struct param_spec *s = &r->params[i];
    bool apart = s->stored != DT_NONE && !(s->stored == DT_E4M3 && s->codes);
    return apart ? role_bytes(r, i, world, 1 << STATE_WEIGHT) : 0;
}

int64_t optim_scale_bytes(const struct recipe *r, int i, int world)
{
    return role_bytes(r, i, world, 1 << STATE_SCALE | 1 << STATE_AMAX);
}

int64_t optim_param_bytes(const struct recipe *r, int i, int world)
{
    return role_bytes(r, i, world, ~(1u << STATE_WEIGHT | 1u << STATE_GRADIENT));
}

/* Each token touches one row, and an exchange follows so many steps. */
static int64_t most_touched(const struct recipe *r, int world, int every)
{
    int64_t most = 0;
    for (int i = 0; i < r->n_stages; i++)
        most = r->stages[i].tokens > most ? r->stages[i].tokens : most;
    return (r->data.chunks + world - 1) / world * (most / r->data.chunks) * every;
}

struct tensor optim_take(struct optim *z, enum dtype t, int64_t rows, int64_t cols,
                         const char *what)
{
    struct tensor x = tensor_of(NULL, t, rows, cols);
    x.data = z->ops->alloc(z->ops, tensor_bytes(x), what);
    return x;
}

/* The tensor that holds a state of this rank's shard. */
static struct tensor take_state(struct optim *z, const struct param *p, const struct state *s)
{
    bool table = s->matrices == 1 && s->sharded;
    int64_t rows = table ? p->own_count : s->matrices * s->rows;
    if (s->matrices > 1)
        rows = p->own_count * s->rows;
    return optim_take(z, s->dtype, rows, s->cols, s->kind);
}

struct tensor optim_state(const struct optim_param *q, const char *kind)
{
    for (int k = 0; k < q->n_states; k++)
        if (!strcmp(q->state[k].kind, kind))
            return q->held[k];
    return NO_TENSOR;
}

struct tensor optim_stage_state(const struct optim_param *q, int chain, int use, int which)
{
    for (int k = 0; k < q->n_states; k++)
        if (q->state[k].role == STATE_RULE && q->state[k].chain == chain &&
            q->state[k].use == use && which-- == 0)
            return q->held[k];
    return NO_TENSOR;
}

struct row_scaled optim_scaled(const struct optim_param *q, const char *kind)
{
    char scale[KIND_SIZE + 8];
    snprintf(scale, sizeof scale, "%s.scale", kind);
    return (struct row_scaled){ .t = optim_state(q, kind), .scale = optim_state(q, scale).data };
}

/* The scales that a weight in e4m3 is written with. The head's codes are whole on every rank. */
static void take_scales(struct optim *z, struct optim_param *q, const struct param *p)
{
    if (p->spec->stored != DT_E4M3)
        return;
    assert(!p->spec->codes == !p->fp8.codes.data);
    q->amax = p->spec->codes ? p->fp8.amax : NULL;
    if (q->amax)
        return;
    q->amaxes = optim_take(z, DT_REAL, z->comm->world, 1, "largest weight");
    q->amax = tensor_rows(q->amaxes, z->comm->rank, 1).data;
    if (recipe_delayed(z->recipe, p->spec))
        q->amax_top = optim_take(z, DT_REAL, 1, 1, "largest weight").data;
}

/* The new scale of all rows holds the largest new number of any rank. */
static void take_tops(struct optim *z, struct optim_param *q)
{
    if (!z->recipe->precision.adam.whole || (!q->exp_avg.scale && !q->exp_avg_sq.scale))
        return;
    q->tops = optim_take(z, DT_REAL, z->comm->world, 2, "largest moments");
    q->top = q->shard && z->comm->world > 1 ? optim_take(z, DT_REAL, 1, 2, "largest moments").data
                                            : tensor_rows(q->tops, z->comm->rank, 1).data;
    q->exp_avg.top = q->exp_avg.scale ? q->top : NULL;
    q->exp_avg_sq.top = q->exp_avg_sq.scale ? q->top + 1 : NULL;
}

/* Padding is at the end, so the last shards may be shorter, or empty. */
static int take_shards(struct optim *z, int i)
{
    struct param *p = &z->banks->p[i];
    struct optim_param *q = &z->p[i];
    int world = z->comm->world;
    int64_t each = param_unit_rows(p), used = p->used * each;
    struct span own[world];

    /* Each has an end of a shard, or a piece. */
    int64_t most = world;
    if (z->comm->piece)
        most += (int64_t)tensor_bytes(p->g) / z->comm->piece;
    q->reduced = calloc((size_t)most, sizeof *q->reduced);
    if (q->reduced && p->spec->comms == COMMS_REPLICATED)
        return 0;
    q->shard = calloc((size_t)world, sizeof *q->shard);
    q->chunk = calloc((size_t)world, sizeof *q->chunk);
    if (!q->reduced || !q->shard || !q->chunk)
        return err_sys("shards of %s", p->spec->label);
    shares_of(z->recipe, i, world, own);
    for (int r = 0; r < world; r++) {
        int64_t first = own[r].first * each, rows = own[r].count * each, left = used - first;
        if (!z->recipe->order.padding && rows > left)
            rows = left < 0 ? 0 : left;
        q->shard[r] = (struct shard_rows){ .first = first, .rows = rows };
        q->uneven |= rows != p->w.rows / world || rows * world != p->w.rows;
    }
    return 0;
}

static int take_states(struct optim *z, int i)
{
    struct param *p = &z->banks->p[i];
    struct optim_param *q = &z->p[i];
    int rc = take_shards(z, i);

    if (rc)
        return rc;
    q->n_states = states_of(z->recipe, i, q->state);
    for (int k = 0; k < q->n_states; k++) {
        bool weight = q->state[k].role == STATE_WEIGHT;
        q->held[k] = q->state[k].role == STATE_GRADIENT     ? p->g_own
                     : weight && p->spec->stored == DT_NONE ? p->w_own
                     : weight && p->spec->stored == DT_E4M3 && p->spec->codes
                         ? param_own_fp8(p).codes
                         : take_state(z, p, &q->state[k]);
    }
    q->stored = p->spec->stored == DT_NONE ? NO_TENSOR : q->held[0];
    q->stored_scale = optim_state(q, "weight.scale");
    q->amax_history = optim_state(q, "weight.amax");
    if (p->next_scale) /* the model's numbers lie where checkpoints find them */
        p->next_scale = optim_state(q, "next_scale").data,
        p->post_scale = optim_state(q, "post_scale").data;
    q->mantissa = optim_state(q, "mantissa");
    if (around_reads_apart(&z->recipe->optimizer.around) &&
        around_takes(&z->recipe->optimizer.around, i))
        q->aside = optim_take(z, p->w.dtype, p->w_own.rows, p->w_own.cols, "weights set aside");
    q->exp_avg = optim_scaled(q, "exp_avg");
    q->exp_avg_sq = optim_scaled(q, "exp_avg_sq");
    if (p->spec->master != DT_NONE)
        q->master = optim_scaled(q, recipe_master_kind(p->spec));
    take_scales(z, q, p);
    take_tops(z, q);
    return rules_init(z, i);
}

/* The shards with their padding. */
static const struct span *whole_shards(const struct optim *z, int i)
{
    const struct param *p = &z->banks->p[i];
    int64_t each = param_unit_rows(p);
    struct span *own = z->p[i].chunk;
    shares_of(z->recipe, i, z->comm->world, own);
    for (int r = 0; r < z->comm->world; r++)
        own[r] = (struct span){ own[r].first * each, own[r].count * each };
    return own;
}

/* Shares the memory of weights and gradients, and that of weights' fp8 copies. */
static void share(struct optim *z)
{
    struct banks *b = z->banks;
    size_t largest = 0;
    for (int i = 0; i < b->n; i++) {
        size_t bytes = z->p[i].shard && i != z->sparse_param ? tensor_bytes(b->p[i].g) : 0;
        largest = bytes > largest ? bytes : largest;
    }
    if (b->shared)
        z->comm->share(z->comm, b->shared, b->shared_bytes, largest);
    for (int i = 0; i < b->n && b->shared; i++) {
        struct tensor codes = b->p[i].fp8.codes;
        if (z->p[i].shard && codes.data)
            z->comm->share(z->comm, codes.data, tensor_bytes(codes), 0);
    }
}

/* The largest multiplier of the rate in the run. */
static double most_lr(const struct recipe *r)
{
    double most = 0;
    struct step_schedule at;
    for (int step = 0; step < schedule_total(r); step++) {
        schedule_at(r, step, &at);
        most = fmax(most, at.lr);
    }
    return most;
}

/* Sets states and counters to zero. */
static void reset(struct optim *z)
{
    struct optim_tensor t[OPTIM_MAX_TENSORS];
    int n = optim_tensors(z, t);

    for (int i = 0; i < n; i++)
        if (strncmp(t[i].kind, "weight", 6))
            z->ops->zero(z->ops, t[i].t);
    for (int i = 0; i < z->recipe->n_params; i++) {
        z->p[i].count = 0;
        z->p[i].begun = z->p[i].waits = false;
    }
    if (z->gate)
        z->ops->zero(z->ops, tensor_of(z->gate, DT_U8, 1, sizeof *z->gate));
    else
        z->ops->zero(z->ops, tensor_of(z->guard, DT_U8, 1, sizeof *z->guard));
    z->open = 0;
    if (z->sparse)
        sparse_forget(z->sparse);
}

int optim_init(struct optim *z, const struct recipe *r, struct banks *b, struct ops *o,
               struct comm *c)
{
    int rc = 0;

    *z = (struct optim){ .recipe = r, .banks = b, .ops = o, .comm = c };
    z->most_lr = r->optimizer.around.kind ? most_lr(r) : 1;
    for (int i = 0; i < r->n_params && !rc; i++)
        rc = take_states(z, i);
    if (rc)
        return rc;
    o->transpose_sms = r->order.transpose_sms;
    o->bf16_products = r->precision.bf16_products;
    o->bf16_grads = r->precision.bf16_grads;
    z->hyper = o->alloc(o, sizeof *z->hyper, "hyperparameters of a step");
    if (recipe_has_gate(r))
        z->gate = o->alloc(o, sizeof *z->gate, "gate of a step");
    else
        z->guard = o->alloc(o, sizeof *z->guard, "gate of a step");
    if ((rc = o->status(o)))
        return rc;
    z->sparse_param = c->world > 1 ? recipe_sparse(r) : -1;
    if (z->sparse_param >= 0 &&
        (rc =
             sparse_new(&z->sparse, o, c, b->p[z->sparse_param].g, whole_shards(z, z->sparse_param),
                        most_touched(r, c->world, r->params[z->sparse_param].every))))
        return rc;
    share(z);
    if ((rc = c->status(c)) || (rc = step_plans_make(&z->plans, r, c->world, z->sparse != NULL)))
        return rc;
    reset(z);
    return o->status(o);
}

/* Each rank sends every rank a row of a gradient, which keeps its bytes: those of new memory are all alike. */
int optim_connect(struct optim *z, bool unties)
{
    struct comm *c = z->comm;
    int head = z->recipe->order.tied_head, rc;
    bool moves = unties && head >= 0 && z->p[head].shard;

    if (c->world == 1 || (!z->sparse && !moves))
        return 0;
    struct tensor g = z->banks->p[moves ? head : z->sparse_param].g;
    struct tensor send = tensor_of(g.data, DT_U8, c->world, 1), recv = send;
    int64_t one[c->world];
    recv.data = (char *)g.data + c->world;
    for (int r = 0; r < c->world; r++)
        one[r] = 1;
    if (tensor_bytes(g) < 2 * tensor_bytes(send))
        return 0;
    if ((rc = c->barrier(c))) /* NCCL would wait for a rank that has failed */
        return rc;
    c->wait(c, c->all_to_all(c, recv, one, send, one));
    rc = z->ops->sync(z->ops);
    return rc ? rc : c->status(c);
}

void optim_release(struct optim *z)
{
    sparse_free(z->sparse);
    z->sparse = NULL;
    step_plans_free(&z->plans);
    for (int i = 0; i < MAX_PARAMS; i++) {
        struct optim_param *q = &z->p[i];
        rules_release(q);
        free(q->shard);
        free(q->chunk);
        free(q->reduced);
        q->shard = NULL, q->chunk = NULL, q->reduced = NULL;
    }
}

/* Numbers of the bf16 weight t on the device. */
static int download_bf16(struct ops *o, float *x, struct tensor t)
{
    int64_t n = tensor_count(t);
    uint16_t *half = malloc((size_t)n * sizeof *half + 1);
    int rc = half ? 0 : err_memory();
    if (!rc) {
        o->download(o, half, t.data, tensor_bytes(t));
        rc = o->status(o);
    }
    for (int64_t i = 0; i < n && !rc; i++)
        x[i] = bf16_to_f32(half[i]);
    free(half);
    return rc;
}

struct row_scaled optim_master(const struct optim_param *q)
{
    struct row_scaled cut = { .t = q->mantissa };
    return q->mantissa.data ? cut : q->master;
}

/* Makes on the host what is kept beside a bf16 weight of the numbers x of this rank's part. */
static int set_master(struct optim *z, int i, const float *x)
{
    const struct param_spec *s = &z->recipe->params[i];
    struct optim_param *q = &z->p[i];
    struct row_scaled kept = optim_master(q);
    struct tensor own = kept.t;
    real *scale = kept.scale;
    uint16_t *w = malloc((size_t)tensor_count(own) * sizeof *w + 1);

    own.dtype = DT_REAL, own.data = (void *)(uintptr_t)x;
    kept.t.data = malloc(tensor_bytes(kept.t) + 1);
    kept.scale = scale ? malloc((size_t)own.rows * sizeof *scale + 1) : NULL;
    int rc = w && kept.t.data && !scale == !kept.scale ? 0 : err_sys("master of %s", s->label);
    if (!rc) {
        weight_store(&(struct adam_param){ .w = tensor_of(w, DT_BF16, own.rows, own.cols),
                                           .master = kept,
                                           .truncate = s->truncate || q->mantissa.data },
                     own);
        z->ops->upload(z->ops, optim_master(q).t.data, kept.t.data, tensor_bytes(kept.t));
    }
    if (!rc && scale)
        z->ops->upload(z->ops, scale, kept.scale, (size_t)own.rows * sizeof *scale);
    free(w), free(kept.t.data), free(kept.scale);
    return rc;
}

/* exact: of the whole parameter; NULL: the weight itself is. */
static int make_master(struct optim *z, int i, const float *exact)
{
    const struct param *p = &z->banks->p[i];
    float *x = NULL;
    int rc = 0;
    if (!z->p[i].master.t.data && !z->p[i].mantissa.data)
        return 0;
    if (exact)
        return set_master(z, i, exact + p->own_first * param_unit_rows(p) * p->w.cols);
    if (!(x = malloc((size_t)tensor_count(p->w_own) * sizeof *x + 1)))
        rc = err_memory();
    if (!rc)
        rc = download_bf16(z->ops, x, p->w_own);
    if (!rc)
        rc = set_master(z, i, x);
    free(x);
    return rc;
}

/* -- weights in f16 and e4m3 ------------------------------------------------------------------ */

/* The history of delayed scales: numbers of a checkpoint, or none yet but the largest weight. */
static int set_history(struct optim *z, int i, float most)
{
    struct optim_param *q = &z->p[i];
    int64_t n = q->amax_history.rows;
    real held[n];
    int rc;

    z->ops->download(z->ops, held, q->amax_history.data, (size_t)n * sizeof *held);
    if ((rc = z->ops->status(z->ops)))
        return rc;
    real top = 0;
    for (int64_t k = 0; k < n; k++)
        top = top != top || top >= held[k] ? top : held[k];
    if (top == 0)
        held[0] = top = most;
    z->ops->upload(z->ops, q->amax_history.data, held, (size_t)n * sizeof *held);
    z->ops->upload(z->ops, q->amax_top, &top, sizeof top);
    z->ops->zero(z->ops, q->amaxes);
    return 0;
}

/* On the host, once in a run: every rank rounds the whole weight, x, and keeps its own part of it. */
static int store_numbers(struct optim *z, int i, float *x)
{
    const struct param *p = &z->banks->p[i];
    enum dtype t = p->spec->stored;
    int64_t n = tensor_count(p->w), own = p->own_first * param_unit_rows(p), rows = p->w.rows;
    struct tensor w = tensor_of(malloc((size_t)n * 2), DT_BF16, rows, p->w.cols);
    struct tensor codes = tensor_of(malloc((size_t)n * dtype_size(t)), t, rows, p->w.cols);
    struct tensor scales = tensor_of(malloc((size_t)rows * sizeof(real)), DT_REAL, rows, 1);
    real amax, top = largest_of(0, x, n), fixed = (real)recipe_weight_scale(z->recipe, p->spec);
    struct fp8_copy copy = { .codes = codes,
                             .scale_inv = fixed,
                             .amax = &amax,
                             .rows = fixed > 0 ? NULL : scales.data,
                             .top = recipe_delayed(z->recipe, p->spec) ? &top : NULL };
    int rc = w.data && codes.data && scales.data ? 0 : err_memory();

    if (!rc && copy.top) {
        z->ops->zero(z->ops, z->p[i].amax_history);
        rc = set_history(z, i, top);
    }
    for (int64_t r = 0; r < rows && !rc && fixed > 0; r++)
        ((real *)scales.data)[r] = fixed;
    if (!rc) {
        weight_store(&(struct adam_param){ .w = t == DT_E4M3 ? NO_TENSOR : codes,
                                           .copy = t == DT_E4M3 ? &copy : NULL,
                                           .compute = w },
                     tensor_of(x, DT_REAL, rows, p->w.cols));
        z->ops->upload(z->ops, p->w.data, w.data, tensor_bytes(w));
        z->ops->upload(z->ops, z->p[i].stored.data, tensor_rows(codes, own, 0).data,
                       tensor_bytes(z->p[i].stored));
    }
    if (!rc && t == DT_E4M3) {
        z->ops->upload(z->ops, z->p[i].stored_scale.data, tensor_rows(scales, own, 0).data,
                       tensor_bytes(z->p[i].stored_scale));
        z->ops->zero(z->ops, tensor_of(z->p[i].amax, DT_REAL, 1, 1));
    }
    free(w.data), free(codes.data), free(scales.data);
    return rc;
}

/* Initial values of a weight that is kept in f32. */
static void initial_numbers(const struct initial *v, int i, const struct param_spec *s, float *x)
{
    size_t each = (size_t)(s->rows * s->cols);
    for (int64_t m = 0; m < s->matrices; m++) {
        const float *from = initial_matrix(v, i, m);
        for (size_t k = 0; k < each; k++)
            x[(size_t)m * each + k] = from ? from[k] : 0;
    }
}

/* v: initial values, NULL: those of the bf16 weight. */
static int store_weight(struct optim *z, int i, const struct initial *v)
{
    struct tensor w = z->banks->p[i].w;
    const float *reads = initial_reads(v, i);
    float *x = malloc((size_t)tensor_count(w) * sizeof *x);
    int rc = x ? 0 : err_memory();
    if (!rc && v && z->recipe->params[i].stored == DT_F32)
        initial_numbers(v, i, &z->recipe->params[i], x);
    else if (!rc && reads)
        memcpy(x, reads, (size_t)tensor_count(w) * sizeof *x);
    else if (!rc)
        rc = download_bf16(z->ops, x, w);
    if (!rc)
        rc = store_numbers(z, i, x);
    free(x);
    return rc;
}

/* The scales of a checkpoint. Fixed ones are those of its recipe: another recipe's would change the weights. */
static int held_scales(struct optim *z, int i, float scale, float *held)
{
    struct tensor t = z->p[i].stored_scale;
    z->ops->download(z->ops, held, t.data, tensor_bytes(t));
    int rc = z->ops->status(z->ops);
    for (int64_t r = 0; r < t.rows && !rc; r++)
        if (scale > 0 && held[r] != scale)
            rc = err_set(GPT_INPUT,
                         "resume: %s.weight.scale: expected %.9g, the recipe's, found %.9g",
                         z->recipe->params[i].label, (double)scale, (double)held[r]);
    return rc;
}

static int loaded_history(struct optim *z, int i, float most)
{
    int world = z->comm->world;
    double mine = (double)most, all[world];
    int rc = z->comm->gather_host(z->comm, &mine, 1, all);
    if (rc)
        return rc;
    for (int r = 0; r < world; r++)
        most = (float)all[r] > most ? (float)all[r] : most;
    return set_history(z, i, most);
}

static int load_weight(struct optim *z, int i)
{
    const struct param *p = &z->banks->p[i];
    struct tensor t = z->p[i].stored;
    float scale = (float)recipe_weight_scale(z->recipe, p->spec);
    int64_t n = tensor_count(t);
    uint16_t *w = malloc((size_t)n * sizeof *w + 1);
    float *x = malloc((size_t)n * sizeof *x + 1);
    char *codes = malloc(tensor_bytes(t) + 1);
    float *held = calloc((size_t)t.rows + 1, sizeof *held);
    int rc = w && x && codes && held ? 0 : err_memory();

    if (!rc && t.dtype == DT_E4M3)
        rc = held_scales(z, i, scale, held);
    if (!rc) {
        z->ops->download(z->ops, codes, t.data, tensor_bytes(t));
        rc = z->ops->status(z->ops);
    }
    t.data = codes;
    for (int64_t r = 0; r < t.rows && !rc; r++)
        scaled_read(x + r * t.cols, t, r * t.cols, (int)t.cols, t.dtype == DT_E4M3 ? held[r] : 1);
    for (int64_t k = 0; k < n && !rc; k++) {
        w[k] = bf16_from_f32(x[k]);
        x[k] = bf16_to_f32(w[k]);
    }
    if (!rc)
        z->ops->upload(z->ops, p->w_own.data, w, tensor_bytes(p->w_own));
    if (!rc && recipe_delayed(z->recipe, p->spec))
        rc = loaded_history(z, i, largest_of(0, x, n));
    free(w), free(x), free(codes), free(held);
    return rc;
}

int optim_loaded(struct optim *z)
{
    int rc = 0;
    for (int i = 0; i < z->recipe->n_params; i++)
        z->p[i].waits = false;
    for (int i = 0; i < z->recipe->n_params && !rc; i++)
        if (z->recipe->params[i].stored != DT_NONE)
            rc = load_weight(z, i);
    return rc ? rc : z->ops->status(z->ops);
}

int optim_masters(struct optim *z, const struct initial *v)
{
    int rc = 0;
    for (int i = 0; i < z->recipe->n_params && !rc; i++) {
        rc = make_master(z, i, initial_exact(v, i));
        if (!rc && z->recipe->params[i].stored != DT_NONE)
            rc = store_weight(z, i, v);
    }
    if (!rc)
        banks_quantize(z->banks);
    for (int i = 0; i < z->recipe->n_params && !rc; i++)
        if (around_takes(&z->recipe->optimizer.around, i))
            optim_around(z, i, true);
    return rc ? rc : z->ops->status(z->ops);
}

struct adam_param optim_weight(const struct optim *z, int i, struct fp8_copy *copy)
{
    const struct optim_param *q = &z->p[i];
    const struct param *p = &z->banks->p[i];
    real scale = (real)recipe_weight_scale(z->recipe, p->spec);
    bool apart = q->stored.data != NULL;

    *copy = q->stored.dtype != DT_E4M3
                ? param_own_fp8(p)
                : (struct fp8_copy){ .codes = q->stored,
                                     .scale_inv = scale,
                                     .amax = q->amax,
                                     .rows = scale > 0 ? NULL : q->stored_scale.data,
                                     .top = q->amax_top };
    return (struct adam_param){ .w = !apart                       ? p->w_own
                                     : q->stored.dtype != DT_E4M3 ? q->stored
                                                                  : NO_TENSOR,
                                .compute = apart ? p->w_own : NO_TENSOR,
                                .copy = copy->codes.data ? copy : NULL,
                                .gate = optim_gate(z) };
}

/* -- hyperparameters of a step ------------------------------------------------------------ */

static double adam_eps(const struct recipe *r, double root_of_correction)
{
    return r->optimizer.adam.eps_at == EPS_CORRECTED ? r->optimizer.adam.eps * root_of_correction
                                                     : r->optimizer.adam.eps;
}

static struct adam_step adam_hyper(const struct recipe *r, const struct param_spec *s,
                                   const struct chain *c, const struct step_schedule *at, int64_t n)
{
    double eta = schedule_number(r, s, &c->lr, at) * schedule_lr(r, s, at) *
                 (rule_chains(&s->rule) == 1 ? s->lr_mul[0] : r->optimizer.mixed_lr);
    double c1 = r->optimizer.adam.correction ? 1 - pow(s->beta1, (double)n) : 1;
    double c2 = r->optimizer.adam.correction ? sqrt(1 - pow(s->beta2, (double)n)) : 1;
    double rate = r->optimizer.adam.decay == DECAY_L2 ? 1
                  : r->optimizer.adam.decay_lr        ? eta
                                                      : eta * eta;
    return (struct adam_step){
        .step_size = (real)(eta * c2 / c1),
        .decay = (real)(rate * r->optimizer.adam.wd * s->wd_mul),
        .eps = (real)adam_eps(r, c2),
        .update = (uint32_t)n,
    };
}

struct tensor optim_exact(const struct optim *z, int i, struct tensor *low)
{
    const struct optim_param *q = &z->p[i];
    struct fp8_copy copy;
    *low = q->master.t.data ? NO_TENSOR : q->mantissa;
    return q->master.t.data ? q->master.t : optim_weight(z, i, &copy).w;
}

void optim_moved(struct optim *z, int i)
{
    struct fp8_copy copy;
    struct adam_param weight = optim_weight(z, i, &copy);
    if (z->p[i].master.t.data)
        z->ops->store(z->ops, &weight, z->p[i].master.t);
    else if (weight.compute.data)
        z->ops->copy(z->ops, weight.compute, weight.w);
    else if (weight.copy)
        z->ops->quantize(z->ops, &copy, weight.w);
}

/* Adds a step's weight of a parameter, (step + 1)^R times the square of the largest rate so far, to the sum. */
static double add_free(const struct optim *z, int i, const struct step_schedule *at,
                       struct free_mean *f)
{
    const struct param_spec *s = &z->recipe->params[i];
    double lr = schedule_number(z->recipe, s, &s->rule.chain[0].lr, at);
    f->most = fmax(f->most, lr * schedule_lr(z->recipe, s, at));
    double weight = pow(at->step + 1, z->recipe->optimizer.around.number[1]) * f->most * f->most;
    f->sum += weight;
    f->steps = at->step + 1;
    return weight;
}

/* Returns the part of the step's z in schedule-free's mean (gpt-rules(5)). */
static double free_part(struct optim *z, int i, const struct step_schedule *at)
{
    struct free_mean *f = &z->free[i];
    if (f->steps != at->step)
        *f = (struct free_mean){ 0 };
    while (f->steps < at->step) { /* a run that goes on */
        struct step_schedule past;
        schedule_at(z->recipe, f->steps, &past);
        add_free(z, i, &past, f);
    }
    double weight = add_free(z, i, at, f);
    return f->sum > 0 ? weight / f->sum : 0;
}

/* Numbers of op around in step `at`; lookahead's are for the step behind. */
static void around_hyper(struct optim *z, int i, const struct step_schedule *at, real number[3])
{
    const struct around *a = &z->recipe->optimizer.around;
    const double *k = a->number;
    bool ahead = at->step + 1 >= k[2] && at->step + 1 < k[3];
    int begin = schedule_point(z->recipe, k[1]);
    switch (a->kind) {
    case AROUND_LOOKAHEAD:
        number[0] = (real)(1 - k[1]);
        number[1] = (real)(ahead ? k[0] * at->lr / z->most_lr : 0);
        break;
    case AROUND_OUTER:
        number[0] = (real)k[0], number[1] = (real)k[1];
        number[2] = (at->step + 1) % (int)k[2] == 0;
        break;
    case AROUND_AVERAGE:
        number[0] = at->step < begin ? 0 : at->step == begin ? 1 : (real)(1 / k[0]);
        break;
    case AROUND_FREE: number[0] = (real)k[0], number[1] = (real)free_part(z, i, at); break;
    default: break;
    }
}

void optim_around(struct optim *z, int i, bool begin)
{
    static const enum around_how hows[] = { AROUND_BEGIN, AROUND_AHEAD, AROUND_OUTWARDS,
                                            AROUND_TAIL, AROUND_APART };
    enum around_kind kind = z->recipe->optimizer.around.kind;
    const struct optim_param *q = &z->p[i];
    struct tensor low, exact = optim_exact(z, i, &low);
    struct tensor mean = optim_state(q, "around_mean"), before = optim_state(q, "around_before");

    if (!begin) {
        z->ops->around(z->ops, exact, low, mean, before, hows[kind], z->hyper->around[i],
                       optim_gate(z));
        if (kind != AROUND_AVERAGE)
            optim_moved(z, i);
        return;
    }
    if (before.data)
        z->ops->around(z->ops, exact, low, mean, before, AROUND_BEGIN, NULL, NULL);
    if (kind == AROUND_FREE)
        z->ops->around(z->ops, exact, low, NO_TENSOR, mean, AROUND_BEGIN, NULL, NULL);
}

void optim_read_apart(struct optim *z, bool on)
{
    const struct around *a = &z->recipe->optimizer.around;
    real part = (real)around_part(a);

    if (on)
        z->ops->upload(z->ops, &z->hyper->read, &part, sizeof part);
    for (int i = 0; i < z->recipe->n_params; i++) {
        struct tensor own = z->banks->p[i].w_own, aside = z->p[i].aside, low, exact;
        if (!aside.data)
            continue;
        if (!on) {
            z->ops->copy(z->ops, own, aside);
            continue;
        }
        exact = optim_exact(z, i, &low);
        z->ops->copy(z->ops, aside, own);
        z->ops->around(z->ops, exact, low, optim_state(&z->p[i], "around_mean"), own, AROUND_READ,
                       &z->hyper->read, NULL);
    }
    optim_gather_weights(z);
}

void optim_prepare(struct optim *z, const struct step_schedule *at)
{
    const struct recipe *r = z->recipe;
    struct step_hyper host = { .tied_mix = (real)at->tied_mix };

    assert(z->open <= 1);
    for (int i = 0; i < r->n_params; i++)
        around_hyper(z, i, at, host.around[i]);
    z->plan = step_plan_of(&z->plans, at);
    for (int i = 0; i < r->n_params; i++) {
        const struct param_spec *s = &r->params[i];
        const struct optim_param *q = &z->p[i];
        double second = schedule_second_part(r, s, at);
        for (int c = 0; c < rule_chains(&s->rule); c++) {
            const struct chain *chain = &s->rule.chain[c];
            double part = c ? second : 1 - second;
            if (!chain_is_adam(chain)) {
                rules_hyper(r, i, c, at, &host.chain[i][c]);
                continue;
            }
            for (int late = 0; late < 2;
                 late++) { /* as if the step before was applied, or skipped */
                struct adam_step *h = &host.adam[i][late];
                *h = adam_hyper(r, s, chain, at, q->count + 1 - (late && z->open && q->counted));
                if (rule_chains(&s->rule) > 1)
                    h->step_size *= (real)part, h->decay *= (real)part;
            }
        }
    }
    z->ops->upload(z->ops, z->hyper, &host, sizeof host);
}

/* -- checkpoints ----------------------------------------------------------------------- */

int optim_tensors(const struct optim *z, struct optim_tensor *out)
{
    int n = 0;
    for (int i = 0; i < z->recipe->n_params; i++) {
        const struct param *p = &z->banks->p[i];
        const struct optim_param *q = &z->p[i];
        for (int k = 0; k < q->n_states; k++) {
            bool whole = !q->state[k].sharded;
            if (q->state[k].role == STATE_GRADIENT && !q->waits)
                continue;
            bool one = q->state[k].matrices == 1 && whole; /* rows of its own number */
            bool each = q->state[k].each_rank;
            int64_t units = one ? q->held[k].rows : p->units;
            out[n++] =
                (struct optim_tensor){ .param = i,
                                       .state = &q->state[k],
                                       .kind = q->state[k].kind,
                                       .t = q->held[k],
                                       .first = each    ? z->comm->rank * units
                                                : whole ? 0
                                                        : p->own_first,
                                       .count = whole ? units : p->own_count,
                                       .total = each ? z->comm->world * units : units,
                                       .replicated = !each && (whole || p->own_count == p->units) };
        }
    }
    return n;
}

void optim_gather_weights(struct optim *z)
{
    for (int i = 0; i < z->recipe->n_params; i++)
        if (z->p[i].shard)
            z->comm->wait(z->comm,
                          z->comm->all_gather(z->comm, z->banks->p[i].w, whole_shards(z, i)));
    banks_quantize(z->banks);
}
