/* norm_fit.h - the numbers a and b of op norm_fit, from sums over a matrix or one of its rows; for both devices.
 *
 *     struct fit_sums row = { 0 }, whole = { 0 };
 *     ...                                           // all x_i y_i and so on, in double
 *     struct fit_pair f = fit_of(&args, &row, &whole);     // x <- f.a x + f.b y
 *
 * Formulas: optimizers.md 4.7. Pure; any thread.
 */
#ifndef OPS_NORM_FIT_H
#define OPS_NORM_FIT_H

#include <math.h>
#include "ops/ops.h"

#ifdef __CUDACC__
#define FIT_BOTH static __host__ __device__ __forceinline__
#else
#define FIT_BOTH static inline
#endif

struct fit_sums {
    double xx, xy, yy;
    double masked_xy, masked_yy; /* where the write's decay acts */
};
struct fit_pair {
    double a, b;
};
struct fit_args {
    enum fit_to to;
    double rows, cols, number, each, over, least;
    double lr, shrink; /* the write's rate; its decay times the rate, in front of the step */
};

FIT_BOTH double fit_most(double a, double b) { return a > b ? a : b; }

/* True if the write's decay acts on an element. */
FIT_BOTH bool fit_masked(unsigned how, real x, real y)
{
    real product = x * y;
    return how & MUON_PLAIN || (how & MUON_STRICT ? product > 0 : product >= 0);
}

FIT_BOTH void fit_add(struct fit_sums *s, unsigned how, real x, real y)
{
    s->xx += (double)x * (double)x;
    s->xy += (double)x * (double)y;
    s->yy += (double)y * (double)y;
    if (fit_masked(how, x, y)) {
        s->masked_xy += (double)x * (double)y;
        s->masked_yy += (double)y * (double)y;
    }
}

FIT_BOTH void fit_join(struct fit_sums *s, const struct fit_sums *more)
{
    s->xx += more->xx;
    s->xy += more->xy;
    s->yy += more->yy;
    s->masked_xy += more->masked_xy;
    s->masked_yy += more->masked_yy;
}

/* Norm of y (1 - shrink mask) - step x. */
FIT_BOTH double fit_moved(const struct fit_sums *s, double step, double shrink)
{
    double plain = s->yy - 2 * step * s->xy + step * step * s->xx;
    double less = 2 * shrink * (s->masked_yy - step * s->masked_xy);
    return sqrt(fit_most(plain - less + shrink * shrink * s->masked_yy, 0));
}

FIT_BOTH bool fit_by_row(enum fit_to to) { return to == FIT_ROWS || to == FIT_FLOOR_ROWS; }
/* True if the pair follows from sums. */
FIT_BOTH bool fit_of_sums(enum fit_to to) { return to < FIT_RATIO; }
/* True if x stays and the pair is for the write: a times its rate, then b times what that leaves. */
FIT_BOTH bool fit_of_write(enum fit_to to) { return to == FIT_HYPERBALL || to == FIT_PIN; }

/* s: of the row, or as whole of the matrix. */
FIT_BOTH struct fit_pair fit_of(const struct fit_args *f, const struct fit_sums *s,
                                const struct fit_sums *whole)
{
    double x = sqrt(s->xx), y = sqrt(s->yy), t;
    struct fit_pair p = { 1, 0 };

    switch (f->to) {
    case FIT_ROWS: p.a = sqrt(whole->xx / f->rows) / fit_most(x, 1e-6); break;
    case FIT_RENORM: p.a = sqrt(f->rows < f->cols ? f->rows : f->cols) / fit_most(x, 1e-6); break;
    case FIT_RADIAL:
        t = s->xy / fit_most(s->yy, 1e-12);
        p.b = t < 0 ? -(1 - f->number) * t : 0;
        break;
    case FIT_FLOOR:
    case FIT_FLOOR_ROWS:
        t = f->number * fit_most(y, 1e-8);
        p.a = fit_most(x, 1e-8) < t ? t / fit_most(x, 1e-8) : 1;
        break;
    case FIT_RATIO: p.a = f->each / fit_most(f->over, f->least); break;
    case FIT_ADD: p.b = f->number; break;
    case FIT_LESS: p.b = -f->number / fit_most(f->each, 1e-10); break;
    case FIT_BLEND: p.a = 1 - f->number, p.b = f->number; break;
    case FIT_NORM: p.a = y / (x + 1e-16); break;
    case FIT_CONTRA:
        t = -f->number / fit_most(f->each, 1e-10);
        p.a = x / fit_most(sqrt(fit_most(s->xx + 2 * t * s->xy + t * t * s->yy, 0)), 1e-10);
        p.b = p.a * t;
        break;
    case FIT_HYPERBALL:
        p.a = y / fit_most(x, 1e-10);
        p.b = y / fit_most(fit_moved(s, f->lr * p.a, f->shrink), 1e-10);
        break;
    case FIT_PIN:
        t = fit_most(y, 1e-8);
        p.b =
            fit_most(t - f->lr * s->xy / t, 1e-8) / fit_most(fit_moved(s, f->lr, f->shrink), 1e-8);
        break;
    }
    return p;
}

#endif
