/* skip_gate.c - gated skip connection (record-61.md 2.3, 3.3). */
#include "ops/cpu.h"

void cpu_skip_gate(struct ops *o, struct tensor out, struct tensor x, struct tensor skip,
                   struct tensor x0, struct tensor gate, const real *lambda,
                   const struct token_numbers *number)
{
    int64_t width = out.cols;
    real w[GATE_WIDTH], twice;

    if (cpu_failed(o))
        return;
    assert(number || (tensor_count(gate) == GATE_WIDTH && width >= GATE_WIDTH));
    if (!number)
        real_read(w, gate, 0, GATE_WIDTH);
    twice = 2 * sigmoid(*lambda);
    for (int64_t t = 0; t < out.rows; t++) {
        int64_t at = t * width;
        const real *xt = real_ptr(x) + at, *st = real_ptr(skip) + at;
        real *y = real_ptr(out) + at;
        real kappa = number ? sigmoid(*lambda) * token_number(number, t, 0)
                            : twice * sigmoid(real_dot(w, real_ptr(x0) + at, GATE_WIDTH));
        for (int64_t i = 0; i < width; i++)
            y[i] = xt[i] + kappa * st[i];
    }
}

/* The backward with a number of each token. */
static void number_bwd(struct tensor dskip, real *dlambda, struct tensor dout, struct tensor skip,
                       const real *lambda, const struct token_numbers *number)
{
    int64_t width = dout.cols;
    real open = sigmoid(*lambda), dl = 0;

    for (int64_t t = 0; t < dout.rows; t++) {
        const real *dy = real_ptr(dout) + t * width;
        real c = token_number(number, t, 0);
        real w = real_dot(dy, real_ptr(skip) + t * width, width);
        number->grad[t * number->stride] = open * w;
        dl += open * (1 - open) * w * c;
        for (int64_t i = 0; i < width; i++)
            real_ptr(dskip)[t * width + i] = open * c * dy[i];
    }
    *dlambda += dl;
}

void cpu_skip_gate_bwd(struct ops *o, struct tensor dskip, struct tensor dx0, struct tensor dgate,
                       real *dlambda, struct tensor dout, struct tensor skip, struct tensor x0,
                       struct tensor gate, const real *lambda, const struct token_numbers *number)
{
    int64_t width = dout.cols;
    real w[GATE_WIDTH], dw[GATE_WIDTH] = { 0 }, dl = 0, sl;

    if (cpu_failed(o))
        return;
    if (number) {
        number_bwd(dskip, dlambda, dout, skip, lambda, number);
        return;
    }
    real_read(w, gate, 0, GATE_WIDTH);
    sl = sigmoid(*lambda);
    for (int64_t t = 0; t < dout.rows; t++) {
        int64_t at = t * width;
        const real *dy = real_ptr(dout) + at, *x0t = real_ptr(x0) + at;
        real *ds = real_ptr(dskip) + at, *dx0t = real_ptr(dx0) + at;
        real sp = sigmoid(real_dot(w, x0t, GATE_WIDTH)), kappa = 2 * sl * sp;
        real dkappa = real_dot(dy, real_ptr(skip) + at, width);
        real dpsi = dkappa * kappa * (1 - sp);
        dl += dkappa * kappa * (1 - sl);
        for (int j = 0; j < GATE_WIDTH; j++) {
            dw[j] += dpsi * x0t[j];
            dx0t[j] += dpsi * w[j];
        }
        for (int64_t i = 0; i < width; i++)
            ds[i] = kappa * dy[i];
    }
    real_write(dgate, 0, dw, GATE_WIDTH, true);
    *dlambda += dl;
}
