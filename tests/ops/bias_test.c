/* bias_test.c - linear_bias, bias_bwd, relu2_bias_bwd: cases. */
#include "op_test.h"

/* An MLP with biases: out = scale post w2^T + b2 (+ residual), post = max(x w1^T + b1, 0)^2. */
struct bias_shape {
    int tokens, width, hidden;
    bool residual, first, add, scale; /* first: b1 has a gradient */
};

static const struct bias_shape bias_shapes[] = {
    { 1, 3, 5, false, true, false, false },
    { 13, 12, 31, true, true, true, true },
    { 32, 16, 64, true, false, false, false },
    { 7, 9, 24, false, true, false, true },
};

static void bias_forward(struct ops_case *c)
{
    c->o->linear_bias(c->o, at(c, "post"), at(c, "x"), at(c, "w1"), NULL, at(c, "b1"), NO_TENSOR,
                      true);
    c->o->linear_bias(c->o, at(c, "out"), at(c, "post"), at(c, "w2"), scalar(c, "scale"),
                      at(c, "b2"), at(c, "residual"), false);
}

static void bias_backward(struct ops_case *c)
{
    const struct bias_shape *s = c->shape;
    struct tensor post = at(c, "post"), dpre = at(c, "dpre"), dout = at(c, "dout"),
                  w2 = at(c, "w2");

    c->o->bias_bwd(c->o, at(c, "db2"), dout);
    c->o->linear_bwd_w(c->o, at(c, "dw2"), scalar(c, "dscale"), dout, post, w2, scalar(c, "scale"),
                       s->add);
    c->o->relu2_bias_bwd(c->o, dpre, at(c, "db1"), dout, w2, scalar(c, "scale"), post);
    c->o->linear_bwd_w(c->o, at(c, "dw1"), NULL, dpre, at(c, "x"), at(c, "w1"), NULL, s->add);
    c->o->linear_bwd_x(c->o, at(c, "dx"), dpre, at(c, "w1"), NULL, s->add);
}

static void bias_make(struct ops_case *c, int variant)
{
    const struct bias_shape *s = c->shape = &bias_shapes[variant];

    snprintf(c->label, sizeof c->label, "bias T=%d D=%d F=%d residual=%d first=%d add=%d scale=%d",
             s->tokens, s->width, s->hidden, s->residual, s->first, s->add, s->scale);
    case_input(c, "x", s->tokens, s->width);
    case_weight(c, "w1", s->hidden, s->width);
    case_weight(c, "b1", 1, s->hidden);
    case_weight(c, "w2", s->width, s->hidden);
    case_weight(c, "b2", 1, s->width);
    if (s->scale)
        case_scalar(c, "scale");
    if (s->residual)
        case_input(c, "residual", s->tokens, s->width);
    case_saved(c, "post", s->tokens, s->hidden);
    case_output(c, "out", s->tokens, s->width, "dout");
    if (s->residual)
        case_grad_in(c, "dresidual", "residual", "dout");
    case_saved(c, "dpre", s->tokens, s->hidden);
    case_grad(c, "dx", "x", s->add);
    case_grad(c, "dw1", "w1", s->add);
    if (s->first)
        case_grad(c, "db1", "b1", true);
    case_grad(c, "dw2", "w2", s->add);
    case_grad(c, "db2", "b2", true);
    if (s->scale)
        case_grad(c, "dscale", "scale", true);
    c->forward = bias_forward;
    c->backward = bias_backward;
}

const struct op_test bias_test = {
    .name = "bias",
    .cases = { { bias_make, COUNT(bias_shapes) } },
};
