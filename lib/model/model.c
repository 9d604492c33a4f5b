/* model.c - the model's memory, its parameters by role, and what changes from step to step. */
#include "model/model.h"

#include <stdlib.h>
#include <assert.h>
#include <string.h>

/* -- the plan of the arena ---------------------------------------------------- */

struct planner {
    char *base;
    size_t used;
    enum dtype act;
};

static struct tensor take(struct planner *p, enum dtype t, int64_t rows, int64_t cols)
{
    struct tensor x = tensor_of(p->base ? p->base + p->used : NULL, t, rows, cols);
    p->used += (tensor_bytes(x) + 255) & ~(size_t)255;
    return x;
}

/* n (T,D) tensors in the memory of `old`, which is not read any more, or in new memory. */
static void reuse(struct planner *p, struct tensor old, struct tensor *const *out, int n, int64_t T,
                  int64_t d)
{
    if (n * T * d > tensor_count(old))
        old = take(p, p->act, n * T, d);
    for (int i = 0; i < n; i++)
        *out[i] = tensor_rows(tensor_shape(old, n * T, d), i * T, T);
}

/* In evaluation, what is computed from raw, once it is read, takes its memory. */
enum { SHARED = 6 }; /* times (T,D) in evaluation: raw, and q, k and v behind it */

static void plan_attention(const struct recipe *r, struct planner *p, struct acts *a, int i,
                           int64_t T, bool train)
{
    struct layer_acts *l = &a->layer[i];
    int64_t d = r->model.width;
    struct tensor both = train ? NO_TENSOR : take(p, p->act, SHARED * T, d);
    if (train) {
        l->q = take(p, p->act, T, d);
        l->k = take(p, p->act, T + (layer_key_offset(r, i) != KEY_OFFSET_NONE), d);
        l->v = take(p, p->act, T, d);
        l->factor = take(p, DT_REAL, 2 * r->model.heads, T);
    } else {
        a->raw = tensor_of(both.data, p->act, T, 3 * d);
        l->q = tensor_rows(both, 3 * T, T);
        l->k = tensor_rows(both, 4 * T, T);
        l->v = tensor_rows(both, 5 * T, T);
    }
    l->out = train ? take(p, p->act, T, d) : tensor_rows(both, 0, T);
    l->lse = take(p, DT_REAL, r->model.heads, T);
    l->gated =
        train ? take(p, p->act, T, d) : l->k; /* apart from raw, which attention_cached may read */
    l->attended = take(p, p->act, T, d);
    l->y2 = take(p, p->act, T, d);
}

/* Is the stream that enters layer i read again later on? */
static bool stream_kept(const struct recipe *r, int i)
{
    return i == 0 || stream_read_again(r, i) ||
           (r->model.skip.tap == SKIP_LAYER && i == r->model.skip.from + 1);
}

/* The streams that enter layer i. In evaluation the layers share one buffer, but for the streams
 * that are read again later. */
static void plan_streams(const struct recipe *r, struct planner *p, struct acts *a, int64_t T,
                         bool train, int i)
{
    struct layer_acts *l = &a->layer[i];
    bool own = i > 0 ||
               (r->model.inject == INJECT_AFTER && r->model.bigram.rows && !r->model.bigram.in_x0);
    int first = 1; /* the first layer whose input need not be kept */

    while (stream_kept(r, first))
        first++;
    l->in = !own                                       ? a->x0
            : train || stream_kept(r, i) || i == first ? take(p, p->act, T, r->model.width)
                                                       : a->layer[first].in;
    if (r->model.lanes < 0 || i < r->model.lanes)
        return;
    l->in1 = i == r->model.lanes                ? l->in
             : train || i == r->model.lanes + 1 ? take(p, p->act, T, r->model.width)
                                                : l[-1].in1;
}

static void plan_layer(const struct recipe *r, struct planner *p, struct acts *a, int64_t T,
                       bool train, int i)
{
    int64_t d = r->model.width, f = r->model.mlp_width;
    struct layer_acts *l = &a->layer[i];
    bool attends = !train || layer_attends(r, i), two = layer_two_lanes(r, i);

    if (r->model.inject == INJECT_BEFORE || layer_adds(r, i, TOKEN_STREAM))
        l->mixed = take(p, p->act, T, d);
    l->y = r->model.attend_as >= 0 && i > r->model.attend_as ? a->layer[r->model.attend_as].y
                                                             : take(p, p->act, T, d);
    l->y2 = l->y;
    l->attended = r->model.inject == INJECT_BEFORE   ? l->mixed
                  : r->model.inject_bare && !attends ? take(p, p->act, T, d)
                                                     : l->in;
    if (attends)
        plan_attention(r, p, a, i, T, train);
    if (two)
        l->attended1 = take(p, p->act, T, d);
    l->post =
        train || f > SHARED * d ? take(p, p->act, T, f) : tensor_of(a->raw.data, p->act, T, f);
    /* The backward reads a product that a learnable coefficient multiplies. */
    l->o = l->m = a->product;
    if (train && attends && (two || r->model.post_single || recipe_token_role(r, i, TOKEN_ATTN)))
        l->o = take(p, p->act, T, d);
    bool keeps_m = train && mlp_mixes(r) && !mlp_folds(r, i);
    if (keeps_m)
        l->m = take(p, p->act, T, d);
    if (train && r->model.inject == INJECT_AFTER)
        l->g = keeps_m ? l->m : take(p, p->act, T, d);
    if (train && attends) /* the MLP's backward comes before attention's */
        reuse(p, l->post, (struct tensor *[]){ &l->dq, &l->dk, &l->dv, &l->drows }, 4, T, d);
}

/* In evaluation all layers work in the buffers of one, planned as if it had attention. */
static void share_layer(const struct recipe *r, struct planner *p, struct acts *a,
                        const struct layer_acts *shared, int64_t T, int i)
{
    struct layer_acts *l = &a->layer[i], own = *l;

    *l = *shared;
    l->in = own.in;
    l->in1 = own.in1;
    l->mixed = layer_adds(r, i, TOKEN_STREAM) ? own.mixed : l->mixed;
    l->rows = own.rows;
    if (!layer_attends(r, i)) {
        l->attended = r->model.inject == INJECT_BEFORE ? l->mixed
                      : r->model.inject_bare           ? l->attended
                                                       : l->in;
        l->y2 = l->y;
    }
    if (layer_two_lanes(r, i))
        l->attended1 = i == r->model.lanes ? take(p, p->act, T, r->model.width) : l[-1].attended1;
}

static void plan_backward(const struct recipe *r, struct planner *p, struct acts *a, int64_t T)
{
    int64_t d = r->model.width;
    bool branch = mlp_mixes(r);

    for (int i = 0; i < r->n_layers; i++)
        branch |= attention_mixes(r, i);
    struct tensor *const wide[] = { &a->dx, &a->dy, &a->dx0, &a->dskip };
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++)
        *wide[i] = take(p, p->act, T, d);
    if (r->precision.mlp.down_fp8) { /* read before any of these is written */
        a->post8 = tensor_of(a->dx.data, DT_E4M3, T, r->model.mlp_width);
        if (tensor_bytes(a->post8) > 4 * tensor_bytes(a->dx))
            a->post8 = take(p, DT_E4M3, T, r->model.mlp_width);
    }
    for (int i = 1; i <= r->n_layers; i++)
        if (stream_read_again(r, i))
            a->din[i] = take(p, p->act, T, d);
    if (branch)
        a->dbranch = take(p, p->act, T, d);
    if (r->model.lanes >= 0)
        a->dx1 = take(p, p->act, T, d);
    if (r->model.bigram.rows)
        a->dbigram = take(p, p->act, T, r->model.bigram.width);
    a->dy12 = take(p, p->act, T, GATE_WIDTH);
    if (r->model.gate_table) {
        a->dlogits = take(p, p->act, T, GATE_WIDTH);
        a->dnarrow = take(p, p->act, T, r->model.gate_table);
    }
    a->delta = take(p, DT_REAL, r->model.heads, T);
}

/* What [token_coefs] needs: the MLPs' outputs, and rows of tables. */
static void plan_tokens(const struct recipe *r, struct planner *p, struct acts *a, int64_t T,
                        bool train)
{
    int n[MAX_TOKEN_TERMS] = { 0 }; /* coefficients of each block */

    for (int k = 0; k < r->token_coefs.n; k++) {
        const struct token_term *t = &r->token_coefs.term[k];
        n[t->block] += t->parts;
        if (t->source != SOURCE_TABLE || a->layer[t->layer].rows.rows)
            continue;
        a->layer[t->layer].rows = take(p, p->act, T, r->model.width);
        if (train && t->layer == r->n_layers)
            a->layer[t->layer].drows = take(p, p->act, T, r->model.width);
    }
    for (int b = 0; b < r->token_coefs.n_blocks; b++) {
        a->hidden[b] = take(p, p->act, T, r->token_coefs.hidden);
        a->coefs[b] = take(p, DT_REAL, T, n[b]);
        a->dcoefs[b] = train ? take(p, DT_REAL, T, n[b]) : NO_TENSOR;
    }
    for (int k = 0; k < r->token_coefs.n; k++) {
        const struct token_term *t = &r->token_coefs.term[k];
        real *value = a->coefs[t->block].data, *grad = a->dcoefs[t->block].data;
        a->token[k] = (struct scalar){ value ? value + t->first : NULL,
                                       grad ? grad + t->first : NULL, n[t->block] };
    }
}

/* Rows of attention a token; which of a->plan the layer's attention has. */
static int pair_of(const struct layer_spec *l) { return l->attention == ATTN_PAIRED ? 2 : 1; }
static int plan_of(const struct layer_spec *l) { return 2 * l->long_window + pair_of(l) - 1; }

/* The same function computes the size of the arena (base NULL) and its layout. */
static size_t plan_acts(const struct recipe *r, struct planner *p, struct acts *a, int T,
                        bool train)
{
    int64_t d = r->model.width;
    struct layer_acts shared = { 0 };
    memset(a, 0, sizeof *a);
    a->tokens = T;
    a->train = train;
    a->x0 = take(p, p->act, T, d);
    if (r->model.bigram.rows)
        a->bigram = take(p, p->act, T, r->model.bigram.width);
    plan_tokens(r, p, a, T, train);
    if (r->model.gate_table) {
        a->narrow = take(p, p->act, T, r->model.gate_table);
        a->logits = take(p, p->act, T, GATE_LOGITS);
    }
    if (mlp_mixes(r) || attention_mixes(r, 0))
        a->product = take(p, p->act, T, d);
    for (int i = 0; i < r->n_layers; i++) {
        int pair = pair_of(&r->layers[i]), k = plan_of(&r->layers[i]);
        if (layer_attends(r, i) && !a->plan[k].rows)
            a->plan[k] =
                take(p, DT_U8, 1, (int64_t)attn_plan_bytes(pair * T, r->model.heads / pair));
    }
    if (train)
        a->raw = take(p, p->act, T, 3 * d);
    for (int i = 0; i <= r->n_layers; i++) {
        plan_streams(r, p, a, T, train, i);
        if (i < r->n_layers && (train || i == 0))
            plan_layer(r, p, a, T, train, i);
        if (i == 0)
            shared = a->layer[0];
        if (i < r->n_layers && !train) {
            if (i && layer_adds(r, i, TOKEN_STREAM))
                a->layer[i].mixed = take(p, p->act, T, d);
            share_layer(r, p, a, &shared, T, i);
        }
    }
    if (!train && r->model.skip.from >= 0 && r->model.skip.tap == SKIP_ATTENTION)
        a->layer[r->model.skip.from].attended = take(p, p->act, T, d);
    struct tensor both = train ? NO_TENSOR : tensor_of(a->raw.data, p->act, 2 * T, d);
    a->z = train ? take(p, p->act, T, d) : tensor_rows(both, 0, T);
    a->y = train ? take(p, p->act, T, d) : tensor_rows(both, T, T);
    if (train)
        plan_backward(r, p, a, T);
    return p->used;
}

size_t model_arena_bytes(const struct recipe *r, enum dtype act, int tokens, int val_tokens)
{
    struct acts a;
    size_t train = plan_acts(r, &(struct planner){ .act = act }, &a, tokens, true);
    size_t val = plan_acts(r, &(struct planner){ .act = act }, &a, val_tokens, false);
    return train > val ? train : val;
}

void model_acts(const struct model *m, struct acts *a, int tokens, bool train)
{
    struct planner p = { m->arena, 0, m->ops->act };
    size_t used = plan_acts(m->recipe, &p, a, tokens, train);
    assert(used <= m->arena_bytes);
    (void)used;
}

/* -- parameters and scalars by role ---------------------------------------------------- */

static struct param *find_param(const struct model *m, const char *label)
{
    int i = recipe_param(m->recipe, label);
    return i < 0 ? NULL : &m->banks->p[i];
}

static void find_scalar(const struct model *m, const char *name, struct scalar *out, int count)
{
    const struct scalar_spec *s = recipe_scalar(m->recipe, name);
    if (!s)
        return;
    const struct param *p = &m->banks->p[s->param];
    for (int k = 0; k < (count > 1 ? m->recipe->n_layers : 1); k++) {
        out[k].stride = 0;
        out[k].value = (const real *)p->w.data + s->first + k * s->stride;
        out[k].grad = p->g.data ? (real *)p->g.data + s->first + k * s->stride : NULL;
    }
}

static void find_roles(struct model *m)
{
#define PARAM_ROLE(label, ...) m->p.label = find_param(m, #label);
#define SCALAR_ROLE(name, count, ...) find_scalar(m, #name, m->p.name, count);
#include "recipe/role_list.h"
}

/* -- memory ----------------------------------------------------------------------- */

int model_init(struct model *m, struct banks *b, int tokens, int val_tokens)
{
    return model_init_to(m, b, tokens, val_tokens, tokens > val_tokens ? tokens : val_tokens);
}

/* The gates of logits: the unit matrix's first rows. */
static void take_unit(struct model *m)
{
    int heads = m->recipe->model.heads;
    real one[GATE_WIDTH * GATE_WIDTH] = { 0 };
    for (int h = 0; h < heads; h++)
        one[h * GATE_WIDTH + h] = 1;
    m->unit = m->dunit = tensor_of(NULL, DT_REAL, heads, GATE_WIDTH);
    m->unit.data = m->ops->alloc(m->ops, tensor_bytes(m->unit), "gates of logits");
    m->dunit.data = m->ops->alloc(m->ops, tensor_bytes(m->unit), "gates of logits");
    m->ops->upload(m->ops, m->unit.data, one, tensor_bytes(m->unit));
    m->ops->zero(m->ops, m->dunit);
}

void model_prefixes(struct model *m, const int32_t *prefix)
{
    m->ops->upload(m->ops, m->prefix, prefix, (size_t)m->recipe->model.vocab * sizeof *prefix);
}

void model_never(struct model *m, const struct token_mask *never)
{
    struct ops *o = m->ops;
    size_t rows = (size_t)never->ids * sizeof *never->row;
    size_t bits = (size_t)never->rows * (size_t)never->words * sizeof *never->bits;

    m->never = *never;
    m->never.row = o->alloc(o, rows, "rows of the tokens' mask");
    m->never.bits = o->alloc(o, bits, "mask of tokens that never follow");
    if (o->status(o))
        return;
    o->upload(o, m->never.row, never->row, rows);
    o->upload(o, m->never.bits, never->bits, bits);
}

static int take_prefixes(struct model *m)
{
    size_t n = (size_t)m->recipe->model.vocab;
    int32_t *none = malloc(n * sizeof *none);

    if (!none)
        return err_memory();
    for (size_t v = 0; v < n; v++)
        none[v] = -1;
    m->prefix = m->ops->alloc(m->ops, n * sizeof *none, "prefixes of tokens");
    model_prefixes(m, none);
    free(none);
    return 0;
}

/* Where Q, K, V of all layers lie together. */
static void take_qkv(struct model *m)
{
    const struct param *p = m->p.qk_bank;
    int64_t d = m->recipe->model.width, rows = 3 * d * (p->w.rows / (2 * d));

    m->qkv_w = tensor_of(NULL, p->w.dtype, rows, d);
    m->qkv_w.data = m->ops->alloc(m->ops, tensor_bytes(m->qkv_w), "attention's matrices");
    m->qkv_g = tensor_of(NULL, p->g.dtype, rows, d);
    if (p->g.data)
        m->qkv_g.data = m->ops->alloc(m->ops, tensor_bytes(m->qkv_g), "their gradient");
}

int model_init_to(struct model *m, struct banks *b, int tokens, int val_tokens, int64_t positions)
{
    const struct recipe *r = b->recipe;
    struct ops *o = b->ops;
    int rc;
    *m = (struct model){ .recipe = r, .banks = b, .ops = o, .rope_updates = -1 };
    find_roles(m);
    if (m->p.lm_head->spec->codes)
        banks_keep_fp8(b, m->p.lm_head, (real)r->precision.head.w_scale);
    for (int k = 0; k < recipe_mlp_copies(r) && m->p.mlp->g.data; k++)
        banks_keep_fp8_each(b, m->p.mlp, k, r->model.mlp_width, 2 * (int64_t)r->model.mlp_width,
                            k ? r->precision.mlp.down_fp8 : r->precision.mlp.backward_fp8);
    m->arena_bytes = model_arena_bytes(r, o->act, tokens, val_tokens);
    m->arena = o->alloc(o, m->arena_bytes, "activations");
    m->rope.table = tensor_of(NULL, o->act, 2 * positions, r->model.head_dim / 2);
    m->rope.table.data = o->alloc(o, tensor_bytes(m->rope.table), "rotary table");
    m->mtp = o->alloc(o, (MAX_MTP + 1) * sizeof(real), "MTP weights");
    if (recipe_prefixes(r) && (rc = take_prefixes(m)))
        return rc;
    if (m->p.qk_bank)
        take_qkv(m);
    real *half = o->alloc(o, sizeof *half, "a constant");
    o->upload(o, half, &(real){ 0.5 }, sizeof *half);
    m->p.half.value = half;
    if (r->model.gate_table)
        take_unit(m);
    return o->status(o);
}

/* -- each step ------------------------------------------------------------------------ */

void model_set(struct model *m, const struct step_schedule *p)
{
    const struct recipe *r = m->recipe;
    float freq[256];
    real mtp[MAX_MTP + 1] = { 0 };
    m->schedule = *p;
    m->stale = true;
    for (int k = 0; k < p->n_mtp; k++)
        mtp[k] = (real)(float)p->mtp[k];
    mtp[p->n_mtp] = (real)(float)p->prefix;
    m->ops->upload(m->ops, m->mtp, mtp, sizeof mtp);
    assert(r->model.head_dim / 4 <= 256);
    int updates = schedule_rope(r, p->step, freq, &m->attn_scale);
    if (updates != m->rope_updates)
        m->ops->rope_table(m->ops, m->rope, freq);
    m->rope_updates = updates;
}

struct tensor bank_rows(struct tensor bank, int64_t rows, int64_t matrix)
{
    return tensor_rows(bank, rows * matrix, rows);
}

bool attention_apart(const struct model *m, int i)
{
    return m->p.qk_bank && m->recipe->layers[i].spare < 0;
}

struct param *attention_bank(const struct model *m, int i)
{
    return m->recipe->layers[i].spare >= 0 ? m->p.mlp : m->p.attn ? m->p.attn : m->p.qk_bank;
}

int64_t attention_row(const struct model *m, int i)
{
    const struct layer_spec *l = &m->recipe->layers[i];
    return l->spare >= 0 ? (int64_t)m->recipe->model.mlp_width * l->spare
                         : 4LL * m->recipe->model.width * l->bank;
}

struct tensor table_rows(const struct model *m, int param, int slot, bool grad)
{
    const struct param *p = &m->banks->p[param];
    return bank_rows(grad ? p->g : p->w, m->recipe->model.vocab, slot);
}

struct gate_input gate_input(struct model *m, struct acts *a, const struct layer_acts *l,
                             const struct param *bank, int row)
{
    struct tensor w = bank_rows(bank->w, m->recipe->model.heads, row), dw = NO_TENSOR;
    if (bank->g.data)
        dw = bank_rows(bank->g, m->recipe->model.heads, row);
    if (!m->p.gate_table)
        return (struct gate_input){ l->y, w, dw, a->dy12 };
    m->ops->gate_logits(m->ops, a->logits, l->y, a->narrow, w);
    return (struct gate_input){ a->logits, m->unit, m->dunit, a->dlogits };
}

void gate_input_bwd(struct model *m, struct acts *a, const struct layer_acts *l,
                    const struct param *bank, int row, bool add)
{
    int heads = m->recipe->model.heads;
    if (m->p.gate_table)
        m->ops->gate_logits_bwd(m->ops, a->dy12, add, a->dnarrow, bank_rows(bank->g, heads, row),
                                a->dlogits, l->y, a->narrow, bank_rows(bank->w, heads, row));
}

struct tensor value_rows(const struct model *m, int i, bool grad)
{
    const struct layer_spec *l = &m->recipe->layers[i];
    return l->value < 0 ? NO_TENSOR : table_rows(m, l->value, l->value_slot, grad);
}

bool layer_table(const struct recipe *r, int i, int *param, int *slot)
{
    *param = i < r->n_layers ? r->layers[i].value : -1;
    *slot = i < r->n_layers ? r->layers[i].value_slot : 0;
    for (int k = 0; k < r->token_coefs.n; k++)
        if (r->token_coefs.term[k].layer == i && r->token_coefs.term[k].source == SOURCE_TABLE)
            *param = r->token_coefs.term[k].table, *slot = r->token_coefs.term[k].slot;
    return *param >= 0;
}

struct attention_part attention_weight(const struct model *m, int i, bool grad)
{
    int64_t d = m->recipe->model.width, at = m->recipe->layers[i].bank;
    const struct param *p = attention_apart(m, i) ? m->p.vo_bank : attention_bank(m, i);
    struct tensor bank = grad ? p->g : p->w;

    if (attention_apart(m, i))
        return (struct attention_part){ bank_rows(grad ? m->qkv_g : m->qkv_w, 3 * d, at),
                                        bank_rows(bank, d, 2 * at + 1) };
    bank = tensor_rows(bank, attention_row(m, i), 4 * d);
    return (struct attention_part){ tensor_rows(bank, 0, 3 * d), tensor_rows(bank, 3 * d, d) };
}

void attention_copy(struct model *m, int i, bool grad)
{
    int64_t d = m->recipe->model.width, at = m->recipe->layers[i].bank;
    const struct param *qk = m->p.qk_bank, *vo = m->p.vo_bank;
    struct tensor all = attention_weight(m, i, grad).qkv;

    if (grad) {
        m->ops->copy(m->ops, bank_rows(qk->g, 2 * d, at), tensor_rows(all, 0, 2 * d));
        m->ops->copy(m->ops, bank_rows(vo->g, d, 2 * at), tensor_rows(all, 2 * d, d));
    } else {
        m->ops->copy(m->ops, tensor_rows(all, 0, 2 * d), bank_rows(qk->w, 2 * d, at));
        m->ops->copy(m->ops, tensor_rows(all, 2 * d, d), bank_rows(vo->w, d, 2 * at));
    }
}

struct head_loss model_head(const struct model *m, const struct batch *b)
{
    const struct recipe *r = m->recipe;
    double share = (double)m->banks->world / r->data.chunks; /* 1 / micro-batches */
    return (struct head_loss){
        .tgt = b->tgt,
        .mtp = m->mtp,
        .n_mtp = m->schedule.n_mtp,
        .prefix = m->schedule.prefixes ? m->prefix : NULL,
        .never = m->never,
        .before = b->token.row,
        .seed = (real)(share * r->optimizer.loss_scale),
        .block = r->precision.head.block,
        .fp8 = r->precision.head.fp8 != HEAD_FP8_NO,
        .x_scale = (real)r->precision.head.x_scale,
        .w_scale = (real)r->precision.head.w_scale,
        .g_scale = (real)(r->precision.head.g_scale * (r->precision.head.scale_micro ? share : 1) *
                          r->optimizer.loss_scale),
        .w8 = m->p.lm_head->fp8.codes,
        .whole = r->model.mtp_whole,
        .bf16_sigmoid = r->precision.head.sigmoid_bf16,
        .next = m->next,
        .cap_a = (real)r->model.softcap.a,
        .cap_b = (real)r->model.softcap.b,
        .cap_c = (real)r->model.softcap.c,
    };
}

enum key_offset layer_key_offset(const struct recipe *r, int i)
{
    return !r->layers[i].key_offset             ? KEY_OFFSET_NONE
           : r->model.key_channels == KEYS_HALF ? KEY_OFFSET_HALF
                                                : KEY_OFFSET_QUARTERS;
}

void layer_shapes(const struct model *m, const struct acts *a, int i, const struct batch *b,
                  struct qkv_shape *q, struct attn_shape *s)
{
    const struct recipe *r = m->recipe;
    const struct layer_spec *l = &r->layers[i];
    int pair = pair_of(l);
    *q = (struct qkv_shape){
        .heads = r->model.heads,
        .head_dim = r->model.head_dim,
        .paired = pair == 2,
        .key_offset = m->cache ? KEY_OFFSET_NONE : layer_key_offset(r, i),
        .split_gate = r->model.value_input == VALUE_SPLIT_ALL ||
                      (pair == 1 && r->model.value_input == VALUE_SPLIT),
        .cache = m->cache ? &m->cache[i] : NULL,
    };
    *s = (struct attn_shape){
        .rows = pair * b->tokens,
        .heads = r->model.heads / pair,
        .head_dim = r->model.head_dim,
        .cu = b->cu,
        .ncu = b->ncu,
        .cu_mul = pair,
        .window = l->long_window ? m->schedule.window_long : m->schedule.window_short,
        .scale = (float)m->attn_scale,
        .plan = a->plan[plan_of(l)].data,
    };
}
