/* norm_test.c - norm with gains: cases. */
#include "op_test.h"

struct norm_shape {
    int tokens, width;
    bool gain, add, in_place; /* in_place: dx over dy */
};

static const struct norm_shape norm_shapes[] = {
    { 1, 3, true, false, false },
    { 13, 24, true, true, false },
    { 31, 17, true, false, true },
    { 5, 40, false, true, false },
};

static void norm_forward(struct ops_case *c)
{
    c->o->norm(c->o, at(c, "y"), at(c, "x"), at(c, "gain"));
}

static void norm_backward(struct ops_case *c)
{
    const struct norm_shape *s = c->shape;
    c->o->norm_bwd(c->o, at(c, "dx"), s->add, at(c, "dgain"), at(c, "dy"), at(c, "x"),
                   at(c, "gain"));
}

static void norm_make(struct ops_case *c, int variant)
{
    const struct norm_shape *s = c->shape = &norm_shapes[variant];

    snprintf(c->label, sizeof c->label, "norm T=%d D=%d gain=%d add=%d in_place=%d", s->tokens,
             s->width, s->gain, s->add, s->in_place);
    case_input(c, "x", s->tokens, s->width);
    if (s->gain)
        case_weight(c, "gain", 1, s->width);
    case_output(c, "y", s->tokens, s->width, "dy");
    if (s->gain)
        case_grad(c, "dgain", "gain", true);
    if (s->in_place)
        case_grad_in(c, "dx", "x", "dy");
    else
        case_grad(c, "dx", "x", s->add);
    c->forward = norm_forward;
    c->backward = norm_backward;
}

const struct op_test norm_test = {
    .name = "norm",
    .cases = { { norm_make, COUNT(norm_shapes) } },
};
