/* step_gate_test.c - squares and step_gate against sums in double. */
#include "cpu_tensors.h"
#include "op_test.h"

/* The sum in double, whose result is rounded once. limit is of the norm times unscale. */
static void test_gate(enum dtype t, int64_t rows, int64_t cols, double limit)
{
    struct tensor g[3] = { drawn(t, rows, cols, 1), drawn(DT_F32, 0, cols, 1),
                           drawn(DT_F32, 7, 3, 0.1) };
    struct step_gate gate = { NAN, 0, 7, NAN };
    double want = 0;
    real sum = NAN;

    for (int k = 0; k < 3; k++)
        for (int64_t i = 0; i < tensor_count(g[k]); i++)
            want += get(g[k], i) * get(g[k], i);
    o->squares(o, &sum, g, 3);
    CHECK(fabs(sum - want) <= 0x1p-21 * want); /* f32 sums of 512 in real_dot */
    double norm = sqrt(4 * want) * 0.5, factor = 0.5 * (limit > 0 ? fmin(1, limit / norm) : 1);
    o->step_gate(o, &gate, &sum, 4, (real)limit, 0.5f);
    CHECK(!gate.skip && !gate.late && fabs(gate.norm - norm) <= 0x1p-20 * norm);
    CHECK(fabs(gate.factor - factor) <= 0x1p-20 * factor);
    for (int k = 0; k < 3; k++) { /* and a step whose last one is not finite */
        set(g[2], 20, k == 0 ? NAN : k == 1 ? INFINITY : 1e30);
        o->squares(o, &sum, g, 3);
        o->step_gate(o, &gate, &sum, 4, (real)limit, 0.5f);
        CHECK(gate.skip == 1 && gate.late == (k > 0));
    }
}

static void by_hand(void)
{
    cpu_begin();
    for (int s = 0; s < N_RAGGED; s++)
        for (int t = 0; t < 2; t++) {
            int64_t rows = ragged[s][0], cols = ragged[s][1];
            enum dtype type = t ? DT_BF16 : DT_F32;
            test_gate(type, rows, cols, 0);
            test_gate(type, rows, cols, 3);
        }
    cpu_end();
}

const struct op_test step_gate_test = {
    .name = "step_gate",
    .by_hand = by_hand,
};
