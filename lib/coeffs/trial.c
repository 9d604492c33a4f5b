#include "coeffs/trial.h"

#include <cblas.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "types/dtype.h"
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

/* --- the iteration as the optimizer computes it --- */

/* The op takes a matrix of more rows than 1024 for one of a weight that has them
 * (orthogonalisation.md 3), so a long one lies down: to (cols,rows) = the transpose. */
static bool lies_down(const struct trial *t) { return t->cols > 1024; }

static size_t place(const struct trial *t, int r, int k)
{
    return lies_down(t) ? (size_t)k * t->rows + r : (size_t)r * t->cols + k;
}

/* X v_i, by columns, against u_i. x: as the op left it. */
static void measure(const struct trial *t, const uint16_t *bits, float *x, float *xv, double *y,
                    double *error)
{
    int n = t->rows;
    for (size_t i = 0; i < (size_t)n * t->cols; i++)
        x[i] = bf16_to_f32(bits[i]);
    cblas_sgemm(CblasRowMajor, lies_down(t) ? CblasTrans : CblasNoTrans, CblasTrans, n, n, t->cols,
                1, x, lies_down(t) ? n : t->cols, t->vt, t->cols, 0, xv, n);
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

int trial_rounded(const struct trial *t, const struct coeffs *c, unsigned how, double *y,
                  double *error)
{
    size_t count = (size_t)t->rows * t->cols, squares = (size_t)t->rows * t->rows;
    double row[COEFFS_ROWS][3];
    struct ops *o;
    if (c->terms > 3)
        return err_set(GPT_INPUT, "%s: rows of four numbers have no rounded iteration", c->name);
    int rc = ops_cpu_new(&o);
    if (rc)
        return rc;
    float *x = malloc((count + squares) * sizeof *x);
    uint16_t *bits = malloc(count * sizeof *bits);
    if (!x || !bits)
        rc = err_memory();
    for (int r = 0; !rc && r < t->rows; r++)
        for (int k = 0; k < t->cols; k++)
            bits[place(t, r, k)] = bf16_from_f32(t->input[(size_t)r * t->cols + k]);
    for (int i = 0; i < c->n; i++)
        memcpy(row[i], c->row[i], sizeof row[i]);
    if (!rc) {
        bool down = lies_down(t);
        struct tensor at =
            tensor_of(bits, DT_BF16, down ? t->cols : t->rows, down ? t->rows : t->cols);
        o->polar(o, at, 1, (const double(*)[3])row, c->n, how | (t->aol ? POLAR_AOL : 0));
        rc = o->sync(o);
    }
    if (!rc)
        measure(t, bits, x, x + count, y, error);
    free(bits);
    free(x);
    o->free(o);
    return rc;
}
