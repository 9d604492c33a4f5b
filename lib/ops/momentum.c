/* momentum.c - a running mean of what comes in, and what is made of it (optimizers.md 4.7). */
#include "ops/cpu.h"

enum { BLOCK = 512 };

struct job {
    struct tensor x, mom, g;
    unsigned how;
    real number[3], factor, age;
};

/* Returns the new x of one that was before. */
static inline real mean_of(const struct job *j, real before, real *mom, real g)
{
    real old = *mom, b = j->number[0];

    if (j->how & MEAN_LION) {
        *mom = old + j->number[1] * (g - old);
        return old + b * (g - old);
    }
    if (j->how & MEAN_SUM) {
        real mu = 1 - b;
        *mom = mu * old + g;
        return (j->how & MEAN_NESTEROV ? g + mu * *mom : *mom) / j->age;
    }
    *mom = old + b * (g - old);
    if (j->how & MEAN_TERM) {
        real x = j->number[1] * (*mom / j->age);
        if (j->how & MEAN_ADD)
            x = before + x;
        return j->how & MEAN_NESTEROV ? x - j->number[2] * (x - g) : x;
    }
    return (j->how & MEAN_NESTEROV ? *mom - b * (*mom - g) : *mom) / j->age;
}

static void some(void *arg, int64_t first, int64_t n, int thread)
{
    const struct job *j = arg;
    real g[BLOCK], mom[BLOCK], x[BLOCK] = { 0 };

    (void)thread;
    for (int64_t at = first, k; at < first + n; at += k) {
        k = first + n - at < BLOCK ? first + n - at : BLOCK;
        real_read(g, j->g, at, k);
        for (int64_t i = 0; i < k; i++)
            g[i] *= j->factor;
        if (j->how & MEAN_ADD)
            real_read(x, j->x, at, k);
        if (j->mom.data) {
            real_read(mom, j->mom, at, k);
            for (int64_t i = 0; i < k; i++)
                g[i] = mean_of(j, x[i], &mom[i], g[i]);
            real_write(j->mom, at, mom, k, false);
        }
        if (j->x.data)
            real_write(j->x, at, g, k, false);
    }
}

void cpu_momentum(struct ops *o, struct tensor x, struct tensor mom, struct tensor g, unsigned how,
                  const real *number, const real *age, const struct step_gate *gate)
{
    assert(!x.data || (tensor_count(g) == tensor_count(x) && is_real(x)));
    assert(!mom.data || tensor_count(mom) == tensor_count(g));
    if (cpu_failed(o) || (gate && gate->skip))
        return;
    struct job job = {
        x, mom, g, how, { 0 }, how & MEAN_GRADIENT && gate ? gate->factor : 1, age ? *age : 1
    };
    int numbers = how & MEAN_TERM ? 3 : how & MEAN_LION ? 2 : 1;
    for (int k = 0; k < numbers && mom.data; k++)
        job.number[k] = number[k];
    cpu_split(o, tensor_count(g), BLOCK, some, &job);
}
