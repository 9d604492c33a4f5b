/* muon_input_test.c - muon_input against plain loops in double. */
#include "cpu_tensors.h"
#include "op_test.h"

/* Three matrices: an ordinary one, one of zeros, one whose gradient is not finite, which is left as it
 * is where nothing is scaled. */
static void test_muon_input(enum dtype tx, enum dtype tg, int64_t rows, int64_t cols, bool raw)
{
    int64_t count = rows * cols;
    struct tensor x = blank(tx, 3 * rows, cols), mom = drawn(DT_F32, 3 * rows, cols, 1);
    struct tensor g = drawn(tg, 3 * rows, cols, 1);
    real blend = 0.15f;
    double *u = malloc((size_t)count * sizeof *u), *after = malloc((size_t)count * sizeof *u);
    double squares = 0, terms = 0;
    long bad = 0;

    for (int64_t i = 0; i < count; i++) {
        set(mom, count + i, 0);
        set(g, count + i, 0);
    }
    set(g, 3 * count - 1, rows & 1 ? NAN : -INFINITY);
    for (int64_t i = 0; i < count; i++) {
        after[i] = get(mom, i) + (double)blend * (get(g, i) - get(mom, i));
        double one = (double)blend * get(g, i), other = (1 - (double)blend) * after[i];
        u[i] = one + other;
        squares += u[i] * u[i];
        terms += one * one + other * other;
    }
    for (int64_t i = 0; i < count && !raw; i++)
        u[i] /= 1.02 * sqrt(squares) + 1e-6;
    o->muon_input(o, x, mom, g, 3, raw, &blend, NULL);
    /* A few f32 roundings of the terms, whose sum may cancel (of one element it does); bf16 adds one
     * of 2^-8 of the sum at most. */
    double wrong = 0;
    for (int64_t i = 0; i < count; i++)
        wrong += fabs(get(mom, i) - after[i]);
    CHECK_NEAR(wrong, 0, 5e-7 * (double)count);
    CHECK(distance(tensor_rows(x, 0, rows), u) <=
          5e-7 * sqrt(terms / squares) + (tx == DT_BF16 ? 0x1p-8 : 0));
    for (int64_t i = count; i < (raw ? 2 : 3) * count; i++)
        bad += !(get(x, i) == 0);
    CHECK_EQ(bad, 0);
    CHECK(!raw || !isfinite(get(x, 3 * count - 1)));
    free(u), free(after);
}

static void by_hand(void)
{
    cpu_begin();
    each_ragged(test_muon_input);
    cpu_end();
}

const struct op_test muon_input_test = {
    .name = "muon_input",
    .by_hand = by_hand,
};
