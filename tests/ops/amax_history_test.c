/* amax_history_test.c - amax_history against its definition. */
#include "cpu_tensors.h"
#include "op_test.h"

/* A window over numbers, newest first: its greatest, and NaN while one is in it. */
static void test_amax_history(int64_t n, int64_t ranks)
{
    struct tensor history = drawn(DT_F32, n, 2, 1), each = drawn(DT_F32, ranks, 2, 1);
    double past[2][20] = { { 0 } };
    real top[2];

    memset(history.data, 0, tensor_bytes(history));
    for (int step = 0; step < 20; step++) {
        for (int64_t i = 0; i < 2 * ranks; i++) {
            set(each, i, step == 7 && i == 1 ? NAN : rng_uniform(&rng, draws++));
            past[i % 2][step] = i < 2 || !(get(each, i) <= past[i % 2][step])
                                    ? isnan(past[i % 2][step]) && i >= 2 ? NAN : get(each, i)
                                    : past[i % 2][step];
        }
        o->amax_history(o, top, history, each, NULL);
        for (int k = 0; k < 2; k++) {
            double want = 0;
            for (int s = step; s >= 0 && s > step - n; s--)
                want = isnan(past[k][s]) || past[k][s] > want ? past[k][s] : want;
            CHECK(isnan(want) ? isnan(top[k]) : top[k] == (real)want);
            want = past[k][step];
            CHECK(isnan(want) ? isnan(get(history, k)) : get(history, k) == want);
        }
    }
}

static void by_hand(void)
{
    cpu_begin();
    test_amax_history(1, 1);
    test_amax_history(3, 4);
    test_amax_history(30, 2);
    cpu_end();
}

const struct op_test amax_history_test = {
    .name = "amax_history",
    .by_hand = by_hand,
};
