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

/* --- the iteration as it rounds (orthogonalisation.md 3). Products are f32 sums of rounded factors,
 * as tensor cores make them. --- */

struct work {
    float *x, *y; /* rows x cols */
    float *a, *b, *q, *p; /* rows x rows */
    int n, m;
    const struct trial_form *form;
    float scale; /* the Gram form's R holds scale X X^T */
};

static void round_as(enum dtype type, float *x, size_t count)
{
    for (size_t i = 0; i < count; i++)
        x[i] = type == DT_BF16 ? bf16_round(x[i]) : f16_to_f32(f16_from_f32(x[i]));
}

static void round_x(const struct work *w, float *x)
{
    round_as(w->form->x, x, (size_t)w->n * w->m);
}

static void round_small(const struct work *w, float *x)
{
    round_as(w->form->gram ? w->form->inner : w->form->x, x, (size_t)w->n * w->n);
}

static void mirror(float *c, int n)
{
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++)
            c[(size_t)j * n + i] = c[(size_t)i * n + j];
}

/* c (n,n) = alpha x x^T, x (n,m): one triangle and its mirror. */
static void gram(float *c, const float *x, int n, int m, float alpha)
{
    cblas_ssyrk(CblasRowMajor, CblasLower, CblasNoTrans, n, m, alpha, x, m, 0, c, n);
    mirror(c, n);
}

/* to = B x of the Gram or direct form. */
static void times_x(const struct work *w, float *to, const float *left)
{
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, w->n, w->m, w->n, 1, left, w->n, w->x,
                w->m, 0, to, w->m);
}

static void aol(struct work *w)
{
    float *s = w->y; /* free until the first product */
    for (int i = 0; i < w->n; i++) {
        float sum = cblas_sasum(w->n, w->a + (size_t)i * w->n, 1) / w->scale;
        s[i] = 1 / sqrtf(sum > 1e-7f ? sum : 1e-7f);
    }
    for (int i = 0; i < w->n; i++)
        for (int j = 0; j < w->n; j++)
            w->a[(size_t)i * w->n + j] *= s[i] * s[j];
    for (int i = 0; i < w->n; i++)
        cblas_sscal(w->m, s[i], w->x + (size_t)i * w->m, 1);
    round_small(w, w->a);
    round_x(w, w->x);
}

static void first_gram(struct work *w, bool with_aol)
{
    gram(w->a, w->x, w->n, w->m, w->scale);
    round_small(w, w->a);
    if (with_aol)
        aol(w);
}

static void iterate(struct work *w, const double *row, bool first_aol)
{
    size_t squares = (size_t)w->n * w->n, count = (size_t)w->n * w->m;
    float a = (float)row[0], b = (float)row[1], c = (float)row[2];
    first_gram(w, first_aol);
    gram(w->b, w->a, w->n, w->n, 1);
    for (size_t i = 0; i < squares; i++)
        w->b[i] = b * w->a[i] + c * w->b[i];
    round_small(w, w->b);
    times_x(w, w->y, w->b);
    if (w->m > 1024)
        round_x(w, w->y);
    for (size_t i = 0; i < count; i++)
        w->x[i] = a * w->x[i] + w->y[i];
    round_x(w, w->x);
}

/* c = a b of symmetric matrices that commute, rounded. c is another buffer. */
static void small_product(const struct work *w, float *c, const float *a, const float *b)
{
    cblas_ssymm(CblasRowMajor, CblasLeft, CblasLower, w->n, w->n, 1, a, w->n, b, w->n, 0, c, w->n);
    mirror(c, w->n);
    round_small(w, c);
}

static void swap(float **a, float **b)
{
    float *t = *a;
    *a = *b;
    *b = t;
}

/* One row of the Gram form: W = a I + b R + c R R; Q <- Q W; R <- W (R W) unless it is the last. */
static void iterate_gram(struct work *w, const double *row, bool first, bool last)
{
    size_t squares = (size_t)w->n * w->n;
    float b = (float)row[1] / w->scale, c = (float)row[2] / (w->scale * w->scale);
    gram(w->b, w->a, w->n, w->n, 1);
    for (size_t i = 0; i < squares; i++)
        w->b[i] = b * w->a[i] + c * w->b[i] + (i % ((size_t)w->n + 1) ? 0 : (float)row[0]);
    round_small(w, w->b);
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

static void all_rows(struct work *w, const struct coeffs *c, bool with_aol)
{
    bool is_gram = w->form->gram;
    for (int t = 0; t < c->n; t++) {
        bool first = !t || w->form->restart >> t & 1;
        bool last = t + 1 == c->n || w->form->restart >> (t + 1) & 1;
        if (!is_gram) {
            iterate(w, c->row[t], with_aol && !t);
            continue;
        }
        if (first)
            first_gram(w, with_aol && !t);
        iterate_gram(w, c->row[t], first, last);
        if (last) {
            round_as(w->form->x, w->q, (size_t)w->n * w->n);
            times_x(w, w->y, w->q);
            round_x(w, w->y);
            swap(&w->x, &w->y);
        }
    }
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

int trial_rounded(const struct trial *t, const struct coeffs *c, const struct trial_form *form,
                  double *y, double *error)
{
    size_t squares = (size_t)t->rows * t->rows, count = (size_t)t->rows * t->cols;
    if (c->terms > 3)
        return err_set(GPT_INPUT, "%s: rows of four numbers have no rounded iteration", c->name);
    float *all = malloc((4 * squares + 2 * count) * sizeof *all);
    if (!all)
        return err_memory();
    float *small = all + 2 * count;
    struct work w = { all,
                      all + count,
                      small,
                      small + squares,
                      small + 2 * squares,
                      small + 3 * squares,
                      t->rows,
                      t->cols,
                      form,
                      form->gram ? GRAM_SCALE : 1 };
    memcpy(w.x, t->input, count * sizeof *w.x);
    round_x(&w, w.x);
    all_rows(&w, c, t->aol);
    measure(t, &w, y, error);
    free(all);
    return 0;
}
