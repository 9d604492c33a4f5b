/* sign.c - signs of a tensor's elements. */
#include "ops/cpu.h"

static void some(void *arg, int64_t first, int64_t n, int thread)
{
    real *x = (real *)((struct tensor *)arg)->data + first;

    (void)thread;
    for (int64_t i = 0; i < n; i++)
        x[i] = x[i] > 0 ? 1 : x[i] < 0 ? -1 : x[i];
}

void cpu_sign(struct ops *o, struct tensor x)
{
    assert(is_real(x));
    if (!cpu_failed(o))
        cpu_split(o, tensor_count(x), 4096, some, &x);
}
