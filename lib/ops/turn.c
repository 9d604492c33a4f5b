/* turn.c - one step of the QR iteration that makes a basis one of eigenvectors (optimizers.md 4.8).
 *
 * Householder's factor by LAPACK, in double: the definition that a GPU's form by products is held to.
 */
#include <string.h>
#include "ops/cpu.h"
#include "ops/eigen.h"

struct job {
    struct ops *o;
    struct tensor q, s;
    int64_t k;
    const struct basis_turn *t;
    double *work; /* (5 k k + 2 k) of each thread */
    int64_t rows; /* of v */
};

/* Returns a key that any two lines have an order by: NaN is the least. */
static real key_of(real x) { return x == x ? x : -(real)INFINITY; }

/* Makes the order of the falling diagonal; of equal ones the first comes first. */
static void order_of(int64_t *order, const real *s, int64_t k, bool sort)
{
    for (int64_t i = 0; i < k; i++) {
        int64_t before = sort ? 0 : i;
        for (int64_t j = 0; sort && j < k; j++) {
            real a = key_of(s[j * (k + 1)]), b = key_of(s[i * (k + 1)]);
            before += a > b || (a == b && j < i);
        }
        order[before] = i;
    }
}

static void sort_v(const struct job *j, int64_t i, const int64_t *order, double *work)
{
    int64_t rows = j->rows, cols = j->t->v.cols;
    real *v = (real *)j->t->v.data + i * rows * cols;
    for (int64_t a = 0; a < (j->t->right ? rows : cols); a++) {
        real *line = j->t->right ? v + a * cols : v + a;
        int64_t step = j->t->right ? 1 : cols;
        for (int64_t b = 0; b < j->k; b++)
            work[b] = (double)line[order[b] * step];
        for (int64_t b = 0; b < j->k; b++)
            line[b * step] = (real)work[b];
    }
}

static void one_matrix(void *arg, int64_t i, int64_t n, int thread)
{
    const struct job *j = arg;
    int64_t k = j->k, kk = k * k, order[k];
    int m = (int)k;
    real *q = (real *)j->q.data + i * kk, *s = (real *)j->s.data + i * kk;
    double *s0 = j->work + thread * (5 * kk + 2 * k), *q0 = s0 + kk, *r = q0 + kk, *t = r + kk;
    double *u = t + kk, *line = u + kk;

    (void)n;
    order_of(order, s, k, j->t->sort);
    for (int64_t b = 0; b < k; b++)
        for (int64_t a = 0; a < k; a++) {
            r[b * k + a] = s0[b * k + a] = (double)s[order[a] * k + order[b]];
            q0[b * k + a] = (double)q[a * k + order[b]];
        }
    if (j->t->dense) {
        times(t, s0, false, q0, false, m, m, m);
        times(s0, q0, true, t, false, m, m, m);
        memcpy(r, s0, (size_t)kk * sizeof *r);
    }
    if (j->t->sort && has(j->t->v))
        sort_v(j, i, order, line);
    if (q_factor(r, line, m)) {
        cpu_fail(j->o, GPT_SYSTEM, "the Q-factor of a covariance was not found");
        return;
    }
    times(t, s0, false, r, false, m, m, m);
    times(u, r, true, t, false, m, m, m);
    for (int64_t b = 0; b < k; b++)
        for (int64_t a = 0; a < k; a++)
            s[a * k + b] = (real)((u[b * k + a] + u[a * k + b]) / 2);
    times(t, q0, false, r, false, m, m, m);
    times(u, t, true, t, false, m, m, m);
    for (int64_t a = 0; a < k; a++)
        u[a * (k + 1)] -= 1;
    times(r, t, false, u, false, m, m, m);
    for (int64_t b = 0; b < k; b++)
        for (int64_t a = 0; a < k; a++)
            q[a * k + b] = (real)(t[b * k + a] - r[b * k + a] / 2);
}

void cpu_turn(struct ops *o, struct tensor q, struct tensor s, int n, const struct basis_turn *t)
{
    int64_t k = q.cols;
    struct job job = { o, q, s, k, t, NULL, t->v.rows / n };

    assert(q.rows == n * k && s.rows == n * k && s.cols == k && is_real(q) && is_real(s));
    assert(!has(t->v) || (t->right ? t->v.cols : job.rows) == k);
    job.work =
        cpu_scratch_bytes(o, 0, (size_t)(cpu_threads(o) * (5 * k * k + 2 * k)) * sizeof(double));
    if (!cpu_failed(o) && !(t->gate && t->gate->skip))
        cpu_split(o, n, 1, one_matrix, &job);
    if (has(t->other_q)) {
        struct basis_turn other = *t;
        other.right = !t->right, other.other_q = other.other_s = NO_TENSOR;
        cpu_turn(o, t->other_q, t->other_s, n, &other);
    }
}
