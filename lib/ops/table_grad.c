/* table_grad.c - rows of an embedding table, and its gradient from theirs (record-61.md 3.4). */
#include "ops/cpu.h"

static void add_row(real *sum, const real *row, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        sum[i] += row[i];
}

void cpu_gather(struct ops *o, struct tensor out, struct tensor table, const struct lookup *l)
{
    if (cpu_failed(o))
        return;
    assert(out.rows == l->tokens && out.cols == table.cols);
    for (int64_t t = 0; t < l->tokens; t++) {
        assert(l->row[t] >= 0 && l->row[t] < table.rows);
        if (out.dtype == table.dtype)
            memcpy(tensor_rows(out, t, 1).data, tensor_rows(table, l->row[t], 1).data,
                   tensor_bytes(tensor_rows(table, 0, 1)));
        else
            real_read(real_ptr(out) + t * out.cols, table, l->row[t] * table.cols, table.cols);
    }
}

struct job {
    struct tensor dtable, dx, dx2;
    const struct lookup *l;
    bool add, round;
    real *sum; /* (D) of each thread */
};

static void some_rows(void *arg, int64_t row, int64_t rows, int thread)
{
    const struct job *j = arg;
    int64_t width = j->dtable.cols;
    real *sum = j->sum + thread * width;

    for (int64_t v = row; v < row + rows; v++) {
        int32_t first = j->l->start[v], end = j->l->start[v + 1];
        if (first == end && j->add)
            continue;
        memset(sum, 0, (size_t)width * sizeof *sum);
        for (int32_t i = first; i < end; i++) {
            int64_t at = j->l->order[i] * width;
            add_row(sum, real_ptr(j->dx) + at, width);
            if (has(j->dx2))
                add_row(sum, real_ptr(j->dx2) + at, width);
        }
        if (j->round)
            real_round(sum, width);
        real_write(j->dtable, v * width, sum, width, j->add);
    }
}

/* Gathers by row instead of scattering by position: each row has one writer and one order of
 * summation. */
void cpu_table_grad(struct ops *o, struct tensor dtable, struct tensor dx, struct tensor dx2,
                    const struct lookup *l, bool add)
{
    int64_t width = dtable.cols;
    struct job job = {
        dtable, dx, dx2, l, add, o->bf16_grads, cpu_scratch(o, 0, cpu_threads(o) * width)
    };

    if (cpu_failed(o))
        return;
    assert(dx.rows == l->tokens && dx.cols == width);
    assert(!has(dx2) || (dx2.rows == l->tokens && dx2.cols == width));
    cpu_split(o, dtable.rows, 1024, some_rows, &job);
}
