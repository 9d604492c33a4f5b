/* polar_input.c - the scaling by the norm that an orthogonal map starts from (optimizers.md 4.7). */
#include "ops/cpu.h"

enum { BLOCK = 512 };

struct job {
    struct tensor y, x;
    int64_t count; /* of a matrix */
    bool raw;
    real margin, eps;
};

static void one_matrix(void *arg, int64_t i, int64_t n, int thread)
{
    const struct job *j = arg;
    int64_t first = i * j->count, last = first + j->count;
    real x[BLOCK], divisor = 1;
    double squares = 0;

    (void)n, (void)thread;
    for (int64_t at = first, k; at < last && !j->raw; at += k) {
        k = last - at < BLOCK ? last - at : BLOCK;
        real_read(x, j->x, at, k);
        squares += real_dot(x, x, k);
    }
    real norm = (real)sqrt(squares);
    if (!j->raw)
        divisor = j->margin * norm + j->eps;
    for (int64_t at = first, k; at < last; at += k) {
        k = last - at < BLOCK ? last - at : BLOCK;
        real_read(x, j->x, at, k);
        for (int64_t e = 0; e < k; e++)
            x[e] = isfinite(norm) ? x[e] / divisor : 0;
        real_write(j->y, at, x, k, false);
    }
}

void cpu_polar_input(struct ops *o, struct tensor y, struct tensor x, int n, bool raw,
                     double margin, double eps)
{
    struct job job = { y, x, tensor_count(x) / n, raw, (real)margin, (real)eps };

    assert(job.count * n == tensor_count(x) && tensor_count(y) == tensor_count(x) && is_real(x));
    if (!cpu_failed(o))
        cpu_split(o, n, 1, one_matrix, &job);
}
