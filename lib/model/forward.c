/* forward.c - the flattened forward (record-61.md 2): one list of ops. */
#include "model/model.h"

/* x^b = x^a + Attn(y): record-61.md 2.4. */
static void attention_forward(struct model *m, struct layer_acts *l, int i, const struct batch *b)
{
    struct ops *o = m->ops;
    const struct model_params *p = &m->p;
    const struct layer_spec *spec = &m->recipe->layers[i];
    int64_t d = m->recipe->width, heads = m->recipe->heads;
    struct tensor bank = bank_rows(p->attn->w, 4 * d, spec->bank, 1);
    struct tensor value = NO_TENSOR, value_gate = NO_TENSOR;
    struct qkv_shape qs;
    struct attn_shape as;

    layer_shapes(m, i, b, &qs, &as);
    model_need(m, p->attn);
    if (spec->value >= 0) {
        model_need(m, &m->banks->p[spec->value]);
        value = m->banks->p[spec->value].w;
        value_gate = bank_rows(p->value_gate->w, heads, spec->value_gate, 1);
    }
    o->linear(o, l->qkv, l->y, tensor_rows(bank, 0, 3 * d), p->qkv[i].value, NO_TENSOR);
    o->qkv(o, l->q, l->k, l->v, l->qkv, &qs, m->rope, l->y, value_gate, value, b);
    o->attention(o, l->out, l->lse, l->q, l->k, l->v, &as);
    o->out_gate(o, l->gated, l->out, l->y, bank_rows(p->attn_gate->w, heads, spec->out_gate, 1),
                (int)heads);
    o->linear(o, l->attended, l->gated, tensor_rows(bank, 3 * d, d), p->out[i].value, l->mixed);
    o->mix_norm(o, l->attended, l->y2, 1, &(struct mix_term){ .x = l->attended });
}

void model_forward(struct model *m, struct acts *a, const struct batch *b)
{
    struct ops *o = m->ops;
    const struct recipe *r = m->recipe;
    const struct model_params *p = &m->p;
    int64_t f = r->mlp_width;

    model_need(m, p->embed);
    o->embed(o, a->x0, p->embed->w, p->smear_gate->w, p->smear.value, b);
    for (int i = 0; i < r->n_layers; i++) {
        struct layer_acts *l = &a->layer[i];
        struct tensor mlp = bank_rows(p->mlp->w, 2 * f, r->layers[i].mlp, 1);

        if (i == r->skip_to)
            o->skip_gate(o, l->in, l->in, a->layer[r->skip_from + 1].in, a->x0, p->skip_gate->w,
                         p->skip.value);
        o->mix_norm(o, l->mixed, l->y, 2, (struct mix_term[]){
            { .x = l->in, .coef = p->residual[i].value }, { .x = a->x0, .coef = p->x0[i].value } });
        if (r->layers[i].attention != ATTN_NONE)
            attention_forward(m, l, i, b);
        /* A layer without attention reads mixed and y under the other names. */
        struct tensor x = r->layers[i].attention != ATTN_NONE ? l->attended : l->mixed;
        struct tensor y = r->layers[i].attention != ATTN_NONE ? l->y2 : l->y;
        model_need(m, p->mlp);
        o->linear_relu2(o, NO_TENSOR, l->post, y, tensor_rows(mlp, 0, f));
        o->linear_t(o, l[1].in, l->post, tensor_rows(mlp, f, f), NULL, x);
    }
    struct tensor out = a->layer[r->n_layers].in;
    struct mix_term head[2] = { { .x = out } };
    if (r->backout >= 0)
        head[1] = (struct mix_term){ .x = a->layer[r->backout + 1].in, .coef = p->backout.value,
                                     .minus = true };
    o->mix_norm(o, a->z, a->y, r->backout >= 0 ? 2 : 1, head);
}

void model_eval(struct model *m, const struct batch *b, real *loss)
{
    struct acts a;
    struct head_loss h = model_head(m, b);
    model_acts(m, &a, b->tokens, false);
    model_forward(m, &a, b);
    m->ops->head_eval(m->ops, loss, a.y, m->p.lm_head->w, &h);
}
