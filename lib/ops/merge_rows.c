/* merge_rows.c - a table's gradient from the rows that ranks sent. */
#include <string.h>
#include "ops/cpu.h"

static void add_read(real *sum, real *x, struct tensor t, int64_t row)
{
    real_read(x, t, row * t.cols, t.cols);
    for (int64_t c = 0; c < t.cols; c++)
        sum[c] += x[c];
}

void cpu_merge_rows(struct ops *o, struct tensor g, struct tensor rows, const struct row_merge *m)
{
    size_t starts = (size_t)m->world * sizeof *m->start;
    real *sum = cpu_scratch(o, 0, g.cols), *x = cpu_scratch(o, 1, g.cols);
    int32_t *next = cpu_scratch_bytes(o, 2, starts); /* of each rank's rows */

    if (cpu_failed(o))
        return;
    assert(rows.cols == g.cols && rows.dtype == g.dtype);
    memcpy(next, m->start, starts);
    for (int64_t i = 0; i < g.rows; i++) {
        memset(sum, 0, (size_t)g.cols * sizeof *sum);
        for (int r = 0; r < m->world; r++) {
            if (r == m->rank)
                add_read(sum, x, g, i);
            else if (next[r] < m->start[r + 1] && m->index[next[r]] == m->first + i)
                add_read(sum, x, rows, next[r]++);
        }
        for (int64_t c = 0; c < g.cols; c++)
            sum[c] /= (real)m->world;
        real_write(g, i * g.cols, sum, g.cols, false);
    }
    for (int r = 0; r < m->world; r++)
        assert(next[r] == m->start[r + 1]); /* else not ascending, or not of this part */
}
