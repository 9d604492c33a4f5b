/* bf16.c - the iteration on a matrix, rounded where the optimizer's kernels round
 * (orthogonalisation.md 3). Products are f32 sums of bf16 factors, as tensor cores make them.
 */
#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/dtype.h"
#include "coeffs/trial.h"

struct work {
    float *x, *y, *a, *b; /* rows x cols twice, rows x rows twice */
    int n, m;
};

static void round_all(float *x, size_t count)
{
    for (size_t i = 0; i < count; i++)
        x[i] = bf16_round(x[i]);
}

/* c (n,n) = x x^T, x (n,m): one triangle and its mirror. */
static void gram(float *c, const float *x, int n, int m)
{
    cblas_ssyrk(CblasRowMajor, CblasLower, CblasNoTrans, n, m, 1, x, m, 0, c, n);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++)
            c[(size_t)j * n + i] = c[(size_t)i * n + j];
}

static void aol(struct work *w)
{
    float *s = w->y; /* free until the first product */
    for (int i = 0; i < w->n; i++) {
        float sum = cblas_sasum(w->n, w->a + (size_t)i * w->n, 1);
        s[i] = 1 / sqrtf(sum > 1e-7f ? sum : 1e-7f);
    }
    for (int i = 0; i < w->n; i++)
        for (int j = 0; j < w->n; j++)
            w->a[(size_t)i * w->n + j] *= s[i] * s[j];
    for (int i = 0; i < w->n; i++)
        cblas_sscal(w->m, s[i], w->x + (size_t)i * w->m, 1);
    round_all(w->a, (size_t)w->n * w->n);
    round_all(w->x, (size_t)w->n * w->m);
}

static void iterate(struct work *w, const double *row, bool first_aol)
{
    size_t squares = (size_t)w->n * w->n, count = (size_t)w->n * w->m;
    float a = (float)row[0], b = (float)row[1], c = (float)row[2];
    gram(w->a, w->x, w->n, w->m);
    round_all(w->a, squares);
    if (first_aol)
        aol(w);
    gram(w->b, w->a, w->n, w->n);
    for (size_t i = 0; i < squares; i++)
        w->b[i] = bf16_round(b * w->a[i] + c * w->b[i]);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, w->n, w->m, w->n, 1, w->b, w->n, w->x,
                w->m, 0, w->y, w->m);
    if (w->m > 1024)
        round_all(w->y, count);
    for (size_t i = 0; i < count; i++)
        w->x[i] = bf16_round(a * w->x[i] + w->y[i]);
}

/* X v_i, by columns, against u_i. */
static void measure(const struct trial *t, struct work *w, double *y, double *error)
{
    int n = w->n;
    float *xv = w->b;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, n, n, w->m, 1, w->x, w->m, t->vt, w->m, 0,
                xv, n);
    for (int i = 0; i < t->n; i++) {
        double along = 0, off = 0;
        for (int r = 0; r < n; r++) {
            double u = t->u[(size_t)r * n + i], d = xv[(size_t)r * n + i] - u;
            along += u * xv[(size_t)r * n + i];
            off += d * d;
        }
        if (y)
            y[i] = along;
        error[i] = sqrt(off);
    }
}

int trial_bf16(const struct trial *t, const struct coeffs *c, double *y, double *error)
{
    size_t squares = (size_t)t->rows * t->rows, count = (size_t)t->rows * t->cols;
    if (c->terms > 3)
        return err_set(GPT_INPUT, "%s: rows of four numbers have no bf16 iteration", c->name);
    float *all = malloc((2 * squares + 2 * count) * sizeof *all);
    if (!all)
        return err_memory();
    struct work w = {
        all, all + count, all + 2 * count, all + 2 * count + squares, t->rows, t->cols
    };
    memcpy(w.x, t->input, count * sizeof *w.x);
    round_all(w.x, count);
    for (int i = 0; i < c->n; i++)
        iterate(&w, c->row[i], t->aol && i == 0);
    measure(t, &w, y, error);
    free(all);
    return 0;
}
