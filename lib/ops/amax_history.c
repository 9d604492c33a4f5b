/* amax_history.c - the largest numbers of past updates, which a delayed scale is formed of
 * (optimizers.md 3.3). */
#include "ops/cpu.h"

static real greater(real a, real b) { return !(a == a) || a >= b ? a : b; }

void cpu_amax_history(struct ops *o, real *top, struct tensor history, struct tensor each,
                      const struct step_gate *gate)
{
    int64_t k = history.cols;
    real *h = history.data;

    assert(history.rows > 0 && each.cols == k);
    if (cpu_failed(o) || (gate && gate->skip))
        return;
    memmove(h + k, h, (size_t)((history.rows - 1) * k) * sizeof *h);
    for (int64_t c = 0; c < k; c++) {
        h[c] = 0, top[c] = 0;
        for (int64_t r = 0; r < each.rows; r++)
            h[c] = greater(h[c], ((const real *)each.data)[r * k + c]);
        for (int64_t r = 0; r < history.rows; r++)
            top[c] = greater(top[c], h[r * k + c]);
    }
}
