/* step_gate.c - is a step applied, and by what are its gradients multiplied (optimizers.md 2.5)? */
#include "ops/cpu.h"

enum { BLOCK = 512 };

void cpu_squares(struct ops *o, real *out, const struct tensor *t, int n)
{
    double sum = 0;

    if (cpu_failed(o))
        return;
    for (int i = 0; i < n; i++) {
        int64_t count = tensor_count(t[i]);
        for (int64_t at = 0; at < count; at += BLOCK) {
            int m = count - at < BLOCK ? (int)(count - at) : BLOCK;
            real x[BLOCK];
            real_read(x, t[i], at, m);
            sum += real_dot(x, x, m);
        }
    }
    *out = (real)sum;
}

void cpu_step_gate(struct ops *o, struct step_gate *gate, const real *squares, real times,
                   real limit, real unscale)
{
    if (cpu_failed(o))
        return;
    real sum = *squares * times;
    gate->late = gate->skip;
    gate->skip = !isfinite(sum);
    gate->norm = real_sqrt(sum) * unscale;
    gate->factor = limit > 0 && gate->norm > limit ? limit / gate->norm * unscale : unscale;
}
