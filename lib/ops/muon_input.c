/* muon_input.c - Nesterov momentum and the scaling that Polar Express starts from
 * (optimizers.md 4.1).
 */
#include "ops/cpu.h"

enum { BLOCK = 512 };

/* u from the momentum that already holds g. */
static void nesterov(real *restrict u, const real *restrict mom, const real *restrict g, int n,
                     real blend)
{
    for (int i = 0; i < n; i++)
        u[i] = mom[i] - blend * (mom[i] - g[i]);
}

static void read_gradient(real *x, struct tensor g, int64_t first, int n, real factor)
{
    real_read(x, g, first, n);
    for (int i = 0; i < n; i++)
        x[i] *= factor;
}

/* Updates momentum elements first .. first + count - 1 with the gradient; returns |u|_F. */
static real update_momentum(struct tensor mom, struct tensor g, int64_t first, int64_t count,
                            real blend, real factor)
{
    real bm[BLOCK], bg[BLOCK], u[BLOCK];
    double squares = 0;

    for (int64_t at = 0; at < count; at += BLOCK) {
        int n = count - at < BLOCK ? (int)(count - at) : BLOCK;
        real_read(bm, mom, first + at, n);
        read_gradient(bg, g, first + at, n, factor);
        for (int i = 0; i < n; i++)
            bm[i] += blend * (bg[i] - bm[i]);
        real_write(mom, first + at, bm, n, false);
        nesterov(u, bm, bg, n, blend);
        squares += real_dot(u, u, n);
    }
    return (real)sqrt(squares);
}

static void scale(struct tensor x, struct tensor mom, struct tensor g, int64_t first, int64_t count,
                  real blend, real factor, real norm, bool raw)
{
    real bm[BLOCK], bg[BLOCK], u[BLOCK];
    real divisor = raw ? 1 : (real)1.02 * norm + (real)1e-6;

    for (int64_t at = 0; at < count; at += BLOCK) {
        int n = count - at < BLOCK ? (int)(count - at) : BLOCK;
        if (raw || isfinite(norm)) {
            real_read(bm, mom, first + at, n);
            read_gradient(bg, g, first + at, n, factor);
            nesterov(u, bm, bg, n, blend);
            for (int i = 0; i < n; i++)
                u[i] /= divisor;
        } else {
            memset(u, 0, sizeof u);
        }
        real_write(x, first + at, u, n, false);
    }
}

struct job {
    struct tensor x, mom, g;
    int64_t count; /* of a matrix */
    real blend, factor;
    bool raw;
};

static void one_matrix(void *arg, int64_t i, int64_t n, int thread)
{
    const struct job *j = arg;
    real norm = update_momentum(j->mom, j->g, i * j->count, j->count, j->blend, j->factor);

    (void)n, (void)thread;
    scale(j->x, j->mom, j->g, i * j->count, j->count, j->blend, j->factor, norm, j->raw);
}

void cpu_muon_input(struct ops *o, struct tensor x, struct tensor mom, struct tensor g, int n,
                    bool raw, const real *blend, const struct step_gate *gate)
{
    int64_t count = tensor_count(x) / n;

    assert(count * n == tensor_count(x) && tensor_count(mom) == count * n);
    assert(tensor_count(g) == count * n);
    if (cpu_failed(o) || (gate && gate->skip))
        return;
    struct job job = { x, mom, g, count, *blend, gate ? gate->factor : 1, raw };
    cpu_split(o, n, 1, one_matrix, &job);
}
