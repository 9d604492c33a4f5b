/* forward.c - the flattened forward (record-61.md 2, record-74.md 5): one list of ops. */
#include "model/model.h"

/* y = scale x w^T (+ bias) (+ residual); y may be residual. */
static void biased_linear(struct ops *o, struct tensor y, struct tensor x, struct tensor w,
                          const real *scale, struct tensor bias, struct tensor residual)
{
    if (bias.data)
        o->linear_bias(o, y, x, w, scale, bias, residual, false);
    else
        o->linear(o, y, x, w, scale, residual);
}

/* True if layer i's matrices stand behind those of layer `before` in one bank. */
static bool follows(const struct model *m, int before, int i)
{
    return before >= 0 && !attention_apart(m, before) && !attention_apart(m, i) &&
           attention_bank(m, before) == attention_bank(m, i) &&
           attention_row(m, i, attention_bank(m, i)) ==
               attention_row(m, before, attention_bank(m, i)) + 4LL * m->recipe->model.width;
}

/* Makes the copies in fp8 of layer i's Q, K, V (fp8.md 6), of O where it has one (fp8.md 9), and of the layers'
 * after it whose matrices follow in the bank; nothing where an earlier layer has made them so. */
static void attention_copies(struct model *m, int i)
{
    const struct recipe *r = m->recipe;
    bool apart = attention_apart(m, i);
    struct fp8_matrices q = m->qkv8;
    int at = attention_codes(m, i), before = i - 1, last = i, n = 1;

    while (before >= 0 && !layer_attends(r, before))
        before--;
    if (follows(m, before, i))
        return;
    for (int k = i + 1; k < r->n_layers; k++) {
        if (!layer_attends(r, k))
            continue;
        if (!follows(m, last, k))
            break;
        last = k, n++;
    }
    int64_t first = attention_codes_row(m, i);
    q.rows = recipe_qkv_rows(r, i); /* of each of the n */
    q.codes = tensor_rows(q.codes, first, n * q.rows);
    if (q.turned.data)
        q.turned = tensor_of((char *)q.turned.data + first * r->model.width, DT_E4M3,
                             n * r->model.width, q.rows);
    q.scale += at;
    q.first = apart ? 0 : attention_row(m, i, attention_bank(m, i));
    q.stride = 4LL * r->model.width;
    m->ops->quantize_matrices(m->ops, &q,
                              apart ? attention_weight(m, i, false).qkv : attention_bank(m, i)->w);
    if (!m->out8.codes.data)
        return;
    struct fp8_matrices out = m->out8;
    out.codes = tensor_rows(out.codes, at * out.rows, n * out.rows);
    out.scale += at;
    out.first = apart ? 0 : q.first + q.rows;
    m->ops->quantize_matrices(m->ops, &out,
                              apart ? attention_weight(m, i, false).o : attention_bank(m, i)->w);
}

/* Attn(y), record-61.md 2.4; plus the stream, where no mix adds it. */
static void attention_forward(struct model *m, struct acts *a, int i, const struct batch *b)
{
    struct ops *o = m->ops;
    struct layer_acts *l = &a->layer[i];
    const struct model_params *p = &m->p;
    const struct layer_spec *spec = &m->recipe->layers[i];
    int heads = m->recipe->model.heads;
    const struct product *product = &m->streams.layer[i].attention;
    struct attention_part w = attention_weight(m, i, false);
    struct gate_input gate = { NO_TENSOR, NO_TENSOR, NO_TENSOR, NO_TENSOR };
    struct qkv_shape qs;
    struct attn_shape as;
    struct fp8_operands in8;
    struct xsa xsa = layer_xsa_of(m, l, i);

    struct param *bank[4];
    int banks = attention_banks(m, i, bank);

    layer_shapes(m, a, i, b, &qs, &as);
    for (int k = 0; k < banks; k++)
        model_need(m, bank[k]);
    if (m->stale && attention_apart(m, i))
        attention_copy(m, i, false);
    if (a->train && m->recipe->precision.attn.fp8) {
        if (m->stale)
            attention_copies(m, i);
        in8 = (struct fp8_operands){ .x8 = a->y8,
                                     .x_scale = (real)m->recipe->precision.attn.x_scale,
                                     .w = attention_weight8(m, i, false) };
        qs.fp8 = &in8;
    }
    if (spec->value >= 0) {
        model_need(m, &m->banks->p[spec->value]);
        gate = gate_input(m, a, l, p->ve_gate_bank, spec->value_gate);
    }
    o->qkv(o, l->q, l->k, l->v, l->factor, attention_raw(m, a, i), l->y, w.qkv, p->qkv[i].value,
           w.bias, &qs, m->rope, gate.y, gate.w, value_rows(m, i, false), b);
    stream_forward(m, a, STREAM_VALUES, i, b);
    bool gated = spec->out_gate >= 0;
    gate = (struct gate_input){ NO_TENSOR, NO_TENSOR, NO_TENSOR, NO_TENSOR };
    if (gated)
        gate = gate_input(m, a, l, p->attn_gate_bank, spec->out_gate);
    struct attention_coefs coefs = attention_coefs_of(m, a, i, &as);
    if (m->cache) {
        if (m->cache[i].values_apart)
            o->cache_values(o, &m->cache[i], l->v);
        o->attention_cached(o, l->gated, l->q, gate.y, gate.w, xsa.alpha, &m->cache[i], &as);
        if (coefs.composes)
            o->compose_cached(o, l->gated, l->q, &coefs.compose, &m->cache[i]);
    } else {
        o->attention(o, l->out, l->lse, l->q, l->k, l->v, &as);
        if (gated)
            o->out_gate(o, l->gated, l->out, gate.y, gate.w, heads, xsa.v.data ? &xsa : NULL);
        if (coefs.composes)
            o->compose(o, l->composed, l->mixed_lse, l->out, l->q, l->k, l->v, &coefs.compose);
    }
    if (coefs.any)
        o->head_coefs(o, l->gated, m->cache ? l->gated : l->composed, heads, &coefs.head);
    struct tensor result = gated || coefs.any || m->cache ? l->gated : l->composed;
    struct tensor out = stream_tensor(a, product->out),
                  residual = stream_tensor(a, product->residual);
    if (a->train && m->recipe->precision.attn.out_fp8)
        o->linear_fp8(o, out, result, w.o, out_weight8(m, i), p->out[i].value, residual);
    else
        biased_linear(o, out, result, w.o, p->out[i].value, layer_vector(p->o_bias, i, false),
                      residual);
}

struct fp8_weight mlp_weight8(const struct model *m, int i, int k, bool turned)
{
    const struct fp8_matrices *q = &m->p.mlp->fp8_each[k];
    int64_t at = m->recipe->layers[i].mlp;
    struct tensor codes = turned ? bank_rows(q->turned, m->recipe->model.width, at)
                                 : bank_rows(q->codes, m->recipe->model.mlp_width, at);

    return (struct fp8_weight){ codes, q->scale + at };
}

/* Copies of all MLPs' weights in fp8 (fp8.md 1), for forward and backward. */
static void mlp_copies(struct model *m)
{
    struct param *p = m->p.mlp;

    for (int k = 0; k < recipe_mlp_copies(m->recipe); k++)
        if (k == 1 && p->next_scale)
            m->ops->quantize_delayed(
                m->ops, &p->fp8_each[k],
                &(struct fp8_delay){ .next = p->next_scale,
                                     .first = m->first_scales,
                                     .headroom = (real)m->recipe->precision.mlp.delayed[1] },
                p->w);
        else
            m->ops->quantize_matrices(m->ops, &p->fp8_each[k], p->w);
}

/* MLP(y2) of matrices in two banks, with their biases (track-3.md 2). */
static void own_mlp_forward(struct model *m, struct acts *a, int i)
{
    struct ops *o = m->ops;
    struct layer_acts *l = &a->layer[i];
    const struct product *product = &m->streams.layer[i].mlp;
    int64_t f = m->recipe->model.mlp_width, at = m->recipe->layers[i].mlp;
    struct tensor up = bank_rows(m->p.up_bank->w, f, at),
                  bias = layer_vector(m->p.up_bias, i, false);

    model_need(m, m->p.up_bank);
    model_need(m, m->p.down_bank);
    if (bias.data)
        o->linear_bias(o, l->post, l->y2, up, NULL, bias, NO_TENSOR, true);
    else
        o->linear_relu2(o, l->post, l->y2, up);
    biased_linear(o, stream_tensor(a, product->out), l->post,
                  bank_rows(m->p.down_bank->w, m->recipe->model.width, at),
                  stream_scalar(m, a, product->scale).value, layer_vector(m->p.down_bias, i, false),
                  stream_tensor(a, product->residual));
}

/* MLP(y2), record-61.md 2.8, in fp8: fp8.md 2 and 3; plus the stream, where no mix adds it. */
static void mlp_forward(struct model *m, struct acts *a, int i)
{
    struct ops *o = m->ops;
    struct layer_acts *l = &a->layer[i];
    int64_t f = m->recipe->model.mlp_width, at = m->recipe->layers[i].mlp;
    bool fp8 = a->train && m->recipe->precision.mlp.fp8;
    const struct product *product = &m->streams.layer[i].mlp;
    struct tensor w = bank_rows(m->p.mlp->w, 2 * f, at);
    struct tensor w1 = tensor_rows(w, 0, f), w2 = tensor_rows(w, f, f);
    const real *scale = stream_scalar(m, a, product->scale).value;
    struct tensor out = stream_tensor(a, product->out),
                  residual = stream_tensor(a, product->residual);

    model_need(m, m->p.mlp);
    if (i == 0 && m->stale && a->train)
        mlp_copies(m);
    bool delayed = m->recipe->precision.mlp.down_fp8 == DOWN_DELAYED;
    real *unit = delayed ? m->p.mlp->post_scale + at : NULL;
    if (fp8)
        o->linear_relu2_fp8(o, l->post, delayed ? NO_TENSOR : a->post8, l->y2, w1,
                            mlp_weight8(m, i, 0, false));
    else
        o->linear_relu2(o, l->post, l->y2, w1);
    if (fp8 && delayed)
        o->delayed_codes(o, a->post8, l->post, unit, m->p.mlp->post_most + at);
    if (fp8 && m->recipe->precision.mlp.down_fp8)
        o->linear_t_fp8(o, out, l->post, w2, a->post8, unit, mlp_weight8(m, i, 1, true), scale,
                        residual);
    else
        o->linear_t(o, out, l->post, w2, scale, residual);
}

/* For all layers of the batch; attention_cached needs none. */
static void attention_plans(struct model *m, struct acts *a, const struct batch *b)
{
    struct attn_shape s[ATTN_PLANS + 1];
    struct qkv_shape qs;
    int n = 0;

    for (int i = 0; i < m->recipe->n_layers && !m->cache; i++) {
        bool planned = !layer_attends(m->recipe, i);
        layer_shapes(m, a, i, b, &qs, &s[n]);
        for (int k = 0; k < n; k++)
            planned |= s[k].plan == s[n].plan;
        n += !planned;
    }
    m->ops->attention_plan(m->ops, s, n);
}

void model_forward(struct model *m, struct acts *a, const struct batch *b)
{
    struct ops *o = m->ops;
    const struct model_params *p = &m->p;

    attention_plans(m, a, b);
    model_need(m, p->embed);
    if (p->smear_gate) {
        o->embed(o, a->x0, p->embed->w, p->smear_gate->w, p->smear->value, b);
    } else {
        o->gather(o, a->x0, p->embed->w, &b->token);
        o->norm(o, a->x0, a->x0, layer_vector(p->embed_gain, 0, false));
    }
    if (p->bigram_embed) {
        model_need(m, p->bigram_embed);
        o->gather(o, a->bigram, p->bigram_embed->w, &b->bigram);
        if (p->bigram_sign_table)
            o->pair_signs(o, a->bigram, p->bigram_sign_table->w, b);
    }
    if (p->gate_table) {
        model_need(m, p->gate_table);
        o->gather(o, a->narrow, p->gate_table->w, &b->token);
    }
    stream_forward(m, a, STREAM_BEGIN, 0, b);
    for (int i = 0; i < m->recipe->n_layers; i++) {
        stream_forward(m, a, STREAM_ENTER, i, b);
        if (layer_attends(m->recipe, i))
            attention_forward(m, a, i, b);
        stream_forward(m, a, STREAM_ATTENDED, i, b);
        (m->p.mlp ? mlp_forward : own_mlp_forward)(m, a, i);
        stream_forward(m, a, STREAM_LEAVE, i, b);
    }
    if (a->train && p->mlp &&
        p->mlp->next_scale) /* of all layers at once, for the next micro-batch */
        o->delayed_scales(o, p->mlp->post_scale, p->mlp->post_most,
                          (int)(p->mlp->w.rows / (2 * m->recipe->model.mlp_width)),
                          (real)m->recipe->precision.mlp.delayed[0]);
    stream_forward(m, a, STREAM_END, 0, b);
    m->stale = false;
}

void model_eval(struct model *m, const struct batch *b, real *loss)
{
    model_eval_part(m, b, 0, b->tokens, loss);
}

void model_eval_part(struct model *m, const struct batch *b, int first, int n, real *loss)
{
    struct acts *a = model_acts(m, b->tokens, false);
    struct head_loss h = model_head(m, b);
    h.tgt += first, h.before += first;
    model_forward(m, a, b);
    m->ops->head_eval(m->ops, loss, tensor_rows(a->head, first, n), m->p.lm_head->w, &h);
}
