/* polar.c - the polar factor of each matrix by composed odd quintics (orthogonalisation.md 2, 3),
 * directly or in the Gram form. Tall matrices work on X^T X, which is the same without a
 * transposition.
 */
#include "ops/cpu.h"

/* One matrix at work, in numbers; what the dtype holds is rounded after each product. */
struct work {
    real *x, *y; /* (R,C): the matrix, B x */
    real *a, *b; /* (k,k): Gram matrix, b A + c A A */
    real *q, *p; /* (k,k): of the Gram form, what x is to be multiplied by, and a product */
    int rows, cols, k;
    bool bf16, twice; /* round to bf16; B x rounds before a x is added */
    bool f16; /* the Gram form: its small matrices round to f16 */
    real scale; /* a holds scale X X^T */
};

static void round_bf16(const struct work *w, real *x, int64_t n)
{
    for (int64_t i = 0; w->bf16 && i < n; i++)
        x[i] = bf16_round((float)x[i]);
}

static void round_x(const struct work *w, real *x) { round_bf16(w, x, (int64_t)w->rows * w->cols); }

/* A small matrix. */
static void round_small(const struct work *w, real *x)
{
    int64_t squares = (int64_t)w->k * w->k;

    if (!w->f16)
        round_bf16(w, x, squares);
    for (int64_t i = 0; w->f16 && i < squares; i++)
        x[i] = f16_to_f32(f16_from_f32((float)x[i]));
}

/* c (k,k) = op(x) op(y), a symmetric product of m terms: bands of its lower triangle, mirrored, as
 * both halves would have the same bits, or nearly. x is (k,m), or (m,k) when turned; y (m,k), or
 * (k,m) when y_turned. */
static void symmetric(real *c, int k, const real *x, bool turned, const real *y, bool y_turned,
                      int m)
{
    enum { BAND = 64 };

    for (int64_t i = 0; i < k; i += BAND) {
        int64_t rows = k - i < BAND ? k - i : BAND;
        real_gemm_here(false, turned, y_turned, rows, i + rows, m, 1, turned ? x + i : x + i * m,
                       turned ? k : m, y, y_turned ? m : k, 0, c + i * k, k);
    }
    for (int64_t i = 0; i < k; i++)
        for (int64_t j = 0; j < i; j++)
            c[j * k + i] = c[i * k + j];
}

/* x x^T, x (k,m); or x^T x, x (m,k), when of_columns. */
static void gram(real *c, int k, const real *x, int m, bool of_columns)
{
    symmetric(c, k, x, of_columns, x, !of_columns, m);
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
        sum /= w->scale;
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
    round_small(w, w->a);
    round_x(w, w->x);
}

static void gram_of_x(struct work *w, bool aol)
{
    bool tall = w->rows > w->cols;
    int64_t squares = (int64_t)w->k * w->k;

    gram(w->a, w->k, w->x, tall ? w->rows : w->cols, tall);
    for (int64_t i = 0; w->scale != 1 && i < squares; i++)
        w->a[i] *= w->scale;
    round_small(w, w->a);
    if (aol)
        aol_scale(w);
}

/* b = (diagonal) I + b A + c A A, of the A that a holds times scale. */
static void quadratic(struct work *w, const double coef[3], real diagonal)
{
    int64_t squares = (int64_t)w->k * w->k;
    real b = (real)coef[1] / w->scale, c = (real)coef[2] / (w->scale * w->scale);

    gram(w->b, w->k, w->a, w->k, false);
    for (int64_t i = 0; i < squares; i++)
        w->b[i] = b * w->a[i] + c * w->b[i];
    for (int64_t i = 0; i < w->k && diagonal != 0; i++)
        w->b[i * (w->k + 1)] += diagonal;
    round_small(w, w->b);
}

/* y = left x, or x left of a tall x. */
static void times_x(struct work *w, const real *left)
{
    bool tall = w->rows > w->cols;

    real_gemm_here(false, false, false, w->rows, w->cols, w->k, 1, tall ? w->x : left, w->k,
                   tall ? left : w->x, w->cols, 0, w->y, w->cols); /* tall: cols is k */
}

static void iterate(struct work *w, const double coef[3], bool aol)
{
    int64_t count = (int64_t)w->rows * w->cols;
    real a = (real)coef[0];

    gram_of_x(w, aol);
    quadratic(w, coef, 0);
    times_x(w, w->b);
    if (w->twice)
        round_x(w, w->y);
    for (int64_t i = 0; i < count; i++)
        w->x[i] = a * w->x[i] + w->y[i];
    round_x(w, w->x);
}

/* -- the Gram form ------------------------------------------------------------------------- */

static void swap(real **a, real **b)
{
    real *t = *a;
    *a = *b;
    *b = t;
}

/* to = left right of polynomials of A: symmetric. */
static void small_product(struct work *w, real *to, const real *left, const real *right)
{
    symmetric(to, w->k, left, false, right, false, w->k);
    round_small(w, to);
}

/* W = a I + b A + c A A; Q <- Q W; and while A is needed further, A <- W (A W). */
static void iterate_gram(struct work *w, const double coef[3], bool first, bool last)
{
    quadratic(w, coef, (real)coef[0]);
    if (!last) {
        small_product(w, w->p, w->a, w->b);
        small_product(w, w->a, w->b, w->p);
    }
    if (first) {
        swap(&w->q, &w->b);
    } else {
        small_product(w, w->p, w->q, w->b);
        swap(&w->q, &w->p);
    }
}

static void all_rows(struct work *w, const double (*coef)[3], int iters, unsigned how)
{
    for (int t = 0; t < iters; t++) {
        bool aol = how & POLAR_AOL && t == 0;
        bool first = polar_begins(how, t), last = t + 1 == iters || polar_begins(how, t + 1);

        if (!(how & POLAR_GRAM)) {
            iterate(w, coef[t], aol);
            continue;
        }
        if (first)
            gram_of_x(w, aol);
        iterate_gram(w, coef[t], first, last);
        if (last) {
            round_bf16(w, w->q, (int64_t)w->k * w->k);
            times_x(w, w->q);
            round_x(w, w->y);
            swap(&w->x, &w->y);
        }
    }
}

struct job {
    struct tensor x;
    struct work w; /* of thread 0; scratch of the others behind it */
    const double (*coef)[3];
    int iters;
    unsigned how;
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
    if (j->how & POLAR_GRAM) {
        w.q += thread * squares;
        w.p += thread * squares;
    }
    real_read(w.x, j->x, i * count, count);
    all_rows(&w, j->coef, j->iters, j->how);
    real_write(j->x, i * count, w.x, count, false);
}

void cpu_polar(struct ops *o, struct tensor x, int n, const double (*coef)[3], int iters,
               unsigned how)
{
    int64_t rows = x.rows / n, count = rows * x.cols, k = rows < x.cols ? rows : x.cols;
    int64_t threads = cpu_threads(o);
    bool with_q = how & POLAR_GRAM;
    struct work w = {
        .x = cpu_scratch(o, 0, threads * count),
        .y = cpu_scratch(o, 1, threads * count),
        .a = cpu_scratch(o, 2, threads * k * k),
        .b = cpu_scratch(o, 3, threads * k * k),
        .q = with_q ? cpu_scratch(o, 4, threads * k * k) : NULL,
        .p = with_q ? cpu_scratch(o, 5, threads * k * k) : NULL,
        .rows = (int)rows,
        .cols = (int)x.cols,
        .k = (int)k,
        .bf16 = x.dtype == DT_BF16,
        .twice = rows > 1024,
        .f16 = with_q && x.dtype == DT_BF16,
        .scale = with_q && x.dtype == DT_BF16 ? POLAR_GRAM_SCALE : 1,
    };

    assert(rows * n == x.rows && rows <= INT32_MAX && x.cols <= INT32_MAX);
    if (cpu_failed(o))
        return;
    struct job job = { x, w, coef, iters, how };
    cpu_split(o, n, 1, one_matrix, &job);
}
