/* out_gate.c - gate of each head's attention output (record-61.md 2.4, 3.3). */
#include "ops/cpu.h"

void cpu_out_gate(struct ops *o, struct tensor out, struct tensor x, struct tensor y,
                  struct tensor gate, int heads)
{
    int64_t width = x.cols, size = width / heads;
    const real *w = real_view(o, 0, gate);

    if (cpu_failed(o))
        return;
    assert(width % heads == 0 && gate.rows == heads && gate.cols == GATE_WIDTH);
    for (int64_t t = 0; t < x.rows; t++)
        for (int64_t h = 0; h < heads; h++) {
            int64_t at = t * width + h * size;
            real alpha =
                sigmoid(real_dot(w + h * GATE_WIDTH, real_ptr(y) + t * y.cols, GATE_WIDTH));
            for (int64_t i = 0; i < size; i++)
                real_ptr(out)[at + i] = alpha * real_ptr(x)[at + i];
        }
}

void cpu_out_gate_bwd(struct ops *o, struct tensor dx, struct tensor delta, struct tensor dgate,
                      struct tensor dy12, struct tensor dout, struct tensor x, struct tensor y,
                      struct tensor gate, int heads)
{
    int64_t width = x.cols, size = width / heads, n = tensor_count(gate);
    const real *w = real_view(o, 0, gate);
    real *dw = cpu_scratch(o, 1, n);

    if (cpu_failed(o))
        return;
    assert(width % heads == 0 && gate.rows == heads && gate.cols == GATE_WIDTH);
    assert(tensor_count(delta) == x.rows * heads && delta.dtype == DT_REAL);
    memset(dw, 0, (size_t)n * sizeof *dw);
    for (int64_t t = 0; t < x.rows; t++) {
        const real *yt = real_ptr(y) + t * y.cols;
        real *dyt = real_ptr(dy12) + t * GATE_WIDTH;
        memset(dyt, 0, GATE_WIDTH * sizeof *dyt);
        for (int64_t h = 0; h < heads; h++) {
            int64_t at = t * width + h * size;
            const real *wh = w + h * GATE_WIDTH, *dy = real_ptr(dout) + at;
            real *d = real_ptr(dx) + at, *dwh = dw + h * GATE_WIDTH;
            real alpha = sigmoid(real_dot(wh, yt, GATE_WIDTH));
            real du = real_dot(dy, real_ptr(x) + at, size) * alpha * (1 - alpha);
            int64_t index = t * heads + h; /* among the heads of all rows */
            for (int j = 0; j < GATE_WIDTH; j++) {
                dwh[j] += du * yt[j];
                dyt[j] += du * wh[j];
            }
            for (int64_t i = 0; i < size; i++)
                d[i] = alpha * dy[i];
            real_ptr(delta)[index % delta.rows * delta.cols + index / delta.rows] =
                real_dot(d, real_ptr(x) + at, size);
        }
    }
    real_write(dgate, 0, dw, n, true);
}
