/* norm.h - RMS norm of one row of n numbers, without weight (record-61.md 2.1, 3.1).
 *
 * Norm(x) = r x with r = (mean(x^2) + 2^-23)^-1/2. Shared by embed, mix_norm, lanes, qkv.
 */
#ifndef OPS_NORM_H
#define OPS_NORM_H

#include <string.h>
#include "ops/cpu.h"

static const real norm_eps = (real)0x1p-23; /* of RMS norm, record-61.md 2.1 */

static inline real norm_factor(const real *x, int64_t n)
{
    return 1 / real_sqrt(real_dot(x, x, n) / (real)n + norm_eps);
}

/* y = Norm(x); may be in place. */
static inline void norm_row(real *y, const real *x, int64_t n)
{
    real r = norm_factor(x, n);
    for (int64_t i = 0; i < n; i++)
        y[i] = r * x[i];
}

/* dx = r (dy - y mean(dy y)), from x and not from y; may be in place of dy. */
static inline void norm_row_bwd(real *dx, const real *dy, const real *x, int64_t n)
{
    real r = norm_factor(x, n), c = r * r * real_dot(dy, x, n) / (real)n;
    for (int64_t i = 0; i < n; i++)
        dx[i] = r * (dy[i] - c * x[i]);
}

/* g (D) = dout + Norm'(dy + [dy12 on the first channels]; out) of row t, less what is none. */
static inline void norm_gradient(real *g, struct tensor dout, struct tensor dy, struct tensor dy12,
                                 struct tensor out, int64_t t)
{
    int64_t width = out.cols;

    memset(g, 0, (size_t)width * sizeof *g);
    if (has(dy))
        memcpy(g, real_ptr(dy) + t * width, (size_t)width * sizeof *g);
    if (has(dy12))
        for (int j = 0; j < GATE_WIDTH; j++)
            g[j] += real_ptr(dy12)[t * GATE_WIDTH + j];
    if (has(dy) || has(dy12))
        norm_row_bwd(g, g, real_ptr(out) + t * width, width);
    const real *d = has(dout) ? real_ptr(dout) + t * width : NULL;
    for (int64_t i = 0; i < width && d; i++)
        g[i] += d[i];
}

#endif
