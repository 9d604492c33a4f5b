/* stream.c - the residual stream before and after attention and MLP.
 *
 * A mix is a weighted sum of streams with its norm (op_list.h, mix_norm). Each mix
 * is written once below, as a list of terms, and runs forward or backward. The
 * records differ in where x0 and bigrams are added and in the number of lanes:
 *
 *   record 61 (inject = before)            record 74 (inject = after)
 *   enter     mixed = r in + x x0, norm     (norm of in, by the leave before or begin)
 *   attended  norm of mixed + attention     r in + o + x x0 + b bigram, norm
 *   leave     (added by the MLP's product)  r' attended + p m, norm
 *
 * From layer `lanes` on there are two lanes: attention reads lane 0, the MLP
 * lane 1, and both products are added to both.
 */
#include "model/model.h"

#include <assert.h>
#include <string.h>

bool layer_attends(const struct recipe *r, int i) { return r->layers[i].attention != ATTN_NONE; }

bool layer_two_lanes(const struct recipe *r, int i)
{
    return r->model.lanes >= 0 && i >= r->model.lanes;
}

bool attention_mixes(const struct recipe *r, int i)
{
    return r->model.inject == INJECT_AFTER || layer_two_lanes(r, i) || r->model.post_single;
}

bool mlp_mixes(const struct recipe *r)
{
    if (r->model.lanes >= 0 || recipe_scalar(r, "residual_mlp") || recipe_scalar(r, "mlp_lane0"))
        return true;
    for (int k = 0; k < r->token_coefs.n; k++)
        if (r->token_coefs.term[k].role >= TOKEN_RESIDUAL_MLP)
            return true;
    return false;
}

bool mlp_folds(const struct recipe *r, int i)
{
    return r->model.fold_mlp && !layer_two_lanes(r, i);
}

bool layer_adds(const struct recipe *r, int i, enum token_role role)
{
    return recipe_token_role(r, i, role) != NULL;
}

/* Does attention of layer i read what an earlier layer's reads? */
static bool attends_as_earlier(const struct recipe *r, int i)
{
    return r->model.attend_as >= 0 && i > r->model.attend_as && layer_attends(r, i);
}

bool stream_read_again(const struct recipe *r, int i)
{
    bool again = i == r->model.backout + 1 || (i == r->model.attend_as && i + 1 < r->n_layers);

    for (int k = 0; k < r->token_coefs.n; k++) {
        const struct token_term *t = &r->token_coefs.term[k];
        bool own = t->role == TOKEN_STREAM && t->from == t->layer - 1;
        again |= t->source == SOURCE_LAYER && !own && i == t->from + 1;
    }
    return again && i > 0;
}

struct xsa layer_xsa_of(const struct model *m, const struct layer_acts *l, int i)
{
    struct xsa a = { NO_TENSOR, NO_TENSOR, NO_TENSOR, NO_TENSOR };

    if (!m->recipe->model.xsa || m->recipe->layers[i].attention != ATTN_PLAIN)
        return a;
    return (struct xsa){ .v = l->v,
                         .alpha = tensor_rows(m->p.xsa_alphas->w, i, 1),
                         .dv = l->dv, /* to which attention_bwd adds */
                         .dalpha = tensor_rows(m->p.xsa_alphas->g, i, 1) };
}

/* Are x0 and bigrams added with attention's result? */
static bool joins_after(const struct recipe *r, int i)
{
    return r->model.inject == INJECT_AFTER && (layer_attends(r, i) || r->model.inject_bare);
}

/* And their gradients computed at the end, for all layers at once? */
static bool joins_later(const struct recipe *r, int i)
{
    return joins_after(r, i) && !layer_adds(r, i, TOKEN_X0) && !layer_adds(r, i, TOKEN_BIGRAM);
}

struct tensor attention_branch_grad(const struct model *m, const struct acts *a, int i)
{
    const struct recipe *r = m->recipe;

    if (joins_later(r, i) && !layer_two_lanes(r, i) && !r->model.post_single &&
        !layer_adds(r, i, TOKEN_ATTN))
        return a->layer[i].g; /* the product is added without a coefficient */
    return attention_mixes(r, i) ? a->dbranch : a->dx;
}

struct tensor mlp_branch_grad(const struct model *m, const struct acts *a)
{
    return mlp_mixes(m->recipe) ? a->dbranch : a->dx;
}

/* The stream, what is taken from it, and sources. */
_Static_assert(MAX_SOURCES + 2 <= MIX_MAX, "a mix holds them");

/* -- mixes -------------------------------------------------------------------- */

struct mix {
    struct tensor out, y; /* the sum; its norm, if it has one */
    int n;
    struct mix_term term[MIX_MAX];
    struct mix_grad grad[MIX_MAX];
};

/* s NULL or without a value: coefficient 1. dx: buffer of the term's gradient. */
static struct mix_term *term(struct mix *x, struct tensor t, const struct scalar *s,
                             struct tensor dx, bool add)
{
    assert(x->n < MIX_MAX);
    x->term[x->n] = (struct mix_term){ .x = t,
                                       .coef = s ? s->value : NULL,
                                       .stride = s ? s->stride : 0,
                                       .n = t.cols < x->out.cols ? t.cols : 0 };
    x->grad[x->n] = (struct mix_grad){ dx, add, s ? s->grad : NULL };
    return &x->term[x->n++];
}

static void run(struct model *m, struct mix x)
{
    if (x.n)
        m->ops->mix_norm(m->ops, x.out, x.y, x.n, x.term);
}

/* dout: the gradient of x.out from elsewhere, or none. dy12: whether gates read the norm. */
static void run_bwd(struct model *m, struct acts *a, struct mix x, struct tensor dout, bool dy12)
{
    if (x.n)
        m->ops->mix_norm_bwd(m->ops, x.grad, dout, x.y.data ? a->dy : NO_TENSOR,
                             x.y.data && dy12 ? a->dy12 : NO_TENSOR, x.out, x.n, x.term);
}

/* What a scalar of layer i is: that of the recipe, or a number a token. */
static const struct scalar *role_of(const struct model *m, const struct acts *a, int i,
                                    enum token_role role)
{
    const struct model_params *p = &m->p;
    const struct token_term *t = recipe_token_role(m->recipe, i, role);

    if (t)
        return &a->token[t - m->recipe->token_coefs.term];
    switch (role) {
    case TOKEN_RESIDUAL: return &p->residual[i];
    case TOKEN_ATTN: return m->recipe->model.post_single ? &p->attn_lane0[i] : NULL;
    case TOKEN_X0: return &p->x0[i];
    case TOKEN_BIGRAM: return &p->bigram[i];
    case TOKEN_RESIDUAL_MLP: return &p->residual_mlp[i];
    case TOKEN_MLP: return mlp_folds(m->recipe, i) ? NULL : &p->mlp_lane0[i];
    default: return NULL;
    }
}

/* Are bigrams added in layer i? In layer 0 begin_mix adds them, with inject = after or to x0. */
static bool bigram_joins(const struct model *m, int i)
{
    const struct recipe *r = m->recipe;
    return m->p.bigram_embed &&
           (i > 0 || (r->model.inject == INJECT_BEFORE && !r->model.bigram.in_x0));
}

/* x0 and the bigram rows of layer i. */
static void inject(struct mix *x, const struct model *m, const struct acts *a, int i)
{
    term(x, a->x0, role_of(m, a, i, TOKEN_X0), a->dx0, a->have_dx0);
    if (bigram_joins(m, i))
        term(x, a->bigram, role_of(m, a, i, TOKEN_BIGRAM), a->dbigram, a->have_dbigram);
}

/* Notes which gradients that have several parts a mix has written: later parts are added. */
static void injected(struct mix *x, struct acts *a, int layers)
{
    for (int k = 0; k < x->n; k++) {
        const void *dx = x->grad[k].dx.data;
        a->have_dx0 |= dx == a->dx0.data;
        a->have_dbigram |= a->dbigram.data && dx == a->dbigram.data;
        for (int i = 1; i <= layers; i++)
            a->have_din[i] |= a->din[i].data && dx == a->din[i].data;
    }
}

/* What a term of [token_coefs] reads, and where its gradient goes; add: to what is there. */
struct source {
    struct tensor x, dx;
    bool add;
};
static struct source source_of(const struct acts *a, const struct token_term *t)
{
    switch (t->source) {
    case SOURCE_X0: return (struct source){ a->x0, a->dx0, a->have_dx0 };
    case SOURCE_LAYER:
        return (struct source){ a->layer[t->from + 1].in, a->din[t->from + 1],
                                a->have_din[t->from + 1] };
    default: return (struct source){ a->layer[t->layer].rows, a->layer[t->layer].drows, false };
    }
}

/* The sources of [token_coefs] for layer i in that role: terms of x. own: the layer's own stream is
 * a term, whose coefficient the source `layer before` is added to. */
static void add_sources(struct mix *x, const struct model *m, const struct acts *a, int i,
                        enum token_role role)
{
    const struct recipe *r = m->recipe;
    int64_t d = r->model.width;

    for (int k = 0; k < r->token_coefs.n; k++) {
        const struct token_term *t = &r->token_coefs.term[k];
        const struct scalar *s = &a->token[k];
        if (t->layer != i || t->role != role)
            continue;
        if (role == TOKEN_STREAM && t->source == SOURCE_LAYER && t->from == i - 1) {
            x->term[0].coef = s->value, x->term[0].stride = s->stride, x->term[0].plus_one = true;
            x->grad[0].dcoef = s->grad;
            continue;
        }
        struct source from = source_of(a, t);
        for (int part = 0; part < t->parts; part++) {
            struct scalar of_part = { s->value + part, s->grad ? s->grad + part : NULL, s->stride };
            struct mix_term *e = term(x, from.x, &of_part, from.dx, from.add);
            e->first = t->parts > 1 ? part * d / t->parts : 0;
            e->n = t->parts > 1 ? d / t->parts : e->n;
        }
    }
}

/* Does the mix that makes `in` also make the norm that layer i's attention reads? */
static bool enters_normed(const struct recipe *r, int i)
{
    return i < r->n_layers && r->model.inject == INJECT_AFTER && layer_attends(r, i) &&
           i != r->model.skip.to && (i == 0 || mlp_mixes(r)) && !attends_as_earlier(r, i) &&
           !layer_adds(r, i, TOKEN_STREAM);
}

static struct mix begin_mix(const struct model *m, const struct acts *a)
{
    const struct layer_acts *l = &a->layer[0];
    struct mix x = { .out = l->in, .y = enters_normed(m->recipe, 0) ? l->y : NO_TENSOR };

    bool in_x0 = m->recipe->model.bigram.in_x0; /* out is x0 itself */

    if (m->recipe->model.inject == INJECT_BEFORE && !in_x0)
        return x;
    term(&x, a->x0, NULL, a->dx0, a->have_dx0 && !in_x0);
    if (m->p.bigram_embed)
        term(&x, a->bigram, &m->p.bigram[0], a->dbigram, a->have_dbigram);
    return x;
}

static struct mix enter_mix(const struct model *m, const struct acts *a, int i)
{
    const struct recipe *r = m->recipe;
    const struct layer_acts *l = &a->layer[i];
    struct mix x = { .out = l->in, .y = l->y };

    if (r->model.inject == INJECT_BEFORE) {
        x.out = l->mixed;
        term(&x, l->in, &m->p.residual[i], a->dx, false);
        if (layer_attends(r, i) || r->model.inject_bare)
            inject(&x, m, a, i);
    } else if (layer_adds(r, i, TOKEN_STREAM)) {
        x.out = l->mixed;
        x.y = attends_as_earlier(r, i) ? NO_TENSOR : l->y;
        term(&x, l->in, NULL, a->dx, false);
        add_sources(&x, m, a, i, TOKEN_STREAM);
    } else if (layer_attends(r, i) && !enters_normed(r, i) && !attends_as_earlier(r, i)) {
        term(&x, l->in, NULL, a->dx, false);
    }
    return x;
}

/* The norm that attention reads once more: it was made where layer attend_as entered. */
static struct mix earlier_mix(const struct model *m, const struct acts *a)
{
    int as = m->recipe->model.attend_as;
    struct mix x = { .out = a->layer[as].in, .y = a->layer[as].y };

    term(&x, a->layer[as].in, NULL, a->din[as], a->have_din[as]);
    return x;
}

/* After attention, one lane. */
static struct mix attended_mix(const struct model *m, const struct acts *a, int i)
{
    const struct recipe *r = m->recipe;
    const struct layer_acts *l = &a->layer[i];
    bool attends = layer_attends(r, i), after = r->model.inject == INJECT_AFTER;
    struct mix x = { .out = l->attended, .y = l->y2 };

    if (!attends && !after)
        return x; /* enter has made the norm that the MLP reads */
    if (attends ? !attention_mixes(r, i) : !r->model.inject_bare) {
        term(&x, l->attended, NULL, a->dx,
             false); /* the sum is complete; only its norm is missing */
        return x;
    }
    term(&x, after && !layer_adds(r, i, TOKEN_STREAM) ? l->in : l->mixed,
         after ? role_of(m, a, i, TOKEN_RESIDUAL) : NULL, a->dx, false);
    if (attends)
        term(&x, l->o, role_of(m, a, i, TOKEN_ATTN), attention_branch_grad(m, a, i), false);
    if (after)
        inject(&x, m, a, i);
    return x;
}

/* After the MLP. */
static struct mix leave_mix(const struct model *m, const struct acts *a, int i)
{
    const struct recipe *r = m->recipe;
    const struct layer_acts *l = &a->layer[i];
    struct mix x = { .out = l[1].in, .y = enters_normed(r, i + 1) ? l[1].y : NO_TENSOR };

    if (!mlp_mixes(r))
        return x;
    term(&x, l->attended, role_of(m, a, i, TOKEN_RESIDUAL_MLP), a->dx, false);
    term(&x, l->m, role_of(m, a, i, TOKEN_MLP), a->dbranch, false);
    return x;
}

/* The mean of the lanes, less the backout. */
static struct mix end_mix(const struct model *m, const struct acts *a)
{
    const struct recipe *r = m->recipe;
    const struct layer_acts *l = &a->layer[r->n_layers];
    bool two = r->model.lanes >= 0;
    struct mix x = { .out = a->z, .y = a->y };

    term(&x, l->in, two ? &m->p.half : NULL, a->dx, false);
    if (two)
        term(&x, l->in1, &m->p.half, a->dx1, false);
    if (r->model.backout >= 0)
        term(&x, a->layer[r->model.backout + 1].in, m->p.backout, a->din[r->model.backout + 1],
             false)
            ->minus = true;
    add_sources(&x, m, a, r->n_layers, TOKEN_STREAM);
    return x;
}

/* -- two lanes: one mix for both ---------------------------------------------- */

struct lanes {
    struct tensor out[2], y;
    int normed; /* the lane whose norm y is */
    int n;
    struct lanes_term term[LANES_MAX];
    struct lanes_grad grad[LANES_MAX];
};

/* Adds t to the lanes whose bits are set, with their scalars (NULL: 1). */
static void join(struct lanes *x, struct tensor t, unsigned lanes, const struct scalar *s0,
                 const struct scalar *s1, struct tensor dx)
{
    assert(x->n < LANES_MAX);
    x->term[x->n] =
        (struct lanes_term){ t, lanes, { s0 ? s0->value : NULL, s1 ? s1->value : NULL } };
    x->grad[x->n++] = (struct lanes_grad){ dx, { s0 ? s0->grad : NULL, s1 ? s1->grad : NULL } };
}

static void run_lanes(struct model *m, struct lanes x)
{
    m->ops->lanes_mix(m->ops, x.out, x.y, x.normed, x.n, x.term);
}

static void run_lanes_bwd(struct model *m, struct acts *a, struct lanes x, struct tensor dlane0,
                          bool dy12)
{
    m->ops->lanes_mix_bwd(m->ops, x.grad, (struct tensor[]){ dlane0, a->dx1 },
                          x.y.data ? a->dy : NO_TENSOR, x.y.data && dy12 ? a->dy12 : NO_TENSOR,
                          x.out[x.normed], x.normed, x.n, x.term);
}

/* The gradient of lane 0 between attention and MLP. */
static struct tensor between_grad(const struct recipe *r, const struct acts *a, int i)
{
    return layer_two_lanes(r, i) && joins_after(r, i) ? a->layer[i].g : a->dx;
}

static struct lanes attended_lanes(const struct model *m, const struct acts *a, int i)
{
    const struct model_params *p = &m->p;
    const struct layer_acts *l = &a->layer[i];
    const struct scalar *residual = &p->residual[i];
    bool after = m->recipe->model.inject == INJECT_AFTER;
    struct lanes x = { .out = { l->attended, l->attended1 }, .y = l->y2, .normed = 1 };

    if (after && i == m->recipe->model.lanes) { /* lane 1 starts as a copy of lane 0 */
        join(&x, l->in, 3, residual, residual, a->dx);
    } else {
        join(&x, after ? l->in : l->mixed, 1, after ? residual : NULL, NULL, a->dx);
        join(&x, l->in1, 2, NULL, residual, a->dx1);
    }
    join(&x, l->o, 3, &p->attn_lane0[i], &p->attn_lane1[i], a->dbranch);
    if (after)
        join(&x, a->x0, 1, &p->x0[i], NULL, NO_TENSOR);
    if (after && bigram_joins(m, i))
        join(&x, a->bigram, 1, &p->bigram[i], NULL, NO_TENSOR);
    return x;
}

static struct lanes leave_lanes(const struct model *m, const struct acts *a, int i)
{
    const struct model_params *p = &m->p;
    const struct layer_acts *l = &a->layer[i];
    struct lanes x = { .out = { l[1].in, l[1].in1 },
                       .normed = 0,
                       .y = enters_normed(m->recipe, i + 1) ? l[1].y : NO_TENSOR };

    join(&x, l->attended, 1, &p->residual_mlp[i], NULL, between_grad(m->recipe, a, i));
    join(&x, l->attended1, 2, NULL, &p->residual_mlp[i], a->dx1);
    join(&x, l->m, 3, &p->mlp_lane0[i], &p->mlp_lane1[i], a->dbranch);
    return x;
}

/* -- forward ------------------------------------------------------------------- */

static struct tensor skip_source(const struct recipe *r, const struct acts *a)
{
    return r->model.skip.tap == SKIP_LAYER ? a->layer[r->model.skip.from + 1].in
                                           : a->layer[r->model.skip.from].attended;
}

void stream_begin(struct model *m, struct acts *a) { run(m, begin_mix(m, a)); }

/* The MLP of [token_coefs] for layer i, on the stream that enters it; and rows of its table. */
static void make_coefs(struct model *m, struct acts *a, int i, const struct batch *b)
{
    const struct recipe *r = m->recipe;
    struct ops *o = m->ops;
    int param = -1, slot, block = -1;

    for (int k = 0; k < r->token_coefs.n; k++)
        block = r->token_coefs.term[k].layer == i ? r->token_coefs.term[k].block : block;
    if (block < 0)
        return;
    int64_t n = a->coefs[block].cols;
    o->linear(o, a->hidden[block], a->layer[i].in,
              bank_rows(m->p.mudd_w1->w, r->token_coefs.hidden, block), NULL, NO_TENSOR);
    o->token_coefs(o, a->coefs[block], a->hidden[block],
                   tensor_rows(m->p.mudd_w2->w, (int64_t)block * r->token_coefs.width, n),
                   tensor_shape(tensor_rows(m->p.mudd_b2->w, block, 1), 1, n));
    if (a->layer[i].rows.data && layer_table(r, i, &param, &slot)) {
        model_need(m, &m->banks->p[param]);
        o->gather(o, a->layer[i].rows, table_rows(m, param, slot, false), &b->token);
    }
}

void stream_enter(struct model *m, struct acts *a, int i, const struct batch *b)
{
    struct tensor in = a->layer[i].in;

    if (i == m->recipe->model.skip.to)
        m->ops->skip_gate(m->ops, in, in, skip_source(m->recipe, a), a->x0, m->p.skip_gate->w,
                          m->p.skip->value);
    make_coefs(m, a, i, b);
    run(m, enter_mix(m, a, i));
}

static struct mix value_mix(const struct model *m, const struct acts *a, int i)
{
    const struct layer_acts *l = &a->layer[i];
    struct mix x = { .out = l->v };

    if (!layer_adds(m->recipe, i, TOKEN_VALUE))
        return x;
    term(&x, l->v, NULL, NO_TENSOR, false);
    add_sources(&x, m, a, i, TOKEN_VALUE);
    return x;
}

void stream_values(struct model *m, struct acts *a, int i) { run(m, value_mix(m, a, i)); }

void stream_attended(struct model *m, struct acts *a, int i)
{
    if (layer_two_lanes(m->recipe, i))
        run_lanes(m, attended_lanes(m, a, i));
    else
        run(m, attended_mix(m, a, i));
}

void stream_leave(struct model *m, struct acts *a, int i)
{
    if (layer_two_lanes(m->recipe, i))
        run_lanes(m, leave_lanes(m, a, i));
    else
        run(m, leave_mix(m, a, i));
}

void stream_end(struct model *m, struct acts *a, const struct batch *b)
{
    make_coefs(m, a, m->recipe->n_layers, b);
    run(m, end_mix(m, a));
}

/* -- backward -------------------------------------------------------------------- */

static void add(struct model *m, struct tensor to, struct tensor x)
{
    m->ops->mix_norm(m->ops, to, NO_TENSOR, 2, (struct mix_term[]){ { .x = to }, { .x = x } });
}

/* Zeroes d unless a layer has written it; before an op that adds to it or reads it. */
static void need(struct model *m, struct tensor d, bool *have)
{
    if (d.data && !*have)
        m->ops->zero(m->ops, d);
    *have = true;
}

/* The terms of x0 and bigrams, which are the last of a mix, are left out of the backward of layer
 * i: stream_begin_bwd computes their gradients for all layers at once, from the gradients g of the
 * streams. */
static int injected_terms(const struct model *m, int i) { return 1 + bigram_joins(m, i); }

static void keep_injected(struct mix *x, const struct model *m, struct acts *a, int i)
{
    struct tensor g = a->layer[i].g;

    x->n -= injected_terms(m, i);
    if (attention_branch_grad(m, a, i).data != g.data || !layer_attends(m->recipe, i))
        term(x, a->layer[i].in, NULL, g, false);
}

/* Gradients of x0 and bigrams from at most INJECT_MAX layers that add them, from layer `first` on.
 * Returns the next layer. */
static int inject_bwd(struct model *m, struct acts *a, int first)
{
    struct injection in[INJECT_STREAMS] = {
        { .x = a->x0, .dx = a->dx0, .add = a->have_dx0 },
        { .x = a->bigram, .dx = a->dbigram, .add = a->have_dbigram },
    };
    struct tensor g[INJECT_MAX];
    int n = 0, i = first;

    for (; i < m->recipe->n_layers && n < INJECT_MAX; i++) {
        if (!joins_later(m->recipe, i))
            continue;
        g[n] = a->layer[i].g;
        in[0].coef[n] = m->p.x0[i].value, in[0].dcoef[n] = m->p.x0[i].grad;
        if (bigram_joins(m, i))
            in[1].coef[n] = m->p.bigram[i].value, in[1].dcoef[n] = m->p.bigram[i].grad;
        n++;
    }
    if (n) {
        m->ops->inject_bwd(m->ops, n, g, m->p.bigram_embed ? 2 : 1, in);
        a->have_dx0 = true;
        a->have_dbigram = m->p.bigram_embed;
    }
    return i;
}

/* The gradients of layer i's coefficients are complete: on to the MLP that made them and to the
 * stream. */
static void coefs_bwd(struct model *m, struct acts *a, int i)
{
    const struct recipe *r = m->recipe;
    const struct model_params *p = &m->p;
    struct ops *o = m->ops;
    int block = -1;

    for (int k = 0; k < r->token_coefs.n; k++)
        block = r->token_coefs.term[k].layer == i ? r->token_coefs.term[k].block : block;
    if (block < 0)
        return;
    int64_t n = a->coefs[block].cols, at = (int64_t)block * r->token_coefs.width;
    struct tensor hidden = a->hidden[block],
                  w1 = bank_rows(p->mudd_w1->w, r->token_coefs.hidden, block);
    o->token_coefs_bwd(o, hidden, tensor_rows(p->mudd_w2->g, at, n),
                       tensor_shape(tensor_rows(p->mudd_b2->g, block, 1), 1, n), a->dcoefs[block],
                       hidden, tensor_rows(p->mudd_w2->w, at, n));
    o->linear_bwd_w(o, bank_rows(p->mudd_w1->g, r->token_coefs.hidden, block), NULL, hidden,
                    a->layer[i].in, w1, NULL, true);
    o->linear_bwd_x(o, a->dx, hidden, w1, NULL, true);
}

void stream_end_bwd(struct model *m, struct acts *a)
{
    struct mix x;

    a->have_dx0 = a->have_dbigram = false;
    memset(a->have_din, 0, sizeof a->have_din);
    x = end_mix(m, a);
    run_bwd(m, a, x, NO_TENSOR, false);
    injected(&x, a, m->recipe->n_layers);
    coefs_bwd(m, a, m->recipe->n_layers);
}

void stream_leave_bwd(struct model *m, struct acts *a, int i)
{
    const struct recipe *r = m->recipe;

    if (stream_read_again(r, i + 1))
        add(m, a->dx, a->din[i + 1]);
    if (i == r->model.skip.from && r->model.skip.tap == SKIP_LAYER)
        add(m, a->dx, a->dskip);
    if (layer_two_lanes(r, i))
        run_lanes_bwd(m, a, leave_lanes(m, a, i), a->dx, true);
    else
        run_bwd(m, a, leave_mix(m, a, i), a->dx, true);
}

void stream_values_bwd(struct model *m, struct acts *a, int i)
{
    struct mix x = value_mix(m, a, i);

    run_bwd(m, a, x, a->layer[i].dv, false);
    injected(&x, a, m->recipe->n_layers);
}

void stream_attended_bwd(struct model *m, struct acts *a, int i)
{
    const struct recipe *r = m->recipe;

    if (i == r->model.skip.from && r->model.skip.tap == SKIP_ATTENTION)
        add(m, between_grad(r, a, i), a->dskip);
    if (layer_two_lanes(r, i)) {
        struct lanes x = attended_lanes(m, a, i);
        if (joins_after(r, i))
            x.n -= injected_terms(m, i);
        run_lanes_bwd(m, a, x, between_grad(r, a, i), false);
    } else {
        struct mix x = attended_mix(m, a, i);
        if (joins_later(r, i))
            keep_injected(&x, m, a, i);
        run_bwd(m, a, x, a->dx, false);
        injected(&x, a, r->n_layers);
    }
}

void stream_enter_bwd(struct model *m, struct acts *a, int i)
{
    const struct recipe *r = m->recipe;
    struct mix x = enter_mix(m, a, i);

    if (attends_as_earlier(r, i)) {
        struct mix y = earlier_mix(m, a);
        run_bwd(m, a, y, NO_TENSOR, true);
        injected(&y, a, r->n_layers);
        x = enter_mix(m, a, i);
    }
    run_bwd(m, a, x, a->dx, layer_attends(r, i));
    injected(&x, a, r->n_layers);
    coefs_bwd(m, a, i);
    if (i == r->model.lanes && r->model.inject == INJECT_BEFORE)
        add(m, a->dx, a->dx1);
    if (i != r->model.skip.to)
        return;
    need(m, a->dx0, &a->have_dx0);
    m->ops->skip_gate_bwd(m->ops, a->dskip, a->dx0, m->p.skip_gate->g, m->p.skip->grad, a->dx,
                          skip_source(r, a), a->x0, m->p.skip_gate->w, m->p.skip->value);
}

void stream_begin_bwd(struct model *m, struct acts *a)
{
    for (int i = 0; i < m->recipe->n_layers;)
        i = inject_bwd(m, a, i);
    need(m, a->dx0, &a->have_dx0);
    need(m, a->dbigram, &a->have_dbigram);
    bool in_x0 = m->recipe->model.bigram.in_x0;
    if (m->recipe->model.inject == INJECT_BEFORE || in_x0) /* layer 0's stream is x0 itself */
        add(m, a->dx0, a->dx);
    run_bwd(m, a, begin_mix(m, a), in_x0 ? a->dx0 : a->dx, true);
}
