/* stream.c - runs the lists of the residual stream (streams.h) on the buffers of a shape. */
#include "model/model.h"

#include <assert.h>
#include <stddef.h>

/* -- references ------------------------------------------------------------------------------ */

struct tensor stream_tensor(const struct acts *a, struct ref r)
{
    static const size_t at[] = { 0,
#define IN_LAYER(name) offsetof(struct layer_acts, name),
#define IN_MODEL(name) offsetof(struct acts, name),
                                 STREAM_BUFFERS(IN_LAYER, IN_MODEL)
#undef IN_LAYER
#undef IN_MODEL
    };

    if (!r.buffer)
        return NO_TENSOR;
    const char *base =
        r.buffer < FIRST_OF_MODEL ? (const char *)&a->layer[r.layer] : (const char *)a;
    return *(const struct tensor *)(const void *)(base + at[r.buffer]);
}

/* Returns the learnable number of a role. */
static struct scalar scalar_of(const struct model *m, struct coef c)
{
    static const size_t at[] = {
#define SCALAR_ROLE(name, count, ...) offsetof(struct model_params, name),
#include "recipe/role_list.h"
    };
    return ((const struct scalar *)(const void *)((const char *)&m->p + at[c.role]))[c.of];
}

struct scalar stream_scalar(const struct model *m, const struct acts *a, struct coef c)
{
    switch (c.kind) {
    case COEF_HALF: return m->p.half;
    case COEF_SCALAR: return scalar_of(m, c);
    case COEF_TOKEN: {
        struct scalar s = a->token[c.of];
        return (struct scalar){ s.value + c.part, s.grad ? s.grad + c.part : NULL, s.stride };
    }
    default: return (struct scalar){ NULL, NULL, 0 };
    }
}

/* -- mixes ----------------------------------------------------------------------------------- */

/* Binds the terms of x that run in `run`. Returns their number. */
static int bind(const struct model *m, const struct acts *a, const struct mix *x, int run,
                struct mix_term *term, struct mix_grad *grad)
{
    int64_t width = stream_tensor(a, x->out[0]).cols;
    int n = 0;

    for (int t = 0; t < x->n; t++) {
        const struct term *e = &x->term[t];
        if (!(e->runs & run))
            continue;
        assert(n < MIX_MAX);
        struct tensor from = stream_tensor(a, e->x);
        struct scalar s = stream_scalar(m, a, e->coef[0]);
        term[n] = (struct mix_term){ .x = from,
                                     .coef = s.value,
                                     .minus = e->coef[0].minus,
                                     .plus_one = e->coef[0].plus_one,
                                     .stride = s.stride,
                                     .first = e->first,
                                     .n = e->n                ? e->n
                                          : from.cols < width ? from.cols
                                                              : 0 };
        grad[n++] = (struct mix_grad){ stream_tensor(a, e->dx), e->add, s.grad };
    }
    return n;
}

static int bind_lanes(const struct model *m, const struct acts *a, const struct mix *x, int run,
                      struct lanes_term *term, struct lanes_grad *grad)
{
    int n = 0;

    for (int t = 0; t < x->n; t++) {
        const struct term *e = &x->term[t];
        if (!(e->runs & run))
            continue;
        assert(n < LANES_MAX);
        struct scalar s0 = stream_scalar(m, a, e->coef[0]), s1 = stream_scalar(m, a, e->coef[1]);
        term[n] = (struct lanes_term){ stream_tensor(a, e->x), e->lanes, { s0.value, s1.value } };
        grad[n++] = (struct lanes_grad){ stream_tensor(a, e->dx), { s0.grad, s1.grad } };
    }
    return n;
}

/* Returns the gain of x's norm, or its gradient; none without one. */
static struct tensor gain_of(const struct model *m, const struct mix *x, bool grad)
{
    const struct param *const p[] = { NULL, m->p.attn_gain, m->p.mlp_gain, m->p.head_gain };
    if (x->gain == GAIN_NONE)
        return NO_TENSOR;
    return tensor_rows(grad ? p[x->gain]->g : p[x->gain]->w, x->of, 1);
}

/* True if x is one stream as it is, and makes its norm alone. */
static bool is_norm(const struct mix *x, int run)
{
    const struct term *t = &x->term[0];
    return x->n == 1 && (t->runs & run) && x->lanes == 1 && t->coef[0].kind == COEF_ONE &&
           !t->coef[0].minus && t->x.buffer == x->out[0].buffer && t->x.layer == x->out[0].layer;
}

/* Returns where codes of x's norm go for the projections that read it (fp8.md 6); none where none does. */
static struct tensor codes_of_norm(const struct model *m, const struct acts *a, const struct mix *x)
{
    for (int i = 0; i < m->recipe->n_layers && a->y8.data && x->y.buffer; i++) {
        struct ref y = m->streams.layer[i].y;
        if (layer_attends(m->recipe, i) && y.buffer == x->y.buffer && y.layer == x->y.layer)
            return a->y8;
    }
    return NO_TENSOR;
}

static void run_mix(struct model *m, struct acts *a, const struct mix *x)
{
    struct tensor out[2] = { stream_tensor(a, x->out[0]), stream_tensor(a, x->out[1]) };
    struct tensor y = stream_tensor(a, x->y), gain = gain_of(m, x, false);
    struct tensor y8 = codes_of_norm(m, a, x);
    real unit = (real)m->recipe->precision.attn.x_scale;

    if (gain.data)
        y = NO_TENSOR;

    if (x->lanes == 2) {
        struct lanes_term term[LANES_MAX];
        struct lanes_grad grad[LANES_MAX];
        int n = bind_lanes(m, a, x, RUN_FORWARD, term, grad);
        m->ops->lanes_mix(m->ops, out, y, x->normed, n, term);
    } else if (!gain.data || !is_norm(x, RUN_FORWARD)) {
        struct mix_term term[MIX_MAX];
        struct mix_grad grad[MIX_MAX];
        int n = bind(m, a, x, RUN_FORWARD, term, grad);
        if (y8.data && y.data)
            m->ops->mix_norm_codes(m->ops, out[0], y, y8, unit, n, term);
        else
            m->ops->mix_norm(m->ops, out[0], y, n, term);
    }
    if (gain.data)
        m->ops->norm(m->ops, stream_tensor(a, x->y), out[x->normed], gain);
    if (y8.data && (gain.data || x->lanes == 2))
        m->ops->input_codes(m->ops, y8, stream_tensor(a, x->y), unit);
}

static void run_mix_bwd(struct model *m, struct acts *a, const struct mix *x)
{
    struct tensor dout[2] = { stream_tensor(a, x->dout[0]), stream_tensor(a, x->dout[1]) };
    struct tensor dy = x->y.buffer ? a->dy : NO_TENSOR;
    struct tensor dy12 = x->y.buffer && x->gates ? a->dy12 : NO_TENSOR;
    struct tensor out = stream_tensor(a, x->out[x->normed]);

    if (x->gain) { /* the gradient of the sum, added to what is there */
        struct tensor gain = gain_of(m, x, false), dgain = gain_of(m, x, true);
        struct tensor *to = &dout[x->normed], own = stream_tensor(a, x->term[0].dx);
        if (is_norm(x, RUN_BACKWARD) && (!own.data || !to->data || to->data == own.data)) {
            if (own.data)
                m->ops->norm_bwd(m->ops, own, to->data || x->term[0].add, dgain, dy, out, gain);
            return;
        }
        m->ops->norm_bwd(m->ops, to->data ? *to : dy, to->data != NULL, dgain, dy, out, gain);
        *to = to->data ? *to : dy;
        dy = NO_TENSOR;
    }
    if (x->lanes == 2) {
        struct lanes_term term[LANES_MAX];
        struct lanes_grad grad[LANES_MAX];
        int n = bind_lanes(m, a, x, RUN_BACKWARD, term, grad);
        m->ops->lanes_mix_bwd(m->ops, grad, dout, dy, dy12, out, x->normed, n, term);
    } else {
        struct mix_term term[MIX_MAX];
        struct mix_grad grad[MIX_MAX];
        int n = bind(m, a, x, RUN_BACKWARD, term, grad);
        m->ops->mix_norm_bwd(m->ops, grad, dout[0], dy, dy12, out, n, term);
    }
}

/* Runs the terms of several mixes that wait: one stream for each buffer that they read. */
static void run_inject(struct model *m, struct acts *a, const struct injected *e)
{
    struct injection in[INJECT_STREAMS] = { { .add = false } };
    struct tensor g[INJECT_MAX];
    int streams = 0;

    for (int k = 0; k < e->n; k++) {
        const struct mix *x = &m->streams.mix[e->mix[k]];
        g[k] = a->layer[x->layer].g;
        for (int t = 0; t < x->n; t++) {
            const struct term *from = &x->term[t];
            struct tensor source = stream_tensor(a, from->x);
            struct scalar s = stream_scalar(m, a, from->coef[0]);
            int at = 0;
            if (!(from->runs & RUN_AT_BEGIN))
                continue;
            while (at < streams && in[at].x.data != source.data)
                at++;
            assert(at < INJECT_STREAMS);
            streams = at < streams ? streams : at + 1;
            in[at].x = source, in[at].dx = stream_tensor(a, from->dx), in[at].add = from->add;
            in[at].coef[k] = s.value, in[at].dcoef[k] = s.grad;
        }
    }
    m->ops->inject_bwd(m->ops, e->n, g, streams, in);
}

/* -- what stands between mixes --------------------------------------------------------------- */

/* Matrices of an MLP of [token_coefs], or their gradients; its factor. */
struct coef_mlp {
    struct tensor w1, w2, b2;
    struct scalar factor; /* of value NULL: 1/10 */
};

static struct coef_mlp coef_mlp_of(const struct model *m, int block, bool grad)
{
    const struct model_params *p = &m->p;
    const struct token_block *b = &m->recipe->token_coefs.block[block];
    bool given = b->set == TOKENS_GIVEN;
    const struct param *w1 = given ? p->mudd_gate_w1 : p->mudd_w1;
    const struct param *w2 = given ? p->mudd_gate_w2 : p->mudd_w2;
    const struct param *b2 = given ? p->mudd_gate_b2 : p->mudd_b2;
    int64_t width = m->recipe->token_coefs.width[b->set];
    struct tensor bias = tensor_rows(grad ? b2->g : b2->w, b->index, 1);

    return (struct coef_mlp){
        .w1 = bank_rows(grad ? w1->g : w1->w, m->recipe->token_coefs.hidden[b->set], b->index),
        .w2 = tensor_rows(grad ? w2->g : w2->w, b->index * width, b->n),
        .b2 = tensor_shape(bias, 1, b->n),
        .factor = given ? p->coef_scale[0] : (struct scalar){ NULL, NULL, 0 },
    };
}

static void run_coefs(struct model *m, struct acts *a, int block, struct tensor x)
{
    struct ops *o = m->ops;
    struct coef_mlp w = coef_mlp_of(m, block, false);

    o->linear(o, a->hidden[block], x, w.w1, NULL, NO_TENSOR);
    o->token_coefs(o, a->coefs[block], a->hidden[block], w.w2, w.b2, w.factor.value);
}

/* Passes the complete gradients of the block's coefficients on to the MLP that made them and its
 * input. */
static void run_coefs_bwd(struct model *m, struct acts *a, int block, struct tensor dx,
                          struct tensor x)
{
    struct ops *o = m->ops;
    struct tensor hidden = a->hidden[block];
    struct coef_mlp w = coef_mlp_of(m, block, false), g = coef_mlp_of(m, block, true);

    o->token_coefs_bwd(o, hidden, g.w2, g.b2, w.factor.grad, a->dcoefs[block], hidden, w.w2, w.b2,
                       w.factor.value);
    o->linear_bwd_w(o, g.w1, NULL, hidden, x, w.w1, NULL, true);
    o->linear_bwd_x(o, dx, hidden, w.w1, NULL, true);
}

/* Adds the skip x to `to`; row: of [token_coefs], its gate, or -1. */
static void run_skip(struct model *m, struct acts *a, int row, struct tensor to, struct tensor x)
{
    struct token_numbers gate = row < 0 ? NO_NUMBERS : token_numbers(&a->token[row]);
    struct param *p = m->p.skip_gate;

    m->ops->skip_gate(m->ops, to, to, x, a->x0, p ? p->w : NO_TENSOR, m->p.skip->value,
                      row < 0 ? NULL : &gate);
}

static void run_skip_bwd(struct model *m, struct acts *a, int row, struct tensor dout,
                         struct tensor x)
{
    struct token_numbers gate = row < 0 ? NO_NUMBERS : token_numbers(&a->token[row]);
    struct param *p = m->p.skip_gate;

    m->ops->skip_gate_bwd(m->ops, a->dskip, a->dx0, p ? p->g : NO_TENSOR, m->p.skip->grad, dout, x,
                          a->x0, p ? p->w : NO_TENSOR, m->p.skip->value, row < 0 ? NULL : &gate);
}

static void run_rows(struct model *m, struct tensor out, int layer, const struct batch *b)
{
    int param, slot;

    if (!layer_table(m->recipe, layer, &param, &slot))
        return;
    model_need(m, &m->banks->p[param]);
    m->ops->gather(m->ops, out, table_rows(m, param, slot, false), &b->token);
}

/* -- places ---------------------------------------------------------------------------------- */

void stream_forward(struct model *m, struct acts *a, enum stream_place place, int layer,
                    const struct batch *b)
{
    struct step_list l = streams_at(&m->streams, STREAM_FORWARD, place, layer);

    for (int n = 0; n < l.n; n++) {
        const struct stream_step *e = &l.step[n];
        struct tensor to = stream_tensor(a, e->to), x = stream_tensor(a, e->x);
        switch (e->act) {
        case DO_MIX: run_mix(m, a, &m->streams.mix[e->which]); break;
        case DO_SKIP: run_skip(m, a, e->which, to, x); break;
        case DO_COEFS: run_coefs(m, a, e->which, x); break;
        case DO_ROWS: run_rows(m, to, e->which, b); break;
        default: assert(!"a step of the forward");
        }
    }
}

void stream_backward(struct model *m, struct acts *a, enum stream_place place, int layer)
{
    struct step_list l = streams_at(&m->streams, STREAM_BACKWARD, place, layer);

    for (int n = 0; n < l.n; n++) {
        const struct stream_step *e = &l.step[n];
        struct tensor to = stream_tensor(a, e->to), x = stream_tensor(a, e->x);
        switch (e->act) {
        case DO_MIX: run_mix_bwd(m, a, &m->streams.mix[e->which]); break;
        case DO_SKIP: run_skip_bwd(m, a, e->which, to, x); break;
        case DO_COEFS: run_coefs_bwd(m, a, e->which, to, x); break;
        case DO_ADD:
            m->ops->mix_norm(m->ops, to, NO_TENSOR, 2,
                             (struct mix_term[]){ { .x = to }, { .x = x } });
            break;
        case DO_ZERO: m->ops->zero(m->ops, to); break;
        case DO_INJECT: run_inject(m, a, &m->streams.injected[e->which]); break;
        default: assert(!"a step of the backward");
        }
    }
}
