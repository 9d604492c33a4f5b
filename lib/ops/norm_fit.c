/* norm_fit.c - a matrix, or each of its rows, scaled and moved along another by norms of both
 * (optimizers.md 4.7).
 */
#include <string.h>
#include "ops/cpu.h"
#include "ops/norm_fit.h"

struct job {
    struct tensor x;
    const struct norm_fit *f;
    int64_t rows;
    real *y; /* (cols) of each thread */
    struct fit_sums *line; /* (max(rows, cols)) of each thread */
};

/* Row r of y, exact; nothing without a y. */
static void read_y(real *y, const struct norm_fit *f, int64_t r, int64_t cols)
{
    const uint16_t *low = (const uint16_t *)f->low.data + r * cols;

    memset(y, 0, (size_t)cols * sizeof *y);
    if (!f->y.data)
        return;
    real_read(y, f->y, r * cols, cols);
    for (int64_t c = 0; c < cols && f->low.data; c++)
        y[c] = f32_from_bits(f32_bits((float)y[c]) | low[c]);
}

/* Sums of each line, and of all. turned: lines are columns. */
static struct fit_sums sums_of(const struct job *j, int64_t i, bool turned, real *y,
                               struct fit_sums *line)
{
    int64_t rows = j->rows, cols = j->x.cols;
    struct fit_sums whole = { 0 };

    if (!fit_of_sums(j->f->to))
        return whole;
    memset(line, 0, (size_t)(turned ? cols : rows) * sizeof *line);
    for (int64_t r = 0; r < rows; r++) {
        const real *x = (const real *)j->x.data + (i * rows + r) * cols;
        read_y(y, j->f, i * rows + r, cols);
        for (int64_t c = 0; c < cols; c++)
            fit_add(&line[turned ? c : r], j->f->how, x[c], y[c]);
    }
    for (int64_t k = 0; k < (turned ? cols : rows); k++)
        fit_join(&whole, &line[k]);
    return whole;
}

static struct fit_args args_of(const struct job *j, int64_t i, bool turned)
{
    const struct norm_fit *f = j->f;
    struct fit_args a = { .to = f->to,
                          .rows = (double)(turned ? j->x.cols : j->rows),
                          .cols = (double)(turned ? j->rows : j->x.cols),
                          .number = f->number ? *f->number : 0,
                          .each = f->each ? f->each[i] : 1,
                          .over = f->over ? f->over[i] : 1,
                          .least = f->least };
    if (fit_of_write(f->to)) {
        a.lr = f->m->lr * f->lr_mul[i];
        a.shrink = f->how & MUON_BEHIND ? 0 : f->m->decay * a.lr;
    }
    return a;
}

static void apply(const struct job *j, int64_t i, const struct fit_args *a, bool turned, real *y,
                  const struct fit_sums *line, const struct fit_sums *whole)
{
    bool by_row = fit_by_row(a->to);
    struct fit_pair p = fit_of(a, whole, whole);

    for (int64_t r = 0; r < j->rows; r++) {
        real *x = (real *)j->x.data + (i * j->rows + r) * j->x.cols;
        read_y(y, j->f, i * j->rows + r, j->x.cols);
        for (int64_t c = 0; c < j->x.cols; c++) {
            if (by_row && (turned || c == 0))
                p = fit_of(a, &line[turned ? c : r], whole);
            x[c] = (real)p.a * x[c] + (real)p.b * y[c];
        }
    }
}

static void one_matrix(void *arg, int64_t i, int64_t n, int thread)
{
    const struct job *j = arg;
    const struct norm_fit *f = j->f;
    bool turned = f->turned && f->turned[i];
    int64_t most = j->rows > j->x.cols ? j->rows : j->x.cols;
    real *y = j->y + thread * j->x.cols;
    struct fit_sums *line = j->line + thread * most, whole = sums_of(j, i, turned, y, line);
    struct fit_args a = args_of(j, i, turned);

    (void)n;
    if (fit_of_write(f->to)) {
        struct fit_pair p = fit_of(&a, &whole, &whole);
        f->out[2 * i] = (real)p.a;
        f->out[2 * i + 1] = (real)p.b;
    } else {
        apply(j, i, &a, turned, y, line, &whole);
    }
}

void cpu_norm_fit(struct ops *o, struct tensor x, int n, const struct norm_fit *f)
{
    int64_t rows = x.rows / n, most = rows > x.cols ? rows : x.cols, threads = cpu_threads(o);
    struct job job = { .x = x,
                       .f = f,
                       .rows = rows,
                       .y = cpu_scratch(o, 0, threads * x.cols),
                       .line =
                           cpu_scratch_bytes(o, 1, (size_t)(threads * most) * sizeof *job.line) };

    assert(rows * n == x.rows && is_real(x));
    assert(!f->y.data || tensor_count(f->y) == tensor_count(x));
    assert(!f->low.data || (f->y.dtype == DT_BF16 && f->low.dtype == DT_U16));
    if (!cpu_failed(o))
        cpu_split(o, n, 1, one_matrix, &job);
}
