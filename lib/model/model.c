/* model.c - the model's memory, its parameters by role, and what changes from step to step. */
#include "model/model.h"

#include <stdlib.h>
#include <assert.h>
#include <string.h>

/* -- the plan of the arena ---------------------------------------------------- */

struct planner {
    const struct streams *s;
    char *base;
    size_t used;
    enum dtype act;
    int64_t tokens;
    bool train;
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

/* Returns a tensor of so many columns, at most x's, in the memory of x. */
static struct tensor first_columns(struct tensor x, int64_t cols)
{
    return tensor_of(x.data, x.dtype, x.rows, cols);
}

/* Takes a (T,D) buffer. */
static struct tensor take_wide(struct planner *p)
{
    return take(p, p->act, p->tokens, p->s->recipe->model.width);
}

/* In evaluation, what is computed from raw, once it is read, takes its memory. */
enum { SHARED = 6 }; /* times (T,D) in evaluation: raw, and q, k and v behind it */

/* True if coefficients of tokens gate attention's result of layer i, or make it exclusive. */
static bool has_head_coefs(const struct recipe *r, int i)
{
    return recipe_token_role(r, i, TOKEN_XSA) || recipe_token_role(r, i, TOKEN_GATE);
}

static void plan_attention(struct planner *p, struct acts *a, struct layer_acts *l, int i)
{
    const struct recipe *r = p->s->recipe;
    int64_t T = p->tokens, d = r->model.width;
    struct tensor both = p->train ? NO_TENSOR : take(p, p->act, SHARED * T, d);
    if (p->train) {
        l->q = take(p, p->act, T, recipe_qk_rows(r, i));
        l->k =
            take(p, p->act, T + (layer_key_offset(r, i) != KEY_OFFSET_NONE), recipe_qk_rows(r, i));
        l->v = take_wide(p);
        l->factor = take(p, DT_REAL, 2 * r->model.heads, T);
    } else {
        a->raw = tensor_of(both.data, p->act, T, 3 * d);
        l->q = tensor_rows(both, 3 * T, T);
        l->k = tensor_rows(both, 4 * T, T);
        l->v = tensor_rows(both, 5 * T, T);
    }
    l->out = p->train ? take_wide(p) : tensor_rows(both, 0, T);
    l->lse = take(p, DT_REAL, r->model.heads, T);
    l->composed = l->out;
    if (recipe_token_role(r, i, TOKEN_DC1)) {
        l->mixed_lse = take(p, DT_REAL, r->model.heads, T);
        l->composed = p->train ? take_wide(p) : l->out;
    }
    if (p->train && r->layers[i].out_gate < 0 && !has_head_coefs(r, i))
        l->gated = l->composed;
    else
        l->gated =
            p->train ? take_wide(p) : l->k; /* apart from raw, which attention_cached may read */
}

/* True if a stream that enters layer i is read again by a later one. */
static bool is_kept(const struct streams *s, int i)
{
    return i == 0 || streams_use(s, BUFFER_din, i) ||
           (s->skip.buffer == BUFFER_in && s->skip.layer == i);
}

/* Plans the streams that enter layer i. In evaluation the layers share one buffer, but for the streams
 * that are read again later. */
static void plan_streams(struct planner *p, struct acts *a, int i)
{
    const struct streams *s = p->s;
    struct layer_acts *l = &a->layer[i];
    int first = 1; /* the first layer whose input need not be kept */

    while (is_kept(s, first))
        first++;
    l->in = i == 0 && !s->apart                       ? a->x0
            : p->train || is_kept(s, i) || i == first ? take_wide(p)
                                                      : a->layer[first].in;
    if (streams_use(s, BUFFER_in1, i))
        l->in1 = p->train || !l[-1].in1.rows ? take_wide(p) : l[-1].in1;
}

/* True if layer i has that buffer; in evaluation, where all work in the buffers of one, if any has. */
static bool has_buffer(const struct planner *p, enum buffer b, int i)
{
    bool any = streams_use(p->s, b, i);
    for (int k = 0; !p->train && k < p->s->recipe->n_layers; k++)
        any |= streams_use(p->s, b, k);
    return any;
}

/* Plans what layer i has beside its streams; in evaluation, what all layers have. */
static void plan_layer(struct planner *p, struct acts *a, struct layer_acts *l, int i)
{
    const struct recipe *r = p->s->recipe;
    const struct layer_streams *made = &p->s->layer[i];
    int64_t T = p->tokens, f = r->model.mlp_width;
    bool attends = !p->train || layer_attends(r, i);
    const struct {
        enum buffer b;
        struct tensor *at;
    } wide[] = { { BUFFER_mixed, &l->mixed },
                 { BUFFER_y, &l->y },
                 { BUFFER_attended, &l->attended },
                 { BUFFER_attended1, &l->attended1 },
                 { BUFFER_y2, &l->y2 } };

    for (size_t k = 0; k < sizeof wide / sizeof *wide; k++)
        if (has_buffer(p, wide[k].b, i))
            *wide[k].at = take_wide(p);
    if (attends)
        plan_attention(p, a, l, i);
    l->post = p->train || f > SHARED * r->model.width ? take(p, p->act, T, f)
                                                      : tensor_of(a->raw.data, p->act, T, f);
    l->o = l->m = a->product;
    if (!p->train)
        return;
    if (made->attention.kept)
        l->o = take_wide(p);
    if (made->mlp.kept)
        l->m = take_wide(p);
    if (has_buffer(p, BUFFER_g, i))
        l->g = made->mlp.kept ? l->m : take_wide(p);
    if (attends) { /* the MLP's backward comes before attention's */
        reuse(p, l->post, (struct tensor *[]){ &l->dq, &l->dk, &l->dv, &l->drows }, 4, T,
              r->model.width);
        l->dq = first_columns(l->dq, recipe_qk_rows(r, i));
        l->dk = first_columns(l->dk, recipe_qk_rows(r, i));
    }
}

/* Names what layer i reads and writes of other buffers. */
static void name_buffers(const struct streams *s, struct acts *a, int i)
{
    struct layer_acts *l = &a->layer[i];

    l->y = stream_tensor(a, s->layer[i].y);
    l->y2 = stream_tensor(a, s->layer[i].y2);
    l->attended = stream_tensor(a, s->layer[i].attended);
}

static void plan_layers(struct planner *p, struct acts *a)
{
    struct layer_acts shared = { 0 };
    int n = p->s->recipe->n_layers;

    for (int i = 0; i <= n; i++)
        plan_streams(p, a, i);
    if (!p->train)
        plan_layer(p, a, &shared, 0);
    for (int i = 0; i < n; i++) {
        struct layer_acts *l = &a->layer[i], own = *l;
        if (p->train) {
            plan_layer(p, a, l, i);
        } else {
            *l = shared;
            l->q = first_columns(l->q, recipe_qk_rows(p->s->recipe, i));
            l->k = first_columns(l->k, recipe_qk_rows(p->s->recipe, i));
            l->in = own.in, l->in1 = own.in1, l->rows = own.rows;
        }
        if (!p->train && p->s->skip.buffer == BUFFER_attended && p->s->skip.layer == i)
            l->attended = take_wide(p);
        name_buffers(p->s, a, i);
    }
}
static void plan_backward(struct planner *p, struct acts *a)
{
    const struct recipe *r = p->s->recipe;
    struct tensor *const wide[] = { &a->dx, &a->dy, &a->dx0, &a->dskip };
    int64_t T = p->tokens;

    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++)
        *wide[i] = take_wide(p);
    if (r->precision.mlp.down_fp8) { /* read before any of these is written */
        a->post8 = tensor_of(a->dx.data, DT_E4M3, T, r->model.mlp_width);
        if (tensor_bytes(a->post8) > 4 * tensor_bytes(a->dx))
            a->post8 = take(p, DT_E4M3, T, r->model.mlp_width);
    }
    if (r->precision.attn
            .fp8) { /* and read before post8 is written, but where later layers read it again */
        a->y8 = tensor_of(a->dx.data, DT_E4M3, T, r->model.width);
        if (r->model.attend_as >= 0)
            a->y8 = take(p, DT_E4M3, T, r->model.width);
    }
    for (int i = 0; i <= r->n_layers; i++)
        if (streams_use(p->s, BUFFER_din, i))
            a->layer[i].din = take_wide(p);
    if (p->s->products)
        a->dbranch = take_wide(p);
    if (streams_use(p->s, BUFFER_dx1, 0))
        a->dx1 = take_wide(p);
    if (r->model.bigram.rows)
        a->dbigram = take(p, p->act, T, r->model.bigram.width);
    if (recipe_own_mlp(r))
        a->dpost = take(p, p->act, T, r->model.mlp_width);
    a->dy12 = take(p, p->act, T, GATE_WIDTH);
    if (r->model.gate_table) {
        a->dlogits = take(p, p->act, T, GATE_WIDTH);
        a->dnarrow = take(p, p->act, T, r->model.gate_table);
    }
    a->delta = take(p, DT_REAL, r->model.heads, T);
}

/* What [token_coefs] needs: the MLPs' outputs, and rows of tables. */
static void plan_tokens(struct planner *p, struct acts *a)
{
    const struct recipe *r = p->s->recipe;
    int64_t T = p->tokens;

    for (int i = 0; i <= r->n_layers; i++)
        if (streams_use(p->s, BUFFER_rows, i))
            a->layer[i].rows = take_wide(p);
    if (p->train && streams_use(p->s, BUFFER_drows, r->n_layers))
        a->layer[r->n_layers].drows = take_wide(p);
    for (int b = 0; b < r->token_coefs.n_blocks; b++) {
        const struct token_block *k = &r->token_coefs.block[b];
        a->hidden[b] = take(p, p->act, T, r->token_coefs.hidden[k->set]);
        a->coefs[b] = take(p, DT_REAL, T, k->n);
        a->dcoefs[b] = p->train ? take(p, DT_REAL, T, k->n) : NO_TENSOR;
    }
    for (int k = 0; k < r->token_coefs.n; k++) {
        const struct token_term *t = &r->token_coefs.term[k];
        real *value = a->coefs[t->block].data, *grad = a->dcoefs[t->block].data;
        a->token[k] =
            (struct scalar){ value ? value + t->first : NULL, grad ? grad + t->first : NULL,
                             r->token_coefs.block[t->block].n };
    }
}

/* Rows of attention a token; which of a->plan the layer's attention has. */
static int pair_of(const struct layer_spec *l) { return l->attention == ATTN_PAIRED ? 2 : 1; }
static int plan_of(const struct layer_spec *l) { return 2 * l->long_window + pair_of(l) - 1; }

/* Computes the size of the arena, where base is NULL, or its layout. */
static size_t plan_acts(struct planner p, struct acts *a)
{
    const struct recipe *r = p.s->recipe;
    int T = (int)p.tokens;
    memset(a, 0, sizeof *a);
    a->tokens = T;
    a->train = p.train;
    a->x0 = take_wide(&p);
    if (r->model.bigram.rows)
        a->bigram = take(&p, p.act, T, r->model.bigram.width);
    plan_tokens(&p, a);
    if (r->model.gate_table) {
        a->narrow = take(&p, p.act, T, r->model.gate_table);
        a->logits = take(&p, p.act, T, GATE_LOGITS);
    }
    if (p.s->products)
        a->product = take_wide(&p);
    for (int i = 0; i < r->n_layers; i++) {
        int pair = pair_of(&r->layers[i]), k = plan_of(&r->layers[i]);
        if (layer_attends(r, i) && !a->plan[k].rows)
            a->plan[k] =
                take(&p, DT_U8, 1, (int64_t)attn_plan_bytes(pair * T, r->model.heads / pair));
    }
    if (p.train)
        a->raw = take(&p, p.act, T, 3 * (int64_t)r->model.width);
    plan_layers(&p, a);
    struct tensor both = p.train ? NO_TENSOR : tensor_of(a->raw.data, p.act, 2 * T, r->model.width);
    a->z = p.train ? take_wide(&p) : tensor_rows(both, 0, T);
    a->head = p.train ? take_wide(&p) : tensor_rows(both, T, T);
    if (p.train)
        plan_backward(&p, a);
    return p.used;
}

static size_t arena_bytes(const struct streams *s, enum dtype act, int tokens, int val_tokens)
{
    struct acts a;
    size_t train =
        plan_acts((struct planner){ .s = s, .act = act, .tokens = tokens, .train = true }, &a);
    size_t val = plan_acts((struct planner){ .s = s, .act = act, .tokens = val_tokens }, &a);
    return train > val ? train : val;
}

struct acts *model_acts(struct model *m, int tokens, bool train)
{
    struct acts *a = &m->acts[train];
    struct planner p = { &m->streams, m->arena, 0, m->ops->act, tokens, train };

    if (a->tokens == tokens)
        return a;
    size_t used = plan_acts(p, a);
    assert(used <= m->arena_bytes);
    (void)used;
    return a;
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
    for (int k = 0; k < LAYER_BANKS; k++)
        m->bank[k] = find_param(m, layer_banks[k].label);
}

/* -- memory ----------------------------------------------------------------------- */

/* Rows of a chunk have positions of their own. A query of paired heads sees the same keys and angles
 * between them at positions that go on. */
static int row_period(const struct recipe *r)
{
    int row = recipe_row(r);
    for (int i = 0; i < r->n_layers; i++)
        row = r->layers[i].attention == ATTN_PAIRED ? 0 : row;
    return row;
}

int model_init(struct model *m, struct banks *b, int tokens, int val_tokens)
{
    int most = tokens > val_tokens ? tokens : val_tokens;
    int rc = model_init_to(m, b, tokens, val_tokens, most);
    m->rope_period = row_period(b->recipe);
    return rc;
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

static struct tensor taken(struct model *m, enum dtype t, int64_t rows, int64_t cols,
                           const char *what)
{
    struct tensor x = tensor_of(NULL, t, rows, cols);
    x.data = m->ops->alloc(m->ops, tensor_bytes(x), what);
    return x;
}

/* Returns the first of the rows where Q, K, V of index `at` of the banks lie together. */
static int64_t qkv_row(const struct recipe *r, int64_t at)
{
    return layer_bank_row(r, &(struct layer_bank){ .widths = 1, .qk = 2 }, at);
}

/* Takes memory where Q, K, V of all layers lie together, and their biases. */
static void take_qkv(struct model *m)
{
    const struct param *p = attention_own(m) ? m->p.q_bank : m->p.qk_bank, *b = m->p.qkv_bias;
    int64_t d = m->recipe->model.width, rows = qkv_row(m->recipe, recipe_indices(m->recipe));

    m->qkv_w = taken(m, p->w.dtype, rows, d, "attention's matrices");
    if (p->g.data)
        m->qkv_g = taken(m, p->g.dtype, rows, d, "their gradient");
    if (b)
        m->qkv_b = taken(m, b->w.dtype, b->w.rows, 3 * d, "attention's biases");
    if (b && b->g.data)
        m->qkv_bg = taken(m, b->g.dtype, b->w.rows, 3 * d, "their gradient");
}

/* Takes memory for copies in fp8 of the layers' Q, K, V. */
static void take_qkv8(struct model *m)
{
    const struct recipe *r = m->recipe;
    int64_t rows = attention_codes_row(m, r->n_layers), n = attention_codes(m, r->n_layers);
    struct fp8_matrices *q = &m->qkv8;

    *q = (struct fp8_matrices){ .exact = true };
    q->codes = taken(m, DT_E4M3, rows, r->model.width, "attention's matrices in fp8");
    if (r->precision.attn.backward_fp8)
        q->turned = taken(m, DT_E4M3, rows, r->model.width, "attention's matrices in fp8");
    q->scale = m->ops->alloc(m->ops, (size_t)n * sizeof *q->scale, "their scales");
    if (!r->precision.attn.out_fp8)
        return;
    int64_t d = r->model.width;
    m->out8 = (struct fp8_matrices){ .rows = d, .stride = 4 * d, .exact = true };
    m->out8.codes = taken(m, DT_E4M3, n * d, d, "attention's matrices in fp8");
    m->out8.scale = m->ops->alloc(m->ops, (size_t)n * sizeof *q->scale, "their scales");
}

int model_init_to(struct model *m, struct banks *b, int tokens, int val_tokens, int64_t positions)
{
    const struct recipe *r = b->recipe;
    struct ops *o = b->ops;
    int rc;
    *m = (struct model){ .recipe = r, .banks = b, .ops = o, .rope_updates = -1 };
    find_roles(m);
    streams_make(&m->streams, r);
    if (m->p.lm_head->spec->codes)
        banks_keep_fp8(b, m->p.lm_head, (real)r->precision.head.w_scale);
    for (int k = 0; k < recipe_mlp_copies(r) && m->p.mlp->g.data; k++)
        banks_keep_fp8_each(b, m->p.mlp, k, r->model.mlp_width, 2 * (int64_t)r->model.mlp_width,
                            k ? r->precision.mlp.down_fp8 : r->precision.mlp.backward_fp8);
    if (r->precision.attn.fp8 && m->p.lm_head->g.data)
        take_qkv8(m);
    m->arena_bytes = arena_bytes(&m->streams, o->act, tokens, val_tokens);
    m->arena = o->alloc(o, m->arena_bytes, "activations");
    m->rope.table =
        tensor_of(NULL, r->precision.f32_rope ? DT_REAL : o->act, 2 * positions, r->model.rope_dim);
    m->rope.table.data = o->alloc(o, tensor_bytes(m->rope.table), "rotary table");
    m->mtp = o->alloc(o, (MAX_MTP + 1) * sizeof(real), "MTP weights");
    m->first_scales = o->alloc(o, sizeof(real), "a switch");
    if (recipe_prefixes(r) && (rc = take_prefixes(m)))
        return rc;
    if (m->p.qk_bank || m->p.q_bank)
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
    float freq[512];
    real mtp[MAX_MTP + 1] = { 0 };
    m->schedule = *p;
    m->stale = true;
    for (int k = 0; k < p->n_mtp; k++)
        mtp[k] = (real)(float)p->mtp[k];
    mtp[p->n_mtp] = (real)(float)p->prefix;
    m->ops->upload(m->ops, m->mtp, mtp, sizeof mtp);
    real first = p->step <= r->precision.mlp.delayed[2];
    m->ops->upload(m->ops, m->first_scales, &first, sizeof first);
    assert(r->model.rope_dim / 2 <= 512);
    int updates = schedule_rope(r, p->step, freq, &m->attn_scale);
    if (updates != m->rope_updates)
        m->ops->rope_table(m->ops, m->rope, freq, m->rope_period, r->precision.f32_rope);
    m->rope_updates = updates;
}

struct tensor bank_rows(struct tensor bank, int64_t rows, int64_t matrix)
{
    return tensor_rows(bank, rows * matrix, rows);
}

bool attention_apart(const struct model *m, int i)
{
    return (m->p.qk_bank || m->p.q_bank) && m->recipe->layers[i].spare < 0;
}

struct param *attention_bank(const struct model *m, int i)
{
    return m->recipe->layers[i].spare >= 0 ? m->p.mlp
           : m->p.attn                     ? m->p.attn
           : m->p.qk_bank                  ? m->p.qk_bank
                                           : m->p.q_bank;
}

int attention_banks(const struct model *m, int i, struct param *bank[4])
{
    struct param *own[] = { m->p.q_bank, m->p.k_bank, m->p.v_bank, m->p.o_bank };
    int n = !attention_apart(m, i) ? 1 : attention_own(m) ? 4 : 2;

    bank[0] = attention_bank(m, i), bank[1] = m->p.vo_bank;
    for (int k = 0; k < 4 && n == 4; k++)
        bank[k] = own[k];
    return n;
}

int64_t attention_row(const struct model *m, int i, const struct param *bank)
{
    const struct layer_spec *l = &m->recipe->layers[i];
    return l->spare >= 0 ? (int64_t)m->recipe->model.mlp_width * l->spare
                         : layer_bank_row(m->recipe, layer_bank_of(bank->spec->label), l->bank);
}

int64_t attention_rows(const struct model *m, int i, const struct param *bank)
{
    const struct layer_spec *l = &m->recipe->layers[i];
    const struct layer_bank *b = layer_bank_of(bank->spec->label);
    return l->spare >= 0 ? 4LL * m->recipe->model.width
                         : layer_bank_row(m->recipe, b, l->bank + 1LL) -
                               layer_bank_row(m->recipe, b, l->bank);
}

struct tensor attention_raw(const struct model *m, const struct acts *a, int i)
{
    return first_columns(a->raw, recipe_qkv_rows(m->recipe, i));
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

struct xsa layer_xsa_of(const struct model *m, const struct layer_acts *l, int i)
{
    if (!m->recipe->model.xsa || m->recipe->layers[i].attention != ATTN_PLAIN)
        return (struct xsa){ NO_TENSOR, NO_TENSOR, NO_TENSOR, NO_TENSOR };
    return (struct xsa){ .v = l->v,
                         .alpha = tensor_rows(m->p.xsa_alphas->w, i, 1),
                         .dv = l->dv, /* to which attention_bwd adds */
                         .dalpha = tensor_rows(m->p.xsa_alphas->g, i, 1) };
}

static struct token_numbers numbers_of(const struct model *m, const struct acts *a, int i,
                                       enum token_role role)
{
    const struct token_term *t = recipe_token_role(m->recipe, i, role);
    return t ? token_numbers(&a->token[t - m->recipe->token_coefs.term]) : NO_NUMBERS;
}

struct attention_coefs attention_coefs_of(const struct model *m, const struct acts *a, int i,
                                          const struct attn_shape *s)
{
    const struct layer_acts *l = &a->layer[i];
    struct attention_coefs c = {
        .any = has_head_coefs(m->recipe, i),
        .head = { .gate = numbers_of(m, a, i, TOKEN_GATE),
                  .alpha = numbers_of(m, a, i, TOKEN_XSA),
                  .v = l->v,
                  .dv = l->dv, /* to which attention_bwd adds */
                  .cache = m->cache ? &m->cache[i] : NULL },
        .compose = { .w1 = numbers_of(m, a, i, TOKEN_DC1),
                     .w2 = numbers_of(m, a, i, TOKEN_DC2),
                     .heads = s->heads,
                     .head_dim = s->head_dim,
                     .qk_dim = s->qk_dim,
                     .window = m->recipe->model.compose_window,
                     .cu = s->cu,
                     .ncu = s->ncu,
                     .scale = s->scale },
    };
    c.composes = c.compose.w1.value != NULL;
    return c;
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
    bool own = attention_own(m);
    const struct param *p = !attention_apart(m, i) ? attention_bank(m, i)
                            : own                  ? m->p.o_bank
                                                   : m->p.vo_bank;
    struct tensor bank = grad ? p->g : p->w, bias = grad ? m->qkv_bg : m->qkv_b;

    if (attention_apart(m, i))
        return (struct attention_part){ tensor_rows(grad ? m->qkv_g : m->qkv_w,
                                                    qkv_row(m->recipe, at),
                                                    recipe_qkv_rows(m->recipe, i)),
                                        bank_rows(bank, d, own ? at : 2 * at + 1),
                                        bias.data ? tensor_rows(bias, i, 1) : NO_TENSOR };
    bank = tensor_rows(bank, attention_row(m, i, p), 4 * d);
    return (struct attention_part){ tensor_rows(bank, 0, 3 * d), tensor_rows(bank, 3 * d, d),
                                    NO_TENSOR };
}

/* Copies rows of a bank to where the products take them, or of their gradient back; pairs: of q's or k's,
 * whose rotary pairs become neighbours. */
static void copy_rows(struct model *m, struct tensor together, struct tensor bank, bool pairs,
                      bool back)
{
    struct tensor to = back ? bank : together, from = back ? together : bank;

    if (pairs && m->recipe->model.rope_halves)
        m->ops->pair_rows(m->ops, to, from, 2 * m->recipe->model.rope_dim, back);
    else
        m->ops->copy(m->ops, to, from);
}

void attention_copy(struct model *m, int i, bool grad)
{
    int64_t d = m->recipe->model.width, q = recipe_qk_rows(m->recipe, i);
    const struct param *b = m->p.qkv_bias;
    struct attention_part all = attention_weight(m, i, grad);
    bool own = attention_own(m);

    for (int k = 0; k < 3; k++) {
        const struct param *const banks[] = { m->p.q_bank, m->p.k_bank, m->p.v_bank };
        const struct param *p = own ? banks[k] : k < 2 ? m->p.qk_bank : m->p.vo_bank;
        int64_t row = attention_row(m, i, p) + (!own && k == 1 ? q : 0), rows = k < 2 ? q : d;
        copy_rows(m, tensor_rows(all.qkv, k * q, rows), tensor_rows(grad ? p->g : p->w, row, rows),
                  k < 2, grad);
        if (all.bias.data)
            copy_rows(m, tensor_rows(tensor_shape(all.bias, 3 * d, 1), k * d, d),
                      tensor_rows(tensor_shape(tensor_rows(grad ? b->g : b->w, i, 1), 3 * d, 1),
                                  k * d, d),
                      k < 2, grad);
    }
}

int attention_codes(const struct model *m, int i)
{
    int n = 0;
    for (int k = 0; k < i; k++)
        n += layer_attends(m->recipe, k);
    return n;
}

int64_t attention_codes_row(const struct model *m, int i)
{
    int64_t n = 0;
    for (int k = 0; k < i; k++)
        if (layer_attends(m->recipe, k))
            n += recipe_qkv_rows(m->recipe, k);
    return n;
}

struct fp8_weight attention_weight8(const struct model *m, int i, bool turned)
{
    const struct fp8_matrices *q = &m->qkv8;
    int64_t d = m->recipe->model.width, rows = recipe_qkv_rows(m->recipe, i);
    struct tensor own = tensor_rows(turned ? q->turned : q->codes, attention_codes_row(m, i), rows);

    return (struct fp8_weight){ turned ? tensor_shape(own, d, rows) : own,
                                q->scale + attention_codes(m, i) };
}

struct fp8_weight out_weight8(const struct model *m, int i)
{
    int at = attention_codes(m, i);

    return (struct fp8_weight){ bank_rows(m->out8.codes, m->out8.rows, at), m->out8.scale + at };
}

struct tensor layer_vector(const struct param *p, int i, bool grad)
{
    return p ? tensor_rows(grad ? p->g : p->w, i, 1) : NO_TENSOR;
}

/* Returns what a micro-batch's gradients are multiplied by, 1 / micro-batches; ranks' are averaged. */
static double share_of(const struct model *m)
{
    const struct recipe *r = m->recipe;
    return (double)m->banks->world / (r->optimizer.loss_sum ? 1 : r->data.chunks);
}

real attention_gradient_scale(const struct model *m)
{
    const struct recipe *r = m->recipe;
    return (real)(r->precision.attn.g_scale * share_of(m) * r->optimizer.loss_scale);
}

struct head_loss model_head(const struct model *m, const struct batch *b)
{
    const struct recipe *r = m->recipe;
    double share = share_of(m);
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
        .bias = layer_vector(m->p.head_bias, 0, false),
        .cap_root = r->model.softcap.root,
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
        .qk_dim = l->qk_dim,
    };
    *s = (struct attn_shape){
        .rows = pair * b->tokens,
        .heads = r->model.heads / pair,
        .head_dim = r->model.head_dim,
        .cu = b->cu,
        .ncu = b->ncu,
        .cu_mul = pair,
        .window = l->long_window ? m->schedule.window_long : m->schedule.window_short,
        .scale =
            (float)(l->attn_scale == 0 ? m->attn_scale
                                       : m->attn_scale * (l->attn_scale / r->model.attn_scale)),
        .qk_dim = l->qk_dim,
        .plan = a->plan[plan_of(l)].data,
    };
}
