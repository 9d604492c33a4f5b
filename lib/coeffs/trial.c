#include "coeffs/trial.h"

#include <cblas.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/dtype.h"
#include "base/grow.h"

/* The nearest matrix with orthonormal rows, u vt, less `factor` times what is in out. */
static void polar_factor(double *out, double factor, const double *u, const double *vt, int n,
                         int cols)
{
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, cols, n, 1, u, n, vt, cols, -factor,
                out, cols);
}

/* SVD of the scaled matrix m, into t; polar factors before and after AOL for the shift. */
static int decompose(struct trial *t, struct matrix *m, bool vectors)
{
    size_t squares = (size_t)m->rows * m->rows, count = (size_t)m->rows * m->cols;
    double *u = NULL, *vt = NULL, *polar = NULL;
    bool shifts = t->aol && vectors;
    int rc = 0;
    if (vectors) {
        u = malloc(squares * sizeof *u);
        vt = malloc(count * sizeof *vt);
        polar = malloc(count * sizeof *polar);
        t->u = malloc(squares * sizeof *t->u);
        t->vt = malloc(count * sizeof *t->vt);
        if (!u || !vt || !polar || !t->u || !t->vt)
            rc = err_memory();
    }
    if (!rc && shifts && !(rc = matrix_svd(m, t->x, u, vt)))
        polar_factor(polar, 0, u, vt, m->rows, m->cols);
    if (!rc && t->aol)
        rc = matrix_aol(m);
    if (!rc)
        rc = matrix_svd(m, t->x, u, vt);
    if (!rc && shifts) {
        polar_factor(polar, 1, u, vt, m->rows, m->cols);
        t->shift = cblas_dnrm2((int)count, polar, 1) / sqrt(m->rows);
    }
    for (size_t i = 0; !rc && vectors && i < squares; i++)
        t->u[i] = (float)u[i];
    for (size_t i = 0; !rc && vectors && i < count; i++)
        t->vt[i] = (float)vt[i];
    free(u);
    free(vt);
    free(polar);
    return rc;
}

int trial_of_matrix(struct trial *t, const struct matrix *m, const char *name, int flags)
{
    size_t count = (size_t)m->rows * m->cols;
    double norm = cblas_dnrm2((int)count, m->x, 1), scale = 1 / (1.02 * norm + 1e-6);
    struct matrix copy = { m->rows, m->cols, NULL };
    memset(t, 0, sizeof *t);
    snprintf(t->name, sizeof t->name, "%s", name);
    if (!(norm > 0 && isfinite(norm)))
        return err_set(GPT_INPUT, "%s: expected a finite matrix that is not zero, found norm %g",
                       name, norm);
    t->rows = t->n = m->rows;
    t->cols = m->cols;
    t->aol = flags & TRIAL_AOL;
    t->shift = t->aol ? NAN : 0;
    t->x = malloc((size_t)t->n * sizeof *t->x);
    t->input = malloc(count * sizeof *t->input);
    copy.x = malloc(count * sizeof *copy.x);
    int rc = t->x && t->input && copy.x ? 0 : err_memory();
    for (size_t i = 0; !rc && i < count; i++) {
        copy.x[i] = m->x[i] * scale;
        t->input[i] = (float)copy.x[i];
    }
    if (!rc)
        rc = decompose(t, &copy, flags & TRIAL_VECTORS);
    matrix_release(&copy);
    while (!rc && t->n && !(t->x[t->n - 1] > 1e-12)) /* of a singular matrix: no direction */
        t->n--;
    if (rc)
        trial_release(t);
    return rc;
}

/* Singular values scaled by their norm; no matrix. */
static int scaled_only(struct trial *t, const struct svals *v)
{
    double norm = cblas_dnrm2(v->n, v->sigma, 1), scale = 1 / (1.02 * norm + 1e-6);
    memset(t, 0, sizeof *t);
    snprintf(t->name, sizeof t->name, "%s", v->name);
    t->rows = t->cols = t->n = v->n;
    if (!(norm > 0 && isfinite(norm)))
        return err_set(GPT_INPUT, "%s: expected singular values with a finite norm", v->name);
    if (!(t->x = malloc((size_t)v->n * sizeof *t->x)))
        return err_memory();
    for (int i = 0; i < v->n; i++)
        t->x[i] = v->sigma[i] * scale;
    return 0;
}

int trial_of_svals(struct trial *t, const struct svals *v, int rows, int cols, int flags,
                   uint64_t seed, uint64_t index)
{
    struct matrix m;
    if (!flags)
        return scaled_only(t, v);
    int all = v->n + v->zeros;
    if (v->rows) {
        rows = v->rows;
        cols = v->cols;
    } else { /* the ratio of the shape, with as many values */
        int less = rows < cols ? rows : cols, more = rows < cols ? cols : rows;
        if ((double)all * more / less > SHAPE_MAX)
            return err_set(GPT_INPUT,
                           "%s: %d singular values in the shape %dx%d: expected at most "
                           "%d columns",
                           v->name, all, rows, cols, SHAPE_MAX);
        cols = (int)((double)all * more / less);
        rows = all;
    }
    int rc = matrix_with_svals(&m, rows, cols, v->sigma, v->n, seed, index);
    if (rc)
        return rc;
    rc = trial_of_matrix(t, &m, v->name, flags);
    matrix_release(&m);
    if (!rc && !t->aol)
        t->n = v->n; /* what rounding made of zeros is not asked for */
    return rc;
}

void trial_release(struct trial *t)
{
    free(t->x);
    free(t->input);
    free(t->u);
    free(t->vt);
    memset(t, 0, sizeof *t);
}

int trials_add(struct trials *l, const struct trial *t)
{
    if (grow_one(&l->v, l->n, sizeof *l->v)) {
        struct trial gone = *t;
        trial_release(&gone);
        return GPT_SYSTEM;
    }
    l->v[l->n++] = *t;
    return 0;
}

void trials_release(struct trials *l)
{
    for (int i = 0; i < l->n; i++)
        trial_release(&l->v[i]);
    free(l->v);
    *l = (struct trials){ 0 };
}

/* --- the iteration in bf16, rounded where the optimizer's kernels round (orthogonalisation.md 3).
 * Products are f32 sums of bf16 factors, as tensor cores make them. --- */

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
