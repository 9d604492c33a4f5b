/* transpose_test.c - transpose against plain loops. */
#include "cpu_tensors.h"
#include "op_test.h"

static void test_transpose_bits(int64_t rows, int64_t cols)
{
    struct tensor src = blank(DT_U16, rows, cols), dst = blank(DT_U16, cols, rows);
    long bad = 0;
    for (int64_t i = 0; i < rows * cols; i++)
        ((uint16_t *)src.data)[i] = (uint16_t)(65536 * rng_uniform(&rng, draws++));
    o->transpose(o, dst, src, NULL);
    for (int64_t i = 0; i < rows * cols; i++)
        bad += get(dst, i % cols * rows + i / cols) != get(src, i);
    CHECK_EQ(bad, 0);
    src.dtype = DT_U8, dst = blank(DT_U8, cols, rows);
    o->transpose(o, dst, src, NULL);
    for (int64_t i = 0; i < rows * cols; i++)
        bad += ((uint8_t *)dst.data)[i % cols * rows + i / cols] != ((uint8_t *)src.data)[i];
    CHECK_EQ(bad, 0);
}

static void test_transpose(enum dtype t, int64_t rows, int64_t cols, float mix)
{
    struct tensor src = drawn(t, rows, cols, 1), dst = blank(t, cols, rows);
    double *before;
    long bad = 0;

    o->transpose(o, dst, src, NULL);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++)
            bad += !(get(dst, j * rows + i) == get(src, i * cols + j));
    CHECK_EQ(bad, 0);
    before = as_double(dst);
    struct tensor more = drawn(t, rows, cols, 3);
    o->transpose(o, dst, more, &(real){ (real)mix });
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) {
            float term = (float)((double)mix * get(more, i * cols + j));
            float sum = (float)(before[j * rows + i] + term);
            bad += !(get(dst, j * rows + i) == (t == DT_BF16 ? bf16_round(sum) : sum));
        }
    CHECK_EQ(bad, 0);
    free(before);
}

static void by_hand(void)
{
    cpu_begin();
    for (int s = 0; s < N_RAGGED; s++)
        for (int t = 0; t < 2; t++) {
            int64_t rows = ragged[s][0], cols = ragged[s][1];
            enum dtype type = t ? DT_BF16 : DT_F32;
            test_transpose_bits(rows, cols);
            test_transpose(type, rows, cols, 1);
            test_transpose(type, rows, cols, -0.3f);
        }
    cpu_end();
}

const struct op_test transpose_test = {
    .name = "transpose",
    .by_hand = by_hand,
};
