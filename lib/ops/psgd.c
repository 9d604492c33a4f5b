/* psgd.c - PSGD's Kronecker factors, which whiten an update (optimizers.md 4.8). */
#include <cblas.h>
#include <string.h>
#include "base/blas.h"
#include "base/rng.h"
#include "ops/cpu.h"

struct job {
    struct tensor x, left, right;
    int64_t rows;
    const struct psgd *p;
    double *work; /* (4 most most + 5 rows cols) of each thread */
};

/* All here are row by row. c (m,n) = op(a) op(b). */
static void product(double *c, const double *a, bool ta, const double *b, bool tb, int64_t m,
                    int64_t n, int64_t k)
{
    cblas_dgemm(CblasRowMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans,
                (int)m, (int)n, (int)k, 1, a, (int)(ta ? m : k), b, (int)(tb ? k : n), 0, c,
                (int)n);
}

static double largest(const double *x, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++)
        most = fmax(most, fabs(x[i]));
    return most;
}

static void begin(const struct job *j, int64_t i, double *q, int64_t k)
{
    int64_t count = j->rows * j->x.cols;
    const real *g = (const real *)j->p->g.data + i * count;
    double fourth = 0;
    for (int64_t e = 0; e < count; e++)
        fourth += pow((double)g[e], 4) / (double)count;
    memset(q, 0, (size_t)(k * k) * sizeof *q);
    for (int64_t e = 0; e < k; e++)
        q[e * (k + 1)] = pow(fmax(fourth, 1e-24), -1.0 / 32);
}

/* to (k) = s x / most, and returns the length. */
static double apply(double *to, const double *s, const double *x, int64_t k, double most)
{
    double squares = 0;
    for (int64_t r = 0; r < k; r++) {
        to[r] = 0;
        for (int64_t c = 0; c < k; c++)
            to[r] += s[r * k + c] / most * x[c];
        squares += to[r] * to[r];
    }
    return sqrt(squares);
}

/* Returns a bound of the largest eigenvalue of s (k,k), symmetric: its largest column, multiplied twice. */
static double size_of(const double *s, int64_t k)
{
    double most = largest(s, k * k), best = -1, x[k], y[k];
    int64_t which = 0;
    if (!(most > 0))
        return 0;
    for (int64_t r = 0; r < k; r++) {
        double sum = 0;
        for (int64_t c = 0; c < k; c++)
            sum += pow(s[r * k + c] / most, 2);
        if (sum > best)
            best = sum, which = r;
    }
    for (int64_t c = 0; c < k; c++)
        x[c] = s[which * k + c] / most;
    double length = apply(y, s, x, k, most);
    for (int64_t c = 0; c < k; c++)
        y[c] /= length;
    return most * apply(x, s, y, k, most);
}

/* q <- q - step / l(P + M) triu(P - M) q, P and M the Gram matrices of a and b on that side. */
static void move(double *q, const double *a, const double *b, int64_t rows, int64_t cols,
                 bool right, double step, double *work)
{
    int64_t k = right ? cols : rows, other = right ? rows : cols;
    double *plus = work, *minus = plus + k * k, *sum = minus + k * k;
    product(plus, a, right, a, !right, k, k, other);
    product(minus, b, right, b, !right, k, k, other);
    for (int64_t e = 0; e < k * k; e++)
        sum[e] = plus[e] + minus[e];
    double size = size_of(sum, k);
    for (int64_t e = 0; e < k * k; e++)
        plus[e] = e % k < e / k ? 0 : plus[e] - minus[e];
    product(minus, plus, false, q, false, k, k, k);
    for (int64_t e = 0; e < k * k && size > 0; e++)
        q[e] -= step / size * minus[e];
}

static void probe(const struct job *j, int64_t i, double *v, int64_t count)
{
    struct rng rng = rng_make(j->p->seed, j->p->stream + (uint64_t)i);
    uint64_t first = (uint64_t)j->p->updates[i] * (uint64_t)count;
    for (int64_t e = 0; e < count; e++)
        v[e] = has(j->p->probe) ? (double)real_get(j->p->probe, i * count + e)
                                : (double)rng_normal(&rng, first + (uint64_t)e);
}

/* Moves the factors by the update u and the probe. */
static void update(const struct job *j, int64_t i, double *ql, double *qr, const double *u,
                   double *work)
{
    int64_t rows = j->rows, cols = j->x.cols, count = rows * cols;
    double *a = work, *b = a + count, *t = b + count, *rest = t + count;
    double balance = sqrt(largest(qr, cols * cols) / largest(ql, rows * rows));

    for (int64_t e = 0; e < rows * rows; e++)
        ql[e] *= balance;
    for (int64_t e = 0; e < cols * cols; e++)
        qr[e] /= balance;
    product(t, ql, false, u, false, rows, cols, rows);
    product(a, t, false, qr, true, rows, cols, cols);
    probe(j, i, b, count);
    cblas_dtrsm(CblasRowMajor, CblasLeft, CblasUpper, CblasTrans, CblasNonUnit, (int)rows,
                (int)cols, 1, ql, (int)rows, b, (int)cols);
    cblas_dtrsm(CblasRowMajor, CblasRight, CblasUpper, CblasNoTrans, CblasNonUnit, (int)rows,
                (int)cols, 1, qr, (int)cols, b, (int)cols);
    move(ql, a, b, rows, cols, false, (double)*j->p->step, rest);
    move(qr, a, b, rows, cols, true, (double)*j->p->step, rest);
}

static void one_matrix(void *arg, int64_t i, int64_t n, int thread)
{
    const struct job *j = arg;
    int64_t rows = j->rows, cols = j->x.cols, count = rows * cols;
    int64_t most = rows > cols ? rows : cols;
    real *x = (real *)j->x.data + i * count, *left = (real *)j->left.data + i * rows * rows;
    real *right = (real *)j->right.data + i * cols * cols;
    double *ql = j->work + thread * (5 * most * most + 5 * count), *qr = ql + most * most;
    double *u = qr + most * most, *t = u + count, *work = t + count;
    bool skip = j->p->gate && j->p->gate->skip;

    (void)n;
    for (int64_t e = 0; e < rows * rows; e++)
        ql[e] = (double)left[e];
    for (int64_t e = 0; e < cols * cols; e++)
        qr[e] = (double)right[e];
    if (j->p->updates[i] == 0) {
        begin(j, i, ql, rows);
        begin(j, i, qr, cols);
    }
    for (int64_t e = 0; e < count; e++)
        u[e] = (double)x[e];
    update(j, i, ql, qr, u, work);
    product(t, ql, false, u, false, rows, cols, rows);
    product(u, ql, true, t, false, rows, cols, rows);
    product(t, u, false, qr, true, rows, cols, cols);
    product(u, t, false, qr, false, rows, cols, cols);
    for (int64_t e = 0; e < count; e++)
        x[e] = (real)u[e];
    for (int64_t e = 0; e < rows * rows && !skip; e++)
        left[e] = (real)ql[e];
    for (int64_t e = 0; e < cols * cols && !skip; e++)
        right[e] = (real)qr[e];
}

void cpu_psgd(struct ops *o, struct tensor x, struct tensor left, struct tensor right, int n,
              const struct psgd *p)
{
    int64_t rows = x.rows / n, most = rows > x.cols ? rows : x.cols;
    int64_t each = 5 * most * most + 5 * rows * x.cols;
    struct job job = { x, left, right, rows, p, NULL };

    assert(left.rows == n * rows && right.rows == n * x.cols && is_real(x));
    job.work = cpu_scratch_bytes(o, 0, (size_t)(cpu_threads(o) * each) * sizeof(double));
    if (cpu_failed(o))
        return;
    blas_threads(1);
    cpu_split(o, n, 1, one_matrix, &job);
}
