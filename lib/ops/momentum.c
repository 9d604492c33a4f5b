/* momentum.c - a running mean of what comes in, and Nesterov's step beyond it (optimizers.md 7). */
#include "ops/cpu.h"

enum { BLOCK = 512 };

struct job {
    struct tensor x, mom, g;
    bool nesterov;
    real blend, factor;
};

static void some(void *arg, int64_t first, int64_t n, int thread)
{
    const struct job *j = arg;
    real g[BLOCK], mom[BLOCK];

    (void)thread;
    for (int64_t at = first, k; at < first + n; at += k) {
        k = first + n - at < BLOCK ? first + n - at : BLOCK;
        real_read(g, j->g, at, k);
        for (int64_t i = 0; i < k; i++)
            g[i] *= j->factor;
        if (j->mom.data) {
            real_read(mom, j->mom, at, k);
            for (int64_t i = 0; i < k; i++) {
                mom[i] += j->blend * (g[i] - mom[i]);
                g[i] = j->nesterov ? mom[i] - j->blend * (mom[i] - g[i]) : mom[i];
            }
            real_write(j->mom, at, mom, k, false);
        }
        real_write(j->x, at, g, k, false);
    }
}

void cpu_momentum(struct ops *o, struct tensor x, struct tensor mom, struct tensor g, bool nesterov,
                  const real *blend, bool gradient, const struct step_gate *gate)
{
    assert(tensor_count(g) == tensor_count(x) && is_real(x));
    assert(!mom.data || tensor_count(mom) == tensor_count(x));
    if (cpu_failed(o) || (gate && gate->skip))
        return;
    struct job job = {
        x, mom, g, nesterov, mom.data ? *blend : 0, gradient && gate ? gate->factor : 1
    };
    cpu_split(o, tensor_count(x), BLOCK, some, &job);
}
