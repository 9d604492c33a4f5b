/* eval_test.c - judgements of tables against brute force, of matrices against the op. */
#include <lapacke.h>
#include <stdlib.h>
#include "types/dtype.h"
#include "base/rng.h"
#include "check.h"
#include "ops/ops.h"
#include "coeffs/eval.h"
#include "base/blas.h"
#include "coeffs/linprog.h"
#include "coeffs/minimax.h"
#include "coeffs/sets.h"

enum { SCAN = 1000000 };

static struct coeffs set(const char *name)
{
    struct coeffs c = { .n = 0 };
    CHECK_OK(coeffs_set_get(&c, name));
    return c;
}

static struct coeffs seventh(void)
{
    struct greedy_options o = GREEDY_DEFAULT;
    struct greedy g;
    struct coeffs c = { .n = 0 };
    o.degree = 7;
    o.iters = 3;
    CHECK_OK(greedy_derive(&g, &o));
    greedy_coeffs(&g, &c);
    return c;
}

/* -- one table ------------------------------------------------------------------------------ */

/* A million points in equal ratios cannot miss an extremum by more than 1e-7: their distance is
 * 7e-6 of x, and |f'' x^2| of these tables stays below some 10^3. */
static void test_range(const struct coeffs *c, double lower, double upper)
{
    struct range r, scan = { 1e300, -1e300, 0, 0 };
    for (int i = 0; i <= SCAN; i++) {
        double x = i == SCAN ? upper : lower * pow(upper / lower, (double)i / SCAN);
        double f = coeffs_value(c, x);
        scan.low = fmin(scan.low, f);
        scan.high = fmax(scan.high, f);
        scan.worst = fmax(scan.worst, fabs(1 - f));
    }
    CHECK_OK(eval_range(c, lower, upper, &r));
    CHECK(r.low <= scan.low + 1e-14 && r.high >= scan.high - 1e-14); /* rounding of f */
    CHECK_NEAR(r.low, scan.low, 1e-7);
    CHECK_NEAR(r.high, scan.high, 1e-7);
    CHECK_NEAR(r.worst, scan.worst, 1e-7);
    CHECK_NEAR(fabs(1 - coeffs_value(c, r.worst_at)), r.worst, 1e-9);
    CHECK(r.worst_at >= lower && r.worst_at <= upper);
}

static void test_overshoot(const struct coeffs *c)
{
    double over, step = 1.0 / SCAN, found = INFINITY;
    for (int i = 0; i < 9 * SCAN && isinf(found); i++)
        if (fabs(coeffs_value(c, 1 + i * step)) >= 2)
            found = 1 + i * step;
    CHECK_OK(eval_overshoot(c, &over));
    CHECK(found - over < step * 1.0001 && over <= found); /* the scan is late by a step at most */
}

static void test_tables(void)
{
    struct range r;
    for (int i = 0; i <= coeffs_set_count(); i++) {
        struct coeffs c = i < coeffs_set_count() ? set(coeffs_set_at(i)->name) : seventh();
        test_range(&c, 1e-3, 1);
        test_range(&c, 0.2, 0.9);
        test_overshoot(&c);
        CHECK_NEAR(eval_slope(&c) / (coeffs_value(&c, 1e-12) / 1e-12), 1, 1e-9);
    }
    struct coeffs record = set("record-61"), none = { .n = 1, .terms = 3, .row = { { 0.5 } } };
    double over;
    CHECK_OK(eval_range(&record, 1e-3, 1, &r));
    CHECK_NEAR(r.low, 0.8588726, 5e-8); /* orthogonalisation.md 4.2 */
    CHECK_NEAR(r.high, 1.1411274, 5e-8);
    CHECK_OK(eval_overshoot(&none, &over));
    CHECK_NEAR(over, 4, 1e-12); /* 0.5 x is 2 there */
    none.row[0][0] = 0.1;
    CHECK_OK(eval_overshoot(&none, &over));
    CHECK(isinf(over));
    CHECK_ERR(eval_range(&record, 1, 1, &r), GPT_INPUT, "lower < upper");
    CHECK_ERR(eval_range(&record, NAN, 1, &r), GPT_INPUT, "lower < upper");
}

/* By hand from the definitions, then the formulas of the sources. */
static void test_costs(void)
{
    struct coeffs c = { .n = 1, .terms = 3, .row = { { 2, -1.5, 0.5 } } };
    struct costs k = eval_costs(&c, 3, 2); /* n = 2, m = 3 */
    CHECK_NEAR(k.plain.flops, 2 * (2 * 2 * 3) + 2 * (2 * 2 * 2) + 2 * (2 * 2 * 3), 0);
    /* bf16: read X, write A; read A, write B; read B and X, write X */
    CHECK_NEAR(k.plain.bytes, 2 * ((6 + 4) + (4 + 4) + (4 + 6 + 6)), 0);
    c = set("record-61");
    double cube = 768.0 * 768 * 768, a = 4;
    k = eval_costs(&c, 768, 3072);
    CHECK_NEAR(k.plain.flops / ((20 * a + 10) * cube), 1, 1e-12);
    CHECK_NEAR(k.symmetric.flops / (5 * (3 * a + 1) * cube), 1, 1e-12);
    CHECK_NEAR(k.gram.flops / ((14 + 6 * a) * cube), 1, 1e-12);
    CHECK_NEAR(eval_costs(&c, 3072, 768).plain.flops, k.plain.flops, 0);
    c = set("cubic"); /* no A A */
    CHECK_NEAR(eval_costs(&c, 768, 3072).symmetric.flops / (5 * 3 * a * cube), 1, 1e-12);
}

/* -- matrices --------------------------------------------------------------------------------- */

static struct trial one_trial(enum matrix_kind kind, int rows, int cols, int flags)
{
    struct trial t = { .n = 0 };
    struct matrix m;
    if (CHECK_OK(matrix_random(&m, kind, rows, cols, 7, 0))) {
        CHECK_OK(trial_of_matrix(&t, &m, "t", flags));
        matrix_release(&m);
    }
    return t;
}

static void test_matrices(void)
{
    double sigma[5] = { 3, 1, 0.5, 1e-3, 1e-5 }, got[5], u[25], vt[35];
    struct matrix m;
    CHECK_OK(matrix_with_svals(&m, 7, 5, sigma, 5, 1, 2));
    CHECK(m.rows == 5 && m.cols == 7);
    CHECK_OK(matrix_svd(&m, got, u, vt));
    for (int i = 0; i < 5; i++)
        CHECK_NEAR(got[i], sigma[i], 1e-14);
    for (int r = 0; r < 5; r++) /* u diag(sigma) vt is m */
        for (int c = 0; c < 7; c++) {
            double x = 0;
            for (int i = 0; i < 5; i++)
                x += u[r * 5 + i] * got[i] * vt[i * 7 + c];
            CHECK_NEAR(x, m.x[r * 7 + c], 1e-14);
        }
    CHECK_OK(matrix_svd(&m, got, NULL, NULL));
    for (int i = 0; i < 5; i++)
        CHECK_NEAR(got[i], sigma[i], 3e-8); /* matrix.h: 1e-8 of the largest */
    matrix_release(&m);

    for (int k = 0; k < MATRIX_KINDS; k++)
        for (int aol = 0; aol < 2; aol++) {
            struct trial t = one_trial((enum matrix_kind)k, 48, 80, aol ? TRIAL_AOL : 0);
            double squares = 0;
            for (int i = 0; i < t.n; i++) {
                CHECK(t.x[i] > 0 && t.x[i] <= 1 + 1e-12);
                CHECK(i == 0 || t.x[i] <= t.x[i - 1]);
                squares += t.x[i] * t.x[i];
            }
            if (!aol)
                CHECK_NEAR(sqrt(squares), 1 / 1.02, 1e-4); /* the 1e-6 beside the norm */
            trial_release(&t);
        }
}

/* Rows that are orthogonal, of any length, AOL makes orthonormal, and the polar factor stays. */
static void test_aol(void)
{
    double x[12] = { 0, 3, 0, 0, 0.1, 0, 0, 0, 0, 0, 0, -7 };
    struct matrix m = { 3, 4, x };
    struct trial t;
    CHECK_OK(trial_of_matrix(&t, &m, "t", TRIAL_AOL | TRIAL_VECTORS));
    for (int i = 0; i < 3; i++)
        CHECK_NEAR(t.x[i], 1, 1e-12);
    CHECK_NEAR(t.shift, 0, 1e-12);
    trial_release(&t);
    memset(x, 0, sizeof x);
    CHECK_ERR(trial_of_matrix(&t, &m, "t", 0), GPT_INPUT, "not zero");
    x[0] = NAN;
    CHECK_ERR(trial_of_matrix(&t, &m, "t", 0), GPT_INPUT, "finite");
}

/* p (n x m) becomes the polar factor of x by LAPACK's other SVD, of the first `rank` singular values. */
static double factor_of(double *p, const double *x, int n, int m, int rank)
{
    double *a = malloc((size_t)n * m * sizeof *a), *s = malloc((size_t)n * 2 * sizeof *s);
    double *u = malloc((size_t)n * n * sizeof *u), *vt = malloc((size_t)n * m * sizeof *vt);
    memcpy(a, x, (size_t)n * m * sizeof *a);
    CHECK_EQ(LAPACKE_dgesvd(LAPACK_ROW_MAJOR, 'S', 'S', n, m, a, m, s, u, n, vt, m, s + n), 0);
    for (int r = 0; r < n; r++)
        for (int k = 0; k < m; k++) {
            p[r * m + k] = 0;
            for (int i = 0; i < rank; i++)
                p[r * m + k] += u[r * n + i] * vt[i * m + k];
        }
    double largest = s[0];
    free(a), free(s), free(u), free(vt);
    return largest;
}

/* x (n x m) scaled as the input says, by its definition. */
static void scale_by(double *x, int n, int m, enum coeffs_input input, double largest)
{
    double squares = 0, *sums = calloc((size_t)n, sizeof *sums);
    for (int i = 0; i < n * m; i++)
        squares += x[i] * x[i];
    for (int r = 0; r < n; r++)
        for (int k = 0; k < n; k++) {
            double dot = 0;
            for (int j = 0; j < m; j++)
                dot += x[r * m + j] * x[k * m + j];
            sums[r] += fabs(dot);
        }
    for (int i = 0; i < n * m; i++)
        x[i] /= input == INPUT_AOL        ? sqrt(sums[i / m])
                : input == INPUT_SPECTRAL ? largest
                                          : 1.02 * sqrt(squares) + 1e-6;
    free(sums);
}

/* One row on the matrix itself: x <- (a + b A + c A A) x, A = x x'. */
static void one_row(double *x, int n, int m, const double *c)
{
    double *a = malloc((size_t)n * n * sizeof *a), *z = malloc((size_t)n * n * sizeof *z);
    double *y = malloc((size_t)n * m * sizeof *y);
    for (int r = 0; r < n; r++)
        for (int k = 0; k < n; k++) {
            a[r * n + k] = 0;
            for (int j = 0; j < m; j++)
                a[r * n + k] += x[r * m + j] * x[k * m + j];
        }
    for (int r = 0; r < n; r++)
        for (int k = 0; k < n; k++) {
            z[r * n + k] = (r == k ? c[0] : 0) + c[1] * a[r * n + k];
            for (int j = 0; j < n; j++)
                z[r * n + k] += c[2] * a[r * n + j] * a[j * n + k];
        }
    for (int r = 0; r < n; r++)
        for (int k = 0; k < m; k++) {
            y[r * m + k] = 0;
            for (int j = 0; j < n; j++)
                y[r * m + k] += z[r * n + j] * x[j * m + k];
        }
    memcpy(x, y, (size_t)n * m * sizeof *x);
    free(a), free(z), free(y);
}

static double apart(const double *x, const double *y, int count, int rank)
{
    double sum = 0;
    for (int i = 0; i < count; i++)
        sum += (x[i] - y[i]) * (x[i] - y[i]);
    return sqrt(sum / rank);
}

/* trial_rounded against the optimizer's op on the same input, through |X v_i - u_i|. Both round at the
 * same places; a tie that falls differently is 2^-8 in one element, so the norms agree to 2%. */
static void test_bf16(int rows, int cols, bool aol, bool gram)
{
    unsigned form = gram ? POLAR_GRAM_FORM : 0;
    unsigned how = (aol ? POLAR_AOL : 0) | form;
    struct coeffs c = set(aol ? "turbo-muon" : "record-61");
    struct trial t = one_trial(MATRIX_GAUSSIAN, rows, cols, TRIAL_VECTORS | (aol ? TRIAL_AOL : 0));
    struct ops *o;
    int n = t.rows, m = t.cols;
    bool tall = rows > cols;
    double coef[10][3], *e = malloc((size_t)n * sizeof *e), sum = 0, want = 0, distance = 0;
    double *own = malloc((size_t)n * m * sizeof *own), *p = malloc((size_t)n * m * sizeof *p);
    uint16_t *x = malloc((size_t)n * (size_t)m * sizeof *x);
    CHECK_OK(ops_cpu_new(&o));
    for (int i = 0; i < c.n; i++)
        memcpy(coef[i], c.row[i], sizeof coef[i]);
    for (int r = 0; r < n; r++)
        for (int k = 0; k < m; k++)
            x[tall ? (size_t)k * n + r : (size_t)r * m + k] =
                bf16_from_f32(t.scaled[(size_t)r * m + k]);
    o->polar(o, tensor_of(x, DT_BF16, rows, cols), 1, (const double(*)[3])coef, c.n, how);
    CHECK_OK(trial_rounded(&t, &c, form, NULL, e, &distance));
    for (int i = 0; i < t.n; i++) {
        double off = 0;
        for (int r = 0; r < n; r++) {
            double xv = 0;
            for (int k = 0; k < m; k++)
                xv += bf16_to_f32(x[tall ? (size_t)k * n + r : (size_t)r * m + k]) *
                      t.vt[(size_t)i * m + k];
            off += (xv - t.u[(size_t)r * n + i]) * (xv - t.u[(size_t)r * n + i]);
        }
        CHECK_NEAR(e[i], sqrt(off), 0.02 * (1 + sqrt(off)));
        sum += e[i] * e[i];
        want += off;
    }
    CHECK_NEAR(sqrt(sum / want), 1, 0.02);
    /* The polar factor of what was given, by a scale the same as of the matrix. */
    for (int i = 0; i < n * m; i++)
        own[i] = t.scaled[i];
    factor_of(p, own, n, m, n);
    for (int r = 0; r < n; r++)
        for (int k = 0; k < m; k++)
            own[r * m + k] = bf16_to_f32(x[tall ? (size_t)k * n + r : (size_t)r * m + k]);
    CHECK_NEAR(distance / apart(own, p, n * m, n), 1, 0.02);
    o->free(o);
    free(e), free(x), free(own), free(p);
    trial_release(&t);
}

/* The Gram form beside the direct one where four singular values hold the norm, as in a run's first steps. Their error is
 * in f16 up to 1.16 times what it is in bf16 (768 lines); begun anew after row 2 for the first time, up to 2.2 times. */
static void test_few_large(void)
{
    enum { N = 128 };
    double sigma[N];
    struct svals v = { .rows = N, .cols = N, .n = N, .sigma = sigma };
    struct coeffs c = set("record-61");
    for (int k = 0; k < 3; k++) {
        struct trial t;
        struct spread all, direct, gram;
        for (int i = 0; i < N; i++)
            sigma[i] = i < 4 ? 1 - 0.05 * i : pow(10, -2.5 - 0.5 * k) / sqrt(i);
        CHECK_OK(trial_of_svals(&t, &v, N, N, TRIAL_VECTORS, 7, (uint64_t)k));
        struct trials l = { 1, &t };
        CHECK_OK(eval_rounded(&c, &l, 0, 1e-2, &all, &direct, NULL));
        CHECK_OK(eval_rounded(&c, &l, POLAR_GRAM_FORM, 1e-2, &all, &gram, NULL));
        printf("few large values: direct %.4f, Gram form %.4f\n", direct.rms, gram.rms);
        CHECK(gram.rms <= 1.3 * direct.rms);
        trial_release(&t);
    }
}

/* The distance to the matrix's own polar factor, of the matrix iterated by itself; and AOL's shift. `rank` of n
 * singular values are not zero. */
static void test_polar(int n, int m, int rank, enum coeffs_input input)
{
    static const int flag[] = { 0, TRIAL_SPECTRAL, TRIAL_AOL };
    struct coeffs c = set("you");
    struct matrix g;
    struct trial t;
    double sigma[64], *p = malloc((size_t)n * m * sizeof *p),
                      *q = malloc((size_t)n * m * sizeof *q);
    for (int i = 0; i < rank; i++)
        sigma[i] = 5 / (1.0 + i);
    CHECK_OK(matrix_with_svals(&g, n, m, sigma, rank, 3, 1));
    CHECK_OK(trial_of_matrix(&t, &g, "t", flag[input] | TRIAL_VECTORS));
    CHECK_EQ(t.n, rank);
    CHECK_EQ(t.input, input);
    double largest = factor_of(p, g.x, n, m, rank);
    scale_by(g.x, n, m, input, largest);
    largest = factor_of(q, g.x, n, m, rank);
    CHECK_NEAR(t.x[0], largest,
               1e-10); /* rounding, times the condition of the factor: some 10 here */
    CHECK_NEAR(t.shift, input == INPUT_AOL ? apart(p, q, n * m, rank) : 0, 1e-10);
    for (int i = 0; i < c.n; i++)
        one_row(g.x, n, m, c.row[i]);
    CHECK_NEAR(trial_distance(&t, &c), apart(g.x, p, n * m, rank), 1e-10);
    struct trials l = { 1, &t };
    if (input != INPUT_AOL || n == 1)
        CHECK_NEAR(eval_polar(&c, &l), eval_trials(&c, &l, 0).rms, 1e-12);
    else
        CHECK(eval_polar(&c, &l) > eval_trials(&c, &l, 0).rms);
    trial_release(&t);
    matrix_release(&g);
    free(p), free(q);
}

static void test_polar_errors(void)
{
    for (int k = 0; k < COEFFS_INPUTS; k++) {
        enum coeffs_input input = (enum coeffs_input)k;
        test_polar(1, 3, 1, input);
        test_polar(7, 7, 7, input);
        test_polar(24, 40, 24, input);
        test_polar(24, 40, 20, input);
    }
    struct trial t = one_trial(MATRIX_GAUSSIAN, 5, 9, TRIAL_AOL);
    struct coeffs c = set("you");
    CHECK(isnan(trial_distance(&t, &c))); /* not known without vectors */
    trial_release(&t);
}

static void test_spread(void)
{
    struct coeffs c = set("you"), seven = seventh();
    struct trial t[2] = { one_trial(MATRIX_GAUSSIAN, 24, 24, TRIAL_VECTORS),
                          one_trial(MATRIX_LEVY, 16, 40, TRIAL_VECTORS) };
    struct trials l = { 2, t };
    struct spread exact = eval_trials(&c, &l, 0), rounded = { 0, 0 };
    double sum = 0, worst = 0;
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < t[i].n; k++) {
            double x = t[i].x[k];
            for (int r = 0; r < c.n; r++)
                x = c.row[r][0] * x + c.row[r][1] * x * x * x + c.row[r][2] * x * x * x * x * x;
            sum += (1 - x) * (1 - x);
            worst = fmax(worst, fabs(1 - x));
        }
    CHECK_NEAR(exact.rms, sqrt(sum / (t[0].n + t[1].n)), 1e-14);
    double last = t[0].x[3]; /* four of one, and what is above of both */
    struct trials first = { 1, t };
    for (int k = 0; k < 4; k++)
        sum = (k ? sum : 0) + pow(1 - coeffs_value(&c, t[0].x[k]), 2);
    CHECK_NEAR(eval_trials(&c, &first, last).rms, sqrt(sum / 4), 1e-14);
    CHECK(isnan(eval_trials(&c, &first, 1).rms));
    CHECK_NEAR(exact.max, worst, 1e-14);
    /* bf16 adds some 0.2% of the mean singular value, so errors move by a few hundredths. */
    CHECK_OK(eval_rounded(&c, &l, 0, 0, &rounded, NULL, NULL));
    CHECK_NEAR(rounded.rms, exact.rms, 0.03);
    CHECK(rounded.rms != exact.rms);
    CHECK_ERR(eval_rounded(&seven, &l, 0, 0, &rounded, NULL, NULL), GPT_INPUT, "four numbers");
    trial_release(&t[0]);
    trial_release(&t[1]);
}

/* As many columns as no int counts. */
static void test_too_wide(void)
{
    double sigma[4096];
    for (int i = 0; i < 4096; i++)
        sigma[i] = 1;
    struct svals v = { .name = "many", .n = 4096, .sigma = sigma };
    struct trial t;
    CHECK_ERR(trial_of_svals(&t, &v, 1, 1 << 20, TRIAL_AOL, 1, 0), GPT_INPUT,
              "many: 4096 singular values in the shape 1x1048576: expected at most 1048576 col");
    CHECK_OK(trial_of_svals(&t, &v, 1, 1 << 20, 0, 1, 0));
    trial_release(&t);
}

/* -- linear programs ----------------------------------------------------------------------- */

/* In the plane, against every corner. */
static void test_linprog(void)
{
    struct rng r = rng_make(5, 0);
    uint64_t k = 0;
    for (int round = 0; round < 50; round++) {
        enum { M = 12 };
        double a[M * 2], b[M], cost[2], z[2] = { 0, 0 }, best = INFINITY;
        for (int i = 0; i < M; i++) {
            a[2 * i] = i < 4 ? (i % 2 ? 1 : -1) * (i < 2) : rng_normal(&r, k++);
            a[2 * i + 1] = i < 4 ? (i % 2 ? 1 : -1) * (i >= 2) : rng_normal(&r, k++);
            b[i] = i < 4 ? 5 : 0.2 + rng_uniform(&r, k++);
        }
        cost[0] = rng_normal(&r, k++);
        cost[1] = rng_normal(&r, k++);
        struct linprog p = { 2, M, a, b, cost };
        CHECK(linprog_solve(&p, z, 1e-10));
        for (int i = 0; i < M; i++)
            for (int j = 0; j < i; j++) {
                double det = a[2 * i] * a[2 * j + 1] - a[2 * i + 1] * a[2 * j];
                double x = (b[i] * a[2 * j + 1] - a[2 * i + 1] * b[j]) / det;
                double y = (a[2 * i] * b[j] - b[i] * a[2 * j]) / det;
                bool inside = fabs(det) > 1e-12;
                for (int q = 0; q < M; q++)
                    inside &= a[2 * q] * x + a[2 * q + 1] * y <= b[q] + 1e-9;
                if (inside)
                    best = fmin(best, cost[0] * x + cost[1] * y);
            }
        CHECK_NEAR(cost[0] * z[0] + cost[1] * z[1], best, 1e-7);
        for (int i = 0; i < M; i++)
            CHECK(a[2 * i] * z[0] + a[2 * i + 1] * z[1] <= b[i] + 1e-12);
    }
}

int main(void)
{
    blas_threads(1); /* other tests run beside this one */
    test_tables();
    test_costs();
    test_matrices();
    test_aol();
    test_bf16(40, 24, false, false);
    test_bf16(24, 40, false, false);
    test_bf16(1100, 20, false, false); /* B X is rounded before a X is added */
    test_bf16(20, 20, true, false);
    test_bf16(64, 24, true, false);
    test_bf16(24, 40, false, true);
    test_bf16(64, 24, false, true);
    test_bf16(1100, 20, true, true);
    test_few_large();
    test_polar_errors();
    test_spread();
    test_too_wide();
    test_linprog();
    return check_done();
}
