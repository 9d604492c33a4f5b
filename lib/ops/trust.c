/* trust.c - how far an update moves towards what soap made of it (optimizers.md 4.8). */
#include "ops/cpu.h"

struct job {
    struct tensor x, before, g;
    int64_t count;
    const real *number;
};

static double clip(double x) { return !(x > 0) ? 0 : x > 1 ? 1 : x; }

static void one_matrix(void *arg, int64_t i, int64_t n, int thread)
{
    const struct job *j = arg;
    real *x = (real *)j->x.data + i * j->count;
    const real *b = (const real *)j->before.data + i * j->count;
    const real *g = (const real *)j->g.data + i * j->count;
    double xx = 0, bb = 0, gg = 0, xb = 0, xg = 0, bg = 0;

    (void)n, (void)thread;
    for (int64_t e = 0; e < j->count; e++) {
        double s = (double)x[e], m = (double)b[e], d = (double)g[e];
        xx += s * s, bb += m * m, gg += d * d, xb += s * m, xg += s * d, bg += m * d;
    }
    double agree = xb / fmax(sqrt(xx * bb), 1e-8), align = xg / fmax(sqrt(xx * gg), 1e-8);
    double part =
        clip((agree - 0.2) / 0.8) * clip(align / fmax(bg / fmax(sqrt(bb * gg), 1e-8), 1e-8));
    part = fmin(fmax(part, (double)j->number[0]), (double)j->number[1]);
    for (int64_t e = 0; e < j->count; e++)
        x[e] = (real)((double)b[e] + part * ((double)x[e] - (double)b[e]));
}

void cpu_trust(struct ops *o, struct tensor x, struct tensor before, struct tensor g, int n,
               const real *number)
{
    struct job job = { x, before, g, tensor_count(x) / n, number };

    assert(tensor_count(before) == tensor_count(x) && tensor_count(g) == tensor_count(x));
    assert(is_real(x) && is_real(before) && is_real(g));
    if (!cpu_failed(o))
        cpu_split(o, n, 1, one_matrix, &job);
}
