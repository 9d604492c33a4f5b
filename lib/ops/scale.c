/* scale.c - matrices times a number each, and times one of the step. */
#include "ops/cpu.h"

struct job {
    struct tensor x;
    int64_t count; /* of a matrix */
    const float *each;
    real by;
};

static void one_matrix(void *arg, int64_t i, int64_t n, int thread)
{
    const struct job *j = arg;
    real *x = (real *)j->x.data + i * j->count, f = (j->each ? j->each[i] : 1) * j->by;

    (void)n, (void)thread;
    for (int64_t k = 0; k < j->count; k++)
        x[k] *= f;
}

void cpu_scale(struct ops *o, struct tensor x, int n, const float *each, const real *by)
{
    assert(x.rows % n == 0 && is_real(x));
    if (cpu_failed(o))
        return;
    struct job job = { x, tensor_count(x) / n, each, by ? *by : 1 };
    cpu_split(o, n, 1, one_matrix, &job);
}
