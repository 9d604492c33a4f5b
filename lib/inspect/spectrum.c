#include "inspect/spectrum.h"

#include <inttypes.h>
#include <lapacke.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "base/blas.h"
#include "base/pool.h"
#include "coeffs/matrix.h"

/* --- one matrix --- */

static int check_finite(const double *a, uint64_t rows, uint64_t cols)
{
    if (rows > INT32_MAX / 2 || cols > INT32_MAX / 2)
        return err_set(GPT_INPUT, "a matrix of %" PRIu64 "x%" PRIu64 " is too large", rows, cols);
    for (uint64_t i = 0; i < rows * cols; i++)
        if (!isfinite(a[i]))
            return err_set(GPT_INPUT, "element (%" PRIu64 ",%" PRIu64 ") is not finite", i / cols,
                           i % cols);
    return 0;
}

int spectrum_of(double *a, uint64_t rows, uint64_t cols, struct spectrum *sp)
{
    memset(sp, 0, sizeof *sp);
    sp->rows = rows;
    sp->cols = cols;
    sp->n = (int)(rows < cols ? rows : cols);
    int rc = check_finite(a, rows, cols);
    if (rc)
        return rc;
    if (!(sp->sigma = malloc(((size_t)sp->n + 1) * sizeof *sp->sigma)))
        return err_memory();
    /* Row-major rows x cols is column-major cols x rows: the transpose, of the same spectrum. */
    lapack_int bad = sp->n == 0
                         ? 0
                         : LAPACKE_dgesdd(LAPACK_COL_MAJOR, 'N', (lapack_int)cols, (lapack_int)rows,
                                          a, (lapack_int)cols, sp->sigma, NULL, 1, NULL, 1);
    if (bad) {
        spectrum_release(sp);
        return bad == LAPACK_WORK_MEMORY_ERROR
                   ? err_memory()
                   : err_set(GPT_SYSTEM, "LAPACK dgesdd did not converge (%d)", (int)bad);
    }
    spectrum_measure(sp);
    return 0;
}

void spectrum_release(struct spectrum *sp)
{
    free(sp->sigma);
    sp->sigma = NULL;
    sp->n = 0;
}

/* The exponent a of p(x) ~ x^-a above x_min, for the x_min at which the fit is nearest to the data
 * (Kolmogorov-Smirnov); at least 10 values in the tail. x descending, positive. */
static double tail_exponent(const double *x, int n)
{
    double best = INFINITY, alpha = NAN, sum = 0;
    for (int k = 1; k < n; k++) { /* tail x[0..k-1], x_min = x[k-1] */
        sum += log(x[k - 1]);
        if (k < 10 || x[k] == x[k - 1])
            continue;
        double mean = sum / k - log(x[k - 1]);
        if (!(mean > 0))
            continue;
        double a = 1 + 1 / mean, worst = 0;
        for (int i = 0; i < k; i++) {
            double above = pow(x[i] / x[k - 1], 1 - a); /* of the fit */
            double d = fmax(fabs(above - (double)i / k), fabs(above - (double)(i + 1) / k));
            worst = fmax(worst, d);
        }
        if (worst < best) {
            best = worst;
            alpha = a;
        }
    }
    return alpha;
}

void spectrum_measure(struct spectrum *sp)
{
    double sum = 0, squares = 0, entropy = 0, off = 0, *x;
    int positive = 0;
    for (int i = 0; i < sp->n; i++) {
        sum += sp->sigma[i];
        squares += sp->sigma[i] * sp->sigma[i];
        positive += sp->sigma[i] > 0;
    }
    sp->frobenius = sqrt(squares);
    if (!sp->n || !(sum > 0)) {
        sp->condition = sp->stable_rank = sp->effective_rank = sp->alpha = sp->orthogonality = NAN;
        return;
    }
    double rms = sqrt(squares / sp->n);
    for (int i = 0; i < sp->n; i++) {
        double p = sp->sigma[i] / sum, d = sp->sigma[i] / rms - 1;
        entropy -= p > 0 ? p * log(p) : 0;
        off += d * d;
    }
    sp->condition = sp->sigma[0] / sp->sigma[sp->n - 1];
    sp->stable_rank = squares / (sp->sigma[0] * sp->sigma[0]);
    sp->effective_rank = exp(entropy);
    sp->orthogonality = sqrt(off / sp->n);
    sp->alpha = NAN;
    if ((x = malloc(((size_t)sp->n + 1) * sizeof *x))) {
        for (int i = 0; i < positive; i++)
            x[i] = sp->sigma[i] * sp->sigma[i];
        sp->alpha = tail_exponent(x, positive);
        free(x);
    }
}

static int descending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x > y ? -1 : x < y;
}

void spectrum_polar(struct spectrum *sp, double scale, const double (*coef)[3], int n)
{
    for (int i = 0; i < sp->n; i++) {
        double x = sp->sigma[i] * scale;
        for (int t = 0; t < n; t++) {
            double xx = x * x;
            x *= coef[t][0] + xx * (coef[t][1] + xx * coef[t][2]);
        }
        sp->sigma[i] = fabs(x);
    }
    if (sp->n)
        qsort(sp->sigma, (size_t)sp->n, sizeof *sp->sigma, descending);
    spectrum_measure(sp);
}

/* --- many --- */

struct spectra {
    const struct spectrum_job *j;
    struct spectrum *sp;
    int next; /* the view to be read next: reading goes in file order */
    pthread_mutex_t lock;
    pthread_cond_t advanced;
};

static void wait_turn(struct spectra *c, int i)
{
    pthread_mutex_lock(&c->lock);
    while (c->next < i)
        pthread_cond_wait(&c->advanced, &c->lock);
    pthread_mutex_unlock(&c->lock);
}

static void end_turn(struct spectra *c, int i)
{
    pthread_mutex_lock(&c->lock);
    c->next = i + 1;
    pthread_cond_broadcast(&c->advanced);
    pthread_mutex_unlock(&c->lock);
}

/* The matrix of view i, minus that of the other set; NULL when it is no matrix. */
static int read_matrix(const struct spectrum_job *j, int i, double **out)
{
    const struct view *v = &j->v->v[i], *w = NULL;
    double *a, *b = NULL;
    *out = NULL;
    if (v->rank != 2 || v->elements == 0 || !values_known(v->t))
        return 0;
    if (j->since && (!(w = views_find(j->since_v, v->name)) || w->elements != v->elements))
        return err_set(GPT_INPUT, "%s: expected a tensor '%s' of %" PRIu64 " elements",
                       tensors_path(j->since), v->name, v->elements);
    a = malloc(v->elements * sizeof *a);
    b = w ? malloc(v->elements * sizeof *b) : NULL;
    int rc = a && (b || !w) ? values_load(j->s, v->t, v->first, a, v->elements) : err_memory();
    if (!rc && w && !(rc = values_load(j->since, w->t, w->first, b, w->elements)))
        for (uint64_t k = 0; k < v->elements; k++)
            a[k] -= b[k];
    free(b);
    if (rc)
        free(a);
    else
        *out = a;
    return rc;
}

/* spectrum_of what AOL makes of the matrix; a is freed. */
static int spectrum_of_aol(double *a, const struct view *v, struct spectrum *sp)
{
    struct matrix m;
    int rc = check_finite(a, v->shape[0], v->shape[1]);
    if (rc) {
        free(a);
        return rc;
    }
    if ((rc = matrix_take(&m, (int)v->shape[0], (int)v->shape[1], a)))
        return rc;
    if (!(rc = matrix_aol(&m)) &&
        !(rc = spectrum_of(m.x, (uint64_t)m.rows, (uint64_t)m.cols, sp))) {
        sp->rows = v->shape[0];
        sp->cols = v->shape[1];
    }
    matrix_release(&m);
    return rc;
}

/* The chain that orthogonalises parameter `label`, and its polar stage: the first chain that has one. */
static int polar_of(const struct recipe *r, const char *label, const struct chain **c,
                    const struct stage_use **u)
{
    int i = recipe_param(r, label);
    const struct rule *rule = i < 0 ? NULL : &r->params[i].rule;
    *u = NULL;
    for (int k = 0; rule && !*u && k < rule_chains(rule); k++) {
        *c = &rule->chain[k];
        *u = chain_stage(*c, STAGE_polar);
    }
    if (!*u)
        return err_set(GPT_INPUT, "its rule, %s, orthogonalises nothing (--of momentum)",
                       rule ? rule->name : "none");
    if ((*u)->number[2].value[0] != 0)
        return err_set(GPT_INPUT,
                       "its rule, %s, balances lines between, which is not followed here",
                       rule->name);
    return 0;
}

/* Returns the factor of the first row's input where AOL does not scale it (gpt-rules(5), polar). */
static double scale_of(const struct stage_use *u, const struct spectrum *sp)
{
    double fourth = 0;
    if (!stage_has(u, "schatten4"))
        return 1 / (u->number[0].value[0] * sp->frobenius + u->number[1].value[0]);
    for (int i = 0; i < sp->n; i++)
        fourth += pow(sp->sigma[i], 4);
    return 1 / fmax(pow(fourth, 0.25), 1e-7);
}

/* Takes a over. */
static int spectrum_of_view(const struct spectrum_job *j, double *a, const struct view *v,
                            struct spectrum *sp)
{
    const struct chain *c = NULL;
    const struct stage_use *u = NULL;
    int rc = j->update ? polar_of(j->update, v->t->param, &c, &u) : 0;
    bool aol = j->aol || (u && stage_has(u, "aol"));
    if (rc || !aol) {
        rc = rc ? rc : spectrum_of(a, v->shape[0], v->shape[1], sp);
        free(a);
    } else {
        rc = spectrum_of_aol(a, v, sp);
    }
    if (!rc && u && sp->n)
        spectrum_polar(sp, aol ? 1 : scale_of(u, sp), (const double(*)[3])c->polar.row, c->polar.n);
    return rc;
}

static int one(void *arg, int i)
{
    struct spectra *c = arg;
    const struct spectrum_job *j = c->j;
    const struct view *v = &j->v->v[i];
    double *a;
    wait_turn(c, i);
    int rc = read_matrix(j, i, &a);
    end_turn(c, i);
    if (!rc && a && (rc = spectrum_of_view(j, a, v, &c->sp[i])))
        rc = err_prefix("%s: tensor '%s'", tensors_path(j->s), v->name);
    if (j->done) {
        pthread_mutex_lock(&c->lock);
        j->done(j->arg, i);
        pthread_mutex_unlock(&c->lock);
    }
    return rc;
}

int spectrum_views(const struct spectrum_job *j, struct spectrum *sp)
{
    struct spectra c = { .j = j, .sp = sp };
    pthread_mutex_init(&c.lock, NULL);
    pthread_cond_init(&c.advanced, NULL);
    memset(sp, 0, (size_t)j->v->n * sizeof *sp);
    int blas = blas_threads(1); /* one thread a matrix is faster */
    int rc = parallel_for(j->v->n, 0, one, &c);
    blas_threads(blas);
    pthread_cond_destroy(&c.advanced);
    pthread_mutex_destroy(&c.lock);
    if (rc)
        for (int i = 0; i < j->v->n; i++)
            spectrum_release(&sp[i]);
    return rc;
}
