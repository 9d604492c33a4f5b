/* spectral_norm.c - a matrix's largest singular value by five power iterations (optimizers.md 4.7). */
#include "ops/cpu.h"

enum { ITERATIONS = 5 };

struct job {
    real *out;
    struct tensor y;
    const bool *turned;
    int64_t rows;
    double *vector; /* (rows + cols) of each thread */
};

/* to = y from, or y' from; to length 1, and returns the length that it had. */
static double times(double *to, const real *y, int64_t rows, int64_t cols, const double *from,
                    bool of_columns)
{
    double squares = 0;
    int64_t n = of_columns ? cols : rows;

    for (int64_t i = 0; i < n; i++)
        to[i] = 0;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
            to[of_columns ? c : r] += (double)y[r * cols + c] * from[of_columns ? r : c];
    for (int64_t i = 0; i < n; i++)
        squares += to[i] * to[i];
    double length = sqrt(squares), divisor = length > 1e-10 ? length : 1e-10;
    for (int64_t i = 0; i < n; i++)
        to[i] /= divisor;
    return length;
}

static void one_matrix(void *arg, int64_t i, int64_t n, int thread)
{
    const struct job *j = arg;
    int64_t rows = j->rows, cols = j->y.cols;
    const real *y = (const real *)j->y.data + i * rows * cols;
    double *row = j->vector + thread * (rows + cols), *col = row + rows;
    bool turned = j->turned && j->turned[i];
    double *w = turned ? row : col, *z = turned ? col : row;
    int64_t length = turned ? rows : cols;

    (void)n;
    for (int64_t k = 0; k < length; k++)
        w[k] = 1 / sqrt((double)length);
    for (int k = 0; k < ITERATIONS; k++) {
        times(z, y, rows, cols, w, turned);
        times(w, y, rows, cols, z, !turned);
    }
    j->out[i] = (real)times(z, y, rows, cols, w, turned);
}

void cpu_spectral_norm(struct ops *o, real *out, struct tensor y, int n, const bool *turned)
{
    int64_t rows = y.rows / n;
    struct job job = { out, y, turned, rows,
                       cpu_scratch_bytes(
                           o, 0, (size_t)(cpu_threads(o) * (rows + y.cols)) * sizeof(double)) };

    assert(rows * n == y.rows && is_real(y));
    if (!cpu_failed(o))
        cpu_split(o, n, 1, one_matrix, &job);
}
