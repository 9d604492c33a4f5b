/* token_coefs.c - coefficients of each token from a hidden layer (record-84.md 5, 7). */
#include <string.h>
#include "ops/cpu.h"

static const real tenth = (real)0.1;

/* P(N(0,1) <= x) */
static real normal_below(real x) { return (real)(0.5 * erfc(-(double)x * 0x1.6a09e667f3bcdp-1)); }

static real gelu(real x) { return x * normal_below(x); }

static real gelu_slope(real x)
{
    return normal_below(x) + x * (real)(0x1.9884533d43651p-2 * exp(-0.5 * (double)x * (double)x));
}

void cpu_token_coefs(struct ops *o, struct tensor out, struct tensor pre, struct tensor w,
                     struct tensor b, const real *factor)
{
    const real *wr = real_view(o, 0, w), *br = real_view(o, 1, b);
    real *hidden = cpu_scratch(o, 2, pre.cols);

    if (cpu_failed(o))
        return;
    assert(out.cols == w.rows && pre.cols == w.cols && tensor_count(b) == w.rows);
    for (int64_t t = 0; t < pre.rows; t++) {
        for (int64_t i = 0; i < pre.cols; i++)
            hidden[i] = gelu(real_ptr(pre)[t * pre.cols + i]);
        for (int64_t k = 0; k < w.rows; k++)
            real_ptr(out)[t * w.rows + k] =
                (factor ? *factor : tenth) * (real_dot(hidden, wr + k * w.cols, w.cols) + br[k]);
    }
}

void cpu_token_coefs_bwd(struct ops *o, struct tensor dpre, struct tensor dw, struct tensor db,
                         real *dfactor, struct tensor dout, struct tensor pre, struct tensor w,
                         struct tensor b, const real *factor)
{
    int64_t width = pre.cols, n = tensor_count(w);
    const real *wr = real_view(o, 0, w), *br = real_view(o, 2, factor ? b : NO_TENSOR);
    real *sum = cpu_scratch(o, 1, n + w.rows), *bias = sum + n;
    double by_factor = 0; /* terms of both signs */

    if (cpu_failed(o))
        return;
    real f = factor ? *factor : tenth;
    assert(dout.cols == w.rows && width == w.cols && tensor_count(db) == w.rows);
    memset(sum, 0, (size_t)(n + w.rows) * sizeof *sum);
    for (int64_t t = 0; t < pre.rows; t++) {
        const real *q = real_ptr(dout) + t * w.rows;
        for (int64_t i = 0; i < width; i++) {
            real x = real_ptr(pre)[t * width + i], hidden = gelu(x), dhidden = 0;
            for (int64_t k = 0; k < w.rows; k++) {
                sum[k * width + i] += f * q[k] * hidden;
                dhidden += f * q[k] * wr[k * width + i];
                by_factor += factor ? (double)(q[k] * hidden * wr[k * width + i]) : 0;
            }
            real_ptr(dpre)[t * width + i] = dhidden * gelu_slope(x);
        }
        for (int64_t k = 0; k < w.rows; k++) {
            bias[k] += f * q[k];
            by_factor += factor ? (double)(q[k] * br[k]) : 0;
        }
    }
    real_write(dw, 0, sum, n, true);
    real_write(db, 0, bias, w.rows, true);
    if (factor)
        *dfactor += (real)by_factor;
}
