/* bank.c - see bank.h. */
#include "model/bank.h"

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

int64_t mlp_fp8_bytes(const struct recipe *r)
{
    int i = r->precision.mlp.fp8 ? recipe_param(r, "mlp") : -1;
    int64_t half = i < 0 ? 0 : r->params[i].matrices * r->params[i].rows * r->params[i].cols / 2;
    return half *
           (recipe_mlp_copies(r) + r->precision.mlp.down_fp8 + r->precision.mlp.backward_fp8);
}

int64_t param_used(const struct recipe *r, const struct param_spec *s)
{
    bool mlp = !strcmp(s->label, "mlp"), whole = !strcmp(s->label, "attn");
    bool attn = whole || !strcmp(s->label, "qk_bank") || !strcmp(s->label, "vo_bank");
    int64_t last = 0, unit = s->matrices > 1 ? s->rows : 1;
    for (int i = 0; i < r->n_layers && (attn || mlp); i++) {
        int64_t at = attn ? r->layers[i].bank : r->layers[i].mlp;
        last = at >= last ? at + 1 : last;
    }
    int64_t rows = last * (mlp ? 2LL * r->model.mlp_width : (whole ? 4LL : 2LL) * r->model.width);
    for (int i = 0; i < r->n_layers && mlp; i++) {
        int64_t upto = (r->layers[i].spare + 1LL) * r->model.mlp_width;
        rows = upto > rows ? upto : rows;
    }
    return attn || mlp ? (rows + unit - 1) / unit : param_units(s);
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

static struct tensor allocated(struct ops *o, const struct param_spec *s, enum dtype t)
{
    struct tensor x = tensor_of(NULL, t, s->matrices * s->rows, s->cols);
    x.data = o->alloc(o, tensor_bytes(x), s->label);
    return x;
}

int banks_init(struct banks *b, const struct recipe *r, struct ops *o, int rank, int world)
{
    *b = (struct banks){ .recipe = r, .ops = o, .rank = rank, .world = world, .n = r->n_params };
    for (int i = 0; i < b->n; i++) {
        const struct param_spec *s = &r->params[i];
        struct param *p = &b->p[i];
        p->spec = s;
        p->w = allocated(o, s, s->dtype);
        p->g = allocated(o, s, recipe_gradient(r, s));
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
    p->fp8.codes.data = o->alloc(o, tensor_bytes(p->fp8.codes), p->spec->label);
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
            if (p->fp8_each[k].codes.data)
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
    const char *host;
    int rc = initial_wait(v, index);
    for (int64_t m = 0; m < s->matrices && !rc; m++) {
        struct tensor w = tensor_rows(p->w, m * s->rows, s->rows);
        if ((host = initial_matrix(v, index, m)))
            b->ops->upload(b->ops, w.data, host, tensor_bytes(w));
        else
            b->ops->zero(b->ops, w);
    }
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
