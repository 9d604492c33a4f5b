/* whiten.c - what comes in over the root of a running second moment, in a basis (optimizers.md 4.8). */
#include "ops/cpu.h"

struct job {
    struct tensor x, v, p;
    int64_t count;
    unsigned how;
    const real *b, *eps, *updates;
};

static void one_matrix(void *arg, int64_t i, int64_t n, int thread)
{
    const struct job *j = arg;
    real *x = (real *)j->x.data + i * j->count, *v = (real *)j->v.data + i * j->count;
    const real *p = (const real *)j->p.data + i * j->count, blend = *j->b;
    real eps = *j->eps;
    bool first = j->updates[i] == 0;

    (void)n, (void)thread;
    if (first && j->how & WHITEN_OWN)
        return;
    for (int64_t e = 0; e < j->count; e++) {
        if (!(first && j->how & WHITEN_LATER))
            v[e] += blend * (p[e] * p[e] - v[e]);
        if (first)
            x[e] = 0;
        else if (j->how & WHITEN_OWN)
            x[e] /= real_sqrt(v[e] > eps * eps ? v[e] : eps * eps);
        else
            x[e] /= real_sqrt(v[e]) + eps;
    }
}

void cpu_whiten(struct ops *o, struct tensor x, struct tensor v, struct tensor p, int n,
                unsigned how, const real *b, const real *eps, const real *updates,
                const struct step_gate *gate)
{
    struct job job = { x, v, how & WHITEN_OWN ? x : p, tensor_count(x) / n, how, b, eps, updates };

    assert(tensor_count(v) == tensor_count(x) && tensor_count(job.p) == tensor_count(x));
    assert(is_real(x) && is_real(v) && is_real(job.p));
    if (!cpu_failed(o) && !(gate && gate->skip))
        cpu_split(o, n, 1, one_matrix, &job);
}
