/* normuon.c - row-wise variance, cautious decay, and the weight with its low bits
 * (optimizers.md 4.3, 4.4).
 *
 * One statistic a row, or of matrices wider than tall one a column.
 */
#include <string.h>
#include "ops/cpu.h"

/* Sums of the mean squares of rows, or of columns, before and after they are scaled. */
struct norms {
    double before, after;
};

/* q[i] <- its average with a mean square; returns the factor that goes with it. */
static real scale_of(struct norms *n, struct tensor q, int64_t i, real mean, real blend)
{
    real second = real_get(q, i);
    second += blend * (mean - second);
    real_set(q, i, second);
    real scale = 1 / real_sqrt(second > (real)1e-10 ? second : (real)1e-10);
    n->before += mean;
    n->after += mean * scale * scale;
    return scale;
}

/* The Frobenius norm of the matrix stays: of count rows, or columns, of `each` numbers. */
static void keep_norm(real *scale, const struct norms *n, int64_t count, int64_t each)
{
    real before = (real)sqrt((double)each * n->before);
    real after = (real)sqrt((double)each * n->after);
    real keep = before / (after > (real)1e-10 ? after : (real)1e-10);
    for (int64_t i = 0; i < count; i++)
        scale[i] *= keep;
}

/* scale <- what the rows are multiplied by. */
static void row_scales(real *scale, struct tensor q, struct tensor x, real *row, real blend)
{
    struct norms n = { 0, 0 };

    for (int64_t i = 0; i < x.rows; i++) {
        real_read(row, x, i * x.cols, x.cols);
        scale[i] = scale_of(&n, q, i, real_dot(row, row, x.cols) / (real)x.cols, blend);
    }
    keep_norm(scale, &n, x.rows, x.cols);
}

/* scale <- what the columns are multiplied by. */
static void column_scales(real *scale, struct tensor q, struct tensor x, real *row, real blend)
{
    struct norms n = { 0, 0 };

    memset(scale, 0, (size_t)x.cols * sizeof *scale);
    for (int64_t i = 0; i < x.rows; i++) {
        real_read(row, x, i * x.cols, x.cols);
        for (int64_t j = 0; j < x.cols; j++)
            scale[j] += row[j] * row[j];
    }
    for (int64_t j = 0; j < x.cols; j++)
        scale[j] = scale_of(&n, q, j, scale[j] / (real)x.rows, blend);
    keep_norm(scale, &n, x.cols, x.rows);
}

/* w is the high and mant the low half of an f32; cut, not rounded. */
static void update_halves(uint16_t *restrict w, uint16_t *restrict mant, const real *restrict u,
                          int64_t n, float lr, float decay, bool plain)
{
    for (int64_t i = 0; i < n; i++) {
        float p = f32_from_bits((uint32_t)w[i] << 16 | mant[i]), d = (float)u[i];
        float shrink = plain || d * p >= 0 ? p * decay * lr : 0;
        uint32_t bits = f32_bits(p - shrink - d * lr);
        w[i] = (uint16_t)(bits >> 16);
        mant[i] = (uint16_t)bits;
    }
}

static void update_whole(real *restrict w, const real *restrict u, int64_t n, real lr, real decay,
                         bool plain)
{
    for (int64_t i = 0; i < n; i++) {
        real shrink = plain || u[i] * w[i] >= 0 ? w[i] * decay * lr : 0;
        w[i] = w[i] - shrink - u[i] * lr;
    }
}

struct job {
    struct tensor w, mant, q, x;
    int64_t rows; /* of a matrix */
    const float *lr_mul;
    real blend, lr, decay;
    bool plain; /* variance alone: round */
    real *row, *scale; /* (cols), (rows or cols) of each thread */
};

/* scale <- what matrix i's rows, or columns, are multiplied by. */
static void variance_of(const struct job *j, int64_t i, struct tensor x, real *row, real *scale)
{
    bool wide = j->rows < x.cols;
    int64_t n = wide ? x.cols : j->rows;
    struct tensor q = tensor_rows(tensor_shape(j->q, tensor_count(j->q), 1), i * n, n);
    (wide ? column_scales : row_scales)(scale, q, x, row, j->blend);
}

/* Row r of x, scaled, rounded to bf16 where asked. */
static void scaled_row(real *row, struct tensor x, int64_t r, const real *scale, bool wide,
                       bool round)
{
    real_read(row, x, r * x.cols, x.cols);
    for (int64_t c = 0; c < x.cols; c++)
        row[c] *= scale[wide ? c : r];
    for (int64_t c = 0; round && c < x.cols; c++)
        row[c] = bf16_round((float)row[c]);
}

static void one_matrix(void *arg, int64_t i, int64_t n, int thread)
{
    const struct job *j = arg;
    int64_t rows = j->rows, cols = j->x.cols;
    bool wide = rows < cols;
    real *row = j->row + thread * cols, *scale = j->scale + thread * (wide ? cols : rows);
    real lr = j->lr * j->lr_mul[i];
    struct tensor x = tensor_rows(j->x, i * rows, rows);

    (void)n;
    if (j->q.data)
        variance_of(j, i, x, row, scale);
    for (int64_t r = 0; r < rows; r++) {
        int64_t at = (i * rows + r) * cols;
        if (j->q.data)
            scaled_row(row, x, r, scale, wide, x.dtype == DT_BF16);
        else
            real_read(row, x, r * cols, cols);
        if (j->w.dtype == DT_BF16)
            update_halves((uint16_t *)j->w.data + at, (uint16_t *)j->mant.data + at, row, cols,
                          (float)lr, (float)j->decay, j->plain);
        else
            update_whole((real *)j->w.data + at, row, cols, lr, j->decay, j->plain);
    }
}

static void scale_matrix(void *arg, int64_t i, int64_t n, int thread)
{
    const struct job *j = arg;
    int64_t rows = j->rows, cols = j->x.cols;
    bool wide = rows < cols;
    real *row = j->row + thread * cols, *scale = j->scale + thread * (wide ? cols : rows);
    struct tensor x = tensor_rows(j->x, i * rows, rows);

    (void)n;
    variance_of(j, i, x, row, scale);
    for (int64_t r = 0; r < rows; r++) {
        scaled_row(row, x, r, scale, wide, j->plain);
        real_write(x, r * cols, row, cols, false);
    }
}

void cpu_variance(struct ops *o, struct tensor x, struct tensor q, int n, bool round,
                  const real *blend, const struct step_gate *gate)
{
    int64_t rows = x.rows / n, cols = x.cols;
    struct job job = { .q = q,
                       .x = x,
                       .rows = rows,
                       .plain = round,
                       .row = cpu_scratch(o, 0, cpu_threads(o) * cols),
                       .scale = cpu_scratch(o, 1, cpu_threads(o) * (rows < cols ? cols : rows)) };

    assert(rows * n == x.rows && is_real(x));
    assert(tensor_count(q) == (rows < cols ? n * cols : x.rows));
    if (cpu_failed(o) || (gate && gate->skip))
        return;
    job.blend = *blend;
    cpu_split(o, n, 1, scale_matrix, &job);
}

void cpu_normuon(struct ops *o, struct tensor w, struct tensor mant, struct tensor q,
                 struct tensor x, int n, const float *lr_mul, const real *blend, bool plain,
                 const struct muon_step *m, const struct step_gate *gate)
{
    int64_t rows = x.rows / n, cols = x.cols;
    struct job job = {
        w,
        mant,
        q,
        x,
        rows,
        lr_mul,
        0,
        0,
        0,
        plain,
        cpu_scratch(o, 0, cpu_threads(o) * cols),
        cpu_scratch(o, 1, cpu_threads(o) * (rows < cols ? cols : rows)),
    };

    assert(rows * n == x.rows && tensor_count(w) == tensor_count(x));
    assert(!q.data || tensor_count(q) == (rows < cols ? n * cols : x.rows));
    assert(w.dtype == DT_BF16 ? mant.dtype == DT_U16 : is_real(w));
    if (cpu_failed(o) || (gate && gate->skip))
        return;
    job.lr = m->lr, job.decay = m->decay, job.blend = q.data ? *blend : 0;
    cpu_split(o, n, 1, one_matrix, &job);
}
