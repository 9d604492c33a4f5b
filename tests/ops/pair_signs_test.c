/* pair_signs_test.c - pair_signs: cases. */
#include "op_test.h"

static const int signs_shapes[][3] = { { 1, 12, 3 }, { 2, 13, 1 }, { 13, 24, 7 }, { 31, 40, 50 } };

/* The signs are those of what was drawn. */
static void signs_forward(struct ops_case *c)
{
    c->o->copy(c->o, at(c, "out"), at(c, "x"));
    c->o->pair_signs(c->o, at(c, "out"), at(c, "signs"), &c->batch);
}

static void signs_backward(struct ops_case *c)
{
    c->o->copy(c->o, at(c, "dx"), at(c, "dout"));
    c->o->pair_signs(c->o, at(c, "dx"), at(c, "signs"), &c->batch);
}

static void signs_make(struct ops_case *c, int variant)
{
    const int *s = signs_shapes[variant];

    snprintf(c->label, sizeof c->label, "pair_signs T=%d P=%d R=%d", s[0], s[1], s[2]);
    case_batch(c, s[0], s[2], DOCS_RAGGED);
    case_input(c, "x", s[0], s[1]);
    case_weight(c, "signs", s[2], s[1]);
    struct var *v = case_find(c, "signs");
    for (int64_t i = 0; i < tensor_count(v->t); i++)
        v->value[i] = v->value[i] < 0 ? -1 : 1;
    case_output(c, "out", s[0], s[1], "dout");
    case_grad(c, "dx", "x", false);
    c->forward = signs_forward;
    c->backward = signs_backward;
}

const struct op_test pair_signs_test = {
    .name = "pair_signs",
    .cases = { { signs_make, COUNT(signs_shapes) } },
};
