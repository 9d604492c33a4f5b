/* pair_signs_test.c - pair_signs: cases, and the rows of published vectors. */
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

/* Checks which rows these tokens take, a vector of record-89.md 3: the table has a row's number in place of its signs. */
static void check_vector(int n, const int32_t *tok, const int32_t *want)
{
    enum { ROWS = 8192 };
    struct tensor x = tensor_of(NULL, DT_REAL, n, 1), table = tensor_of(NULL, DT_REAL, ROWS, 1);
    real ones[16], number[ROWS];
    struct batch b = { .tokens = n, .token = { .row = tok } };
    struct ops *o;

    if (!CHECK_OK(ops_cpu_new(&o)))
        return;
    for (int t = 0; t < n; t++)
        ones[t] = 1;
    for (int i = 0; i < ROWS; i++)
        number[i] = (real)i;
    x.data = ones;
    table.data = number;
    o->pair_signs(o, x, table, &b);
    CHECK_OK(o->status(o));
    for (int t = 0; t < n; t++)
        CHECK(ones[t] == (real)want[t]);
    o->free(o);
}

static void by_hand(void)
{
    check_vector(10, (int32_t[]){ 50256, 464, 2068, 7586, 21831, 50256, 50256, 0, 0, 1 },
                 (int32_t[]){ 0, 1408, 2500, 5558, 2277, 4375, 0, 1104, 0, 1 });
    check_vector(4, (int32_t[]){ 1, 50256, 50256, 464 }, (int32_t[]){ 0, 1105, 0, 1408 });
    check_vector(4, (int32_t[]){ 0, 0, 0, 0 }, (int32_t[]){ 0, 0, 0, 0 });
}

const struct op_test pair_signs_test = {
    .name = "pair_signs",
    .cases = { { signs_make, COUNT(signs_shapes) } },
    .by_hand = by_hand,
};
