/* token_coefs_test.c - token_coefs: cases. */
#include "op_test.h"

static const int coefs_shapes[][3] = { { 1, 3, 1 }, { 7, 16, 5 }, { 13, 64, 14 }, { 9, 64, 41 } };

static void coefs_forward(struct ops_case *c)
{
    c->o->token_coefs(c->o, at(c, "out"), at(c, "pre"), at(c, "w"), at(c, "b"),
                      scalar(c, "factor"));
}

static void coefs_backward(struct ops_case *c)
{
    c->o->token_coefs_bwd(c->o, at(c, "dpre"), at(c, "dw"), at(c, "db"), scalar(c, "dfactor"),
                          at(c, "dout"), at(c, "pre"), at(c, "w"), at(c, "b"), scalar(c, "factor"));
}

static void coefs_make(struct ops_case *c, int variant)
{
    const int *s = coefs_shapes[variant];

    snprintf(c->label, sizeof c->label, "token_coefs T=%d K=%d m=%d", s[0], s[1], s[2]);
    case_values(c, case_var(c, VAR_INPUT, "dout", DT_REAL, s[0], s[2]), 1);
    case_input(c, "pre", s[0], s[1]);
    case_weight(c, "w", s[2], s[1]);
    case_weight(c, "b", 1, s[2]);
    case_var(c, VAR_OUTPUT, "out", DT_REAL, s[0], s[2])->weight = "dout";
    case_grad(c, "dpre", "pre", false);
    case_grad(c, "dw", "w", true);
    case_grad(c, "db", "b", true);
    if (variant % 2) {
        case_scalar(c, "factor");
        case_grad(c, "dfactor", "factor", true);
    }
    c->forward = coefs_forward;
    c->backward = coefs_backward;
}

const struct op_test token_coefs_test = {
    .name = "token_coefs",
    .cases = { { coefs_make, COUNT(coefs_shapes) } },
};
