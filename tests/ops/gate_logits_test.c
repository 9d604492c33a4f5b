/* gate_logits_test.c - gate_logits: cases. */
#include "op_test.h"

struct logits_shape {
    int tokens, heads, width, more;
    bool add;
};

static const struct logits_shape logits_shapes[] = {
    { 1, 1, 12, 8, false },
    { 13, 12, 17, 8, true },
    { 5, 3, 40, 24, false },
};

static void logits_forward(struct ops_case *c)
{
    c->o->gate_logits(c->o, at(c, "z"), at(c, "y"), at(c, "e"), at(c, "gate"));
}

static void logits_backward(struct ops_case *c)
{
    const struct logits_shape *s = c->shape;
    c->o->gate_logits_bwd(c->o, at(c, "dy12"), s->add, at(c, "de"), at(c, "dgate"), at(c, "dz"),
                          at(c, "y"), at(c, "e"), at(c, "gate"));
}

static void logits_make(struct ops_case *c, int variant)
{
    const struct logits_shape *s = c->shape = &logits_shapes[variant];

    snprintf(c->label, sizeof c->label, "gate_logits T=%d H=%d D=%d n=%d add=%d", s->tokens,
             s->heads, s->width, s->more, s->add);
    case_input(c, "y", s->tokens, s->width);
    case_input(c, "e", s->tokens, s->more);
    case_weight(c, "gate", s->heads, GATE_WIDTH + s->more);
    case_output(c, "z", s->tokens, GATE_LOGITS, "dz");
    case_grad_cols(c, "dy12", "y", GATE_WIDTH, s->add);
    case_grad(c, "de", "e", true);
    case_grad(c, "dgate", "gate", true);
    c->forward = logits_forward;
    c->backward = logits_backward;
}

const struct op_test gate_logits_test = {
    .name = "gate_logits",
    .cases = { { logits_make, COUNT(logits_shapes) } },
};
