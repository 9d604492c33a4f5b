/* table_grad_test.c - table_grad by hand: tokens that do not occur, two sources, added and written. Its cases are embed's. */
#include "hand_tensors.h"
#include "op_test.h"

static void test_table_grad(void)
{
    struct ops *o = cpu();
    /* tokens 2 0 2 2: token 1 and 3 do not occur */
    struct lookup b = { 4, NULL, (int32_t[]){ 1, 0, 2, 3 }, (int32_t[]){ 0, 1, 1, 4, 4 } };
    struct tensor dx = floats(o, 4, 2, (float[]){ 1, 10, 2, 20, 3, 30, 4, 40 });
    struct tensor dx2 = floats(o, 4, 2, (float[]){ 100, 0, 200, 0, 300, 0, 400, 0 });
    struct tensor d = floats(o, 4, 2, NULL);
    static const float once[8] = { 2, 20, 0, 0, 8, 80, 0, 0 };
    static const float both[8] = { 202, 20, 0, 0, 808, 80, 0, 0 };

    o->table_grad(o, d, dx, NO_TENSOR, &b, false); /* every row, over the NaNs */
    for (int i = 0; i < 8; i++)
        CHECK(f32_at(d, i) == once[i]);
    o->table_grad(o, d, dx, dx2, &b, true);
    for (int i = 0; i < 8; i++)
        CHECK(f32_at(d, i) == once[i] + both[i]);
    o->table_grad(o, d, dx, dx2, &b, false);
    for (int i = 0; i < 8; i++)
        CHECK(f32_at(d, i) == both[i]);
    o->free(o);
}

static void by_hand(void) { test_table_grad(); }

const struct op_test table_grad_test = {
    .name = "table_grad",
    .by_hand = by_hand,
};
