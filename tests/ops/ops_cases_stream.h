/* ops_cases_stream.h - cases of the residual stream's mixes; for ops_cases.h. */
#ifndef OPS_CASES_STREAM_H
#define OPS_CASES_STREAM_H

#include "ops_case.h"

/* -- mix_norm ----------------------------------------------------------------------------- */

/* A letter a term: c with a coefficient, m minus it, p one more than it, 1 without; t with one a
 * token; n narrow, in channels from the second on; h of some channels alone, with a coefficient a
 * token. Then what of the gradient comes. */
struct mix_shape {
    int tokens, width;
    const char *terms;
    bool norm, dy12, dout, in_place, add;
};
static const struct mix_shape mix_shapes[] = {
    { 1, 12, "c", true, false, true, false, false },
    { 5, 17, "11", true, false, true, true, false },
    { 7, 40, "cc", true, true, true, false, true },
    { 13, 24, "1m", true, false, false, false, false },
    { 3, 13, "cmc1", true, true, false, false, true },
    { 11, 24, "c1", false, false, true, true, false },
    { 2, 16, "1", true, true, true, true, false },
    { 1, 12, "t", false, false, true, false, false },
    { 5, 24, "1n", true, true, true, true, false },
    { 7, 40, "tcnh", true, true, false, false, true },
    { 3, 16, "ptt", false, false, true, true, false },
    { 9, 32, "1tthht", true, false, true, false, true },
};
static const char *const mix_x[] = { "x_0", "x_1", "x_2", "x_3", "x_4", "x_5" };
static const char *const mix_c[] = { "c_0", "c_1", "c_2", "c_3", "c_4", "c_5" };
static const char *const mix_dx[] = { "dx_0", "dx_1", "dx_2", "dx_3", "dx_4", "dx_5" };
static const char *const mix_dc[] = { "dc_0", "dc_1", "dc_2", "dc_3", "dc_4", "dc_5" };

static bool per_token(char term) { return term == 't' || term == 'h'; }
/* Terms before k, or of all, that have a coefficient a token. */
static int tokens_before(const char *terms, int k)
{
    int n = 0;
    for (int i = 0; i < k && terms[i]; i++)
        n += per_token(terms[i]);
    return n;
}
static int mix_channels(const struct mix_shape *s, int k)
{
    return s->terms[k] == 'n' ? s->width / 2 : s->terms[k] == 'h' ? s->width / 4 : s->width;
}

static int mix_terms(struct ops_case *c, struct mix_term *in)
{
    const struct mix_shape *s = c->shape;
    int n = (int)strlen(s->terms);

    for (int k = 0; k < n; k++) {
        in[k] = (struct mix_term){ .x = at(c, mix_x[k]),
                                   .coef = scalar(c, mix_c[k]),
                                   .minus = s->terms[k] == 'm',
                                   .plus_one = s->terms[k] == 'p' };
        if (mix_channels(s, k) < s->width)
            in[k].first = s->terms[k] == 'n' ? 1 : k, in[k].n = mix_channels(s, k);
        if (per_token(s->terms[k])) {
            in[k].coef = scalar(c, "token_c") + tokens_before(s->terms, k);
            in[k].stride = tokens_before(s->terms, n);
        }
    }
    return n;
}
static void mix_forward(struct ops_case *c)
{
    struct mix_term in[MIX_MAX];
    int n = mix_terms(c, in);

    c->o->mix_norm(c->o, at(c, "out"), at(c, "y"), n, in);
}
static void mix_backward(struct ops_case *c)
{
    const struct mix_shape *s = c->shape;
    struct mix_term in[MIX_MAX];
    struct mix_grad d[MIX_MAX];
    int n = mix_terms(c, in);

    for (int k = 0; k < n; k++) {
        d[k] = (struct mix_grad){ at(c, mix_dx[k]), s->add, scalar(c, mix_dc[k]) };
        if (in[k].stride)
            d[k].dcoef = scalar(c, "token_dc") + tokens_before(s->terms, k);
    }
    c->o->mix_norm_bwd(c->o, d, at(c, "dout"), at(c, "dy"), at(c, "dy12"), at(c, "out"), n, in);
}
static void mix_make(struct ops_case *c, int variant)
{
    const struct mix_shape *s = c->shape = &mix_shapes[variant];

    snprintf(c->label, sizeof c->label,
             "mix_norm T=%d D=%d terms=%s norm=%d dy12=%d dout=%d "
             "in_place=%d add=%d",
             s->tokens, s->width, s->terms, s->norm, s->dy12, s->dout, s->in_place, s->add);
    int by_token = tokens_before(s->terms, MIX_MAX);
    if (by_token) {
        case_values(c, case_var(c, VAR_INPUT, "token_c", DT_REAL, s->tokens, by_token), 1);
        case_grad(c, "token_dc", "token_c", false);
    }
    for (int k = 0; s->terms[k]; k++) {
        case_input(c, mix_x[k], s->tokens, s->terms[k] == 'h' ? s->width : mix_channels(s, k));
        if (strchr("cmpn", s->terms[k]))
            case_scalar(c, mix_c[k]);
    }
    if (s->dout)
        case_output(c, "out", s->tokens, s->width, "dout");
    else
        case_saved(c, "out", s->tokens, s->width);
    if (s->norm)
        case_output(c, "y", s->tokens, s->width, "dy");
    if (s->dy12) {
        case_input(c, "dy12", s->tokens, GATE_WIDTH);
        case_find(c, "y")->weight_left = "dy12";
    }
    for (int k = 0; s->terms[k]; k++) {
        if (k == 0 && s->in_place)
            case_grad_in(c, mix_dx[k], mix_x[k], "dout");
        else
            case_grad(c, mix_dx[k], mix_x[k], s->add);
        if (strchr("cmpn", s->terms[k]))
            case_grad(c, mix_dc[k], mix_c[k], true);
    }
    c->forward = mix_forward;
    c->backward = mix_backward;
}

/* Coefficients of two streams or lanes. */
static const char *const inject_c[2][4] = { { "a_0", "a_1", "a_2", "a_3" },
                                            { "b_0", "b_1", "b_2", "b_3" } };
static const char *const inject_dc[2][4] = { { "da_0", "da_1", "da_2", "da_3" },
                                             { "db_0", "db_1", "db_2", "db_3" } };

/* -- lanes_mix ---------------------------------------------------------------------------- */

/* Terms: a, b in lane 0, 1 alone, c in both; A, B, C without coefficients. */
struct lanes_shape {
    int tokens, width;
    const char *terms;
    int normed;
    bool norm, dy12;
};
static const struct lanes_shape lanes_shapes[] = {
    { 1, 12, "c", 0, true, false },
    { 5, 17, "abc", 0, true, true },
    { 3, 24, "Abc", 1, true, false },
    { 7, 13, "cCaa", 1, false, false },
};
static const char *const lanes_out[] = { "lane_0", "lane_1" }, *const lanes_g[] = { "g_0", "g_1" };

static int lanes_terms(struct ops_case *c, struct lanes_term *in)
{
    const struct lanes_shape *s = c->shape;
    int n = (int)strlen(s->terms);

    for (int k = 0; k < n; k++) {
        in[k] = (struct lanes_term){ .x = at(c, mix_x[k]), .lanes = s->terms[k] % 32 };
        for (int j = 0; j < 2 && s->terms[k] >= 'a'; j++)
            if (in[k].lanes >> j & 1)
                in[k].coef[j] = scalar(c, inject_c[j][k]);
    }
    return n;
}
static void lanes_forward(struct ops_case *c)
{
    const struct lanes_shape *s = c->shape;
    struct tensor out[2] = { at(c, "lane_0"), at(c, "lane_1") };
    struct lanes_term in[LANES_MAX];
    int n = lanes_terms(c, in);

    c->o->lanes_mix(c->o, out, at(c, "y"), s->normed, n, in);
}
static void lanes_backward(struct ops_case *c)
{
    const struct lanes_shape *s = c->shape;
    struct tensor dout[2] = { at(c, "g_0"), at(c, "g_1") };
    struct lanes_term in[LANES_MAX];
    struct lanes_grad d[LANES_MAX];
    int n = lanes_terms(c, in);

    for (int k = 0; k < n; k++) {
        d[k] = (struct lanes_grad){ .dx = at(c, mix_dx[k]) };
        for (int j = 0; j < 2; j++)
            d[k].dcoef[j] = in[k].coef[j] ? scalar(c, inject_dc[j][k]) : NULL;
    }
    c->o->lanes_mix_bwd(c->o, d, dout, at(c, "dy"), at(c, "dy12"), at(c, lanes_out[s->normed]),
                        s->normed, n, in);
}
static void lanes_make(struct ops_case *c, int variant)
{
    const struct lanes_shape *s = c->shape = &lanes_shapes[variant];

    snprintf(c->label, sizeof c->label, "lanes_mix T=%d D=%d terms=%s normed=%d norm=%d dy12=%d",
             s->tokens, s->width, s->terms, s->normed, s->norm, s->dy12);
    for (int k = 0; s->terms[k]; k++) {
        case_input(c, mix_x[k], s->tokens, s->width);
        for (int j = 0; j < 2; j++)
            if (s->terms[k] >= 'a' && s->terms[k] % 32 >> j & 1) {
                case_scalar(c, inject_c[j][k]);
                case_grad(c, inject_dc[j][k], inject_c[j][k], true);
            }
    }
    for (int j = 0; j < 2; j++)
        case_output(c, lanes_out[j], s->tokens, s->width, lanes_g[j]);
    if (s->norm)
        case_output(c, "y", s->tokens, s->width, "dy");
    if (s->dy12) {
        case_input(c, "dy12", s->tokens, GATE_WIDTH);
        case_find(c, "y")->weight_left = "dy12";
    }
    for (int k = 0; s->terms[k]; k++)
        if (k == 0)
            case_grad_in(c, mix_dx[k], mix_x[k], "g_0");
        else
            case_grad(c, mix_dx[k], mix_x[k], false);
    c->forward = lanes_forward;
    c->backward = lanes_backward;
}

/* -- inject_bwd ---------------------------------------------------------------------------- */

/* Places: 0 only stream 0 joins, 1 only stream 1, 2 both; each out_i a mix of what joins. */
struct inject_shape {
    int tokens, width;
    const char *places;
    bool two, add, narrow; /* narrow: the second stream has half of the channels */
};
static const struct inject_shape inject_shapes[] = {
    { 1, 12, "0", false, false, false },   { 3, 13, "2", true, true, false },
    { 7, 16, "0212", true, false, false }, { 5, 40, "000", false, true, false },
    { 7, 24, "2012", true, false, true },
};
static const char *const inject_out[] = { "out_0", "out_1", "out_2", "out_3" };
static const char *const inject_g[] = { "g_0", "g_1", "g_2", "g_3" };
static bool joins(char place, int stream) { return place == '2' || place == '0' + stream; }

static void inject_forward(struct ops_case *c)
{
    const struct inject_shape *s = c->shape;

    for (int i = 0; s->places[i]; i++) {
        struct mix_term in[2];
        int n = 0;
        for (int k = 0; k < 2; k++)
            if (joins(s->places[i], k))
                in[n++] = (struct mix_term){ .x = at(c, mix_x[k]),
                                             .coef = scalar(c, inject_c[k][i]),
                                             .n = at(c, mix_x[k]).cols };
        c->o->mix_norm(c->o, at(c, inject_out[i]), NO_TENSOR, n, in);
    }
}
static void inject_backward(struct ops_case *c)
{
    const struct inject_shape *s = c->shape;
    struct injection in[2] = { { .add = s->add }, { .add = s->add } };
    struct tensor g[4];
    int n = (int)strlen(s->places);

    for (int i = 0; i < n; i++)
        g[i] = at(c, inject_g[i]);
    for (int k = 0; k <= s->two; k++) {
        in[k].x = at(c, mix_x[k]);
        in[k].dx = at(c, mix_dx[k]);
        for (int i = 0; i < n; i++)
            if (joins(s->places[i], k)) {
                in[k].coef[i] = scalar(c, inject_c[k][i]);
                in[k].dcoef[i] = scalar(c, inject_dc[k][i]);
            }
    }
    c->o->inject_bwd(c->o, n, g, 1 + s->two, in);
}
static void inject_make(struct ops_case *c, int variant)
{
    const struct inject_shape *s = c->shape = &inject_shapes[variant];

    snprintf(c->label, sizeof c->label, "inject T=%d D=%d places=%s add=%d", s->tokens, s->width,
             s->places, s->add);
    for (int k = 0; k <= s->two; k++) {
        case_input(c, mix_x[k], s->tokens, k && s->narrow ? s->width / 2 : s->width);
        case_grad(c, mix_dx[k], mix_x[k], s->add);
    }
    for (int i = 0; s->places[i]; i++) {
        case_output(c, inject_out[i], s->tokens, s->width, inject_g[i]);
        for (int k = 0; k < 2; k++)
            if (joins(s->places[i], k)) {
                case_scalar(c, inject_c[k][i]);
                case_grad(c, inject_dc[k][i], inject_c[k][i], true);
            }
    }
    c->forward = inject_forward;
    c->backward = inject_backward;
}

#endif
