/* adam.c - Adam with cautious decay, element by element (optimizers.md 3). */
#include "ops/cpu.h"

enum { BLOCK = FP8_BLOCK, PART = 64 * BLOCK }; /* elements in L1 at a time, for a thread */

/* What does not change from element to element. */
struct constants {
    real beta1, rest1, beta2, rest2, eps, step_size, decay;
};

/* One rounding an operation, in this order; a test compares the bits with its own loop. */
static void update(real *restrict w, const real *restrict g, real *restrict m, real *restrict v,
                   int n, const struct constants *k)
{
    for (int i = 0; i < n; i++) {
        m[i] = k->beta1 * m[i] + k->rest1 * g[i];
        v[i] = k->beta2 * v[i] + k->rest2 * (g[i] * g[i]);
        real delta = m[i] / (real_sqrt(v[i]) + k->eps) * k->step_size;
        real decay = k->decay * w[i];
        delta += delta * w[i] > 0 ? decay : 0;
        w[i] -= delta;
    }
}

struct adam {
    struct tensor w, g, m, v;
    struct constants k;
    const struct fp8_copy *copy;
};

static void adam_part(void *arg, int64_t first, int64_t count, int thread)
{
    const struct adam *a = arg;
    real bw[BLOCK], bg[BLOCK], bm[BLOCK], bv[BLOCK];

    (void)thread;
    for (int64_t at = first; at < first + count; at += BLOCK) {
        int n = first + count - at < BLOCK ? (int)(first + count - at) : BLOCK;
        real_read(bw, a->w, at, n);
        real_read(bg, a->g, at, n);
        real_read(bm, a->m, at, n);
        real_read(bv, a->v, at, n);
        update(bw, bg, bm, bv, n, &a->k);
        real_write(a->w, at, bw, n, false);
        real_write(a->m, at, bm, n, false);
        real_write(a->v, at, bv, n, false);
        if (a->copy)
            cpu_fp8_write(a->copy, a->w, at, n);
    }
}

void cpu_adam(struct ops *o, struct tensor w, struct tensor g, struct tensor m, struct tensor v,
              double beta1, double beta2, double eps, const struct adam_step *a,
              const struct fp8_copy *copy)
{
    struct adam job = {
        w,
        g,
        m,
        v,
        { (real)beta1, (real)(1 - beta1), (real)beta2, (real)(1 - beta2), (real)eps, a->step_size,
          a->decay },
        copy,
    };
    int64_t count = tensor_count(w);

    assert(tensor_count(g) == count && tensor_count(m) == count && tensor_count(v) == count);
    if (cpu_failed(o))
        return;
    if (copy)
        *copy->amax = 0;
    /* amax is one number: with a copy, all in one part. */
    if (count)
        cpu_split(o, count, copy ? count : PART, adam_part, &job);
}
