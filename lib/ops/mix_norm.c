/* mix_norm.c - weighted sum of streams and its norm (record-61.md 2.3, 3.3). */
#include "ops/norm.h"

static real coefficient(const struct mix_term *m, int64_t t)
{
    real c = m->coef ? m->coef[t * m->stride] : 1;
    return m->minus ? -c : m->plus_one ? 1 + c : c;
}

/* Returns how many channels of out a term has. */
static int64_t channels(const struct mix_term *m, int64_t width) { return m->n ? m->n : width; }

/* Returns where row t of its x has the first of them. */
static int64_t place(const struct mix_term *m, int64_t width, int64_t t)
{
    return t * m->x.cols + (m->x.cols == width ? m->first : 0);
}

static void check(int64_t width, int n, const struct mix_term *in)
{
    assert(n >= 1 && n <= MIX_MAX);
    for (int k = 0; k < n; k++) {
        assert(in[k].x.cols == width || in[k].x.cols == in[k].n);
        assert(in[k].first + channels(&in[k], width) <= width);
    }
    (void)width, (void)n, (void)in;
}

void cpu_mix_norm(struct ops *o, struct tensor out, struct tensor y, int n,
                  const struct mix_term *in)
{
    int64_t width = out.cols;
    real *sum = cpu_scratch(o, 0, width);

    if (cpu_failed(o))
        return;
    check(width, n, in);
    for (int64_t t = 0; t < out.rows; t++) {
        memset(sum, 0, (size_t)width * sizeof *sum);
        for (int k = 0; k < n; k++) {
            const real *x = real_ptr(in[k].x) + place(&in[k], width, t);
            real c = coefficient(&in[k], t), *to = sum + in[k].first;
            for (int64_t i = 0; i < channels(&in[k], width); i++)
                to[i] += c * x[i];
        }
        memcpy(real_ptr(out) + t * width, sum, (size_t)width * sizeof *sum);
        if (has(y))
            norm_row(real_ptr(y) + t * width, sum, width);
    }
}

void cpu_mix_norm_codes(struct ops *o, struct tensor out, struct tensor y, struct tensor y8,
                        real scale, int n, const struct mix_term *in)
{
    cpu_mix_norm(o, out, y, n, in);
    cpu_input_codes(o, y8, y, scale);
}

void cpu_mix_norm_bwd(struct ops *o, const struct mix_grad *d, struct tensor dout, struct tensor dy,
                      struct tensor dy12, struct tensor out, int n, const struct mix_term *in)
{
    int64_t width = out.cols;
    real *g = cpu_scratch(o, 0, width), dcoef[MIX_MAX] = { 0 };

    if (cpu_failed(o))
        return;
    check(width, n, in);
    for (int64_t t = 0; t < out.rows; t++) {
        norm_gradient(g, dout, dy, dy12, out, t);
        for (int k = 0; k < n; k++) {
            const real *x = real_ptr(in[k].x) + place(&in[k], width, t);
            real dot = d[k].dcoef ? real_dot(g + in[k].first, x, channels(&in[k], width)) : 0;
            if (d[k].dcoef && in[k].stride)
                d[k].dcoef[t * in[k].stride] = in[k].minus ? -dot : dot;
            else
                dcoef[k] += dot;
        }
        for (int k = 0; k < n; k++) {
            real *dx = has(d[k].dx) ? real_ptr(d[k].dx) + place(&in[k], width, t) : NULL;
            real c = coefficient(&in[k], t), *from = g + in[k].first;
            for (int64_t i = 0; dx && i < channels(&in[k], width); i++)
                dx[i] = d[k].add ? dx[i] + c * from[i] : c * from[i];
        }
    }
    for (int k = 0; k < n; k++)
        if (d[k].dcoef && !in[k].stride)
            *d[k].dcoef += in[k].minus ? -dcoef[k] : dcoef[k];
}
