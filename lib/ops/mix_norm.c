/* mix_norm.c - weighted sum of streams and its norm (record-61.md 2.3, 3.3). */
#include "ops/norm.h"

static real coefficient(const struct mix_term *m)
{
    real c = m->coef ? *m->coef : 1;
    return m->minus ? -c : c;
}

void cpu_mix_norm(struct ops *o, struct tensor out, struct tensor y, int n,
                  const struct mix_term *in)
{
    int64_t width = out.cols;
    real *sum = cpu_scratch(o, 0, width);

    if (cpu_failed(o))
        return;
    assert(n >= 1 && n <= MIX_MAX);
    for (int64_t t = 0; t < out.rows; t++) {
        memset(sum, 0, (size_t)width * sizeof *sum);
        for (int k = 0; k < n; k++) {
            const real *x = real_ptr(in[k].x) + t * width, c = coefficient(&in[k]);
            for (int64_t i = 0; i < width; i++)
                sum[i] += c * x[i];
        }
        memcpy(real_ptr(out) + t * width, sum, (size_t)width * sizeof *sum);
        if (has(y))
            norm_row(real_ptr(y) + t * width, sum, width);
    }
}

void cpu_mix_norm_bwd(struct ops *o, const struct mix_grad *d, struct tensor dout, struct tensor dy,
                      struct tensor dy12, struct tensor out, int n, const struct mix_term *in)
{
    int64_t width = out.cols;
    real *g = cpu_scratch(o, 0, width), dcoef[MIX_MAX] = { 0 };

    if (cpu_failed(o))
        return;
    assert(n >= 1 && n <= MIX_MAX);
    for (int64_t t = 0; t < out.rows; t++) {
        norm_gradient(g, dout, dy, dy12, out, t);
        for (int k = 0; k < n; k++)
            if (d[k].dcoef)
                dcoef[k] += real_dot(g, real_ptr(in[k].x) + t * width, width);
        for (int k = 0; k < n; k++) {
            real *dx = has(d[k].dx) ? real_ptr(d[k].dx) + t * width : NULL;
            real c = coefficient(&in[k]);
            if (dx)
                for (int64_t i = 0; i < width; i++)
                    dx[i] = d[k].add ? dx[i] + c * g[i] : c * g[i];
        }
    }
    for (int k = 0; k < n; k++)
        if (d[k].dcoef)
            *d[k].dcoef += in[k].minus ? -dcoef[k] : dcoef[k];
}
