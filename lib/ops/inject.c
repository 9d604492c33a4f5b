/* inject.c - back from streams that are added, scaled, to the residual stream in many places
 * (record-74.md 5, 7). */
#include "ops/cpu.h"

/* Row t of one injection. */
static void inject_row(const struct injection *in, real *dcoef, int n, const struct tensor *g,
                       real *sum, int64_t t)
{
    int64_t width = in->x.cols; /* those of g, or less */
    const real *x = real_ptr(in->x) + t * width;
    real *dx = real_ptr(in->dx) + t * width;

    memset(sum, 0, (size_t)width * sizeof *sum);
    for (int i = 0; i < n; i++) {
        const real *gi = real_ptr(g[i]) + t * g[i].cols;
        if (!in->coef[i])
            continue;
        for (int64_t j = 0; j < width; j++)
            sum[j] += *in->coef[i] * gi[j];
        dcoef[i] += real_dot(gi, x, width);
    }
    for (int64_t j = 0; j < width; j++)
        dx[j] = in->add ? dx[j] + sum[j] : sum[j];
}

void cpu_inject_bwd(struct ops *o, int n, const struct tensor *g, int m, const struct injection *in)
{
    real *sum = cpu_scratch(o, 0, g[0].cols);

    if (cpu_failed(o))
        return;
    assert(n >= 1 && n <= INJECT_MAX && m >= 1 && m <= INJECT_STREAMS);
    for (int k = 0; k < m; k++) {
        real dcoef[INJECT_MAX] = { 0 };
        for (int64_t t = 0; t < in[k].x.rows; t++)
            inject_row(&in[k], dcoef, n, g, sum, t);
        for (int i = 0; i < n; i++)
            if (in[k].coef[i] && in[k].dcoef[i])
                *in[k].dcoef[i] += dcoef[i];
    }
}
