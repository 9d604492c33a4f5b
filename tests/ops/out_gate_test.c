/* out_gate_test.c - out_gate: cases, and the sums of paired heads by hand. */
#include "hand_tensors.h"
#include "op_test.h"

struct gate_shape {
    int tokens, heads, size;
    bool in_place, xsa;
};

static const struct gate_shape gate_shapes[] = {
    { 1, 1, 12, false, false }, { 13, 2, 8, true, false }, { 5, 3, 20, false, false },
    { 11, 3, 8, true, true },   { 1, 2, 12, false, true },
};

static void out_gate_forward(struct ops_case *c)
{
    const struct gate_shape *s = c->shape;
    struct xsa a = { at(c, "v"), at(c, "alpha"), at(c, "dv"), at(c, "dalpha") };
    c->o->out_gate(c->o, at(c, "out"), at(c, "x"), at(c, "y"), at(c, "gate"), s->heads,
                   s->xsa ? &a : NULL);
}

static void out_gate_backward(struct ops_case *c)
{
    const struct gate_shape *s = c->shape;
    struct xsa a = { at(c, "v"), at(c, "alpha"), at(c, "dv"), at(c, "dalpha") };
    c->o->out_gate_bwd(c->o, at(c, "dx"), at(c, "delta"), at(c, "dgate"), at(c, "dy12"),
                       at(c, "dout"), at(c, "x"), at(c, "y"), at(c, "gate"), s->heads,
                       s->xsa ? &a : NULL);
}

static void out_gate_make(struct ops_case *c, int variant)
{
    const struct gate_shape *s = c->shape = &gate_shapes[variant];
    int width = s->heads * s->size;

    snprintf(c->label, sizeof c->label, "out_gate T=%d H=%d E=%d in_place=%d xsa=%d", s->tokens,
             s->heads, s->size, s->in_place, s->xsa);
    case_input(c, "x", s->tokens, width);
    case_input(c, "y", s->tokens, width);
    case_weight(c, "gate", s->heads, GATE_WIDTH);
    case_output(c, "out", s->tokens, width, "dout");
    if (s->in_place)
        case_grad_in(c, "dx", "x", "dout");
    else
        case_grad(c, "dx", "x", false);
    case_grad(c, "dgate", "gate", true);
    case_grad_cols(c, "dy12", "y", GATE_WIDTH, false);
    case_var(c, VAR_OUTPUT, "delta", DT_REAL, s->heads, s->tokens);
    if (s->xsa) {
        case_input(c, "v", s->tokens, width);
        case_weight(c, "alpha", 1, s->heads);
        case_grad(c, "dv", "v", false);
        case_grad(c, "dalpha", "alpha", true);
    }
    c->forward = out_gate_forward;
    c->backward = out_gate_backward;
}

/* The gate is a half, so dx = 1: a head's sum is its x. Attention counts two rows a token. */
static void test_paired_sums(void)
{
    enum { T = 3, H = 4, R = 2 * T };
    struct ops *o = cpu();
    struct tensor x = floats(o, T, H, NULL), dout = floats(o, T, H, NULL);
    struct tensor y = floats(o, T, GATE_WIDTH, NULL), gate = floats(o, H, GATE_WIDTH, NULL);
    struct tensor dgate = floats(o, H, GATE_WIDTH, NULL), dy12 = floats(o, T, GATE_WIDTH, NULL);
    struct tensor delta = floats(o, H / 2, R, NULL);

    o->zero(o, y);
    o->zero(o, gate);
    o->zero(o, dgate);
    for (int i = 0; i < T * H; i++) {
        ((float *)x.data)[i] = (float)i;
        ((float *)dout.data)[i] = 2;
    }
    o->out_gate_bwd(o, dout, delta, dgate, dy12, dout, x, y, gate, H, NULL);
    for (int i = 0; i < T * H; i++) {
        CHECK_NEAR(f32_at(dout, i), 1, 1e-6);
        CHECK_NEAR(f32_at(delta, i % 2 * R + i / 2), i, 1e-5);
    }
    o->free(o);
}

/* Without a gate delta alone is written. */
static void test_no_gate(void)
{
    struct ops *o = cpu();
    struct tensor x = floats(o, 2, 4, (float[]){ 1, 2, 3, 4, 5, 6, 7, 8 });
    struct tensor dout = floats(o, 2, 4, (float[]){ 1, 1, 2, 0, 0, 3, 1, -1 });
    struct tensor delta = floats(o, 2, 2, NULL);

    o->out_gate_bwd(o, dout, delta, NO_TENSOR, NO_TENSOR, dout, x, NO_TENSOR, NO_TENSOR, 2, NULL);
    CHECK(f32_at(delta, 0) == 3 && f32_at(delta, 1) == 18); /* head 0 of both rows */
    CHECK(f32_at(delta, 2) == 6 && f32_at(delta, 3) == -1);
    CHECK(f32_at(dout, 5) == 3);
    o->free(o);
}

static void by_hand(void)
{
    test_paired_sums();
    test_no_gate();
}

const struct op_test out_gate_test = {
    .name = "out_gate",
    .cases = { { out_gate_make, COUNT(gate_shapes) } },
    .by_hand = by_hand,
};
