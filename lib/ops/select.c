/* select.c - the lines of a matrix that have most to move (optimizers.md 4.7). */
#include "ops/cpu.h"

struct job {
    struct tensor x, mom;
    const bool *turned;
    int64_t rows;
    real share, decay;
    double *size; /* (max(rows, cols)) of each thread */
};

static void one_matrix(void *arg, int64_t i, int64_t n, int thread)
{
    const struct job *j = arg;
    int64_t rows = j->rows, cols = j->x.cols, most = rows > cols ? rows : cols;
    bool columns = rows > cols || (rows == cols && j->turned && j->turned[i]);
    int64_t lines = columns ? cols : rows, length = columns ? rows : cols;
    int64_t step = columns ? cols : 1,
            kept = (int64_t)ceil((double)j->share * (double)lines - 1e-6);
    real *x = (real *)j->x.data + i * rows * cols, *m = (real *)j->mom.data + i * rows * cols;
    double *size = j->size + thread * most;

    (void)n;
    for (int64_t k = 0; k < lines; k++) {
        const real *line = m + k * (columns ? 1 : cols);
        size[k] = 0;
        for (int64_t e = 0; e < length; e++)
            size[k] += fabs((double)line[e * step]);
    }
    for (int64_t k = 0; k < lines; k++) {
        int64_t at = k * (columns ? 1 : cols), before = 0;
        for (int64_t other = 0; other < lines; other++)
            before += size[other] > size[k] || (other < k && size[other] == size[k]);
        for (int64_t e = 0; e < length; e++) {
            x[at + e * step] = before < kept ? x[at + e * step] : 0;
            m[at + e * step] *= before < kept ? j->decay : 1;
        }
    }
}

void cpu_select(struct ops *o, struct tensor x, struct tensor mom, int n, const bool *turned,
                const real *number, const struct step_gate *gate)
{
    int64_t rows = x.rows / n, most = rows > x.cols ? rows : x.cols;
    struct job job = { .x = x,
                       .mom = mom,
                       .turned = turned,
                       .rows = rows,
                       .size = cpu_scratch_bytes(
                           o, 0, (size_t)(cpu_threads(o) * most) * sizeof(double)) };

    assert(rows * n == x.rows && is_real(x) && is_real(mom));
    if (cpu_failed(o) || (gate && gate->skip))
        return;
    job.share = number[0], job.decay = number[1];
    cpu_split(o, n, 1, one_matrix, &job);
}
