/* gate_logits.c - gates that read a narrow embedding beside the norm (gpt-recipe(5), gate_table). */
#include "ops/cpu.h"

void cpu_gate_logits(struct ops *o, struct tensor z, struct tensor y, struct tensor e,
                     struct tensor gate)
{
    int64_t heads = gate.rows, n = gate.cols;
    const real *w = real_view(o, 0, gate);

    if (cpu_failed(o))
        return;
    assert(z.cols >= heads && n == GATE_WIDTH + e.cols && y.cols >= GATE_WIDTH);
    for (int64_t t = 0; t < z.rows; t++) {
        const real *yt = real_ptr(y) + t * y.cols, *et = real_ptr(e) + t * e.cols;
        for (int64_t h = 0; h < z.cols; h++)
            real_ptr(z)[t * z.cols + h] = h < heads
                                              ? real_dot(w + h * n, yt, GATE_WIDTH) +
                                                    real_dot(w + h * n + GATE_WIDTH, et, e.cols)
                                              : 0;
    }
}

void cpu_gate_logits_bwd(struct ops *o, struct tensor dy12, bool add, struct tensor de,
                         struct tensor dgate, struct tensor dz, struct tensor y, struct tensor e,
                         struct tensor gate)
{
    int64_t heads = gate.rows, n = gate.cols;
    const real *w = real_view(o, 0, gate);
    real *dw = cpu_scratch(o, 1, heads * n);

    if (cpu_failed(o))
        return;
    assert(dz.cols >= heads && n == GATE_WIDTH + e.cols && dy12.cols == GATE_WIDTH);
    memset(dw, 0, (size_t)(heads * n) * sizeof *dw);
    for (int64_t t = 0; t < dz.rows; t++) {
        const real *yt = real_ptr(y) + t * y.cols, *et = real_ptr(e) + t * e.cols;
        real *dyt = real_ptr(dy12) + t * GATE_WIDTH, *det = real_ptr(de) + t * e.cols;
        if (!add)
            memset(dyt, 0, GATE_WIDTH * sizeof *dyt);
        for (int64_t h = 0; h < heads; h++) {
            real d = real_ptr(dz)[t * dz.cols + h];
            const real *wh = w + h * n;
            for (int j = 0; j < GATE_WIDTH; j++) {
                dw[h * n + j] += d * yt[j];
                dyt[j] += d * wh[j];
            }
            for (int64_t j = 0; j < e.cols; j++) {
                dw[h * n + GATE_WIDTH + j] += d * et[j];
                det[j] += d * wh[GATE_WIDTH + j];
            }
        }
    }
    real_write(dgate, 0, dw, heads * n, true);
}
