/* cosine_basis.c - the basis in which covpower begins: a cosine transform with random signs (optimizers.md 4.8). */
#include "base/rng.h"
#include "ops/cpu.h"

struct job {
    struct tensor q;
    int64_t k;
    uint64_t seed, stream;
};

static void one_matrix(void *arg, int64_t i, int64_t n, int thread)
{
    static const double PI = 3.14159265358979323846;
    const struct job *j = arg;
    int64_t k = j->k;
    real *q = (real *)j->q.data + i * k * k;
    struct rng rng = rng_make(j->seed, j->stream + (uint64_t)i);

    (void)n, (void)thread;
    for (int64_t c = 0; c < k; c++)
        if (q[c] != 0)
            return;
    for (int64_t r = 0; r < k; r++) {
        uint32_t word[4];
        rng_block(&rng, (uint64_t)r, word);
        double size = (word[0] & 1 ? -1 : 1) * sqrt(2.0 / (double)k);
        /* The angle's period is 4 k steps of pi / 2 k. */
        for (int64_t c = 0; c < k; c++)
            q[r * k + c] = (real)(c == 0 ? size * sqrt(0.5)
                                         : size * cos(PI * (double)((2 * r + 1) * c % (4 * k)) /
                                                      (double)(2 * k)));
    }
}

void cpu_cosine_basis(struct ops *o, struct tensor q, int n, uint64_t seed, uint64_t stream,
                      const struct step_gate *gate)
{
    struct job job = { q, q.cols, seed, stream };

    assert(q.rows == n * q.cols && is_real(q));
    if (!cpu_failed(o) && !(gate && gate->skip))
        cpu_split(o, n, 1, one_matrix, &job);
}
