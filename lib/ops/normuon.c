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
static void keep_norm(real *scale, const struct norms *n, int64_t count, int64_t each, bool keeps)
{
    if (!keeps)
        return;
    real before = (real)sqrt((double)each * n->before);
    real after = (real)sqrt((double)each * n->after);
    real keep = before / (after > (real)1e-10 ? after : (real)1e-10);
    for (int64_t i = 0; i < count; i++)
        scale[i] *= keep;
}

/* scale <- what the rows are multiplied by. */
static void row_scales(real *scale, struct tensor q, struct tensor x, real *row, real blend,
                       bool keeps)
{
    struct norms n = { 0, 0 };

    for (int64_t i = 0; i < x.rows; i++) {
        real_read(row, x, i * x.cols, x.cols);
        scale[i] = scale_of(&n, q, i, real_dot(row, row, x.cols) / (real)x.cols, blend);
    }
    keep_norm(scale, &n, x.rows, x.cols, keeps);
}

/* scale <- what the columns are multiplied by. */
static void column_scales(real *scale, struct tensor q, struct tensor x, real *row, real blend,
                          bool keeps)
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
    keep_norm(scale, &n, x.cols, x.rows, keeps);
}

/* The new value of p, one rounding an operation. */
static inline real moved(real p, real d, real lr, real decay, unsigned how)
{
    bool shrinks = how & MUON_PLAIN || (how & MUON_STRICT ? d * p > 0 : d * p >= 0);
    if (how & MUON_BEHIND) {
        p = p - d * lr;
        return p - (shrinks ? p * decay * lr : 0);
    }
    return p - (shrinks ? p * decay * lr : 0) - d * lr;
}

/* Returns p moved at a rate of its matrix, and what that leaves times a factor. */
static inline real fitted(real p, real d, real lr, real decay, unsigned how, const real *fit)
{
    bool shrinks = how & MUON_PLAIN || (how & MUON_STRICT ? d * p > 0 : d * p >= 0);
    real before = shrinks && !(how & MUON_BEHIND) ? p * decay * lr : 0;
    p = (p - before - d * (lr * fit[0])) * fit[1];
    return p - (shrinks && how & MUON_BEHIND ? p * decay * lr : 0);
}

/* w is the high and mant the low half of an f32; cut, not rounded. */
static inline void update_halves(uint16_t *restrict w, uint16_t *restrict mant,
                                 const real *restrict u, int64_t n, real lr, real decay,
                                 unsigned how)
{
    for (int64_t i = 0; i < n; i++) {
        real p = f32_from_bits((uint32_t)w[i] << 16 | mant[i]);
        uint32_t bits = f32_bits((float)moved(p, u[i], lr, decay, how));
        w[i] = (uint16_t)(bits >> 16);
        mant[i] = (uint16_t)bits;
    }
}

static inline void update_whole(real *restrict w, const real *restrict u, int64_t n, real lr,
                                real decay, unsigned how)
{
    for (int64_t i = 0; i < n; i++)
        w[i] = moved(w[i], u[i], lr, decay, how);
}

struct job {
    struct tensor w, mant, q, x;
    int64_t rows; /* of a matrix */
    const float *lr_mul;
    const real *fit; /* two of each matrix, or NULL */
    real blend, lr, decay;
    unsigned how; /* MUON_ flags */
    unsigned variance; /* VARIANCE_ flags, of variance alone */
    real *row, *scale; /* (cols), (rows or cols) of each thread */
};

/* scale <- what matrix i's rows, or columns, are multiplied by. */
static void variance_of(const struct job *j, int64_t i, struct tensor x, real *row, real *scale)
{
    bool wide = j->rows < x.cols;
    int64_t n = wide ? x.cols : j->rows;
    struct tensor q = tensor_rows(tensor_shape(j->q, tensor_count(j->q), 1), i * n, n);
    (wide ? column_scales : row_scales)(scale, q, x, row, j->blend, !(j->variance & VARIANCE_FREE));
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

static void update_fitted(const struct job *j, int64_t at, const real *u, int64_t n, real lr,
                          const real *fit)
{
    uint16_t *half = (uint16_t *)j->w.data + at, *mant = (uint16_t *)j->mant.data + at;
    real *w = (real *)j->w.data + at;

    for (int64_t i = 0; i < n && j->w.dtype != DT_BF16; i++)
        w[i] = fitted(w[i], u[i], lr, j->decay, j->how, fit);
    for (int64_t i = 0; i < n && j->w.dtype == DT_BF16; i++) {
        real p = f32_from_bits((uint32_t)half[i] << 16 | mant[i]);
        uint32_t bits = f32_bits((float)fitted(p, u[i], lr, j->decay, j->how, fit));
        half[i] = (uint16_t)(bits >> 16);
        mant[i] = (uint16_t)bits;
    }
}

/* The loops of the built-in rules know their flags when they are compiled. */
static void update_row(const struct job *j, int64_t at, const real *u, int64_t n, real lr)
{
    uint16_t *half = (uint16_t *)j->w.data + at, *mant = (uint16_t *)j->mant.data + at;
    real *w = (real *)j->w.data + at;

    if (j->w.dtype == DT_BF16)
        switch (j->how) {
        case 0: update_halves(half, mant, u, n, lr, j->decay, 0); break;
        case MUON_PLAIN: update_halves(half, mant, u, n, lr, j->decay, MUON_PLAIN); break;
        default: update_halves(half, mant, u, n, lr, j->decay, j->how);
        }
    else
        update_whole(w, u, n, lr, j->decay, j->how);
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
        if (j->fit)
            update_fitted(j, at, row, cols, lr, j->fit + 2 * i);
        else
            update_row(j, at, row, cols, lr);
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
        scaled_row(row, x, r, scale, wide, j->variance & VARIANCE_ROUND);
        real_write(x, r * cols, row, cols, false);
    }
}

void cpu_variance(struct ops *o, struct tensor x, struct tensor q, int n, unsigned how,
                  const real *blend, const struct step_gate *gate)
{
    int64_t rows = x.rows / n, cols = x.cols;
    struct job job = { .q = q,
                       .x = x,
                       .rows = rows,
                       .variance = how,
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
                 struct tensor x, int n, const float *lr_mul, const real *blend, const real *fit,
                 unsigned how, const struct muon_step *m, const struct step_gate *gate)
{
    int64_t rows = x.rows / n, cols = x.cols;
    struct job job = { .w = w,
                       .mant = mant,
                       .q = q,
                       .x = x,
                       .rows = rows,
                       .lr_mul = lr_mul,
                       .fit = fit,
                       .how = how,
                       .row = cpu_scratch(o, 0, cpu_threads(o) * cols),
                       .scale = cpu_scratch(o, 1, cpu_threads(o) * (rows < cols ? cols : rows)) };

    assert(rows * n == x.rows && tensor_count(w) == tensor_count(x));
    assert(!q.data || tensor_count(q) == (rows < cols ? n * cols : x.rows));
    assert(w.dtype == DT_BF16 ? mant.dtype == DT_U16 : is_real(w));
    if (cpu_failed(o) || (gate && gate->skip))
        return;
    job.lr = m->lr, job.decay = m->decay, job.blend = q.data ? *blend : 0;
    cpu_split(o, n, 1, one_matrix, &job);
}
