/* state.c - the optimizer's memory, the hyperparameters of a step, and the tensors of a checkpoint. */
#include "optim/state.h"

#include <math.h>
#include <stdlib.h>

static bool sharded(const struct param_spec *s, int world)
{
    return s->comms != COMMS_REPLICATED && world > 1;
}

enum dtype optim_update_dtype(const struct recipe *r, const struct param_spec *s)
{
    return r->polar_dtype == DT_NONE ? s->dtype : r->polar_dtype;
}

/* -- memory ------------------------------------------------------------------------ */

static int64_t own_elements(const struct param_spec *s, int world)
{
    return s->matrices * s->rows * s->cols / (sharded(s, world) ? world : 1);
}

int64_t optim_param_bytes(const struct recipe *r, int i, int world)
{
    const struct param_spec *s = &r->params[i];
    int64_t n = own_elements(s, world);
    if (s->rule == RULE_ADAM)
        return n * 2 * (int64_t)dtype_size(recipe_adam_dtype(r, s));
    return n * 4 + n / s->cols * 4 + (s->dtype == DT_BF16 ? n * 2 : 0);
}

static int64_t x_bytes(const struct recipe *r, int world)
{
    int64_t most = 0;
    for (int i = 0; i < r->n_params; i++) {
        const struct param_spec *s = &r->params[i];
        int64_t bytes = own_elements(s, world) * (int64_t)dtype_size(optim_update_dtype(r, s));
        if (s->rule == RULE_NORMUON && bytes > most)
            most = bytes;
    }
    return most;
}

/* -1: there is none, or only one rank. */
static int sparse_param(const struct recipe *r, int world)
{
    for (int i = 0; i < r->n_params && world > 1; i++)
        if (r->params[i].comms == COMMS_SPARSE)
            return i;
    return -1;
}

static struct tensor sparse_gradient(const struct recipe *r, int i)
{
    const struct param_spec *s = &r->params[i];
    return tensor_of(NULL, gradient_dtype(r, s), s->rows, s->cols);
}

/* Each token touches one row, and an exchange follows adam_every steps. */
static int64_t most_touched(const struct recipe *r, int world)
{
    int64_t most = 0;
    for (int i = 0; i < r->n_stages; i++)
        most = r->stages[i].tokens > most ? r->stages[i].tokens : most;
    return most / world * r->adam_every;
}

int64_t optim_work_bytes(const struct recipe *r, int world)
{
    int i = sparse_param(r, world);
    int64_t exchange =
        i < 0 ? 0 : sparse_bytes(sparse_gradient(r, i), world, most_touched(r, world));
    return x_bytes(r, world) + (int64_t)sizeof(struct step_hyper) + exchange;
}

static struct tensor take(struct optim *z, enum dtype t, int64_t rows, int64_t cols,
                          const char *what)
{
    struct tensor x = tensor_of(NULL, t, rows, cols);
    x.data = z->ops->alloc(z->ops, tensor_bytes(x), what);
    return x;
}

/* The learning rate of a matrix is scaled by sqrt(max(1, rows / cols)) and by its multiplier. */
static int learning_rates(struct optim_param *q, const struct param *p)
{
    const struct param_spec *s = p->spec;
    double shape = sqrt(fmax(1, (double)s->rows / (double)s->cols));
    q->lr_mul = malloc((size_t)p->own_count * sizeof *q->lr_mul);
    if (!q->lr_mul)
        return err_sys("learning rates of %s", s->label);
    for (int64_t i = 0; i < p->own_count; i++)
        q->lr_mul[i] = (float)(shape * s->lr_mul[(p->own_first + i) % s->n_lr]);
    return 0;
}

/* Padding is at the end, so the last shards may be shorter, or empty. */
static int take_shards(struct optim *z, int i)
{
    struct param *p = &z->banks->p[i];
    struct optim_param *q = &z->p[i];
    int world = z->comm->world;
    int64_t part = p->w_own.rows, used = p->used * param_unit_rows(p);

    q->reduced = calloc((size_t)world, sizeof *q->reduced);
    if (q->reduced && p->spec->comms == COMMS_REPLICATED)
        return 0;
    q->shard = calloc((size_t)world, sizeof *q->shard);
    q->rows = calloc((size_t)world, sizeof *q->rows);
    if (!q->reduced || !q->shard || !q->rows)
        return err_sys("shards of %s", p->spec->label);
    for (int r = 0; r < world; r++) {
        int64_t left = z->recipe->padding ? part : used - r * part;
        q->shard[r].rows = left < 0 ? 0 : left < part ? left : part;
        q->padded |= q->shard[r].rows < part;
    }
    return 0;
}

static int take_states(struct optim *z, int i)
{
    struct param *p = &z->banks->p[i];
    struct optim_param *q = &z->p[i];
    int64_t rows = p->w_own.rows, cols = p->w_own.cols;
    int rc = take_shards(z, i);

    if (rc)
        return rc;
    if (p->spec->rule == RULE_ADAM) {
        enum dtype t = recipe_adam_dtype(z->recipe, p->spec);
        q->exp_avg = take(z, t, rows, cols, "exp_avg");
        q->exp_avg_sq = take(z, t, rows, cols, "exp_avg_sq");
        return 0;
    }
    q->momentum = take(z, DT_F32, rows, cols, "momentum");
    q->second = take(z, DT_F32, rows, 1, "second momentum");
    if (p->w.dtype == DT_BF16)
        q->mantissa = take(z, DT_U16, rows, cols, "mantissa");
    return learning_rates(q, p);
}

int optim_init(struct optim *z, const struct recipe *r, struct banks *b, struct ops *o,
               struct comm *c)
{
    int rc = 0;

    *z = (struct optim){ .recipe = r, .banks = b, .ops = o, .comm = c };
    for (int i = 0; i < r->n_params && !rc; i++)
        rc = take_states(z, i);
    for (int k = 0; k < r->n_late; k++)
        z->p[r->late[k]].late = true;
    if (rc)
        return rc;
    z->hyper = o->alloc(o, sizeof *z->hyper, "hyperparameters of a step");
    z->x = take(z, DT_U8, 1, x_bytes(r, c->world), "NorMuon update");
    if ((rc = o->status(o)))
        return rc;
    z->sparse_param = sparse_param(r, c->world);
    if (z->sparse_param >= 0 &&
        (rc = sparse_new(&z->sparse, o, c, b->p[z->sparse_param].g, most_touched(r, c->world))))
        return rc;
    optim_reset(z);
    return o->status(o);
}

void optim_release(struct optim *z)
{
    sparse_free(z->sparse);
    z->sparse = NULL;
    for (int i = 0; i < MAX_PARAMS; i++) {
        struct optim_param *q = &z->p[i];
        free(q->lr_mul);
        free(q->shard);
        free(q->rows);
        free(q->reduced);
        q->lr_mul = NULL, q->shard = NULL, q->rows = NULL, q->reduced = NULL;
    }
}

void optim_reset(struct optim *z)
{
    struct optim_tensor t[OPTIM_MAX_TENSORS];
    int n = optim_tensors(z, t);

    for (int i = 0; i < n; i++)
        if (t[i].t.data != z->banks->p[t[i].param].w_own.data)
            z->ops->zero(z->ops, t[i].t);
    for (int i = 0; i < z->recipe->n_params; i++) {
        z->p[i].count = 0;
        z->p[i].reducing = false;
    }
    if (z->sparse)
        sparse_forget(z->sparse);
}

/* -- hyperparameters of a step ------------------------------------------------------------ */

static struct adam_step adam_hyper(const struct recipe *r, const struct param_spec *s, double lr,
                                   int64_t n)
{
    double eta = r->adam_lr * lr * s->lr_mul[0];
    return (struct adam_step){
        .step_size =
            (real)(eta * sqrt(1 - pow(s->beta2, (double)n)) / (1 - pow(s->beta1, (double)n))),
        .decay = (real)(eta * eta * r->adam_wd * s->wd_mul),
        .eps = (real)r->adam_eps,
        .update = (uint32_t)n,
    };
}

static struct muon_step muon_hyper(const struct recipe *r, const struct param_spec *s,
                                   const struct step_schedule *at)
{
    double lr = r->muon_lr * at->lr;
    return (struct muon_step){
        .blend = r->blend_f32 ? (real)(1 - (float)at->momentum) : (real)(1 - at->momentum),
        .lr = (real)lr,
        .decay = (real)(lr * r->muon_wd * s->wd_mul),
    };
}

void optim_prepare(struct optim *z, const struct step_schedule *at)
{
    const struct recipe *r = z->recipe;
    struct step_hyper host = { 0 };

    for (int i = 0; i < r->n_params; i++) {
        const struct param_spec *s = &r->params[i];
        if (s->rule == RULE_ADAM)
            host.adam[i] = adam_hyper(r, s, at->lr, z->p[i].count + 1);
        else
            host.muon[i] = muon_hyper(r, s, at);
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
        const struct {
            const char *kind;
            struct tensor t;
        } held[] = {
            { "weight", p->w_own },      { "mantissa", q->mantissa },
            { "momentum", q->momentum }, { "second_momentum", q->second },
            { "exp_avg", q->exp_avg },   { "exp_avg_sq", q->exp_avg_sq },
        };
        for (size_t k = 0; k < sizeof held / sizeof *held; k++)
            if (held[k].t.data)
                out[n++] = (struct optim_tensor){
                    .param = i,
                    .kind = held[k].kind,
                    .t = held[k].t,
                    .first = p->own_first,
                    .count = p->own_count,
                    .total = p->units,
                    .replicated = p->own_count == p->units,
                };
    }
    return n;
}

void optim_gather_weights(struct optim *z)
{
    for (int i = 0; i < z->recipe->n_params; i++)
        if (z->recipe->params[i].comms != COMMS_REPLICATED)
            z->comm->wait(z->comm, z->comm->all_gather(z->comm, z->banks->p[i].w, NULL));
    banks_quantize(z->banks);
}
