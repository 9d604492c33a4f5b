/* polar.c - the polar factor of each matrix by composed odd quintics (orthogonalisation.md 2, 3).
 * Tall matrices work on X^T X, which is the same without a transposition.
 */
#include "ops/cpu.h"

/* One matrix at work, in numbers; what the dtype holds is rounded after each product. */
struct work {
    real *x, *y; /* (R,C): the matrix, B x */
    real *a, *b; /* (k,k): Gram matrix, b A + c A A */
    int rows, cols, k;
    bool bf16, twice; /* round to bf16; B x rounds before a x is added */
};

/* Numbers of w as its dtype holds them. */
static void round_as(const struct work *w, real *x, int64_t n)
{
    for (int64_t i = 0; w->bf16 && i < n; i++)
        x[i] = bf16_round((float)x[i]);
}

/* c (k,k) = x x^T, x (k,m); or x^T x, x (m,k), when of_columns. Bands of its lower triangle,
 * mirrored: both halves would have the same bits. */
static void gram(real *c, int k, const real *x, int m, bool of_columns)
{
    enum { BAND = 112 };

    for (int64_t i = 0; i < k; i += BAND) {
        int64_t rows = k - i < BAND ? k - i : BAND;
        real_gemm(NULL, of_columns, !of_columns, rows, i + rows, m, 1,
                  of_columns ? x + i : x + i * m, of_columns ? k : m, x, of_columns ? k : m, 0,
                  c + i * k, k);
    }
    for (int64_t i = 0; i < k; i++)
        for (int64_t j = 0; j < i; j++)
            c[j * k + i] = c[i * k + j];
}

/* Almost orthogonal layers (arXiv 2208.03160): x and A such that no singular value is above 1. An
 * element that is not finite makes all sums so, and then s is zero, and with it all of x. */
static void aol_scale(struct work *w)
{
    real *s = w->y; /* k numbers; y is free until the first product */

    for (int64_t i = 0; i < w->k; i++) {
        real sum = 0;
        for (int64_t j = 0; j < w->k; j++)
            sum += (real)fabs(w->a[i * w->k + j]);
        s[i] = isfinite(sum) ? 1 / real_sqrt(sum > (real)1e-7 ? sum : (real)1e-7) : 0;
    }
    for (int64_t i = 0; i < w->k; i++)
        for (int64_t j = 0; j < w->k; j++)
            w->a[i * w->k + j] = s[i] == 0 ? 0 : w->a[i * w->k + j] * (s[i] * s[j]);
    for (int64_t i = 0; i < w->rows; i++)
        for (int64_t j = 0; j < w->cols; j++) {
            real by = s[w->rows > w->cols ? j : i], *x = &w->x[i * w->cols + j];
            *x = by == 0 ? 0 : *x * by;
        }
    round_as(w, w->a, (int64_t)w->k * w->k);
    round_as(w, w->x, (int64_t)w->rows * w->cols);
}

static void iterate(struct work *w, const double coef[3], bool aol)
{
    int64_t squares = (int64_t)w->k * w->k, count = (int64_t)w->rows * w->cols;
    real a = (real)coef[0], b = (real)coef[1], c = (real)coef[2];
    bool tall = w->rows > w->cols;

    gram(w->a, w->k, w->x, tall ? w->rows : w->cols, tall);
    round_as(w, w->a, squares);
    if (aol)
        aol_scale(w);
    gram(w->b, w->k, w->a, w->k, false);
    for (int64_t i = 0; i < squares; i++)
        w->b[i] = b * w->a[i] + c * w->b[i];
    round_as(w, w->b, squares);
    real_gemm(NULL, false, false, w->rows, w->cols, w->k, 1, tall ? w->x : w->b, w->k,
              tall ? w->b : w->x, w->cols, 0, w->y, w->cols); /* tall: cols is k */
    if (w->twice)
        round_as(w, w->y, count);
    for (int64_t i = 0; i < count; i++)
        w->x[i] = a * w->x[i] + w->y[i];
    round_as(w, w->x, count);
}

struct job {
    struct tensor x;
    struct work w; /* of thread 0; scratch of the others behind it */
    const double (*coef)[3];
    int iters;
    bool aol;
};

static void one_matrix(void *arg, int64_t i, int64_t n, int thread)
{
    const struct job *j = arg;
    struct work w = j->w;
    int64_t count = (int64_t)w.rows * w.cols, squares = (int64_t)w.k * w.k;

    (void)n;
    w.x += thread * count;
    w.y += thread * count;
    w.a += thread * squares;
    w.b += thread * squares;
    real_read(w.x, j->x, i * count, count);
    for (int t = 0; t < j->iters; t++)
        iterate(&w, j->coef[t], j->aol && t == 0);
    real_write(j->x, i * count, w.x, count, false);
}

void cpu_polar(struct ops *o, struct tensor x, int n, const double (*coef)[3], int iters, bool aol)
{
    int64_t rows = x.rows / n, count = rows * x.cols, k = rows < x.cols ? rows : x.cols;
    int64_t threads = cpu_threads(o);
    struct work w = {
        .x = cpu_scratch(o, 0, threads * count),
        .y = cpu_scratch(o, 1, threads * count),
        .a = cpu_scratch(o, 2, threads * k * k),
        .b = cpu_scratch(o, 3, threads * k * k),
        .rows = (int)rows,
        .cols = (int)x.cols,
        .k = (int)k,
        .bf16 = x.dtype == DT_BF16,
        .twice = rows > 1024,
    };

    assert(rows * n == x.rows && rows <= INT32_MAX && x.cols <= INT32_MAX);
    if (cpu_failed(o))
        return;
    struct job job = { x, w, coef, iters, aol };
    cpu_split(o, n, 1, one_matrix, &job);
}
