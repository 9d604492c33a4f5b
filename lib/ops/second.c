/* second.c - what comes in over the root of the gradient's running second moment (optimizers.md 4.7). */
#include "ops/cpu.h"

enum { BLOCK = 512 };

struct job {
    struct tensor x, v, g;
    real blend, eps, factor, age;
};

static void some(void *arg, int64_t first, int64_t n, int thread)
{
    const struct job *j = arg;
    real g[BLOCK];

    (void)thread;
    for (int64_t at = first, k; at < first + n; at += k) {
        real *v = (real *)j->v.data + at, *x = (real *)j->x.data + at;
        k = first + n - at < BLOCK ? first + n - at : BLOCK;
        real_read(g, j->g, at, k);
        for (int64_t i = 0; i < k; i++) {
            g[i] *= j->factor;
            v[i] += j->blend * (g[i] * g[i] - v[i]);
            x[i] = x[i] / (real_sqrt(v[i] / j->age) + j->eps);
        }
    }
}

void cpu_second(struct ops *o, struct tensor x, struct tensor v, struct tensor g,
                const real *number, const real *age, const struct step_gate *gate)
{
    assert(tensor_count(v) == tensor_count(x) && tensor_count(g) == tensor_count(x));
    assert(is_real(x) && is_real(v));
    if (cpu_failed(o) || (gate && gate->skip))
        return;
    struct job job = { .x = x, .v = v, .g = g, .blend = number[0], .eps = number[1] };
    job.factor = gate ? gate->factor * number[2] : number[2];
    job.age = age ? *age : 1;
    cpu_split(o, tensor_count(x), BLOCK, some, &job);
}
