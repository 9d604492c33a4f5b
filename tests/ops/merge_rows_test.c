/* merge_rows_test.c - merge_rows against plain loops in double. */
#include "cpu_tensors.h"
#include "op_test.h"

/* Ranks 0, 3, 6 ... send nothing; others a third of the rows. Each sum has at most `world` terms of
 * about 1: that many roundings of f32, and one to dtype. */
static void test_merge_rows(enum dtype dtype, int world, int rank, int64_t n, int64_t cols)
{
    int32_t *start = calloc((size_t)world + 1, sizeof *start);
    int32_t *index = calloc((size_t)(world * n), sizeof *index);
    struct row_merge m = {
        .rank = rank, .world = world, .first = rank * n, .index = index, .start = start
    };
    struct tensor g = drawn(dtype, n, cols, 1), rows;
    double *want = as_double(g), *size = as_double(g), tol = dtype == DT_BF16 ? 0x1p-8 : 0x1p-23;
    int bad = 0;

    for (int r = 0; r < world; r++) {
        start[r + 1] = start[r];
        for (int64_t i = 0; i < n && r % 3 && r != rank; i++)
            if (rng_below(&rng, draws++, 3) == 0)
                index[start[r + 1]++] = (int32_t)(m.first + i);
    }
    rows = drawn(dtype, start[world] ? start[world] : 1, cols, 1);
    for (int64_t k = 0; k < start[world] * cols; k++) {
        int64_t at = (index[k / cols] - m.first) * cols + k % cols;
        want[at] += get(rows, k);
        size[at] = fabs(size[at]) + fabs(get(rows, k));
    }
    o->merge_rows(o, g, rows, &m);
    for (int64_t i = 0; i < n * cols; i++)
        bad += !(fabs(get(g, i) - want[i] / world) <=
                 tol * fabs(want[i]) / world + world * 0x1p-24 * fabs(size[i]) / world);
    CHECK_EQ(bad, 0);
    free(start), free(index), free(want), free(size);
}

static void by_hand(void)
{
    cpu_begin();
    for (int s = 0; s < N_RAGGED; s++)
        for (int t = 0; t < 2; t++) {
            int64_t rows = ragged[s][0], cols = ragged[s][1];
            enum dtype type = t ? DT_BF16 : DT_F32;
            test_merge_rows(type, 1, 0, rows, cols);
            test_merge_rows(type, 3, 2, rows, cols);
            test_merge_rows(type, 40, 35, rows, cols);
        }
    cpu_end();
}

const struct op_test merge_rows_test = {
    .name = "merge_rows",
    .by_hand = by_hand,
};
