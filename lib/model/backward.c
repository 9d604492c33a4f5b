/* backward.c - the flattened backward (record-61.md 3, record-74.md 7): forward.c in reverse. */
#include "model/model.h"

/* Rows of p's gradient have their part of this micro-batch. */
static void rows_done(struct model *m, struct param *p, int64_t first, int64_t n)
{
    if (m->final && !m->more)
        m->final(m->ctx, p, first, n);
}

static void done(struct model *m, struct param *p)
{
    p->fresh = false;
    rows_done(m, p, 0, p->g.rows);
}

/* From the gradient of the MLP's product to dy, the gradient of its input. */
static void mlp_backward(struct model *m, struct acts *a, struct layer_acts *l, int i)
{
    struct ops *o = m->ops;
    int64_t f = m->recipe->model.mlp_width;
    int at = m->recipe->layers[i].mlp;
    bool add = !m->p.mlp->fresh;
    const struct product *product = &m->streams.layer[i].mlp;
    struct scalar lambda = stream_scalar(m, a, product->scale);
    struct tensor w = bank_rows(m->p.mlp->w, 2 * f, at);
    struct tensor g = bank_rows(m->p.mlp->g, 2 * f, at);
    struct tensor w1 = tensor_rows(w, 0, f), w2 = tensor_rows(w, f, f);
    struct tensor dm = stream_tensor(a, product->dout);
    const real *scale = lambda.value;

    enum mlp_grads in_fp8 = m->recipe->precision.mlp.grads;
    struct tensor g1 = tensor_rows(g, 0, f), g2 = tensor_rows(g, f, f);
    struct fp8_grads grads = { g1, l->y2, in_fp8 == GRADS_BOTH ? g2 : NO_TENSOR, lambda.grad, add };

    if (in_fp8 != GRADS_BOTH)
        o->linear_t_bwd_w(o, g2, lambda.grad, dm, l->post, w2, scale, add);
    if (m->recipe->precision.mlp.backward_fp8) /* post now holds its gradient */
        o->mlp_bwd_fp8(o, l->post, a->dy, dm, w1, mlp_weight8(m, i, 0, true), w2,
                       mlp_weight8(m, i, 1, false), scale, l->post, in_fp8 ? &grads : NULL);
    else
        o->linear_relu2_bwd(o, l->post, dm, w2, scale, l->post);
    if (!in_fp8)
        o->linear_bwd_w(o, g1, NULL, l->post, l->y2, w1, NULL, add);
    rows_done(m, m->p.mlp, 2 * f * at, 2 * f);
    if (!m->recipe->precision.mlp.backward_fp8)
        o->linear_bwd_x(o, a->dy, l->post, w1, NULL, false);
}

/* Does the MLP's backward with matrices in two banks, and their biases. */
static void own_mlp_backward(struct model *m, struct acts *a, struct layer_acts *l, int i)
{
    struct ops *o = m->ops;
    int64_t f = m->recipe->model.mlp_width, d = m->recipe->model.width;
    int64_t at = m->recipe->layers[i].mlp;
    struct param *up = m->p.up_bank, *down = m->p.down_bank;
    bool add = !up->fresh;
    const struct product *product = &m->streams.layer[i].mlp;
    struct scalar lambda = stream_scalar(m, a, product->scale);
    struct tensor w1 = bank_rows(up->w, f, at), w2 = bank_rows(down->w, d, at);
    struct tensor dm = stream_tensor(a, product->dout);

    if (m->p.down_bias)
        o->bias_bwd(o, layer_vector(m->p.down_bias, i, true), dm);
    o->linear_bwd_w(o, bank_rows(down->g, d, at), lambda.grad, dm, l->post, w2, lambda.value, add);
    o->relu2_bias_bwd(o, a->dpost, layer_vector(m->p.up_bias, i, true), dm, w2, lambda.value,
                      l->post);
    o->linear_bwd_w(o, bank_rows(up->g, f, at), NULL, a->dpost, l->y2, w1, NULL, add);
    rows_done(m, up, f * at, f);
    rows_done(m, down, d * at, d);
    o->linear_bwd_x(o, a->dy, a->dpost, w1, NULL, false);
}

static void attention_done(struct model *m, int i)
{
    struct param *bank[4];
    int n = attention_banks(m, i, bank);

    if (attention_apart(m, i) && !m->more)
        attention_copy(m, i, true);
    for (int k = 0; k < n; k++)
        rows_done(m, bank[k], attention_row(m, i, bank[k]), attention_rows(m, i, bank[k]));
}

/* From the gradient of attention's product to dy and dy12, the gradients of its input. */
static void attention_backward(struct model *m, struct acts *a, struct layer_acts *l, int i,
                               const struct batch *b)
{
    struct ops *o = m->ops;
    const struct model_params *p = &m->p;
    const struct layer_spec *spec = &m->recipe->layers[i];
    int heads = m->recipe->model.heads;
    bool add = !attention_bank(m, i)->fresh;
    struct attention_part w = attention_weight(m, i, false), g = attention_weight(m, i, true);
    struct gate_input gate = { NO_TENSOR, NO_TENSOR, NO_TENSOR, NO_TENSOR };
    struct tensor delta;
    struct tensor dproduct = stream_tensor(a, m->streams.layer[i].attention.dout);
    struct qk_made made = { .rope = m->rope, .factor = l->factor };
    struct attn_shape as;
    struct xsa xsa = layer_xsa_of(m, l, i);
    bool apart = streams_at(&m->streams, STREAM_FORWARD, STREAM_VALUES, i).n;

    struct tensor raw = attention_raw(m, a, i);
    layer_shapes(m, a, i, b, &made.shape, &as);
    struct attention_coefs coefs = attention_coefs_of(m, a, i, &as);
    bool exclusive = xsa.v.data || coefs.head.alpha.value; /* which writes dv */
    bool fp8 = m->recipe->precision.attn.backward_fp8;
    struct fp8_gradient dqkv8 = { tensor_of(raw.data, DT_E4M3, raw.rows, raw.cols),
                                  fp8 ? attention_gradient_scale(m) : 1 };
    if (fp8 && !coefs.composes) /* which adds to dqkv */
        made.shape.dqkv8 = &dqkv8;
    bool codes = made.shape.dqkv8;
    /* The value gates' backward reads dv, which codes are not. */
    enum values_grad values = exclusive ? VALUES_ADDED
                              : apart || coefs.composes || (codes && spec->value >= 0)
                                  ? VALUES_APART
                                  : VALUES_JOINED;
    if (spec->out_gate >= 0)
        gate = gate_input(m, a, l, p->attn_gate_bank, spec->out_gate);
    if (p->o_bias)
        o->bias_bwd(o, layer_vector(p->o_bias, i, true), dproduct);
    o->linear_bwd_w(o, g.o, p->out[i].grad, dproduct, l->gated, w.o, p->out[i].value, add);
    o->linear_bwd_x(o, a->dy, dproduct, w.o, p->out[i].value, false);
    delta = tensor_shape(a->delta, as.heads, as.rows);
    if (coefs.any)
        o->head_coefs_bwd(o, a->dy, delta, a->dy, l->composed, l->out, heads, &coefs.head);
    else
        o->out_gate_bwd(o, a->dy, delta, gate.dw, gate.dy12, a->dy, l->out, gate.y, gate.w, heads,
                        xsa.v.data ? &xsa : NULL);
    if (spec->out_gate >= 0)
        gate_input_bwd(m, a, l, p->attn_gate_bank, spec->out_gate, false);
    o->attention_bwd(o, raw, l->dq, l->dk, l->dv, values, a->dy, l->q, l->k, l->v, l->lse, delta,
                     &as, &made);
    if (coefs.composes)
        o->compose_bwd(o, raw, l->dq, l->dk, l->dv, a->dy, l->q, l->k, l->v, l->mixed_lse,
                       &coefs.compose, &made);
    stream_backward(m, a, STREAM_VALUES, i);
    gate = (struct gate_input){ NO_TENSOR, NO_TENSOR, NO_TENSOR, a->dy12 };
    if (spec->value >= 0)
        gate = gate_input(m, a, l, p->ve_gate_bank, spec->value_gate);
    if (spec->value >= 0 && (p->gate_table || spec->out_gate < 0)) /* which the op adds to */
        o->zero(o, gate.dy12);
    if (spec->value >= 0 || values != VALUES_JOINED)
        o->value_bwd(o, raw, l->drows, gate.dw, gate.dy12,
                     values == VALUES_JOINED ? NO_TENSOR : l->dv, &made.shape, gate.y, gate.w,
                     value_rows(m, i, false), b);
    if (spec->value >= 0)
        gate_input_bwd(m, a, l, p->ve_gate_bank, spec->value_gate, true);
    if (fp8)
        o->linear_bwd_fp8(o, a->dy, g.qkv, p->qkv[i].grad, raw, codes ? dqkv8.codes : NO_TENSOR,
                          l->y, w.qkv, attention_weight8(m, i, true), p->qkv[i].value, dqkv8.scale,
                          (real)m->recipe->precision.attn.x_scale, add);
    else
        o->linear_bwd_w(o, g.qkv, p->qkv[i].grad, raw, l->y, w.qkv, p->qkv[i].value, add);
    if (g.bias.data && !add)
        o->zero(o, g.bias);
    if (g.bias.data)
        o->bias_bwd(o, g.bias, raw);
    attention_done(m, i);
    if (!fp8)
        o->linear_bwd_x(o, a->dy, raw, w.qkv, p->qkv[i].value, false);
}

/* The gradient of a table is computed at the first of its readers (two at most); that of the
 * parameter is final at the first that reads any of its tables. */
static void value_backward(struct model *m, struct acts *a, int i, const struct batch *b)
{
    const struct recipe *r = m->recipe;
    int param, slot, param_k, slot_k, other = -1;
    bool last = true;

    if (!layer_table(r, i, &param, &slot))
        return;
    for (int k = 0; k <= r->n_layers; k++) {
        if (!layer_table(r, k, &param_k, &slot_k) || param_k != param)
            continue;
        if (k != i && slot_k == slot)
            other = k;
        last &= k >= i;
    }
    if (other >= 0 && other < i)
        return;
    struct param *p = &m->banks->p[param];
    m->ops->table_grad(m->ops, table_rows(m, param, slot, true), a->layer[i].drows,
                       other >= 0 ? a->layer[other].drows : NO_TENSOR, &b->token, !p->fresh);
    if (last)
        done(m, p);
}

static void layer_backward(struct model *m, struct acts *a, int i, const struct batch *b)
{
    struct layer_acts *l = &a->layer[i];

    stream_backward(m, a, STREAM_LEAVE, i);
    (m->p.mlp ? mlp_backward : own_mlp_backward)(m, a, l, i);
    stream_backward(m, a, STREAM_ATTENDED, i);
    if (layer_attends(m->recipe, i))
        attention_backward(m, a, l, i, b);
    stream_backward(m, a, STREAM_ENTER, i);
    value_backward(m, a, i, b);
}

/* Does a layer read, of a bank, what stands at `at`: the matrices of attention, or one of an MLP's? */
static bool has_layer(const struct model *m, const struct layer_bank *b, int64_t at)
{
    const struct recipe *r = m->recipe;
    for (int i = 0; i < r->n_layers; i++) {
        const struct layer_spec *l = &r->layers[i];
        bool attends = layer_attends(r, i);
        if (b->hidden > 1 ? l->mlp == at / b->hidden || (attends && l->spare == at)
            : b->mlp      ? l->mlp == at
                          : attends && l->bank == at)
            return true;
    }
    return false;
}

/* Clears the gradient of matrices that no layer reads: it is zero, and final. */
static void clear_padding(struct model *m, const struct layer_bank *b, struct param *bank)
{
    /* an MLP's two matrices may be of two layers */
    int each = b->hidden > 1 ? b->hidden : 1;
    int64_t first = 0, end;
    for (int64_t at = 0; first < bank->w.rows; at++, first = end) {
        int64_t index = at / each;
        end =
            first +
            (layer_bank_row(m->recipe, b, index + 1) - layer_bank_row(m->recipe, b, index)) / each;
        if (has_layer(m, b, at))
            continue;
        if (bank->fresh)
            m->ops->zero(m->ops, tensor_rows(bank->g, first, end - first));
        rows_done(m, bank, first, end - first);
    }
}

void model_backward(struct model *m, struct acts *a, const struct batch *b)
{
    struct ops *o = m->ops;
    const struct model_params *p = &m->p;
    stream_backward(m, a, STREAM_END, 0);
    value_backward(m, a, m->recipe->n_layers, b);
    if (p->gate_table)
        o->zero(o, a->dnarrow);
    for (int k = 0; k < LAYER_BANKS; k++)
        if (m->bank[k])
            clear_padding(m, &layer_banks[k], m->bank[k]);
    for (int i = m->recipe->n_layers - 1; i >= 0; i--)
        layer_backward(m, a, i, b);
    for (int k = 0; k < LAYER_BANKS; k++)
        if (m->bank[k])
            m->bank[k]->fresh = false;
    stream_backward(m, a, STREAM_BEGIN, 0);
    if (p->smear_gate) {
        o->embed_bwd(o, a->dy, p->smear_gate->g, p->smear->grad, a->dx0, p->embed->w,
                     p->smear_gate->w, p->smear->value, b);
    } else { /* dskip is free by now */
        o->gather(o, a->dskip, p->embed->w, &b->token);
        o->norm_bwd(o, a->dy, false, layer_vector(p->embed_gain, 0, true), a->dx0, a->dskip,
                    layer_vector(p->embed_gain, 0, false));
    }
    o->table_grad(o, p->embed->g, a->dy, NO_TENSOR, &b->token, !p->embed->fresh);
    done(m, p->embed);
    if (p->gate_table) {
        o->table_grad(o, p->gate_table->g, a->dnarrow, NO_TENSOR, &b->token, !p->gate_table->fresh);
        done(m, p->gate_table);
    }
    if (p->bigram_sign_table)
        o->pair_signs(o, a->dbigram, p->bigram_sign_table->w, b);
    if (p->bigram_embed) {
        o->table_grad(o, p->bigram_embed->g, a->dbigram, NO_TENSOR, &b->bigram,
                      !p->bigram_embed->fresh);
        done(m, p->bigram_embed);
    }
    for (int i = 0; i < m->banks->n; i++)
        if (m->banks->p[i].spec->comms == COMMS_REPLICATED)
            done(m, &m->banks->p[i]);
}

/* Forward, loss and backward of one micro-batch. */
void model_train(struct model *m, const struct batch *b, real *loss)
{
    struct ops *o = m->ops;
    struct param *head = m->p.lm_head;
    struct acts *a = model_acts(m, b->tokens, true);
    struct head_loss h = model_head(m, b);

    h.dbias = layer_vector(m->p.head_bias, 0, true);
    model_forward(m, a, b);
    model_need(m, head);
    o->head_loss(o, loss, a->dy, head->g, !head->fresh, a->head, head->w, &h);
    done(m, head);
    model_backward(m, a, b);
}
