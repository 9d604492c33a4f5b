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

static void run_mix(struct model *m, struct acts *a, const struct mix *x)
{
    struct tensor out[2] = { stream_tensor(a, x->out[0]), stream_tensor(a, x->out[1]) };
    struct tensor y = stream_tensor(a, x->y), gain = gain_of(m, x, false);

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
        m->ops->mix_norm(m->ops, out[0], y, n, term);
    }
    if (gain.data)
        m->ops->norm(m->ops, stream_tensor(a, x->y), out[x->normed], gain);
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

static void run_coefs(struct model *m, struct acts *a, int block, struct tensor x)
{
    struct ops *o = m->ops;
    const struct recipe *r = m->recipe;
    int64_t n = a->coefs[block].cols;

    o->linear(o, a->hidden[block], x, bank_rows(m->p.mudd_w1->w, r->token_coefs.hidden, block),
              NULL, NO_TENSOR);
    o->token_coefs(o, a->coefs[block], a->hidden[block],
                   tensor_rows(m->p.mudd_w2->w, (int64_t)block * r->token_coefs.width, n),
                   tensor_shape(tensor_rows(m->p.mudd_b2->w, block, 1), 1, n));
}

/* Passes the complete gradients of the block's coefficients on to the MLP that made them and its
 * input. */
static void run_coefs_bwd(struct model *m, struct acts *a, int block, struct tensor dx,
                          struct tensor x)
{
    struct ops *o = m->ops;
    const struct recipe *r = m->recipe;
    const struct model_params *p = &m->p;
    int64_t n = a->coefs[block].cols, at = (int64_t)block * r->token_coefs.width;
    struct tensor hidden = a->hidden[block],
                  w1 = bank_rows(p->mudd_w1->w, r->token_coefs.hidden, block);

    o->token_coefs_bwd(o, hidden, tensor_rows(p->mudd_w2->g, at, n),
                       tensor_shape(tensor_rows(p->mudd_b2->g, block, 1), 1, n), a->dcoefs[block],
                       hidden, tensor_rows(p->mudd_w2->w, at, n));
    o->linear_bwd_w(o, bank_rows(p->mudd_w1->g, r->token_coefs.hidden, block), NULL, hidden, x, w1,
                    NULL, true);
    o->linear_bwd_x(o, dx, hidden, w1, NULL, true);
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
        case DO_SKIP:
            m->ops->skip_gate(m->ops, to, to, x, a->x0, m->p.skip_gate->w, m->p.skip->value);
            break;
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
        case DO_SKIP:
            m->ops->skip_gate_bwd(m->ops, a->dskip, a->dx0, m->p.skip_gate->g, m->p.skip->grad, to,
                                  x, a->x0, m->p.skip_gate->w, m->p.skip->value);
            break;
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
