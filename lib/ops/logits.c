/* logits.c - the head's output as it is sampled from (record-61.md 2.9). */
#include "ops/cpu.h"

struct soften {
    real *z;
    const struct head_loss *h;
    const real *bias; /* (V), or NULL */
    int64_t classes;
};

static void softcap(void *arg, int64_t first, int64_t n, int thread)
{
    const struct soften *f = arg;
    bool root = f->h->cap_root;
    real a = f->h->cap_a, b = f->h->cap_b, c = 1 / f->h->cap_c, *z = f->z + first;

    (void)thread;
    for (int64_t i = 0; i < n && f->bias; i++)
        z[i] += f->bias[(first + i) % f->classes];
    for (int64_t i = 0; i < n; i++)
        z[i] = a * (root ? root_cap((z[i] + b) * c) : sigmoid((z[i] + b) * c));
}

void cpu_logits(struct ops *o, struct tensor out, struct tensor x, struct tensor w,
                const struct head_loss *h)
{
    struct soften f = { out.data, h, NULL, out.cols };

    assert(out.dtype == DT_REAL);
    cpu_linear_t(o, out, x, w, NULL, NO_TENSOR);
    f.bias = real_view(o, 0, h->bias);
    if (!cpu_failed(o))
        cpu_split(o, tensor_count(out), 1 << 14, softcap, &f);
}
