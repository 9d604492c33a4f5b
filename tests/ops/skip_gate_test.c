/* skip_gate_test.c - skip_gate: cases. */
#include "op_test.h"

struct skip_shape {
    int tokens, width;
};

static const struct skip_shape skip_shapes[] = {
    { 1, 12 }, { 13, 16 }, { 5, 60 }, { 11, 24 }, { 1, 24 },
};

/* The numbers are the second of each token's two. */
static struct token_numbers numbers(struct ops_case *c)
{
    real *value = scalar(c, "number"), *grad = scalar(c, "dnumber");
    return (struct token_numbers){ value ? value + 1 : NULL, grad ? grad + 1 : NULL, 2 };
}

static void skip_forward(struct ops_case *c)
{
    struct token_numbers n = numbers(c);
    c->o->skip_gate(c->o, at(c, "out"), at(c, "x"), at(c, "skip"), at(c, "x0"), at(c, "gate"),
                    scalar(c, "lambda"), n.value ? &n : NULL);
}

static void skip_backward(struct ops_case *c)
{
    struct token_numbers n = numbers(c);
    if (n.value)
        c->o->zero(c->o, at(c, "dnumber"));
    c->o->skip_gate_bwd(c->o, at(c, "dskip"), at(c, "dx0"), at(c, "dgate"), scalar(c, "dlambda"),
                        at(c, "dout"), at(c, "skip"), at(c, "x0"), at(c, "gate"),
                        scalar(c, "lambda"), n.value ? &n : NULL);
}

static void skip_make(struct ops_case *c, int variant)
{
    const struct skip_shape *s = c->shape = &skip_shapes[variant];

    snprintf(c->label, sizeof c->label, "skip_gate T=%d D=%d", s->tokens, s->width);
    case_input(c, "x", s->tokens, s->width);
    case_input(c, "skip", s->tokens, s->width);
    case_input(c, "x0", s->tokens, s->width);
    case_weight(c, "gate", 1, GATE_WIDTH);
    case_scalar(c, "lambda");
    case_output(c, "out", s->tokens, s->width, "dout");
    case_grad_in(c, "dx", "x", "dout");
    case_grad(c, "dskip", "skip", false);
    case_grad(c, "dx0", "x0", true);
    case_grad(c, "dgate", "gate", true);
    case_grad(c, "dlambda", "lambda", true);
    c->forward = skip_forward;
    c->backward = skip_backward;
}

static void number_make(struct ops_case *c, int variant)
{
    const struct skip_shape *s = c->shape = &skip_shapes[variant];

    snprintf(c->label, sizeof c->label, "skip_gate T=%d D=%d, a number a token", s->tokens,
             s->width);
    case_input(c, "x", s->tokens, s->width);
    case_input(c, "skip", s->tokens, s->width);
    case_values(c, case_var(c, VAR_INPUT, "number", DT_REAL, s->tokens, 2), 1);
    case_scalar(c, "lambda");
    case_output(c, "out", s->tokens, s->width, "dout");
    case_grad_in(c, "dx", "x", "dout");
    case_grad(c, "dskip", "skip", false);
    case_grad(c, "dnumber", "number", false);
    case_grad(c, "dlambda", "lambda", true);
    c->forward = skip_forward;
    c->backward = skip_backward;
}

const struct op_test skip_gate_test = {
    .name = "skip_gate",
    .cases = { { skip_make, COUNT(skip_shapes) }, { number_make, COUNT(skip_shapes) } },
};
