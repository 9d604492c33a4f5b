/* bias_test.c - bias: cases. */
#include "op_test.h"

struct bias_shape {
    int tokens, width;
    bool bias, residual, relu2;
};

static const struct bias_shape bias_shapes[] = {
    { 1, 5, true, false, false },  { 13, 24, true, true, false }, { 31, 17, true, false, true },
    { 7, 40, false, false, true }, { 5, 9, false, true, false },
};

static void bias_forward(struct ops_case *c)
{
    const struct bias_shape *s = c->shape;
    c->o->copy(c->o, at(c, "y"), at(c, "x"));
    c->o->bias(c->o, at(c, "y"), at(c, "b"), at(c, "residual"), s->relu2);
}

static void bias_backward(struct ops_case *c)
{
    const struct bias_shape *s = c->shape;
    c->o->copy(c->o, at(c, "dx"), at(c, "dy"));
    c->o->bias_bwd(c->o, at(c, "db"), at(c, "dx"), s->relu2 ? at(c, "y") : NO_TENSOR);
}

static void bias_make(struct ops_case *c, int variant)
{
    const struct bias_shape *s = c->shape = &bias_shapes[variant];

    snprintf(c->label, sizeof c->label, "bias T=%d O=%d bias=%d residual=%d relu2=%d", s->tokens,
             s->width, s->bias, s->residual, s->relu2);
    case_input(c, "x", s->tokens, s->width);
    if (s->bias)
        case_weight(c, "b", 1, s->width);
    if (s->residual)
        case_input(c, "residual", s->tokens, s->width);
    case_output(c, "y", s->tokens, s->width, "dy");
    if (s->bias)
        case_grad(c, "db", "b", true);
    if (s->residual)
        case_grad_in(c, "dresidual", "residual", "dy");
    case_grad(c, "dx", "x", false);
    c->forward = bias_forward;
    c->backward = bias_backward;
}

const struct op_test bias_test = {
    .name = "bias",
    .cases = { { bias_make, COUNT(bias_shapes) } },
};
