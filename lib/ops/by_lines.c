/* by_lines.c - rows and columns times a number each (optimizers.md 4.8). */
#include "ops/cpu.h"

struct job {
    struct tensor x, left, right;
    int64_t rows;
    const real *updates;
};

static void one_matrix(void *arg, int64_t i, int64_t n, int thread)
{
    const struct job *j = arg;
    int64_t rows = j->rows, cols = j->x.cols;
    real *x = (real *)j->x.data + i * rows * cols;
    const real *left = has(j->left) ? (const real *)j->left.data + i * rows : NULL;
    const real *right = has(j->right) ? (const real *)j->right.data + i * cols : NULL;

    (void)n, (void)thread;
    if (j->updates && j->updates[i] == 0)
        return;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
            x[r * cols + c] *= (left ? left[r] : 1) * (right ? right[c] : 1);
}

void cpu_by_lines(struct ops *o, struct tensor x, struct tensor left, struct tensor right, int n,
                  const real *updates)
{
    struct job job = { x, left, right, x.rows / n, updates };

    assert(is_real(x) && (!has(left) || tensor_count(left) >= x.rows) &&
           (!has(right) || tensor_count(right) >= n * x.cols));
    if (!cpu_failed(o))
        cpu_split(o, n, 1, one_matrix, &job);
}
