/* line_powers.c - a covariance's diagonal to a power, as covpower multiplies by it (optimizers.md 4.8). */
#include "ops/cpu.h"

struct job {
    real *out;
    struct tensor s;
    const real *number;
};

static void one_matrix(void *arg, int64_t i, int64_t n, int thread)
{
    const struct job *j = arg;
    int64_t k = j->s.cols;
    const real *s = (const real *)j->s.data + i * k * k;
    real *out = j->out + i * k;
    double squares = 0;

    (void)n, (void)thread;
    for (int64_t a = 0; a < k; a++) {
        double l = pow(fmax((double)s[a * (k + 1)], 1e-6), -(double)*j->number);
        out[a] = (real)l, squares += l * l;
    }
    for (int64_t a = 0; a < k; a++)
        out[a] = (real)((double)out[a] * sqrt((double)k) / (sqrt(squares) + 1e-6));
}

void cpu_line_powers(struct ops *o, struct tensor out, struct tensor s, int n, const real *number)
{
    struct job job = { out.data, s, number };

    assert(s.rows == n * s.cols && is_real(s) && is_real(out));
    if (!cpu_failed(o))
        cpu_split(o, n, 1, one_matrix, &job);
}
