/* pair_rows.c - rows of q's and k's matrices in the order in which rotary pairs are neighbours
 * (track-3.md 2). */
#include "ops/cpu.h"

/* Returns the row of a head, in the order of its channels, that row m is in the order of pairs. */
static int64_t channel_of(int64_t m, int64_t size)
{
    int64_t quarter = size / 4;

    if (m < 2 * quarter)
        return m / 2 + m % 2 * 2 * quarter;
    return m < 3 * quarter ? m - quarter : m;
}

void cpu_pair_rows(struct ops *o, struct tensor w, struct tensor from, int head_dim, bool back)
{
    real *row = cpu_scratch(o, 0, w.cols);

    if (cpu_failed(o))
        return;
    assert(w.rows == from.rows && w.cols == from.cols && w.rows % head_dim == 0);
    for (int64_t r = 0; r < w.rows; r++) {
        int64_t other = r / head_dim * head_dim + channel_of(r % head_dim, head_dim);
        real_read(row, from, (back ? r : other) * w.cols, w.cols);
        real_write(w, (back ? other : r) * w.cols, row, w.cols, false);
    }
}
