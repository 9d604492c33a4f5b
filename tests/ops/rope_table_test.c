/* rope_table_test.c - rope_table by hand. */
#include "hand_tensors.h"
#include "op_test.h"

static void test_rope_table(void)
{
    enum { ROWS = 524288 };
    struct ops *o = cpu();
    struct rope r = { floats(o, ROWS, 4, NULL) };
    const float freq[2] = { 1, 0.79963823f };

    o->rope_table(o, r, freq, 0, false);
    CHECK(f32_at(r.table, 0) == 1 && f32_at(r.table, 2) == 1);
    CHECK(f32_at(r.table, 1) == 0 && f32_at(r.table, 3) == 0);
    /* cos 1 = 0.5403023 lies between 138/256 and 139/256, sin 1 = 0.8414710 between 215/256 and
     * 216/256: the nearest are 0.5390625 and 0.83984375. */
    CHECK(f32_at(r.table, 4) == 0.5390625f);
    CHECK(f32_at(r.table, 5) == 0.83984375f);
    for (int p = 1; p < ROWS; p += 37321) { /* the angle is a float, its cosine is not */
        float theta = (float)p * freq[1];
        CHECK_NEAR(f32_at(r.table, 4 * (int64_t)p + 2), cos((double)theta), 0x1p-9);
        CHECK_NEAR(f32_at(r.table, 4 * (int64_t)p + 3), sin((double)theta), 0x1p-9);
    }
    o->free(o);
}

/* Exact ones are not rounded to bf16; with a period positions begin anew, and with them the bits. */
static void test_exact(void)
{
    enum { ROWS = 70, PERIOD = 32 };
    struct ops *o = cpu();
    struct rope r = { floats(o, ROWS, 4, NULL) };
    const float freq[2] = { 1, 0.79963823f };

    o->rope_table(o, r, freq, PERIOD, true);
    for (int p = 0; p < ROWS; p++)
        for (int m = 0; m < 2; m++) {
            double theta = (double)((float)(p % PERIOD) * freq[m]);
            CHECK(f32_at(r.table, 4 * p + 2 * m) == (float)cos(theta));
            CHECK(f32_at(r.table, 4 * p + 2 * m + 1) == (float)sin(theta));
        }
    o->free(o);
}

static void by_hand(void)
{
    test_rope_table();
    test_exact();
}

const struct op_test rope_table_test = {
    .name = "rope_table",
    .by_hand = by_hand,
};
