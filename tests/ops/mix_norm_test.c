/* mix_norm_test.c - mix_norm: cases, and out in place of a term. */
#include "hand_tensors.h"
#include "stream_case.h"
#include "op_test.h"

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

static const char *const mix_c[] = { "c_0", "c_1", "c_2", "c_3", "c_4", "c_5" };
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

static void test_in_place(void)
{
    struct ops *o = cpu();
    real half = 0.5f;
    struct tensor x = floats(o, 1, 3, (float[]){ 2, 4, 6 });
    struct tensor z = floats(o, 1, 3, (float[]){ 1, 1, 3 });

    o->mix_norm(
        o, x, NO_TENSOR, 3,
        (struct mix_term[]){ { .x = x, .coef = &half }, { .x = z, .minus = true }, { .x = x } });
    CHECK(f32_at(x, 0) == 2 && f32_at(x, 1) == 5 && f32_at(x, 2) == 6);
    o->free(o);
}

static void by_hand(void) { test_in_place(); }

const struct op_test mix_norm_test = {
    .name = "mix_norm",
    .cases = { { mix_make, COUNT(mix_shapes) } },
    .by_hand = by_hand,
};
