#include "coeffs/linprog.h"

#include <cblas.h>
#include <lapacke.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS_MAX = 60 };

struct state {
    double *s, *y; /* slacks b - a z, and multipliers */
    double *ds, *dy, *corr; /* steps; the corrector's products */
    double *weighted; /* rows of a times sqrt(y / s) */
    double *h, *rhs; /* normal equations */
};

/* The step towards s y = target, less the corrector's products, with ds and dy eliminated:
 * a^T (y / s) a dz = -(a^T y + cost) - a^T ((target - corr - s y) / s). */
static void step(const struct linprog *p, struct state *w, double target, bool correct)
{
    memcpy(w->rhs, p->cost, (size_t)p->n * sizeof *w->rhs);
    for (int i = 0; i < p->m; i++) /* a^T y cancels against a part of the last term */
        w->ds[i] = (target - (correct ? w->corr[i] : 0)) / w->s[i];
    cblas_dgemv(CblasRowMajor, CblasTrans, p->m, p->n, -1, p->a, p->n, w->ds, 1, -1, w->rhs, 1);
    LAPACKE_dpotrs(LAPACK_ROW_MAJOR, 'L', p->n, 1, w->h, p->n, w->rhs, 1);
    cblas_dgemv(CblasRowMajor, CblasNoTrans, p->m, p->n, -1, p->a, p->n, w->rhs, 1, 0, w->ds, 1);
    for (int i = 0; i < p->m; i++)
        w->dy[i] = (target - (correct ? w->corr[i] : 0) - w->y[i] * w->ds[i]) / w->s[i] - w->y[i];
}

/* The largest share of the step d, at most 1, that leaves no element of v + share d negative. */
static double reach(const double *v, const double *d, int m)
{
    double most = 1;
    for (int i = 0; i < m; i++)
        if (d[i] < 0 && -v[i] / d[i] < most)
            most = -v[i] / d[i];
    return most;
}

static bool factor(const struct linprog *p, struct state *w)
{
    double trace = 0;
    for (int i = 0; i < p->m; i++) {
        double f = sqrt(w->y[i] / w->s[i]);
        for (int j = 0; j < p->n; j++)
            w->weighted[(size_t)i * p->n + j] = f * p->a[(size_t)i * p->n + j];
    }
    cblas_dsyrk(CblasRowMajor, CblasLower, CblasTrans, p->n, p->m, 1, w->weighted, p->n, 0, w->h,
                p->n);
    for (int j = 0; j < p->n; j++)
        trace += w->h[(size_t)j * p->n + j];
    for (int j = 0; j < p->n; j++)
        w->h[(size_t)j * p->n + j] += 1e-15 * trace;
    return LAPACKE_dpotrf(LAPACK_ROW_MAJOR, 'L', p->n, w->h, p->n) == 0;
}

/* Largest element of a^T y + cost, which is zero at the solution. */
static double dual_residual(const struct linprog *p, struct state *w)
{
    memcpy(w->rhs, p->cost, (size_t)p->n * sizeof *w->rhs);
    cblas_dgemv(CblasRowMajor, CblasTrans, p->m, p->n, 1, p->a, p->n, w->y, 1, 1, w->rhs, 1);
    return fabs(w->rhs[cblas_idamax(p->n, w->rhs, 1)]);
}

static bool iterate(const struct linprog *p, struct state *w, double *z, double tol)
{
    int m = p->m;
    for (int round = 0; round < ROUNDS_MAX; round++) {
        double gap = cblas_ddot(m, w->s, 1, w->y, 1), mu = gap / m;
        double size = fabs(cblas_ddot(p->n, p->cost, 1, z, 1));
        if (gap <= tol * size && dual_residual(p, w) <= 1e-6)
            return true;
        if (!factor(p, w))
            return false;
        step(p, w, 0, false); /* predictor: the least mu within reach */
        double fp = reach(w->s, w->ds, m), fd = reach(w->y, w->dy, m), after = 0;
        for (int i = 0; i < m; i++)
            after += (w->s[i] + fp * w->ds[i]) * (w->y[i] + fd * w->dy[i]) / m;
        for (int i = 0; i < m; i++)
            w->corr[i] = w->ds[i] * w->dy[i];
        step(p, w, mu * pow(after / mu, 3), true);
        fp = fmin(1, 0.995 * reach(w->s, w->ds, m));
        fd = fmin(1, 0.995 * reach(w->y, w->dy, m));
        if (!(fp > 1e-12) || !isfinite(fd))
            return false;
        cblas_daxpy(p->n, fp, w->rhs, 1, z, 1);
        cblas_daxpy(m, fp, w->ds, 1, w->s, 1);
        cblas_daxpy(m, fd, w->dy, 1, w->y, 1);
    }
    return false;
}

bool linprog_solve(const struct linprog *p, double *z, double tol)
{
    size_t m = (size_t)p->m, n = (size_t)p->n;
    double *all = malloc((5 * m + m * n + n * n + 2 * n) * sizeof *all);
    if (!all)
        return false;
    struct state w = { all,         all + m,     all + 2 * m,         all + 3 * m,
                       all + 4 * m, all + 5 * m, all + 5 * m + m * n, all + 5 * m + m * n + n * n };
    double *before = w.rhs + n, worth = cblas_ddot(p->n, p->cost, 1, z, 1);
    bool solved = true;
    memcpy(before, z, n * sizeof *before);
    memcpy(w.s, p->b, m * sizeof *w.s);
    cblas_dgemv(CblasRowMajor, CblasNoTrans, p->m, p->n, -1, p->a, p->n, z, 1, 1, w.s, 1);
    for (size_t i = 0; i < m; i++)
        solved &= w.s[i] > 0;
    double scale = fabs(worth) > 0 ? fabs(worth) : 1;
    for (size_t i = 0; solved && i < m; i++) /* all products s y equal: on the central path */
        w.y[i] = scale / (double)m / w.s[i];
    solved = solved && iterate(p, &w, z, tol);
    if (!(cblas_ddot(p->n, p->cost, 1, z, 1) <= worth))
        memcpy(z, before, n * sizeof *before);
    free(all);
    return solved;
}
