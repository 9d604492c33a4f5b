/* kl_scales.c - roots of a side's inverse eigenvalues, as klsoap estimates them (optimizers.md 4.8). */
#include "ops/cpu.h"

struct job {
    struct tensor e, x;
    int64_t rows;
    bool columns;
    const real *number, *updates;
};

static void one_matrix(void *arg, int64_t i, int64_t n, int thread)
{
    const struct job *j = arg;
    int64_t rows = j->rows, cols = j->x.cols, lines = j->columns ? cols : rows;
    int64_t length = j->columns ? rows : cols;
    const real *x = (const real *)j->x.data + i * rows * cols;
    real *e = (real *)j->e.data + i * lines;

    (void)n, (void)thread;
    for (int64_t a = 0; a < lines; a++) {
        double sum = 0;
        for (int64_t b = 0; b < length; b++) {
            double at = (double)x[j->columns ? b * cols + a : a * cols + b];
            sum += at * at;
        }
        double value = 1 / ((double)e[a] * (double)e[a]);
        if (!isfinite(value))
            value = 0;
        value += (double)j->number[0] * (sum / (double)length - value);
        e[a] = (real)(j->updates[i] == 0 ? 1 / sqrt((double)j->number[2])
                                         : fmin(1 / sqrt(fmax(value, 1e-30)), 4000));
    }
}

void cpu_kl_scales(struct ops *o, struct tensor e, struct tensor x, int n, bool columns,
                   const real *number, const real *updates, const struct step_gate *gate)
{
    struct job job = { e, x, x.rows / n, columns, number, updates };

    assert(tensor_count(e) == n * (columns ? x.cols : job.rows) && is_real(e) && is_real(x));
    if (!cpu_failed(o) && !(gate && gate->skip))
        cpu_split(o, n, 1, one_matrix, &job);
}
