/* table_grad.c - gradient of an embedding table from that of its rows (record-61.md 3.4). */
#include "ops/cpu.h"
#include "ops/real.h"

static void add_row(real *sum, const real *row, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        sum[i] += row[i];
}

/* Gathers by token instead of scattering by position: each row has one writer and one order of
 * summation. */
void cpu_table_grad(struct ops *o, struct tensor dtable, struct tensor dx, struct tensor dx2,
                    const struct batch *b, bool add)
{
    int64_t width = dtable.cols;
    real *sum = cpu_scratch(o, 0, width);

    if (cpu_failed(o))
        return;
    assert(dx.rows == b->tokens && dx.cols == width);
    assert(!has(dx2) || (dx2.rows == b->tokens && dx2.cols == width));
    for (int64_t v = 0; v < dtable.rows; v++) {
        int32_t first = b->start[v], end = b->start[v + 1];
        if (first == end && add)
            continue;
        memset(sum, 0, (size_t)width * sizeof *sum);
        for (int32_t i = first; i < end; i++) {
            int64_t at = b->order[i] * width;
            add_row(sum, real_ptr(dx) + at, width);
            if (has(dx2))
                add_row(sum, real_ptr(dx2) + at, width);
        }
        real_write(dtable, v * width, sum, width, add);
    }
}
