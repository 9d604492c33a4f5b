/* streams.c - the lists of a recipe's residual stream. See streams.h.
 *
 * The records differ in where x0 and bigrams are added and in the number of lanes:
 *
 *   record 61 (inject = before)            record 74 (inject = after)
 *   enter     mixed = r in + x x0, norm     (norm of in, by the leave before or begin)
 *   attended  norm of mixed + attention     r in + o + x x0 + b bigram, norm
 *   leave     (added by the MLP's product)  r' attended + p m, norm
 *
 * From layer `lanes` on there are two lanes: attention reads lane 0, the MLP lane 1, and both
 * products are added to both. Mixes are made first, and the forward's steps; then the backward's,
 * in its order: of a gradient of several parts the first is written and the others are added.
 */
#include "model/streams.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

_Static_assert(MAX_SOURCES + 2 <= MIX_MAX, "a mix holds them");
_Static_assert(N_BUFFERS <= 32, "streams.used has a bit for each");

static const char *const gains[] = { NULL, "attn_gain", "mlp_gain", "head_gain" };
static const char *const roles[] = {
#define SCALAR_ROLE(name, count, ...) #name,
#include "recipe/role_list.h"
};

struct maker {
    struct streams *s;
    const struct recipe *r;
    uint32_t written[MAX_LAYERS + 1]; /* as `used`: gradients that have a part */
    int mix[STREAM_PLACES][MAX_LAYERS + 1]; /* of each place; -1: none */
    int earlier
        [MAX_LAYERS]; /* backward alone, of attention that reads an earlier layer's norm; -1 */
};

/* -- what the keys of a recipe mean ---------------------------------------------------------- */

static bool attends(const struct maker *k, int i) { return k->r->layers[i].attention != ATTN_NONE; }
/* True if the norm that attention of layer i reads is read by gates, too. */
static bool has_gates(const struct maker *k, int i)
{
    return k->r->layers[i].out_gate >= 0 || k->r->layers[i].value >= 0;
}
static bool after(const struct maker *k) { return k->r->model.inject == INJECT_AFTER; }
static bool two_lanes(const struct maker *k, int i)
{
    return k->r->model.lanes >= 0 && i >= k->r->model.lanes;
}
static bool has_tokens(const struct maker *k, int i, enum token_role role)
{
    return recipe_token_role(k->r, i, role) != NULL;
}

/* True if a mix adds attention's product of layer i; else the product itself. */
static bool attention_mixes(const struct maker *k, int i)
{
    return after(k) || two_lanes(k, i) || k->r->model.post_single;
}

static bool mlp_mixes(const struct maker *k)
{
    bool any = k->r->model.lanes >= 0 || recipe_scalar(k->r, "residual_mlp") ||
               recipe_scalar(k->r, "mlp_lane0");
    for (int t = 0; t < k->r->token_coefs.n; t++)
        any |= k->r->token_coefs.term[t].role == TOKEN_RESIDUAL_MLP ||
               k->r->token_coefs.term[t].role == TOKEN_MLP;
    return any;
}

/* True if the MLP's lambda scales its second product. */
static bool mlp_folds(const struct maker *k, int i)
{
    return k->r->model.fold_mlp && !two_lanes(k, i);
}

/* True if attention of layer i reads what an earlier layer's reads. */
static bool attends_as_earlier(const struct maker *k, int i)
{
    return k->r->model.attend_as >= 0 && i > k->r->model.attend_as && attends(k, i);
}

/* True if x0 and bigrams are added with attention's result. */
static bool joins_after(const struct maker *k, int i)
{
    return after(k) && (attends(k, i) || k->r->model.inject_bare);
}

/* True if their gradients are computed at the end of the backward, for all layers at once. */
static bool joins_later(const struct maker *k, int i)
{
    return joins_after(k, i) && !has_tokens(k, i, TOKEN_X0) && !has_tokens(k, i, TOKEN_BIGRAM);
}

/* True if bigrams are added in layer i: to layer 0's stream `begin` adds them, with inject =
 * after or to x0. */
static bool bigram_joins(const struct maker *k, int i)
{
    return k->r->model.bigram.rows && (i > 0 || (!after(k) && !k->r->model.bigram.in_x0));
}

/* True if the mix that makes `in` also makes the norm that attention of layer i reads. */
static bool enters_normed(const struct maker *k, int i)
{
    return i < k->r->n_layers && after(k) && attends(k, i) && i != k->r->model.skip.to &&
           (i == 0 || mlp_mixes(k)) && !attends_as_earlier(k, i) && !has_tokens(k, i, TOKEN_STREAM);
}

/* True if nothing is added to the stream that enters layer i, and nothing multiplies it. */
static bool enters_plain(const struct maker *k, int i)
{
    return !after(k) && !recipe_scalar(k->r, "residual") && !recipe_scalar(k->r, "x0") &&
           !k->r->model.bigram.rows && !has_tokens(k, i, TOKEN_STREAM);
}

/* -- references and coefficients ------------------------------------------------------------- */

#define LAYER(name, i) ((struct ref){ BUFFER_##name, (uint8_t)(i) })
#define MODEL(name) ((struct ref){ BUFFER_##name, 0 })
#define NOWHERE ((struct ref){ 0, 0 })
#define ONE ((struct coef){ .kind = COEF_ONE })

static bool same(struct ref a, struct ref b) { return a.buffer == b.buffer && a.layer == b.layer; }

static struct ref use(struct maker *k, struct ref r)
{
    k->s->used[r.layer] |= r.buffer ? 1u << r.buffer : 0;
    return r;
}

/* Returns the learnable number of that role, or 1 where the recipe has none. */
static struct coef scalar(const struct maker *k, enum scalar_role role, int i)
{
    return recipe_scalar(k->r, roles[role])
               ? (struct coef){ .kind = COEF_SCALAR, .role = (uint8_t)role, .of = (uint8_t)i }
               : ONE;
}

static struct coef token(const struct maker *k, const struct token_term *t, int part)
{
    int row = (int)(t - k->r->token_coefs.term);
    return (struct coef){ .kind = COEF_TOKEN, .of = (uint8_t)row, .part = (uint8_t)part };
}

/* Returns layer i's coefficient in that role: a number a token, or the scalar. */
static struct coef coef_of(const struct maker *k, int i, enum token_role role)
{
    const struct token_term *t = recipe_token_role(k->r, i, role);
    bool post = two_lanes(k, i) || k->r->model.post_single;

    if (t)
        return token(k, t, 0);
    switch (role) {
    case TOKEN_RESIDUAL: return scalar(k, ROLE_residual, i);
    case TOKEN_ATTN: return post ? scalar(k, ROLE_attn_lane0, i) : ONE;
    case TOKEN_X0: return scalar(k, ROLE_x0, i);
    case TOKEN_BIGRAM: return scalar(k, ROLE_bigram, i);
    case TOKEN_RESIDUAL_MLP: return scalar(k, ROLE_residual_mlp, i);
    case TOKEN_MLP: return mlp_folds(k, i) ? ONE : scalar(k, ROLE_mlp_lane0, i);
    default: return ONE;
    }
}

/* Returns the stream that attention's result of layer i is added to. */
static struct ref entered(const struct maker *k, int i)
{
    bool own = after(k) ? !has_tokens(k, i, TOKEN_STREAM) : enters_plain(k, i);
    return own ? LAYER(in, i) : LAYER(mixed, i);
}

/* Returns the gradient of lane 0 between attention and MLP. */
static struct ref between(const struct maker *k, int i)
{
    return two_lanes(k, i) && joins_after(k, i) ? LAYER(g, i) : MODEL(dx);
}

/* Returns where the gradient of what a mix of layer i reads goes. */
static struct ref gradient_of(const struct maker *k, int i, struct ref x, unsigned lanes)
{
    switch (x.buffer) {
    case BUFFER_x0: return MODEL(dx0);
    case BUFFER_bigram: return MODEL(dbigram);
    case BUFFER_rows: return LAYER(drows, x.layer);
    case BUFFER_v: return NOWHERE; /* that of the sum is it */
    case BUFFER_o: return k->s->layer[i].attention.dout;
    case BUFFER_m: return k->s->layer[i].mlp.dout;
    case BUFFER_attended: return between(k, i);
    case BUFFER_in:
        if (x.layer != i)
            return LAYER(din, x.layer);
        break;
    default: break;
    }
    return lanes == LANE1 ? MODEL(dx1) : MODEL(dx);
}

/* -- mixes ----------------------------------------------------------------------------------- */

static struct mix *new_mix(struct maker *k, enum stream_place place, int i, struct ref out,
                           struct ref y)
{
    int last = i == k->r->n_layers, which = k->s->n_mixes++;
    struct mix *x = &k->s->mix[which];

    k->mix[place][last ? 0 : i] = which;
    *x = (struct mix){ .layer = (uint8_t)i, .lanes = 1, .out = { use(k, out) }, .y = use(k, y) };
    x->dout[0] = use(k, MODEL(dx));
    return x;
}

/* Says whose gain the norm of x has, if the recipe has it. */
static void set_gain(const struct maker *k, struct mix *x, enum norm_gain gain, int i)
{
    if (x->y.buffer && recipe_param(k->r, gains[gain]) >= 0)
        x->gain = (uint8_t)gain, x->of = (uint8_t)i;
}

static void set_lanes(struct maker *k, struct mix *x, struct ref out1, int normed)
{
    x->lanes = 2;
    x->normed = (uint8_t)normed;
    x->out[1] = use(k, out1);
    x->dout[1] = use(k, MODEL(dx1));
}

/* Adds a term to the lanes that it is in; c1: its coefficient in lane 1. */
static struct term *add_lanes(struct maker *k, struct mix *x, struct ref from, unsigned lanes,
                              struct coef c0, struct coef c1)
{
    assert(x->n < MIX_TERMS);
    x->term[x->n] = (struct term){ .x = use(k, from),
                                   .dx = use(k, gradient_of(k, x->layer, from, lanes)),
                                   .runs = RUN_FORWARD | RUN_BACKWARD,
                                   .lanes = (uint8_t)lanes,
                                   .coef = { lanes & LANE0 ? c0 : ONE, lanes & LANE1 ? c1 : ONE } };
    return &x->term[x->n++];
}

static struct term *add_term(struct maker *k, struct mix *x, struct ref from, struct coef c)
{
    return add_lanes(k, x, from, LANE0, c, ONE);
}

/* Adds x0 and the bigram rows of layer i. */
static void inject(struct maker *k, struct mix *x, int i)
{
    uint8_t runs = RUN_FORWARD | (joins_later(k, i) ? RUN_AT_BEGIN : RUN_BACKWARD);
    const struct token_term *t = recipe_token_role(k->r, i, TOKEN_X0);
    bool start = t && t->source == SOURCE_LAYER;

    if (recipe_scalar(k->r, "x0") || t)
        add_term(k, x, start ? LAYER(in, 0) : MODEL(x0), coef_of(k, i, TOKEN_X0))->runs = runs;
    if (bigram_joins(k, i))
        add_term(k, x, MODEL(bigram), coef_of(k, i, TOKEN_BIGRAM))->runs = runs;
}

/* Adds the sources of [token_coefs] for layer i in that role. The first term is the layer's own
 * stream, to whose coefficient that of the source `layer before` is added. */
static void add_sources(struct maker *k, struct mix *x, int i, enum token_role role)
{
    for (int row = 0; row < k->r->token_coefs.n; row++) {
        const struct token_term *t = &k->r->token_coefs.term[row];
        bool own = t->source == SOURCE_LAYER && t->from == i - 1;
        struct ref from = t->source == SOURCE_LAYER   ? LAYER(in, t->from + 1)
                          : t->source == SOURCE_TABLE ? LAYER(rows, i)
                                                      : MODEL(x0);
        if (t->layer != i || t->role != role)
            continue;
        if (own && role == TOKEN_STREAM) {
            x->term[0].coef[0] = token(k, t, 0);
            x->term[0].coef[0].plus_one = true;
            continue;
        }
        for (int part = 0; part < t->parts; part++) {
            struct term *e = add_term(k, x, from, token(k, t, part));
            e->n = t->parts > 1 ? k->r->model.width / t->parts : 0;
            e->first = part * e->n;
            if (own) /* read by the values of the layer that it enters: not its own term there */
                e->dx = use(k, LAYER(din, i));
        }
    }
}

static void make_begin(struct maker *k)
{
    bool in_x0 = k->r->model.bigram.in_x0; /* the sum is x0 itself */

    if (!after(k) && !in_x0)
        return;
    struct mix *x = new_mix(k, STREAM_BEGIN, 0, k->s->apart ? LAYER(in, 0) : MODEL(x0),
                            enters_normed(k, 0) ? LAYER(y, 0) : NOWHERE);
    x->gates = has_gates(k, 0);
    set_gain(k, x, GAIN_ATTENTION, 0);
    x->dout[0] = use(k, in_x0 ? MODEL(dx0) : MODEL(dx));
    add_term(k, x, MODEL(x0), ONE);
    if (k->r->model.bigram.rows)
        add_term(k, x, MODEL(bigram), coef_of(k, 0, TOKEN_BIGRAM));
}

static void make_enter(struct maker *k, int i)
{
    int as = k->r->model.attend_as;
    bool earlier = attends_as_earlier(k, i), sources = has_tokens(k, i, TOKEN_STREAM);
    struct mix *x;

    if (earlier) { /* the norm was made where layer `as` entered */
        x = new_mix(k, STREAM_ENTER, i, LAYER(in, as), LAYER(y, as));
        x->gates = has_gates(k, i);
        set_gain(k, x, GAIN_ATTENTION, as);
        x->dout[0] = NOWHERE;
        add_term(k, x, LAYER(in, as), ONE)->runs = RUN_BACKWARD;
        k->earlier[i] = k->mix[STREAM_ENTER][i];
        k->mix[STREAM_ENTER][i] = -1;
    }
    if (after(k) && !sources && (!attends(k, i) || enters_normed(k, i) || earlier))
        return;
    x = new_mix(k, STREAM_ENTER, i, entered(k, i), earlier ? NOWHERE : LAYER(y, i));
    x->gates = attends(k, i) && has_gates(k, i);
    set_gain(k, x, attends(k, i) ? GAIN_ATTENTION : GAIN_MLP, i);
    add_term(k, x, LAYER(in, i), after(k) ? ONE : scalar(k, ROLE_residual, i));
    if (!after(k) && (attends(k, i) || k->r->model.inject_bare))
        inject(k, x, i);
    add_sources(k, x, i, TOKEN_STREAM);
}

static void make_values(struct maker *k, int i)
{
    if (!has_tokens(k, i, TOKEN_VALUE))
        return;
    struct mix *x = new_mix(k, STREAM_VALUES, i, LAYER(v, i), NOWHERE);
    x->dout[0] = use(k, LAYER(dv, i));
    add_term(k, x, LAYER(v, i), ONE);
    add_sources(k, x, i, TOKEN_VALUE);
}

static void make_attended(struct maker *k, int i)
{
    struct layer_streams *l = &k->s->layer[i];
    bool two = two_lanes(k, i), first = two && i == k->r->model.lanes;
    bool copy = first && after(k); /* lane 1 starts as a copy of lane 0 */
    struct coef own = after(k) ? coef_of(k, i, TOKEN_RESIDUAL) : ONE;

    if (!attends(k, i) && !after(k))
        return; /* enter has made the norm that the MLP reads */
    struct mix *x = new_mix(k, STREAM_ATTENDED, i, l->attended, l->y2);
    set_gain(k, x, GAIN_MLP, i);
    if (attends(k, i) ? !attention_mixes(k, i) : !k->r->model.inject_bare) {
        add_term(k, x, l->attended, ONE); /* the sum is complete; its norm is missing */
        return;
    }
    if (two) {
        set_lanes(k, x, LAYER(attended1, i), 1);
        x->dout[0] = use(k, between(k, i));
    }
    add_lanes(k, x, entered(k, i), copy ? BOTH_LANES : LANE0, own, own);
    if (two && !copy)
        add_lanes(k, x, first ? LAYER(in, i) : LAYER(in1, i), LANE1, ONE,
                  scalar(k, ROLE_residual, i));
    if (attends(k, i))
        add_lanes(k, x, LAYER(o, i), two ? BOTH_LANES : LANE0, coef_of(k, i, TOKEN_ATTN),
                  scalar(k, ROLE_attn_lane1, i));
    l->attention.kept = attends(k, i) && coef_of(k, i, TOKEN_ATTN).kind != COEF_ONE;
    if (after(k))
        inject(k, x, i);
    /* x0's and bigrams' gradients need the stream's, which is kept, unless attention's is that. */
    if (joins_later(k, i) && !two && (!attends(k, i) || l->attention.dout.buffer != BUFFER_g)) {
        struct term *t = add_term(k, x, LAYER(in, i), ONE);
        t->runs = RUN_BACKWARD;
        t->dx = use(k, LAYER(g, i));
    }
}

static void make_leave(struct maker *k, int i)
{
    struct layer_streams *l = &k->s->layer[i];
    bool two = two_lanes(k, i);
    struct coef own = coef_of(k, i, TOKEN_RESIDUAL_MLP);

    if (!mlp_mixes(k))
        return;
    struct mix *x = new_mix(k, STREAM_LEAVE, i, LAYER(in, i + 1),
                            enters_normed(k, i + 1) ? LAYER(y, i + 1) : NOWHERE);
    if (x->y.buffer)
        x->gates = has_gates(k, i + 1);
    set_gain(k, x, GAIN_ATTENTION, i + 1);
    if (two)
        set_lanes(k, x, LAYER(in1, i + 1), 0);
    add_term(k, x, l->attended, own);
    if (two)
        add_lanes(k, x, LAYER(attended1, i), LANE1, ONE, own);
    add_lanes(k, x, LAYER(m, i), two ? BOTH_LANES : LANE0, coef_of(k, i, TOKEN_MLP),
              scalar(k, ROLE_mlp_lane1, i));
    l->mlp.kept = coef_of(k, i, TOKEN_MLP).kind != COEF_ONE;
}

/* Makes the mean of the lanes, less the backout. */
static void make_end(struct maker *k)
{
    int n = k->r->n_layers, back = k->r->model.backout + 1;
    bool two = k->r->model.lanes >= 0;
    struct coef each = { .kind = two ? COEF_HALF : COEF_ONE };
    bool own = !two && back <= 0 && !has_tokens(k, n, TOKEN_STREAM) &&
               recipe_param(k->r, "head_gain") >= 0; /* its norm alone */
    struct mix *x = new_mix(k, STREAM_END, n, own ? LAYER(in, n) : MODEL(z), MODEL(head));

    set_gain(k, x, GAIN_HEAD, 0);
    x->dout[0] = NOWHERE;
    add_term(k, x, LAYER(in, n), each);
    if (two)
        add_term(k, x, LAYER(in1, n), each)->dx = MODEL(dx1);
    if (back > 0) {
        struct term *t = add_term(k, x, LAYER(in, back), scalar(k, ROLE_backout, 0));
        t->coef[0].minus = true;
        t->dx = use(k, LAYER(din, back));
    }
    add_sources(k, x, n, TOKEN_STREAM);
}

/* Decides where layer i's streams, norms and products lie. */
static void make_layer(struct maker *k, int i)
{
    struct layer_streams *l = &k->s->layer[i];
    bool mixes = attention_mixes(k, i), own = attends(k, i) || joins_after(k, i);
    /* With coefficient 1 the product's gradient is that of the stream, which is kept. */
    bool kept = joins_later(k, i) && !two_lanes(k, i) && coef_of(k, i, TOKEN_ATTN).kind == COEF_ONE;

    l->lanes = 1 + two_lanes(k, i);
    l->y = use(k, LAYER(y, attends_as_earlier(k, i) ? k->r->model.attend_as : i));
    l->y2 = use(k, attends(k, i) ? LAYER(y2, i) : l->y);
    l->attended = use(k, own ? LAYER(attended, i) : entered(k, i));
    l->attention = (struct product){ .out = mixes ? LAYER(o, i) : l->attended,
                                     .residual = mixes ? NOWHERE : entered(k, i),
                                     .dout = !mixes ? MODEL(dx)
                                             : kept ? LAYER(g, i)
                                                    : MODEL(dbranch) };
    l->mlp = (struct product){ .out = mlp_mixes(k) ? LAYER(m, i) : LAYER(in, i + 1),
                               .residual = mlp_mixes(k) ? NOWHERE : l->attended,
                               .dout = mlp_mixes(k) ? MODEL(dbranch) : MODEL(dx),
                               .scale = mlp_folds(k, i) ? scalar(k, ROLE_mlp_lane0, i) : ONE };
    k->s->products |= mixes || mlp_mixes(k);
    use(k, l->attention.dout);
}

/* -- steps: the forward's -------------------------------------------------------------------- */

static void do_step(struct maker *k, enum stream_act act, int which, struct ref to, struct ref x)
{
    assert(k->s->n_steps < MAX_STEPS);
    k->s->step[k->s->n_steps++] =
        (struct stream_step){ (uint8_t)act, (int16_t)which, use(k, to), use(k, x) };
}

/* Queues the MLPs of [token_coefs] that read x, the stream that enters layer `at`, or x0 (-1). */
static void do_coefs(struct maker *k, int at, struct ref to, struct ref x)
{
    for (int b = 0; b < k->r->token_coefs.n_blocks; b++)
        if (k->r->token_coefs.block[b].at == at)
            do_step(k, DO_COEFS, b, to, x);
}

/* Returns the row of [token_coefs] that gates the skip; -1: skip_gate does. */
static int skip_row(const struct maker *k)
{
    const struct token_term *t = recipe_token_role(k->r, k->r->model.skip.to, TOKEN_SKIP);
    return t ? (int)(t - k->r->token_coefs.term) : -1;
}

/* Queues a place's mix, after what the mix reads. */
static void forward_steps(struct maker *k, enum stream_place place, int i)
{
    int layer = place == STREAM_END ? k->r->n_layers : i;

    if (place == STREAM_BEGIN)
        do_coefs(k, -1, NOWHERE, MODEL(x0));
    if (place == STREAM_ENTER && i == k->r->model.skip.to)
        do_step(k, DO_SKIP, skip_row(k), LAYER(in, i), k->s->skip);
    if (place == STREAM_ENTER || place == STREAM_END) {
        do_coefs(k, layer, NOWHERE, LAYER(in, layer));
        if (streams_use(k->s, BUFFER_rows, layer))
            do_step(k, DO_ROWS, layer, LAYER(rows, layer), NOWHERE);
    }
    if (k->mix[place][i] >= 0)
        do_step(k, DO_MIX, k->mix[place][i], NOWHERE, NOWHERE);
}

/* -- steps: the backward's ------------------------------------------------------------------- */

static bool is_written(const struct maker *k, struct ref dx)
{
    return k->written[dx.layer] >> dx.buffer & 1;
}

/* Decides for the terms of n mixes that run there whether a gradient of several parts is written or
 * added to what is there. */
static void settle(struct maker *k, const int *mix, int n, unsigned run)
{
    static const uint32_t parts = 1u << BUFFER_dx0 | 1u << BUFFER_dbigram | 1u << BUFFER_din;

    for (int pass = 0; pass < 2; pass++)
        for (int j = 0; j < n; j++)
            for (int t = 0; t < k->s->mix[mix[j]].n; t++) {
                struct mix *x = &k->s->mix[mix[j]];
                struct term *e = &x->term[t];
                bool in_place = same(e->dx, x->dout[0]);
                if (!(e->runs & run))
                    continue;
                if (pass)
                    k->written[e->dx.layer] |= 1u << e->dx.buffer & parts;
                else
                    e->add = is_written(k, e->dx) && !in_place;
            }
}

static void back_mix(struct maker *k, int which)
{
    if (which < 0)
        return;
    settle(k, &which, 1, RUN_BACKWARD);
    do_step(k, DO_MIX, which, NOWHERE, NOWHERE);
}

/* Zeroes dx where no part of it is written yet. */
static void back_zero(struct maker *k, struct ref dx)
{
    if (!is_written(k, dx))
        do_step(k, DO_ZERO, 0, dx, NOWHERE);
    k->written[dx.layer] |= 1u << dx.buffer;
}

/* Queues the terms of x0 and bigrams that wait, of at most INJECT_MAX layers a step. */
static void back_injected(struct maker *k)
{
    struct streams *s = k->s;

    for (int i = 0; i < k->r->n_layers;) {
        struct injected *e = &s->injected[s->n_injected];
        for (; i < k->r->n_layers && e->n < INJECT_MAX; i++)
            if (joins_later(k, i))
                e->mix[e->n++] = k->mix[STREAM_ATTENDED][i];
        settle(k, e->mix, e->n, RUN_AT_BEGIN);
        if (e->n)
            do_step(k, DO_INJECT, s->n_injected++, NOWHERE, NOWHERE);
    }
}

static void backward_begin(struct maker *k)
{
    back_injected(k);
    back_zero(k, MODEL(dx0));
    if (k->r->model.bigram.rows)
        back_zero(k, MODEL(dbigram));
    if (streams_use(k->s, BUFFER_din, 0))
        do_step(k, DO_ADD, 0, MODEL(dx), LAYER(din, 0));
    if (!after(k) || k->r->model.bigram.in_x0) /* layer 0's stream is x0 itself */
        do_step(k, DO_ADD, 0, MODEL(dx0), MODEL(dx));
    back_mix(k, k->mix[STREAM_BEGIN][0]);
    do_coefs(k, -1, MODEL(dx0), MODEL(x0));
}

static void backward_enter(struct maker *k, int i)
{
    back_mix(k, k->earlier[i]);
    back_mix(k, k->mix[STREAM_ENTER][i]);
    do_coefs(k, i, MODEL(dx), LAYER(in, i));
    if (i == k->r->model.lanes && !after(k))
        do_step(k, DO_ADD, 0, MODEL(dx), MODEL(dx1));
    if (i != k->r->model.skip.to)
        return;
    if (!has_tokens(k, i, TOKEN_SKIP))
        back_zero(k, MODEL(dx0));
    do_step(k, DO_SKIP, skip_row(k), MODEL(dx), k->s->skip);
}

static void backward_steps(struct maker *k, enum stream_place place, int i)
{
    bool tap = i == k->r->model.skip.from;
    enum skip_tap where = k->r->model.skip.tap;

    if (place == STREAM_BEGIN) {
        backward_begin(k);
    } else if (place == STREAM_ENTER) {
        backward_enter(k, i);
    } else {
        if (place == STREAM_LEAVE && streams_use(k->s, BUFFER_din, i + 1))
            do_step(k, DO_ADD, 0, MODEL(dx), LAYER(din, i + 1));
        if (place == STREAM_LEAVE && tap && where == SKIP_LAYER)
            do_step(k, DO_ADD, 0, MODEL(dx), MODEL(dskip));
        if (place == STREAM_ATTENDED && tap && where == SKIP_ATTENTION)
            do_step(k, DO_ADD, 0, between(k, i), MODEL(dskip));
        back_mix(k, k->mix[place][i]);
        if (place == STREAM_END)
            do_coefs(k, k->r->n_layers, MODEL(dx), LAYER(in, k->r->n_layers));
    }
}

/* -- the lists of a recipe ------------------------------------------------------------------- */

typedef void steps_fn(struct maker *k, enum stream_place place, int i);

static void make_steps(struct maker *k, enum stream_pass pass, enum stream_place place, int i)
{
    steps_fn *steps = pass == STREAM_FORWARD ? forward_steps : backward_steps;
    int first = k->s->n_steps;

    steps(k, place, i);
    k->s->at[pass][place][i] =
        (struct steps_at){ (int16_t)first, (int16_t)(k->s->n_steps - first) };
}

void streams_make(struct streams *s, const struct recipe *r)
{
    struct maker k = { .s = s, .r = r };
    int tap = r->model.skip.from;

    memset(s, 0, sizeof *s);
    memset(k.mix, -1, sizeof k.mix);
    memset(k.earlier, -1, sizeof k.earlier);
    s->recipe = r;
    s->apart = after(&k) && r->model.bigram.rows && !r->model.bigram.in_x0;
    make_begin(&k);
    for (int i = 0; i < r->n_layers; i++) {
        make_layer(&k, i);
        make_enter(&k, i);
        make_values(&k, i);
        make_attended(&k, i);
        make_leave(&k, i);
    }
    make_end(&k);
    if (tap >= 0)
        s->skip = r->model.skip.tap == SKIP_LAYER ? LAYER(in, tap + 1) : s->layer[tap].attended;
    make_steps(&k, STREAM_FORWARD, STREAM_BEGIN, 0);
    for (int i = 0; i < r->n_layers; i++)
        for (int p = STREAM_ENTER; p <= STREAM_LEAVE; p++)
            make_steps(&k, STREAM_FORWARD, (enum stream_place)p, i);
    make_steps(&k, STREAM_FORWARD, STREAM_END, 0);
    make_steps(&k, STREAM_BACKWARD, STREAM_END, 0);
    for (int i = r->n_layers - 1; i >= 0; i--)
        for (int p = STREAM_LEAVE; p >= STREAM_ENTER; p--)
            make_steps(&k, STREAM_BACKWARD, (enum stream_place)p, i);
    make_steps(&k, STREAM_BACKWARD, STREAM_BEGIN, 0);
}

struct step_list streams_at(const struct streams *s, enum stream_pass pass, enum stream_place place,
                            int layer)
{
    struct steps_at at = s->at[pass][place][layer];
    return (struct step_list){ &s->step[at.first], at.n };
}

/* -- as text --------------------------------------------------------------------------------- */

struct writer {
    const struct streams *s;
    line_fn *line;
    void *ctx;
    int layer; /* whose buffers are named without it */
    char text[512];
    size_t n;
};

static PRINTF_LIKE(2, 3) void put(struct writer *w, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(w->text + w->n, sizeof w->text - w->n, fmt, ap);
    va_end(ap);
    w->n += n < 0 ? 0 : (size_t)n;
    w->n = w->n < sizeof w->text ? w->n : sizeof w->text - 1;
}

static void put_ref(struct writer *w, const char *before, struct ref r)
{
    static const char *const names[] = { "",
#define ITS_NAME(name) #name,
                                         STREAM_BUFFERS(ITS_NAME, ITS_NAME)
#undef ITS_NAME
    };
    put(w, "%s%s", before, names[r.buffer]);
    if (r.buffer < FIRST_OF_MODEL && r.layer != w->layer)
        put(w, "[%d]", r.layer);
}

static void put_coef(struct writer *w, struct coef c)
{
    if (c.kind == COEF_HALF)
        put(w, "1/2 ");
    if (c.kind == COEF_SCALAR)
        put(w, recipe_scalar(w->s->recipe, roles[c.role])->stride ? "%s[%d] " : "%s ",
            roles[c.role], c.of);
    if (c.kind == COEF_TOKEN)
        put(w,
            c.plus_one ? "(1 + token[%d]) "
            : c.part   ? "token[%d.%d] "
                       : "token[%d] ",
            c.of, c.part);
}

/* Writes `out = terms` of one lane. */
static void put_sum(struct writer *w, const struct mix *x, int lane)
{
    bool any = false;

    put_ref(w, "", x->out[lane]);
    put(w, " =");
    for (int t = 0; t < x->n; t++) {
        const struct term *e = &x->term[t];
        if (!(e->runs & RUN_FORWARD) || !(e->lanes >> lane & 1))
            continue;
        put(w, "%s", e->coef[lane].minus ? " - " : any ? " + " : " ");
        put_coef(w, e->coef[lane]);
        put_ref(w, "", e->x);
        if (e->n)
            put(w, "[%d:%d]", e->first, e->first + e->n);
        any = true;
    }
    if (x->y.buffer && lane == x->normed)
        put_ref(w, " | norm ", x->y);
    if (x->gain && lane == x->normed)
        put(w, " times %s", gains[x->gain]);
}

static void begin_line(struct writer *w, enum stream_place place, int i)
{
    w->n = 0;
    w->layer = place == STREAM_END ? w->s->recipe->n_layers : i;
    if (place == STREAM_BEGIN || place == STREAM_END)
        put(w, place == STREAM_BEGIN ? "begin " : "end ");
    else
        put(w, "layer %d ", i);
}

static void write_place(struct writer *w, enum stream_place place, int i)
{
    struct step_list l = streams_at(w->s, STREAM_FORWARD, place, i);

    for (const struct stream_step *e = l.step; e < l.step + l.n; e++) {
        const struct mix *x = e->act == DO_MIX ? &w->s->mix[e->which] : NULL;
        for (int lane = 0; lane < (x ? x->lanes : 1); lane++) {
            begin_line(w, place, i);
            if (x)
                put_sum(w, x, lane);
            else if (e->act == DO_SKIP && e->which >= 0)
                put(w, "in = in + sigmoid(skip) token[%d] ", e->which), put_ref(w, "", e->x);
            else if (e->act == DO_SKIP)
                put_ref(w, "in = in + skip gate(x0) ", e->x);
            else if (e->act == DO_COEFS)
                put(w, "token = MLP %d of", e->which), put_ref(w, " ", e->x);
            else
                put(w, "rows = rows of a table");
            w->line(w->ctx, w->text);
        }
    }
}

/* Writes a product that is added to the stream itself. */
static void write_product(struct writer *w, int i, const struct product *p, const char *name)
{
    if (!p->residual.buffer)
        return;
    begin_line(w, STREAM_ENTER, i);
    put_ref(w, "", p->out);
    put_ref(w, " = ", p->residual);
    put(w, " + ");
    put_coef(w, p->scale);
    put(w, "%s, by the product", name);
    w->line(w->ctx, w->text);
}

void streams_text(const struct streams *s, line_fn *line, void *ctx)
{
    struct writer w = { .s = s, .line = line, .ctx = ctx };

    write_place(&w, STREAM_BEGIN, 0);
    if (!s->apart)
        line(ctx, "begin in = x0");
    for (int i = 0; i < s->recipe->n_layers; i++) {
        write_place(&w, STREAM_ENTER, i);
        write_place(&w, STREAM_VALUES, i);
        if (s->recipe->layers[i].attention != ATTN_NONE)
            write_product(&w, i, &s->layer[i].attention, "attention");
        write_place(&w, STREAM_ATTENDED, i);
        write_product(&w, i, &s->layer[i].mlp, "MLP");
        write_place(&w, STREAM_LEAVE, i);
    }
    write_place(&w, STREAM_END, 0);
}
