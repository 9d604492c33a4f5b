/* streams.c - the lists of a recipe's residual stream. See streams.h.
 *
 * The records differ in where x0 and bigrams are added and in the number of lanes:
 *
 *   record 61 (inject = before)            record 74 (inject = after)
 *   enter     mixed = r in + x x0, norm     (norm of in, by the leave before or begin)
 *   attended  norm of mixed + attention     r in + o + x x0 + b bigram, norm
 *   leave     (added by the MLP's product)  r' attended + p m, norm
 *
 * From layer `lanes` on there are two lanes: attention reads lane 0, the MLP lane 1, and both products are added to
 * both. The forward's lists come first; then the backward's, in its order, by which a gradient of several parts is
 * written by the first and added to by the others.
 */
#include "model/streams.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

_Static_assert(MAX_SOURCES + 2 <= MIX_MAX, "a mix holds them");
_Static_assert(N_BUFFERS <= 32, "streams.used has a bit for each");

static const char *const roles[] = {
#define SCALAR_ROLE(name, count, ...) #name,
#include "recipe/role_list.h"
};

struct maker {
    struct streams *s;
    const struct recipe *r;
    uint32_t written[MAX_LAYERS + 1]; /* as `used`: gradients of several parts that have one */
    int mix[STREAM_PLACES][MAX_LAYERS + 1]; /* of each place; -1: none */
    int earlier
        [MAX_LAYERS]; /* of attention that reads an earlier layer's norm, backward alone; -1 */
};

/* -- what the keys of a recipe mean ----------------------------------------------------------- */

static bool attends(const struct maker *k, int i) { return k->r->layers[i].attention != ATTN_NONE; }
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
        any |= k->r->token_coefs.term[t].role >= TOKEN_RESIDUAL_MLP;
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

/* True if bigrams are added in layer i: to layer 0's stream `begin` adds them, with inject = after or to x0. */
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

/* -- references and coefficients -------------------------------------------------------------- */

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

/* The stream that enters layer i; of n_layers: that leaves the last. */
static struct ref in(const struct maker *k, int i) { return i ? LAYER(in, i) : k->s->first; }

/* A learnable number, or 1 where the recipe has none. */
static struct coef scalar(const struct maker *k, enum scalar_role role, int i)
{
    return recipe_scalar(k->r, roles[role])
               ? (struct coef){ .kind = COEF_SCALAR, .role = (uint8_t)role, .of = (uint8_t)i }
               : ONE;
}

static struct coef token(const struct maker *k, const struct token_term *t, int part)
{
    return (struct coef){ .kind = COEF_TOKEN,
                          .of = (uint8_t)(t - k->r->token_coefs.term),
                          .part = (uint8_t)part };
}

/* The coefficient of layer i in that role: a number a token, or the scalar. */
static struct coef coef_of(const struct maker *k, int i, enum token_role role)
{
    const struct token_term *t = recipe_token_role(k->r, i, role);

    if (t)
        return token(k, t, 0);
    switch (role) {
    case TOKEN_RESIDUAL: return scalar(k, ROLE_residual, i);
    case TOKEN_ATTN: return k->r->model.post_single ? scalar(k, ROLE_attn_lane0, i) : ONE;
    case TOKEN_X0: return scalar(k, ROLE_x0, i);
    case TOKEN_BIGRAM: return scalar(k, ROLE_bigram, i);
    case TOKEN_RESIDUAL_MLP: return scalar(k, ROLE_residual_mlp, i);
    case TOKEN_MLP: return mlp_folds(k, i) ? ONE : scalar(k, ROLE_mlp_lane0, i);
    default: return ONE;
    }
}

/* -- mixes ------------------------------------------------------------------------------------ */

/* A mix of one lane, in that place; its sum's gradient is dx's. */
static struct mix *new_mix(struct maker *k, int *which, int i, struct ref out, struct ref y)
{
    *which = k->s->n_mixes++;
    struct mix *x = &k->s->mix[*which];
    *x = (struct mix){ .layer = (uint8_t)i,
                       .lanes = 1,
                       .out = { use(k, out) },
                       .y = use(k, y),
                       .dout = { use(k, MODEL(dx)) } };
    return x;
}

static struct mix *new_lanes(struct maker *k, int *which, int i, struct ref out0, struct ref out1,
                             struct ref y, int normed, struct ref dlane0)
{
    struct mix *x = new_mix(k, which, i, out0, y);
    x->lanes = 2;
    x->normed = (uint8_t)normed;
    x->out[1] = use(k, out1);
    x->dout[0] = use(k, dlane0);
    x->dout[1] = use(k, MODEL(dx1));
    return x;
}

static struct term *add_term(struct maker *k, struct mix *x, struct ref from, struct coef c,
                             struct ref dx)
{
    assert(x->n < MIX_TERMS);
    x->term[x->n] = (struct term){ .x = use(k, from),
                                   .dx = use(k, dx),
                                   .runs = RUN_FORWARD | RUN_BACKWARD,
                                   .lanes = 1,
                                   .coef = { c } };
    return &x->term[x->n++];
}

static void add_both(struct maker *k, struct mix *x, struct ref from, struct coef c0,
                     struct coef c1, struct ref dx)
{
    struct term *t = add_term(k, x, from, c0, dx);
    t->lanes = 3;
    t->coef[1] = c1;
}

static void add_lane1(struct maker *k, struct mix *x, struct ref from, struct coef c1,
                      struct ref dx)
{
    struct term *t = add_term(k, x, from, ONE, dx);
    t->lanes = 2;
    t->coef[1] = c1;
}

/* x0 and the bigram rows of layer i. */
static void inject(struct maker *k, struct mix *x, int i)
{
    uint8_t runs = RUN_FORWARD | (joins_later(k, i) ? RUN_AT_BEGIN : RUN_BACKWARD);

    add_term(k, x, MODEL(x0), coef_of(k, i, TOKEN_X0), MODEL(dx0))->runs = runs;
    if (bigram_joins(k, i))
        add_term(k, x, MODEL(bigram), coef_of(k, i, TOKEN_BIGRAM), MODEL(dbigram))->runs = runs;
}

/* The sources of [token_coefs] for layer i in that role. The first term is the layer's own stream, whose coefficient
 * the source `layer before` is added to. */
static void add_sources(struct maker *k, struct mix *x, int i, enum token_role role)
{
    const struct recipe *r = k->r;

    for (int row = 0; row < r->token_coefs.n; row++) {
        const struct token_term *t = &r->token_coefs.term[row];
        struct ref from = MODEL(x0), dx = MODEL(dx0);
        if (t->layer != i || t->role != role)
            continue;
        if (role == TOKEN_STREAM && t->source == SOURCE_LAYER && t->from == i - 1) {
            x->term[0].coef[0] = token(k, t, 0);
            x->term[0].coef[0].plus_one = true;
            continue;
        }
        if (t->source == SOURCE_LAYER)
            from = in(k, t->from + 1), dx = LAYER(din, t->from + 1);
        if (t->source == SOURCE_TABLE)
            from = LAYER(rows, i), dx = LAYER(drows, i);
        for (int part = 0; part < t->parts; part++) {
            struct term *e = add_term(k, x, from, token(k, t, part), dx);
            e->n = t->parts > 1 ? r->model.width / t->parts : 0;
            e->first = part * e->n;
        }
    }
}

static void make_begin(struct maker *k)
{
    bool in_x0 = k->r->model.bigram.in_x0; /* the sum is x0 itself */
    if (!after(k) && !in_x0)
        return;
    struct mix *x = new_mix(k, &k->mix[STREAM_BEGIN][0], 0, k->s->first,
                            enters_normed(k, 0) ? LAYER(y, 0) : NOWHERE);
    x->gates = true;
    x->dout[0] = use(k, in_x0 ? MODEL(dx0) : MODEL(dx));
    add_term(k, x, MODEL(x0), ONE, MODEL(dx0));
    if (k->r->model.bigram.rows)
        add_term(k, x, MODEL(bigram), scalar(k, ROLE_bigram, 0), MODEL(dbigram));
}

static void make_enter(struct maker *k, int i)
{
    int *which = &k->mix[STREAM_ENTER][i], as = k->r->model.attend_as;
    struct mix *x = NULL;

    if (!after(k)) {
        x = new_mix(k, which, i, LAYER(mixed, i), LAYER(y, i));
        add_term(k, x, in(k, i), scalar(k, ROLE_residual, i), MODEL(dx));
        if (attends(k, i) || k->r->model.inject_bare)
            inject(k, x, i);
    } else if (has_tokens(k, i, TOKEN_STREAM)) {
        x = new_mix(k, which, i, LAYER(mixed, i), attends_as_earlier(k, i) ? NOWHERE : LAYER(y, i));
        add_term(k, x, in(k, i), ONE, MODEL(dx));
        add_sources(k, x, i, TOKEN_STREAM);
    } else if (attends(k, i) && !enters_normed(k, i) && !attends_as_earlier(k, i)) {
        x = new_mix(k, which, i, in(k, i), LAYER(y, i));
        add_term(k, x, in(k, i), ONE, MODEL(dx));
    }
    if (x)
        x->gates = attends(k, i);
    if (attends_as_earlier(k, i)) { /* the norm was made where layer `as` entered */
        x = new_mix(k, &k->earlier[i], i, in(k, as), LAYER(y, as));
        x->gates = true;
        x->dout[0] = NOWHERE;
        add_term(k, x, in(k, as), ONE, LAYER(din, as))->runs = RUN_BACKWARD;
    }
}

static void make_values(struct maker *k, int i)
{
    if (!has_tokens(k, i, TOKEN_VALUE))
        return;
    struct mix *x = new_mix(k, &k->mix[STREAM_VALUES][i], i, LAYER(v, i), NOWHERE);
    x->dout[0] = use(k, LAYER(dv, i));
    add_term(k, x, LAYER(v, i), ONE, NOWHERE);
    add_sources(k, x, i, TOKEN_VALUE);
}

/* The stream that attention's result of layer i is added to. */
static struct ref entered(const struct maker *k, int i)
{
    return after(k) && !has_tokens(k, i, TOKEN_STREAM) ? in(k, i) : LAYER(mixed, i);
}

/* The gradient of lane 0 between attention and MLP. */
static struct ref between(const struct maker *k, int i)
{
    return two_lanes(k, i) && joins_after(k, i) ? LAYER(g, i) : MODEL(dx);
}

static void make_attended_lanes(struct maker *k, int i)
{
    struct coef residual = scalar(k, ROLE_residual, i);
    struct mix *x = new_lanes(k, &k->mix[STREAM_ATTENDED][i], i, LAYER(attended, i),
                              LAYER(attended1, i), LAYER(y2, i), 1, between(k, i));

    if (after(k) && i == k->r->model.lanes) { /* lane 1 starts as a copy of lane 0 */
        add_both(k, x, in(k, i), residual, residual, MODEL(dx));
    } else {
        add_term(k, x, entered(k, i), after(k) ? residual : ONE, MODEL(dx));
        add_lane1(k, x, i == k->r->model.lanes ? in(k, i) : LAYER(in1, i), residual, MODEL(dx1));
    }
    add_both(k, x, LAYER(o, i), scalar(k, ROLE_attn_lane0, i), scalar(k, ROLE_attn_lane1, i),
             MODEL(dbranch));
    k->s->layer[i].attention.kept = true;
    if (after(k))
        inject(k, x, i);
}

static void make_attended(struct maker *k, int i)
{
    struct layer_streams *l = &k->s->layer[i];
    int *which = &k->mix[STREAM_ATTENDED][i];

    if (!attends(k, i) && !after(k))
        return; /* enter has made the norm that the MLP reads */
    struct mix *x = new_mix(k, which, i, l->attended, l->y2);
    if (attends(k, i) ? !attention_mixes(k, i) : !k->r->model.inject_bare) {
        add_term(k, x, l->attended, ONE, MODEL(dx)); /* the sum is complete; its norm is missing */
        return;
    }
    add_term(k, x, entered(k, i), after(k) ? coef_of(k, i, TOKEN_RESIDUAL) : ONE, MODEL(dx));
    if (attends(k, i)) {
        add_term(k, x, LAYER(o, i), coef_of(k, i, TOKEN_ATTN), l->attention.dout);
        l->attention.kept = coef_of(k, i, TOKEN_ATTN).kind != COEF_ONE;
    }
    if (after(k))
        inject(k, x, i);
    /* The gradient of the stream is kept for those of x0 and bigrams, unless attention's product is that. */
    if (joins_later(k, i) && !(attends(k, i) && l->attention.dout.buffer == BUFFER_g))
        add_term(k, x, in(k, i), ONE, LAYER(g, i))->runs = RUN_BACKWARD;
}

static void make_leave(struct maker *k, int i)
{
    struct layer_streams *l = &k->s->layer[i];
    int *which = &k->mix[STREAM_LEAVE][i];
    struct ref y = enters_normed(k, i + 1) ? LAYER(y, i + 1) : NOWHERE;
    struct mix *x;

    if (!mlp_mixes(k))
        return;
    if (two_lanes(k, i)) {
        struct coef residual = scalar(k, ROLE_residual_mlp, i);
        x = new_lanes(k, which, i, LAYER(in, i + 1), LAYER(in1, i + 1), y, 0, MODEL(dx));
        add_term(k, x, l->attended, residual, between(k, i));
        add_lane1(k, x, LAYER(attended1, i), residual, MODEL(dx1));
        add_both(k, x, LAYER(m, i), scalar(k, ROLE_mlp_lane0, i), scalar(k, ROLE_mlp_lane1, i),
                 l->mlp.dout);
    } else {
        x = new_mix(k, which, i, LAYER(in, i + 1), y);
        add_term(k, x, l->attended, coef_of(k, i, TOKEN_RESIDUAL_MLP), MODEL(dx));
        add_term(k, x, LAYER(m, i), coef_of(k, i, TOKEN_MLP), l->mlp.dout);
    }
    l->mlp.kept = x->lanes == 2 || coef_of(k, i, TOKEN_MLP).kind != COEF_ONE;
    x->gates = true;
}

/* The mean of the lanes, less the backout. */
static void make_end(struct maker *k)
{
    const struct recipe *r = k->r;
    int n = r->n_layers, back = r->model.backout + 1;
    bool two = r->model.lanes >= 0;
    struct coef half = { .kind = COEF_HALF };
    struct mix *x = new_mix(k, &k->mix[STREAM_END][0], n, MODEL(z), MODEL(head));

    x->dout[0] = NOWHERE;
    add_term(k, x, in(k, n), two ? half : ONE, MODEL(dx));
    if (two)
        add_term(k, x, LAYER(in1, n), half, MODEL(dx1));
    if (back > 0)
        add_term(k, x, in(k, back), scalar(k, ROLE_backout, 0), LAYER(din, back))->coef[0].minus =
            true;
    add_sources(k, x, n, TOKEN_STREAM);
}

/* Where layer i's streams, norms and products lie. */
static void make_layer(struct maker *k, int i)
{
    struct layer_streams *l = &k->s->layer[i];
    bool own =
        attends(k, i) || joins_after(k, i); /* a stream after attention beside that before it */
    struct ref branch = MODEL(dbranch);

    l->lanes = 1 + two_lanes(k, i);
    l->y = use(k, attends_as_earlier(k, i) ? LAYER(y, k->r->model.attend_as) : LAYER(y, i));
    l->y2 = use(k, attends(k, i) ? LAYER(y2, i) : l->y);
    l->attended = use(k, own ? LAYER(attended, i) : entered(k, i));
    l->attention = (struct product){ l->attended, entered(k, i), MODEL(dx), ONE, false };
    if (attention_mixes(k, i)) {
        bool bare =
            joins_later(k, i) && !two_lanes(k, i) && coef_of(k, i, TOKEN_ATTN).kind == COEF_ONE;
        l->attention =
            (struct product){ LAYER(o, i), NOWHERE, bare ? LAYER(g, i) : branch, ONE, false };
    }
    l->mlp = (struct product){ in(k, i + 1), l->attended, MODEL(dx), ONE, false };
    if (mlp_mixes(k))
        l->mlp = (struct product){ LAYER(m, i), NOWHERE, branch, ONE, false };
    if (mlp_folds(k, i))
        l->mlp.scale = scalar(k, ROLE_mlp_lane0, i);
    k->s->products |= attention_mixes(k, i) || mlp_mixes(k);
    use(k, l->attention.dout);
}

/* -- steps: the forward's --------------------------------------------------------------------- */

static void do_step(struct maker *k, enum stream_act act, int which, struct ref to, struct ref x)
{
    assert(k->s->n_steps < MAX_STEPS);
    k->s->step[k->s->n_steps++] =
        (struct stream_step){ (uint8_t)act, (int16_t)which, use(k, to), use(k, x) };
}

static void do_mix(struct maker *k, int which)
{
    if (which >= 0)
        do_step(k, DO_MIX, which, NOWHERE, NOWHERE);
}

static void begin_place(struct maker *k, enum stream_pass pass, enum stream_place place, int i)
{
    k->s->at[pass][place][i].first = (int16_t)k->s->n_steps;
}

static void end_place(struct maker *k, enum stream_pass pass, enum stream_place place, int i)
{
    k->s->at[pass][place][i].n = (int16_t)(k->s->n_steps - k->s->at[pass][place][i].first);
}

/* The block of [token_coefs] that layer i's stream makes; -1: none. */
static int block_of(const struct recipe *r, int i)
{
    for (int row = 0; row < r->token_coefs.n; row++)
        if (r->token_coefs.term[row].layer == i)
            return r->token_coefs.term[row].block;
    return -1;
}

static void do_coefs(struct maker *k, int i)
{
    int block = block_of(k->r, i);
    if (block >= 0)
        do_step(k, DO_COEFS, block, NOWHERE, in(k, i));
    if (streams_use(k->s, BUFFER_rows, i))
        do_step(k, DO_ROWS, i, LAYER(rows, i), NOWHERE);
}

/* Steps of a place are its mix, after what the mix reads. */
static void forward_steps(struct maker *k, enum stream_place place, int i)
{
    begin_place(k, STREAM_FORWARD, place, i);
    if (place == STREAM_ENTER && i == k->r->model.skip.to)
        do_step(k, DO_SKIP, 0, in(k, i), k->s->skip);
    if (place == STREAM_ENTER)
        do_coefs(k, i);
    if (place == STREAM_END)
        do_coefs(k, k->r->n_layers);
    do_mix(k, k->mix[place][i]);
    end_place(k, STREAM_FORWARD, place, i);
}

/* -- steps: the backward's --------------------------------------------------------------------- */

/* True of a gradient that has several parts. */
static bool has_parts(struct ref dx)
{
    return dx.buffer == BUFFER_dx0 || dx.buffer == BUFFER_dbigram || dx.buffer == BUFFER_din;
}

static bool is_written(const struct maker *k, struct ref dx)
{
    return k->written[dx.layer] >> dx.buffer & 1;
}

/* Decides for the terms of x that run in `run` whether a gradient is written or added to. */
static void settle(struct maker *k, struct mix *x, int run)
{
    for (int t = 0; t < x->n; t++)
        x->term[t].add = x->term[t].runs & run
                             ? has_parts(x->term[t].dx) && is_written(k, x->term[t].dx) &&
                                   !same(x->term[t].dx, x->dout[0])
                             : x->term[t].add;
}

static void note(struct maker *k, const struct mix *x, int run)
{
    for (int t = 0; t < x->n; t++)
        if (x->term[t].runs & run)
            k->written[x->term[t].dx.layer] |= 1u << x->term[t].dx.buffer;
}

static void back_mix(struct maker *k, int which)
{
    if (which < 0)
        return;
    settle(k, &k->s->mix[which], RUN_BACKWARD);
    note(k, &k->s->mix[which], RUN_BACKWARD);
    do_mix(k, which);
}

/* Zeroes dx where no part of it is written yet. */
static void back_zero(struct maker *k, struct ref dx)
{
    if (!is_written(k, dx))
        do_step(k, DO_ZERO, 0, dx, NOWHERE);
    k->written[dx.layer] |= 1u << dx.buffer;
}

static void back_coefs(struct maker *k, int i)
{
    int block = block_of(k->r, i);
    if (block >= 0)
        do_step(k, DO_COEFS, block, MODEL(dx), in(k, i));
}

/* The terms of x0 and bigrams that wait, of at most INJECT_MAX layers a step. */
static void back_injects(struct maker *k)
{
    struct streams *s = k->s;
    int i = 0, layers = k->r->n_layers;

    while (i < layers) {
        struct injected *e = &s->injected[s->n_injected];
        for (; i < layers && e->n < INJECT_MAX; i++)
            if (joins_later(k, i))
                e->mix[e->n++] = k->mix[STREAM_ATTENDED][i];
        for (int n = 0; n < e->n; n++)
            settle(k, &s->mix[e->mix[n]], RUN_AT_BEGIN);
        for (int n = 0; n < e->n; n++)
            note(k, &s->mix[e->mix[n]], RUN_AT_BEGIN);
        if (e->n)
            do_step(k, DO_INJECT, s->n_injected++, NOWHERE, NOWHERE);
    }
}

static void backward_leave(struct maker *k, int i)
{
    const struct recipe *r = k->r;

    if (streams_use(k->s, BUFFER_din, i + 1))
        do_step(k, DO_ADD, 0, MODEL(dx), LAYER(din, i + 1));
    if (i == r->model.skip.from && r->model.skip.tap == SKIP_LAYER)
        do_step(k, DO_ADD, 0, MODEL(dx), MODEL(dskip));
    back_mix(k, k->mix[STREAM_LEAVE][i]);
}

static void backward_attended(struct maker *k, int i)
{
    const struct recipe *r = k->r;

    if (i == r->model.skip.from && r->model.skip.tap == SKIP_ATTENTION)
        do_step(k, DO_ADD, 0, between(k, i), MODEL(dskip));
    back_mix(k, k->mix[STREAM_ATTENDED][i]);
}

static void backward_enter(struct maker *k, int i)
{
    const struct recipe *r = k->r;

    back_mix(k, k->earlier[i]);
    back_mix(k, k->mix[STREAM_ENTER][i]);
    back_coefs(k, i);
    if (i == r->model.lanes && !after(k))
        do_step(k, DO_ADD, 0, MODEL(dx), MODEL(dx1));
    if (i != r->model.skip.to)
        return;
    back_zero(k, MODEL(dx0));
    do_step(k, DO_SKIP, 0, MODEL(dx), k->s->skip);
}

static void backward_end(struct maker *k)
{
    back_mix(k, k->mix[STREAM_END][0]);
    back_coefs(k, k->r->n_layers);
}

static void backward_begin(struct maker *k)
{
    back_injects(k);
    back_zero(k, MODEL(dx0));
    if (k->r->model.bigram.rows)
        back_zero(k, MODEL(dbigram));
    if (!after(k) || k->r->model.bigram.in_x0) /* layer 0's stream is x0 itself */
        do_step(k, DO_ADD, 0, MODEL(dx0), MODEL(dx));
    back_mix(k, k->mix[STREAM_BEGIN][0]);
}

static void backward_steps(struct maker *k, enum stream_place place, int i)
{
    begin_place(k, STREAM_BACKWARD, place, i);
    switch (place) {
    case STREAM_BEGIN: backward_begin(k); break;
    case STREAM_ENTER: backward_enter(k, i); break;
    case STREAM_ATTENDED: backward_attended(k, i); break;
    case STREAM_LEAVE: backward_leave(k, i); break;
    case STREAM_END: backward_end(k); break;
    default: back_mix(k, k->mix[place][i]);
    }
    end_place(k, STREAM_BACKWARD, place, i);
}

/* -- the lists of a recipe --------------------------------------------------------------------- */

static void make_mixes(struct maker *k)
{
    make_begin(k);
    for (int i = 0; i < k->r->n_layers; i++) {
        make_layer(k, i);
        make_enter(k, i);
        make_values(k, i);
        if (two_lanes(k, i))
            make_attended_lanes(k, i);
        else
            make_attended(k, i);
        make_leave(k, i);
    }
    make_end(k);
}

void streams_make(struct streams *s, const struct recipe *r)
{
    static const enum stream_place places[] = { STREAM_ENTER, STREAM_VALUES, STREAM_ATTENDED,
                                                STREAM_LEAVE };
    enum { N = sizeof places / sizeof *places };
    struct maker k = { .s = s, .r = r };
    int tap = r->model.skip.from;

    memset(s, 0, sizeof *s);
    memset(k.mix, -1, sizeof k.mix);
    memset(k.earlier, -1, sizeof k.earlier);
    s->recipe = r;
    s->first =
        after(&k) && r->model.bigram.rows && !r->model.bigram.in_x0 ? LAYER(in, 0) : MODEL(x0);
    make_mixes(&k);
    if (tap >= 0)
        s->skip = r->model.skip.tap == SKIP_LAYER ? in(&k, tap + 1) : s->layer[tap].attended;
    forward_steps(&k, STREAM_BEGIN, 0);
    for (int i = 0; i < r->n_layers; i++)
        for (int p = 0; p < N; p++)
            forward_steps(&k, places[p], i);
    forward_steps(&k, STREAM_END, 0);
    backward_steps(&k, STREAM_END, 0);
    for (int i = r->n_layers - 1; i >= 0; i--)
        for (int p = N - 1; p >= 0; p--)
            backward_steps(&k, places[p], i);
    backward_steps(&k, STREAM_BEGIN, 0);
}

struct step_list streams_at(const struct streams *s, enum stream_pass pass, enum stream_place place,
                            int layer)
{
    return (struct step_list){ &s->step[s->at[pass][place][layer].first],
                               s->at[pass][place][layer].n };
}

/* -- as text ------------------------------------------------------------------------------------- */

struct writer {
    const struct streams *s;
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

static void put_ref(struct writer *w, struct ref r)
{
    static const char *const names[] = { "",
#define ITS_NAME(name) #name,
                                         STREAM_BUFFERS(ITS_NAME, ITS_NAME)
#undef ITS_NAME
    };
    static const bool of_model[] = { true,
#define NO(name) false,
#define YES(name) true,
                                     STREAM_BUFFERS(NO, YES)
#undef NO
#undef YES
    };
    put(w, "%s", names[r.buffer]);
    if (!of_model[r.buffer] && r.layer != w->layer)
        put(w, "[%d]", r.layer);
}

static void put_coef(struct writer *w, struct coef c)
{
    if (c.kind == COEF_HALF)
        put(w, "1/2 ");
    if (c.kind == COEF_SCALAR && recipe_scalar(w->s->recipe, roles[c.role])->stride)
        put(w, "%s[%d] ", roles[c.role], c.of);
    else if (c.kind == COEF_SCALAR)
        put(w, "%s ", roles[c.role]);
    if (c.kind == COEF_TOKEN)
        put(w,
            c.plus_one ? "(1 + token[%d]) "
            : c.part   ? "token[%d.%d] "
                       : "token[%d] ",
            c.of, c.part);
}

/* `out = terms` of one lane. */
static void put_sum(struct writer *w, const struct mix *x, int lane)
{
    bool any = false;

    put_ref(w, x->out[lane]);
    put(w, " =");
    for (int t = 0; t < x->n; t++) {
        const struct term *e = &x->term[t];
        if (!(e->runs & RUN_FORWARD) || !(e->lanes >> lane & 1))
            continue;
        put(w, "%s", e->coef[lane].minus ? " - " : any ? " + " : " ");
        put_coef(w, e->coef[lane]);
        put_ref(w, e->x);
        if (e->n)
            put(w, "[%d:%d]", e->first, e->first + e->n);
        any = true;
    }
    if (x->y.buffer && lane == x->normed) {
        put(w, " | norm ");
        put_ref(w, x->y);
    }
}

typedef void line_fn(void *ctx, const char *text);

/* Begins a line of layer i; of n_layers or -1: of the model. */
static void begin_line(struct writer *w, int i, const char *model)
{
    w->n = 0;
    w->layer = i;
    if (*model)
        put(w, "%s ", model);
    else
        put(w, "layer %d ", i);
}

static void write_mix(struct writer *w, const struct mix *x, const char *model, line_fn *line,
                      void *ctx)
{
    for (int lane = 0; lane < x->lanes; lane++) {
        begin_line(w, x->layer, model);
        put_sum(w, x, lane);
        line(ctx, w->text);
    }
}

/* A product that is added to the stream itself. */
static void write_product(struct writer *w, int i, const struct product *p, const char *name,
                          line_fn *line, void *ctx)
{
    if (!p->residual.buffer)
        return;
    begin_line(w, i, "");
    put_ref(w, p->out);
    put(w, " = ");
    put_ref(w, p->residual);
    put(w, " + ");
    put_coef(w, p->scale);
    put(w, "%s, by the product", name);
    line(ctx, w->text);
}

static void write_step(struct writer *w, const struct stream_step *e, const char *model, int i,
                       line_fn *line, void *ctx)
{
    if (e->act == DO_MIX) {
        write_mix(w, &w->s->mix[e->which], model, line, ctx);
        return;
    }
    begin_line(w, i, model);
    if (e->act == DO_SKIP) {
        put_ref(w, e->to);
        put(w, " = ");
        put_ref(w, e->to);
        put(w, " + skip gate(x0) ");
        put_ref(w, e->x);
    } else if (e->act == DO_COEFS) {
        put(w, "token = MLP %d of ", e->which);
        put_ref(w, e->x);
    } else if (e->act == DO_ROWS) {
        put_ref(w, e->to);
        put(w, " = rows of its table");
    }
    line(ctx, w->text);
}

static void write_place(struct writer *w, enum stream_place place, int i, line_fn *line, void *ctx)
{
    struct step_list l = streams_at(w->s, STREAM_FORWARD, place, i);
    const char *model = place == STREAM_BEGIN ? "begin" : place == STREAM_END ? "end" : "";

    for (int n = 0; n < l.n; n++)
        write_step(w, &l.step[n], model, place == STREAM_END ? w->s->recipe->n_layers : i, line,
                   ctx);
}

void streams_text(const struct streams *s, line_fn *line, void *ctx)
{
    struct writer w = { .s = s };

    write_place(&w, STREAM_BEGIN, 0, line, ctx);
    for (int i = 0; i < s->recipe->n_layers; i++) {
        write_place(&w, STREAM_ENTER, i, line, ctx);
        write_place(&w, STREAM_VALUES, i, line, ctx);
        if (s->recipe->layers[i].attention != ATTN_NONE)
            write_product(&w, i, &s->layer[i].attention, "attention", line, ctx);
        write_place(&w, STREAM_ATTENDED, i, line, ctx);
        write_product(&w, i, &s->layer[i].mlp, "MLP", line, ctx);
        write_place(&w, STREAM_LEAVE, i, line, ctx);
    }
    write_place(&w, STREAM_END, 0, line, ctx);
}
