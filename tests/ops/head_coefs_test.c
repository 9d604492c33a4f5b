/* head_coefs_test.c - head_coefs: cases; a value too small to divide by. */
#include "hand_tensors.h"
#include "op_test.h"

struct coefs_shape {
    int tokens, heads, size;
    bool in_place, gates, alphas;
};

static const struct coefs_shape coefs_shapes[] = {
    { 1, 1, 4, false, true, false },  { 13, 2, 8, true, true, true },
    { 5, 3, 20, false, false, true }, { 11, 6, 8, true, false, true },
    { 7, 2, 12, true, true, false },
};

/* Gates and alphas lie beside other numbers of their tokens. */
static struct head_coefs coefs_of(struct ops_case *c)
{
    const struct coefs_shape *s = c->shape;
    struct head_coefs h = { .v = at(c, "v"), .dv = at(c, "dv") };
    if (s->gates)
        h.gate = (struct token_numbers){ scalar(c, "gate"), scalar(c, "dgate"), s->heads };
    if (s->alphas)
        h.alpha = (struct token_numbers){ scalar(c, "alpha"), scalar(c, "dalpha"), s->heads };
    return h;
}

static void coefs_forward(struct ops_case *c)
{
    const struct coefs_shape *s = c->shape;
    struct head_coefs h = coefs_of(c);
    c->o->head_coefs(c->o, at(c, "out"), at(c, "x"), s->heads, &h);
}

static void coefs_backward(struct ops_case *c)
{
    const struct coefs_shape *s = c->shape;
    struct head_coefs h = coefs_of(c);
    c->o->head_coefs_bwd(c->o, at(c, "dx"), at(c, "delta"), at(c, "dout"), at(c, "x"), at(c, "own"),
                         s->heads, &h);
}

static void coefs_make(struct ops_case *c, int variant)
{
    const struct coefs_shape *s = c->shape = &coefs_shapes[variant];
    int width = s->heads * s->size;

    snprintf(c->label, sizeof c->label, "head_coefs T=%d H=%d E=%d in_place=%d gates=%d alphas=%d",
             s->tokens, s->heads, s->size, s->in_place, s->gates, s->alphas);
    case_input(c, "x", s->tokens, width);
    case_input(c, "own", s->tokens, width);
    case_output(c, "out", s->tokens, width, "dout");
    if (s->in_place)
        case_grad_in(c, "dx", "x", "dout");
    else
        case_grad(c, "dx", "x", false);
    case_var(c, VAR_OUTPUT, "delta", DT_REAL, s->heads, s->tokens);
    if (s->gates) {
        case_values(c, case_var(c, VAR_INPUT, "gate", DT_REAL, s->tokens, s->heads), 1);
        case_grad(c, "dgate", "gate", false);
    }
    if (s->alphas) {
        case_input(c, "v", s->tokens, width);
        case_values(c, case_var(c, VAR_INPUT, "alpha", DT_REAL, s->tokens, s->heads), 1);
        case_grad(c, "dv", "v", false);
        case_grad(c, "dalpha", "alpha", false);
    }
    c->forward = coefs_forward;
    c->backward = coefs_backward;
}

/* x = (3, 4), v = (2, 0): q = 6 / 4, the part along v is tanh(a) (3, 0); and with v v = 0.25e-8 below the
 * least divisor, a quarter of that. delta is of attention's own result. */
static void by_hand(void)
{
    struct ops *o = cpu();
    real gate[2] = { -2, 1 }, alpha[2] = { 1, -1 }, dgate[2], dalpha[2];
    struct tensor x = floats(o, 1, 4, (float[]){ 3, 4, 3, 4 });
    struct tensor v = floats(o, 1, 4, (float[]){ 2, 0, 5e-5f, 0 });
    struct tensor dv = floats(o, 1, 4, NULL), delta = floats(o, 2, 1, NULL);
    struct tensor out = floats(o, 1, 4, NULL), dout = floats(o, 1, 4, (float[]){ 1, 1, 0, 1 });
    struct tensor own = floats(o, 1, 4, (float[]){ 0, 10, 0, 100 });
    struct head_coefs c = {
        .gate = { gate, dgate, 2 }, .alpha = { alpha, dalpha, 2 }, .v = v, .dv = dv
    };
    double tanh1 = tanh(1);

    o->head_coefs(o, out, x, 2, &c);
    CHECK_NEAR(f32_at(out, 0), -2 * (3 - tanh1 * 3), 1e-5);
    CHECK_NEAR(f32_at(out, 1), -8, 1e-5);
    CHECK_NEAR(f32_at(out, 2), 3 + tanh1 * 0.75, 1e-5);
    o->head_coefs_bwd(o, dout, delta, dout, x, own, 2, &c);
    CHECK_NEAR(dgate[0], 3 - tanh1 * 3 + 4, 1e-5);
    CHECK_NEAR(dgate[1], 4, 1e-5);
    CHECK_NEAR(f32_at(delta, 0), -20, 1e-4);
    CHECK_NEAR(f32_at(delta, 1), 100, 1e-4);
    o->free(o);
}

const struct op_test head_coefs_test = {
    .name = "head_coefs",
    .cases = { { coefs_make, COUNT(coefs_shapes) } },
    .by_hand = by_hand,
};
