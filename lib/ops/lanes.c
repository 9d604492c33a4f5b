/* lanes.c - two streams mixed from the same terms, and back (record-74.md 5, 7). */
#include "ops/norm.h"

/* 0 where the term is not in the lane. */
static real coefficient(const struct lanes_term *t, int lane)
{
    if (!(t->lanes >> lane & 1))
        return 0;
    return t->coef[lane] ? *t->coef[lane] : 1;
}

void cpu_lanes_mix(struct ops *o, const struct tensor out[2], struct tensor y, int normed, int n,
                   const struct lanes_term *in)
{
    int64_t width = out[0].cols;
    real *sum = cpu_scratch(o, 0, 2 * width);

    if (cpu_failed(o))
        return;
    assert(n >= 1 && n <= LANES_MAX && (normed == 0 || normed == 1));
    for (int64_t t = 0; t < out[0].rows; t++) {
        memset(sum, 0, 2 * (size_t)width * sizeof *sum);
        for (int k = 0; k < n; k++)
            for (int lane = 0; lane < 2; lane++) {
                const real *x = real_ptr(in[k].x) + t * width, c = coefficient(&in[k], lane);
                for (int64_t i = 0; i < width && c != 0; i++)
                    sum[lane * width + i] += c * x[i];
            }
        for (int lane = 0; lane < 2; lane++)
            memcpy(real_ptr(out[lane]) + t * width, sum + lane * width,
                   (size_t)width * sizeof *sum);
        if (has(y))
            norm_row(real_ptr(y) + t * width, sum + normed * width, width);
    }
}

void cpu_lanes_mix_bwd(struct ops *o, const struct lanes_grad *d, const struct tensor dout[2],
                       struct tensor dy, struct tensor dy12, struct tensor out, int normed, int n,
                       const struct lanes_term *in)
{
    int64_t width = out.cols;
    real *g = cpu_scratch(o, 0, 2 * width), dcoef[LANES_MAX][2] = { { 0 } };

    if (cpu_failed(o))
        return;
    assert(n >= 1 && n <= LANES_MAX && (normed == 0 || normed == 1));
    for (int64_t t = 0; t < out.rows; t++) {
        norm_gradient(g + normed * width, dout[normed], dy, dy12, out, t);
        norm_gradient(g + !normed * width, dout[!normed], NO_TENSOR, NO_TENSOR, out, t);
        for (int k = 0; k < n; k++)
            for (int lane = 0; lane < 2; lane++)
                if (d[k].dcoef[lane])
                    dcoef[k][lane] +=
                        real_dot(g + lane * width, real_ptr(in[k].x) + t * width, width);
        for (int k = 0; k < n; k++) {
            real c0 = coefficient(&in[k], 0), c1 = coefficient(&in[k], 1);
            real *dx = has(d[k].dx) ? real_ptr(d[k].dx) + t * width : NULL;
            for (int64_t i = 0; i < width && dx; i++)
                dx[i] = c0 * g[i] + c1 * g[width + i];
        }
    }
    for (int k = 0; k < n; k++)
        for (int lane = 0; lane < 2; lane++)
            if (d[k].dcoef[lane])
                *d[k].dcoef[lane] += dcoef[k][lane];
}
