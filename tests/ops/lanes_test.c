/* lanes_test.c - lanes_mix: cases. */
#include "stream_case.h"
#include "op_test.h"

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

const struct op_test lanes_test = {
    .name = "lanes",
    .cases = { { lanes_make, COUNT(lanes_shapes) } },
};
