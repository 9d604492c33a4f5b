#include "coeffs/trial.h"

#include <cblas.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "types/dtype.h"
#include "base/grow.h"

/* Singular values below this are of no direction: those of a singular matrix. */
static const double LEAST = 1e-12;

/* How many of the descending values count, of n. */
static int directions(const double *x, int n)
{
    while (n && !(x[n - 1] > LEAST))
        n--;
    return n;
}

/* out (rows x cols) becomes the polar factor of the first n singular vectors, u vt, less `factor` times what is in
 * it. */
static void polar_factor(double *out, double factor, const double *u, const double *vt, int rows,
                         int n, int cols)
{
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, cols, n, 1, u, rows, vt, cols,
                -factor, out, cols);
}

/* Sets t->along to u_i^T polar(G) v_i. */
static int project(struct trial *t, const double *polar, const double *u, const double *vt)
{
    int rows = t->rows, cols = t->cols;
    double *pv = malloc((size_t)rows * rows * sizeof *pv);
    t->along = calloc((size_t)rows, sizeof *t->along);
    if (!pv || !t->along) {
        free(pv);
        return err_memory();
    }
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, rows, cols, 1, polar, cols, vt, cols,
                0, pv, rows);
    for (int i = 0; i < rows; i++)
        t->along[i] = cblas_ddot(rows, u + i, rows, pv + i, rows);
    free(pv);
    return 0;
}

/* Decomposes what AOL makes of m, and finds what is left of the polar factor that m had; u, vt, polar are room. */
static int decompose_aol(struct trial *t, struct matrix *m, double *u, double *vt, double *polar)
{
    size_t count = (size_t)m->rows * m->cols;
    int rc = 0;
    if (u && !(rc = matrix_svd(m, t->x, u, vt)))
        polar_factor(polar, 0, u, vt, m->rows, directions(t->x, m->rows), m->cols);
    if (rc || (rc = matrix_aol(m)) || (rc = matrix_svd(m, t->x, u, vt)) || !u)
        return rc;
    if (!(t->polar = malloc(count * sizeof *t->polar)))
        return err_memory();
    for (size_t i = 0; i < count; i++)
        t->polar[i] = (float)polar[i];
    if ((rc = project(t, polar, u, vt)))
        return rc;
    int n = directions(t->x, m->rows);
    polar_factor(polar, 1, u, vt, m->rows, n, m->cols);
    t->shift = cblas_dnrm2((int)count, polar, 1) / sqrt(n);
    return 0;
}

/* SVD of the scaled matrix m, into t. */
static int decompose(struct trial *t, struct matrix *m, bool vectors)
{
    size_t squares = (size_t)m->rows * m->rows, count = (size_t)m->rows * m->cols;
    double *u = NULL, *vt = NULL, *polar = NULL;
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
    if (!rc)
        rc = t->input == INPUT_AOL ? decompose_aol(t, m, u, vt, polar) : matrix_svd(m, t->x, u, vt);
    for (size_t i = 0; !rc && vectors && i < squares; i++)
        t->u[i] = (float)u[i];
    for (size_t i = 0; !rc && vectors && i < count; i++)
        t->vt[i] = (float)vt[i];
    free(u);
    free(vt);
    free(polar);
    return rc;
}

/* Divides what was scaled by the norm by its largest singular value. */
static void scale_to_one(struct trial *t)
{
    double largest = t->x[0];
    for (int i = 0; i < t->n; i++)
        t->x[i] /= largest;
    for (size_t i = 0; t->scaled && i < (size_t)t->rows * t->cols; i++)
        t->scaled[i] = (float)(t->scaled[i] / largest);
}

static enum coeffs_input input_of(int flags)
{
    return flags & TRIAL_AOL ? INPUT_AOL : flags & TRIAL_SPECTRAL ? INPUT_SPECTRAL : INPUT_NORM;
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
    t->input = input_of(flags);
    t->shift = t->input == INPUT_AOL ? NAN : 0;
    t->x = malloc((size_t)t->n * sizeof *t->x);
    t->scaled = malloc(count * sizeof *t->scaled);
    copy.x = malloc(count * sizeof *copy.x);
    int rc = t->x && t->scaled && copy.x ? 0 : err_memory();
    for (size_t i = 0; !rc && i < count; i++) {
        copy.x[i] = m->x[i] * scale;
        t->scaled[i] = (float)copy.x[i];
    }
    if (!rc)
        rc = decompose(t, &copy, flags & TRIAL_VECTORS);
    matrix_release(&copy);
    if (!rc)
        t->n = directions(t->x, t->n);
    if (!rc && t->input == INPUT_SPECTRAL)
        scale_to_one(t);
    if (rc)
        trial_release(t);
    return rc;
}

/* Singular values scaled by their norm, or to a largest one of 1; no matrix. */
static int scaled_only(struct trial *t, const struct svals *v, int flags)
{
    double norm = cblas_dnrm2(v->n, v->sigma, 1), scale = 1 / (1.02 * norm + 1e-6);
    memset(t, 0, sizeof *t);
    snprintf(t->name, sizeof t->name, "%s", v->name);
    t->rows = t->cols = t->n = v->n;
    t->input = input_of(flags);
    if (!(norm > 0 && isfinite(norm)))
        return err_set(GPT_INPUT, "%s: expected singular values with a finite norm", v->name);
    if (!(t->x = malloc((size_t)v->n * sizeof *t->x)))
        return err_memory();
    for (int i = 0; i < v->n; i++)
        t->x[i] = v->sigma[i] * scale;
    if (t->input == INPUT_SPECTRAL)
        scale_to_one(t);
    return 0;
}

int trial_of_svals(struct trial *t, const struct svals *v, int rows, int cols, int flags,
                   uint64_t seed, uint64_t index)
{
    struct matrix m;
    if (!(flags & ~TRIAL_SPECTRAL))
        return scaled_only(t, v, flags);
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
    if (!rc && t->input != INPUT_AOL)
        t->n = v->n; /* what rounding made of zeros is not asked for */
    return rc;
}

void trial_release(struct trial *t)
{
    free(t->x);
    free(t->scaled);
    free(t->along);
    free(t->polar);
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

/* The sum over directions of |f u_i v_i^T - polar(G)|^2, of which the cross term is what polar(G) has along u_i v_i^T. */
double trial_distance(const struct trial *t, const struct coeffs *c)
{
    double sum = 0;
    if (t->input == INPUT_AOL && !t->along)
        return NAN;
    for (int i = 0; i < t->n; i++) {
        double f = coeffs_value(c, t->x[i]), along = t->along ? t->along[i] : 1;
        sum += f * f - 2 * f * along + 1;
    }
    return sqrt(fmax(sum, 0) / t->n);
}

/* --- the iteration as the optimizer computes it --- */

/* The op takes a matrix of more rows than 1024 for one of a weight that has them
 * (orthogonalisation.md 3), so a long one lies down: to (cols,rows) = the transpose. */
static bool lies_down(const struct trial *t) { return t->cols > 1024; }

static size_t place(const struct trial *t, int r, int k)
{
    return lies_down(t) ? (size_t)k * t->rows + r : (size_t)r * t->cols + k;
}

/* |x - polar(G)|_F / sqrt(n), rounding outside of G's rows with it. x: as the op left it; room (rows,cols). */
static double distance_of(const struct trial *t, const float *x, float *room)
{
    const float *p = t->polar;
    double sum = 0;
    if (!p) {
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, t->rows, t->cols, t->n, 1, t->u,
                    t->rows, t->vt, t->cols, 0, room, t->cols);
        p = room;
    }
    for (int r = 0; r < t->rows; r++)
        for (int k = 0; k < t->cols; k++) {
            double d = x[place(t, r, k)] - p[(size_t)r * t->cols + k];
            sum += d * d;
        }
    return sqrt(sum / t->n);
}

/* X v_i, by columns, against u_i; *distance to polar(G), or NULL. */
static void measure(const struct trial *t, const uint16_t *bits, float *x, float *xv, double *y,
                    double *error, double *distance)
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
    if (distance)
        *distance = distance_of(t, x, xv);
}

int trial_rounded(const struct trial *t, const struct coeffs *c, unsigned how, double *y,
                  double *error, double *distance)
{
    size_t count = (size_t)t->rows * t->cols;
    double row[COEFFS_ROWS][3];
    struct ops *o;
    if (c->terms > 3)
        return err_set(GPT_INPUT, "%s: rows of four numbers have no rounded iteration", c->name);
    int rc = ops_cpu_new(&o);
    if (rc)
        return rc;
    float *x = malloc(2 * count * sizeof *x); /* the second: X v or polar(G), squares <= count */
    uint16_t *bits = malloc(count * sizeof *bits);
    if (!x || !bits)
        rc = err_memory();
    for (int r = 0; !rc && r < t->rows; r++)
        for (int k = 0; k < t->cols; k++)
            bits[place(t, r, k)] = bf16_from_f32(t->scaled[(size_t)r * t->cols + k]);
    for (int i = 0; i < c->n; i++)
        memcpy(row[i], c->row[i], sizeof row[i]);
    if (!rc) {
        bool down = lies_down(t);
        struct tensor at =
            tensor_of(bits, DT_BF16, down ? t->cols : t->rows, down ? t->rows : t->cols);
        o->polar(o, at, 1, (const double(*)[3])row, c->n,
                 how | (t->input == INPUT_AOL ? POLAR_AOL : 0));
        rc = o->sync(o);
    }
    if (!rc)
        measure(t, bits, x, x + count, y, error, distance);
    free(bits);
    free(x);
    o->free(o);
    return rc;
}
