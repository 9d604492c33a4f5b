/* rope_table.c - cosines and sines by position (record-61.md 2.5). */
#include "ops/cpu.h"

/* The angle is one f32 product and the factors are bf16 or f32 values, in the double build too: they
 * are data of the model, like the weights. */
void cpu_rope_table(struct ops *o, struct rope r, const float *freq, int period, bool exact)
{
    int64_t quarter = r.table.cols / 2;

    if (cpu_failed(o))
        return;
    for (int64_t p = 0; p < r.table.rows; p++)
        for (int64_t m = 0; m < quarter; m++) {
            float theta = (float)(period ? p % period : p) * freq[m];
            float c = (float)cos((double)theta), s = (float)sin((double)theta);
            int64_t i = p * r.table.cols + 2 * m;
            real_set(r.table, i, exact ? c : bf16_round(c));
            real_set(r.table, i + 1, exact ? s : bf16_round(s));
        }
}
