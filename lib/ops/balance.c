/* balance.c - lines of a matrix's long side, scaled to norms that its polar factor makes equal
 * (optimizers.md 4.7).
 */
#include "ops/cpu.h"

struct job {
    struct tensor x, g, d;
    int64_t rows;
    bool first;
    double by;
};

/* One line: `stride` apart. */
static void one_line(const struct job *j, real *x, const real *g, real *d, int64_t length,
                     int64_t stride, double share)
{
    double squares = 0, scale;

    for (int64_t k = 0; k < length; k++) {
        double v = j->first ? g[k * stride] : x[k * stride];
        squares += v * v;
    }
    if (j->first) {
        scale = sqrt(squares);
        *d = (real)(1 / (scale > 1e-7 ? scale : 1e-7));
    } else {
        *d *= (real)pow(share / (squares > 1e-14 ? squares : 1e-14), j->by);
    }
    for (int64_t k = 0; k < length; k++)
        x[k * stride] = *d * g[k * stride];
}

static void one_matrix(void *arg, int64_t i, int64_t n, int thread)
{
    const struct job *j = arg;
    int64_t rows = j->rows, cols = j->x.cols, at = i * rows * cols;
    bool tall = rows > cols;
    int64_t lines = tall ? rows : cols, length = tall ? cols : rows;
    real *x = (real *)j->x.data + at, *d = (real *)j->d.data + i * lines;
    const real *g = (const real *)j->g.data + at;

    (void)n, (void)thread;
    for (int64_t k = 0; k < lines; k++)
        one_line(j, x + k * (tall ? cols : 1), g + k * (tall ? cols : 1), d + k, length,
                 tall ? 1 : cols, (double)length / (double)lines);
}

void cpu_balance(struct ops *o, struct tensor x, struct tensor g, struct tensor d, int n,
                 bool first, double by)
{
    int64_t rows = x.rows / n;
    struct job job = { x, g, d, rows, first, by };

    assert(rows * n == x.rows && tensor_count(g) == tensor_count(x));
    assert(is_real(x) && is_real(g) && is_real(d));
    assert(tensor_count(d) == n * (rows > x.cols ? rows : x.cols));
    if (!cpu_failed(o))
        cpu_split(o, n, 1, one_matrix, &job);
}
