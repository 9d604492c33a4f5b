/* pair_rows_test.c - pair_rows by hand: the rows of two heads, there and back. */
#include "hand_tensors.h"
#include "op_test.h"

/* The pairs of 8 channels are 0 and 4, 1 and 5; 2, 3, 6 and 7 do not turn. */
static void by_hand(void)
{
    static const int order[8] = { 0, 4, 1, 5, 2, 3, 6, 7 };
    enum { HEADS = 2, E = 8, D = 3, N = HEADS * E * D };
    struct ops *o = cpu();
    float from[N];

    for (int i = 0; i < N; i++)
        from[i] = (float)i;
    struct tensor a = floats(o, HEADS * E, D, from), w = floats(o, HEADS * E, D, NULL);
    struct tensor b = floats(o, HEADS * E, D, NULL);
    struct tensor narrow = tensor_of(o->alloc(o, N * 2, "rows"), DT_BF16, HEADS * E, D);
    o->pair_rows(o, w, a, E, false);
    o->pair_rows(o, narrow, a, E, false);
    o->pair_rows(o, b, w, E, true);
    for (int r = 0; r < HEADS * E; r++)
        for (int d = 0; d < D; d++) {
            int source = r / E * E + order[r % E];
            CHECK(f32_at(w, r * D + d) == (float)(source * D + d));
            CHECK(bf16_to_f32(((uint16_t *)narrow.data)[r * D + d]) == f32_at(w, r * D + d));
        }
    for (int i = 0; i < N; i++)
        CHECK(f32_at(b, i) == (float)i);
    CHECK_OK(o->status(o));
    o->free(o);
}

const struct op_test pair_rows_test = {
    .name = "pair_rows",
    .by_hand = by_hand,
};
