/* sinkhorn.c - an update whose squares have equal sums in the covariances' eigenvectors (optimizers.md 4.8). */
#include <string.h>
#include "ops/cpu.h"
#include "ops/eigen.h"

struct job {
    struct ops *o;
    struct tensor x, left, right;
    int64_t rows;
    const bool *turned;
    const real *number;
    double *work; /* (2 most most + 2 rows cols) of each thread */
};

static int vectors(double *a, const real *s, int64_t k)
{
    double value[k];
    for (int64_t e = 0; e < k * k; e++)
        a[e] = (double)s[e] + (e % (k + 1) == 0 ? 1e-6 : 0);
    return eigen(a, value, (int)k);
}

/* Makes a number for each line of a (cols,rows) by columns: 1 / n over the sums of its squares times the others'. */
static void scale_lines(double *to, const double *a, const double *others, int64_t rows,
                        int64_t cols, bool of_rows)
{
    int64_t n = of_rows ? rows : cols, m = of_rows ? cols : rows;
    for (int64_t i = 0; i < n; i++) {
        double sum = 0;
        for (int64_t e = 0; e < m; e++) {
            double x = a[of_rows ? i * cols + e : e * cols + i];
            sum += (x * x + 1e-8) * others[e];
        }
        to[i] = 1 / (double)n / (sum + 1e-8);
    }
}

static void one_matrix(void *arg, int64_t i, int64_t n, int thread)
{
    const struct job *j = arg;
    int64_t rows = j->rows, cols = j->x.cols, most = rows > cols ? rows : cols;
    int r = (int)rows, c = (int)cols, many = (int)j->number[1];
    bool turned = j->turned && j->turned[i];
    real *x = (real *)j->x.data + i * rows * cols;
    double *u = j->work + thread * (2 * most * most + 2 * rows * cols), *v = u + most * most;
    double *a = v + most * most, *b = a + rows * cols, left[rows], right[cols], squares = 0;

    (void)n;
    for (int64_t e = 0; e < rows * cols; e++)
        b[e] = (double)x[e];
    if (vectors(u, (const real *)j->left.data + i * rows * rows, rows) ||
        vectors(v, (const real *)j->right.data + i * cols * cols, cols)) {
        cpu_fail(j->o, GPT_SYSTEM, "eigenvectors of a covariance were not found");
        return;
    }
    /* By columns all is transposed: A' = V' x' U. */
    times(a, b, false, u, false, c, r, r);
    times(b, v, true, a, false, c, r, c);
    for (int64_t e = 0; e < rows; e++)
        left[e] = 1;
    for (int64_t e = 0; e < cols; e++)
        right[e] = 1;
    for (int k = 0; k < 2 * many; k++) {
        bool of_rows = (k % 2 == 0) != turned;
        scale_lines(of_rows ? left : right, b, of_rows ? right : left, rows, cols, of_rows);
    }
    for (int64_t e = 0; e < rows * cols; e++)
        b[e] *= sqrt(left[e / cols] * right[e % cols]);
    times(a, v, false, b, false, c, r, c);
    times(b, a, false, u, true, c, r, r);
    for (int64_t e = 0; e < rows * cols; e++)
        squares += b[e] * b[e];
    double tall = (double)(turned ? cols : rows) / (double)(turned ? rows : cols);
    double size = sqrt((double)(rows < cols ? rows : cols) * fmax(1, tall)) / sqrt(squares);
    for (int64_t e = 0; e < rows * cols; e++)
        x[e] = squares > 0 ? (real)(b[e] * size) : 0;
}

void cpu_sinkhorn(struct ops *o, struct tensor x, struct tensor left, struct tensor right, int n,
                  const bool *turned, const real *number)
{
    int64_t rows = x.rows / n, most = rows > x.cols ? rows : x.cols;
    int64_t each = 2 * most * most + 2 * rows * x.cols;
    struct job job = { o, x, left, right, rows, turned, number, NULL };

    assert(left.rows == n * rows && right.rows == n * x.cols && is_real(x));
    job.work = cpu_scratch_bytes(o, 0, (size_t)(cpu_threads(o) * each) * sizeof(double));
    if (!cpu_failed(o))
        cpu_split(o, n, 1, one_matrix, &job);
}
