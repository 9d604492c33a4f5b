/* bank.c - see bank.h. */
#include "model/bank.h"

#include <stdlib.h>
#include <string.h>
#include "recipe/share.h"

int64_t param_bytes(const struct param_spec *s)
{
    return s->matrices * s->rows * s->cols * (int64_t)dtype_size(s->dtype);
}

int64_t head_fp8_bytes(const struct recipe *r)
{
    int i = recipe_param(r, "lm_head");
    return i >= 0 && r->params[i].codes ? (int64_t)r->model.width * r->model.vocab : 0;
}

int64_t layers_fp8_bytes(const struct recipe *r)
{
    int64_t qkv = 0;
    int i = r->precision.mlp.fp8 ? recipe_param(r, "mlp") : -1;
    int64_t half = i < 0 ? 0 : r->params[i].matrices * r->params[i].rows * r->params[i].cols / 2;
    for (int k = 0; k < r->n_layers && r->precision.attn.fp8; k++)
        if (r->layers[k].attention != ATTN_NONE)
            qkv += recipe_qkv_rows(r, k) * (1 + r->precision.attn.backward_fp8) +
                   r->precision.attn.out_fp8 * r->model.width;
    qkv *= r->model.width;
    return half * (recipe_mlp_copies(r) + (r->precision.mlp.down_fp8 != DOWN_BF16) +
                   r->precision.mlp.backward_fp8) +
           qkv;
}

const struct layer_bank layer_banks[LAYER_BANKS] = {
    { "attn", false, 2, 0, 2 },     { "qk_bank", false, 0, 0, 2 }, { "vo_bank", false, 2, 0, 0 },
    { "q_bank", false, 0, 0, 1 },   { "k_bank", false, 0, 0, 1 },  { "v_bank", false, 1, 0, 0 },
    { "o_bank", false, 1, 0, 0 },   { "mlp", true, 0, 2, 0 },      { "up_bank", true, 0, 1, 0 },
    { "down_bank", true, 1, 0, 0 },
};

const struct layer_bank *layer_bank_of(const char *label)
{
    for (int k = 0; k < LAYER_BANKS; k++)
        if (!strcmp(layer_banks[k].label, label))
            return &layer_banks[k];
    return NULL;
}

int64_t layer_bank_row(const struct recipe *r, const struct layer_bank *b, int64_t at)
{
    int64_t rows = (int64_t)b->widths * r->model.width + (int64_t)b->hidden * r->model.mlp_width +
                   (int64_t)b->qk * r->model.heads * r->model.qk_dim;
    return at * rows + (b->qk ? b->qk * recipe_qk_extra(r, at) : 0);
}

int64_t param_used(const struct recipe *r, const struct param_spec *s)
{
    const struct layer_bank *b = layer_bank_of(s->label);
    int64_t last = 0, unit = s->matrices > 1 ? s->rows : 1;
    if (!b)
        return param_units(s);
    for (int i = 0; i < r->n_layers; i++) {
        int64_t at = b->mlp ? r->layers[i].mlp : r->layers[i].bank;
        last = at >= last ? at + 1 : last;
    }
    int64_t rows = layer_bank_row(r, b, last);
    for (int i = 0; i < r->n_layers && !strcmp(s->label, "mlp"); i++) {
        int64_t upto = (r->layers[i].spare + 1LL) * r->model.mlp_width;
        rows = upto > rows ? upto : rows;
    }
    return (rows + unit - 1) / unit;
}

static void shard(struct banks *b, int i)
{
    struct param *p = &b->p[i];
    struct span own = share_of(b->recipe, i, b->rank, b->world);
    p->units = param_units(p->spec);
    p->used = param_used(b->recipe, p->spec);
    p->own_first = own.first;
    p->own_count = own.count;
    int64_t rows = param_unit_rows(p);
    p->w_own = tensor_rows(p->w, p->own_first * rows, p->own_count * rows);
    p->g_own = tensor_rows(p->g, p->own_first * rows, p->own_count * rows);
}

static struct tensor tensor_like(const struct param_spec *s, enum dtype t)
{
    return tensor_of(NULL, t, s->matrices * s->rows, s->cols);
}

static struct tensor allocated(struct ops *o, const struct param_spec *s, enum dtype t)
{
    struct tensor x = tensor_like(s, t);
    x.data = o->alloc(o, tensor_bytes(x), s->label);
    return x;
}

/* Bytes of a tensor in the shared block: a multiple of what GPUs align memory to. */
static size_t shared_room(struct tensor x) { return (tensor_bytes(x) + 255) / 256 * 256; }

static struct tensor from_shared(struct banks *b, struct tensor x)
{
    x.data = b->shared + b->shared_taken;
    b->shared_taken += shared_room(x);
    return x;
}

/* Gradients of which rows are exchanged are not reduced in shards. */
static bool reduces_shards(const struct recipe *r, int i)
{
    return r->params[i].comms != COMMS_REPLICATED && i != recipe_sparse(r);
}

static void take_shared(struct banks *b)
{
    const struct recipe *r = b->recipe;
    for (int i = 0; i < r->n_params; i++) {
        const struct param_spec *s = &r->params[i];
        if (s->comms != COMMS_REPLICATED)
            b->shared_bytes += shared_room(tensor_like(s, s->dtype));
        if (reduces_shards(r, i))
            b->shared_bytes += shared_room(tensor_like(s, recipe_gradient(r, s)));
    }
    if (b->shared_bytes)
        b->shared = b->ops->alloc_shared(b->ops, b->shared_bytes, "weights and gradients");
}

int banks_init(struct banks *b, const struct recipe *r, struct ops *o, int rank, int world)
{
    *b = (struct banks){ .recipe = r, .ops = o, .rank = rank, .world = world, .n = r->n_params };
    if (world > 1)
        take_shared(b);
    for (int i = 0; i < b->n; i++) {
        const struct param_spec *s = &r->params[i];
        struct param *p = &b->p[i];
        bool shared = b->shared && s->comms != COMMS_REPLICATED;
        p->spec = s;
        p->w = shared ? from_shared(b, tensor_like(s, s->dtype)) : allocated(o, s, s->dtype);
        p->g = shared && reduces_shards(r, i)
                   ? from_shared(b, tensor_like(s, recipe_gradient(r, s)))
                   : allocated(o, s, recipe_gradient(r, s));
        shard(b, i);
    }
    banks_clear(b, UINT32_MAX);
    return o->status(o);
}

int banks_init_weights(struct banks *b, const struct recipe *r, struct ops *o)
{
    *b = (struct banks){ .recipe = r, .ops = o, .world = 1, .n = r->n_params };
    for (int i = 0; i < b->n; i++) {
        const struct param_spec *s = &r->params[i];
        b->p[i].spec = s;
        b->p[i].w = allocated(o, s, o->act == DT_F32 ? DT_F32 : s->dtype);
        shard(b, i);
    }
    return o->status(o);
}

void banks_keep_fp8(struct banks *b, struct param *p, real scale_inv)
{
    struct ops *o = b->ops;
    p->fp8.codes = tensor_of(NULL, DT_E4M3, p->w.rows, p->w.cols);
    p->fp8.codes.data = o->alloc_shared(o, tensor_bytes(p->fp8.codes), p->spec->label);
    p->fp8.amax = o->alloc(o, sizeof *p->fp8.amax, p->spec->label);
    p->fp8.scale_inv = scale_inv;
}

void banks_keep_fp8_each(struct banks *b, struct param *p, int k, int64_t rows, int64_t stride,
                         bool turned)
{
    struct ops *o = b->ops;
    struct fp8_matrices *q = &p->fp8_each[k];
    int64_t n = p->w.rows / stride;
    q->codes = tensor_of(NULL, DT_E4M3, n * rows, p->w.cols);
    q->codes.data = o->alloc(o, tensor_bytes(q->codes), p->spec->label);
    if (turned) {
        q->turned = tensor_of(NULL, DT_E4M3, n * p->w.cols, rows);
        q->turned.data = o->alloc(o, tensor_bytes(q->turned), p->spec->label);
    }
    if (k == 1 && b->recipe->precision.mlp.down_fp8 == DOWN_DELAYED) {
        real **each[] = { &p->next_scale, &p->post_scale, &p->post_most };
        for (int i = 0; i < 3; i++) {
            *each[i] = o->alloc(o, (size_t)n * sizeof(real), p->spec->label);
            o->zero(o, tensor_of(*each[i], DT_REAL, n, 1));
        }
    }
    q->first = k * rows;
    q->scale = o->alloc(o, (size_t)n * sizeof *q->scale, p->spec->label);
    q->rows = rows;
    q->stride = stride;
}

void banks_quantize(struct banks *b)
{
    for (int i = 0; i < b->n; i++) {
        const struct param *p = &b->p[i];
        if (p->fp8.codes.data)
            b->ops->quantize(b->ops, &p->fp8, p->w);
        for (int k = 0; k < 2; k++)
            if (p->fp8_each[k].codes.data &&
                (k == 0 || !p->next_scale)) /* which moves with the steps */
                b->ops->quantize_matrices(b->ops, &p->fp8_each[k], p->w);
    }
}

void banks_clear(struct banks *b, uint32_t set)
{
    for (int i = 0; i < b->n; i++) {
        struct param *p = &b->p[i];
        if (!(set >> i & 1))
            continue;
        if (p->spec->comms == COMMS_REPLICATED)
            b->ops->zero(b->ops, p->g);
        p->fresh = true;
    }
}

void banks_begin(struct banks *b, uint32_t fresh)
{
    for (int i = 0; i < b->n; i++)
        b->p[i].fresh = fresh >> i & 1;
}

static int fill_param(struct banks *b, int index, struct initial *v)
{
    struct param *p = &b->p[index];
    const struct param_spec *s = p->spec;
    bool narrow = s->dtype != initial_dtype(s);
    uint16_t *room = narrow ? malloc((size_t)(s->rows * s->cols) * sizeof *room) : NULL;
    int rc = narrow && !room ? err_memory() : initial_wait(v, index);
    for (int64_t m = 0; m < s->matrices && !rc; m++) {
        struct tensor w = tensor_rows(p->w, m * s->rows, s->rows);
        const void *host = initial_matrix(v, index, m);
        for (int64_t i = 0; i < tensor_count(w) && host && narrow; i++)
            room[i] = bf16_from_f32(((const float *)host)[i]);
        if (host)
            b->ops->upload(b->ops, w.data, narrow ? room : host, tensor_bytes(w));
        else
            b->ops->zero(b->ops, w);
    }
    free(room);
    return rc;
}

int banks_fill(struct banks *b, struct initial *v)
{
    struct ops *o = b->ops;
    int rc = 0;
    for (int i = 0; i < b->n && !rc; i++)
        if (initial_transposed(v, i) < 0)
            rc = fill_param(b, i, v);
    for (int i = 0; i < b->n && !rc; i++)
        if (initial_transposed(v, i) >= 0)
            o->transpose(o, b->p[i].w, b->p[initial_transposed(v, i)].w, NULL);
    if (!rc)
        banks_quantize(b);
    return rc ? rc : o->sync(o);
}
