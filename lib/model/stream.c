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

bool layer_attends(const struct recipe *r, int i) { return r->layers[i].attention != ATTN_NONE; }

bool layer_two_lanes(const struct recipe *r, int i) { return r->lanes >= 0 && i >= r->lanes; }

bool attention_mixes(const struct recipe *r, int i)
{
    return r->inject == INJECT_AFTER || layer_two_lanes(r, i) || r->post_single;
}

bool mlp_mixes(const struct recipe *r)
{
    return r->lanes >= 0 || recipe_scalar(r, "residual_mlp") || recipe_scalar(r, "mlp_lane0");
}

bool mlp_folds(const struct recipe *r, int i) { return r->fold_mlp && !layer_two_lanes(r, i); }

/* Are x0 and bigrams added with attention's result? */
static bool joins_after(const struct recipe *r, int i)
{
    return r->inject == INJECT_AFTER && (layer_attends(r, i) || r->inject_bare);
}

struct tensor attention_branch_grad(const struct model *m, const struct acts *a, int i)
{
    const struct recipe *r = m->recipe;

    if (joins_after(r, i) && !layer_two_lanes(r, i) && !r->post_single)
        return a->layer[i].g; /* the product is added without a coefficient */
    return attention_mixes(r, i) ? a->dbranch : a->dx;
}

struct tensor mlp_branch_grad(const struct model *m, const struct acts *a)
{
    return mlp_mixes(m->recipe) ? a->dbranch : a->dx;
}

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
    x->term[x->n] = (struct mix_term){ .x = t, .coef = s ? s->value : NULL };
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

/* Are bigrams added in layer i? In layer 0 with inject = after, begin_mix adds them. */
static bool bigram_joins(const struct model *m, int i)
{
    return m->p.bigram_embed && (i > 0 || m->recipe->inject == INJECT_BEFORE);
}

/* x0 and the bigram rows of layer i. */
static void inject(struct mix *x, const struct model *m, const struct acts *a, int i)
{
    term(x, a->x0, &m->p.x0[i], a->dx0, a->have_dx0);
    if (bigram_joins(m, i))
        term(x, a->bigram, &m->p.bigram[i], a->dbigram, a->have_dbigram);
}

/* Notes which gradients of inject have been written: later ones are added. */
static void injected(struct mix *x, struct acts *a)
{
    for (int k = 0; k < x->n; k++) {
        a->have_dx0 |= x->grad[k].dx.data == a->dx0.data;
        a->have_dbigram |= a->dbigram.data && x->grad[k].dx.data == a->dbigram.data;
    }
}

/* Does the mix that makes `in` also make the norm that layer i's attention reads? */
static bool enters_normed(const struct recipe *r, int i)
{
    return i < r->n_layers && r->inject == INJECT_AFTER && layer_attends(r, i) && i != r->skip_to &&
           (i == 0 || mlp_mixes(r));
}

static struct mix begin_mix(const struct model *m, const struct acts *a)
{
    const struct layer_acts *l = &a->layer[0];
    struct mix x = { .out = l->in, .y = enters_normed(m->recipe, 0) ? l->y : NO_TENSOR };

    if (m->recipe->inject == INJECT_BEFORE)
        return x;
    term(&x, a->x0, NULL, a->dx0, a->have_dx0);
    if (m->p.bigram_embed)
        term(&x, a->bigram, &m->p.bigram[0], a->dbigram, a->have_dbigram);
    return x;
}

static struct mix enter_mix(const struct model *m, const struct acts *a, int i)
{
    const struct recipe *r = m->recipe;
    const struct layer_acts *l = &a->layer[i];
    struct mix x = { .out = l->in, .y = l->y };

    if (r->inject == INJECT_BEFORE) {
        x.out = l->mixed;
        term(&x, l->in, &m->p.residual[i], a->dx, false);
        if (layer_attends(r, i) || r->inject_bare)
            inject(&x, m, a, i);
    } else if (layer_attends(r, i) && !enters_normed(r, i)) {
        term(&x, l->in, NULL, a->dx, false);
    }
    return x;
}

/* After attention, one lane. */
static struct mix attended_mix(const struct model *m, const struct acts *a, int i)
{
    const struct recipe *r = m->recipe;
    const struct layer_acts *l = &a->layer[i];
    bool attends = layer_attends(r, i), after = r->inject == INJECT_AFTER;
    struct mix x = { .out = l->attended, .y = l->y2 };

    if (!attends && !after)
        return x; /* enter has made the norm that the MLP reads */
    if (attends ? !attention_mixes(r, i) : !r->inject_bare) {
        term(&x, l->attended, NULL, a->dx,
             false); /* the sum is complete; only its norm is missing */
        return x;
    }
    term(&x, after ? l->in : l->mixed, after ? &m->p.residual[i] : NULL, a->dx, false);
    if (attends)
        term(&x, l->o, r->post_single ? &m->p.attn_lane0[i] : NULL, attention_branch_grad(m, a, i),
             false);
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
    term(&x, l->attended, &m->p.residual_mlp[i], a->dx, false);
    term(&x, l->m, mlp_folds(r, i) ? NULL : &m->p.mlp_lane0[i], a->dbranch, false);
    return x;
}

/* The mean of the lanes, less the backout. */
static struct mix end_mix(const struct model *m, const struct acts *a)
{
    const struct recipe *r = m->recipe;
    const struct layer_acts *l = &a->layer[r->n_layers];
    bool two = r->lanes >= 0;
    struct mix x = { .out = a->z, .y = a->y };

    term(&x, l->in, two ? &m->p.half : NULL, a->dx, false);
    if (two)
        term(&x, l->in1, &m->p.half, a->dx1, false);
    if (r->backout >= 0)
        term(&x, a->layer[r->backout + 1].in, m->p.backout, a->dbackout, false)->minus = true;
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
    bool after = m->recipe->inject == INJECT_AFTER;
    struct lanes x = { .out = { l->attended, l->attended1 }, .y = l->y2, .normed = 1 };

    if (after && i == m->recipe->lanes) { /* lane 1 starts as a copy of lane 0 */
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
    return r->skip_tap == SKIP_LAYER ? a->layer[r->skip_from + 1].in
                                     : a->layer[r->skip_from].attended;
}

void stream_begin(struct model *m, struct acts *a) { run(m, begin_mix(m, a)); }

void stream_enter(struct model *m, struct acts *a, int i)
{
    struct tensor in = a->layer[i].in;

    if (i == m->recipe->skip_to)
        m->ops->skip_gate(m->ops, in, in, skip_source(m->recipe, a), a->x0, m->p.skip_gate->w,
                          m->p.skip->value);
    run(m, enter_mix(m, a, i));
}

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

void stream_end(struct model *m, struct acts *a) { run(m, end_mix(m, a)); }

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
        if (!joins_after(m->recipe, i))
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

void stream_end_bwd(struct model *m, struct acts *a)
{
    a->have_dx0 = a->have_dbigram = false;
    run_bwd(m, a, end_mix(m, a), NO_TENSOR, false);
}

void stream_leave_bwd(struct model *m, struct acts *a, int i)
{
    const struct recipe *r = m->recipe;

    if (i == r->backout)
        add(m, a->dx, a->dbackout);
    if (i == r->skip_from && r->skip_tap == SKIP_LAYER)
        add(m, a->dx, a->dskip);
    if (layer_two_lanes(r, i))
        run_lanes_bwd(m, a, leave_lanes(m, a, i), a->dx, true);
    else
        run_bwd(m, a, leave_mix(m, a, i), a->dx, true);
}

void stream_attended_bwd(struct model *m, struct acts *a, int i)
{
    const struct recipe *r = m->recipe;

    if (i == r->skip_from && r->skip_tap == SKIP_ATTENTION)
        add(m, between_grad(r, a, i), a->dskip);
    if (layer_two_lanes(r, i)) {
        struct lanes x = attended_lanes(m, a, i);
        if (joins_after(r, i))
            x.n -= injected_terms(m, i);
        run_lanes_bwd(m, a, x, between_grad(r, a, i), false);
    } else {
        struct mix x = attended_mix(m, a, i);
        if (joins_after(r, i))
            keep_injected(&x, m, a, i);
        run_bwd(m, a, x, a->dx, false);
    }
}

void stream_enter_bwd(struct model *m, struct acts *a, int i)
{
    const struct recipe *r = m->recipe;
    struct mix x = enter_mix(m, a, i);

    run_bwd(m, a, x, a->dx, layer_attends(r, i));
    injected(&x, a);
    if (i == r->lanes && r->inject == INJECT_BEFORE)
        add(m, a->dx, a->dx1);
    if (i != r->skip_to)
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
    if (m->recipe->inject == INJECT_BEFORE) /* layer 0's stream is x0 itself */
        add(m, a->dx0, a->dx);
    run_bwd(m, a, begin_mix(m, a), a->dx, true);
}
