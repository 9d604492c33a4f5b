/* fit_test.c - fits: known optima, the guard, matrices that they have not seen. */
#include <stdlib.h>
#include <time.h>
#include "check.h"
#include "base/blas.h"
#include "coeffs/fit.h"
#include "coeffs/minimax.h"
#include "coeffs/sets.h"

static void add_random(struct trials *l, enum matrix_kind kind, int rows, int cols, uint64_t seed,
                       int flags)
{
    struct matrix m;
    struct trial t;
    if (CHECK_OK(matrix_random(&m, kind, rows, cols, seed, 0))) {
        CHECK_OK(trial_of_matrix(&t, &m, "random", flags));
        CHECK_OK(trials_add(l, &t));
        matrix_release(&m);
    }
}

/* n values in equal ratios over [low, high]; a trial of numbers alone. */
static struct trials interval(double low, double high, int n)
{
    struct trials l = { 0, NULL };
    struct trial t = { .n = n, .rows = n, .cols = n, .x = malloc((size_t)n * sizeof *t.x) };
    for (int i = 0; i < n; i++)
        t.x[i] = n > 1 ? high * pow(low / high, (double)i / (n - 1)) : high;
    CHECK_OK(trials_add(&l, &t));
    return l;
}

static struct coeffs start_of(const char *from, int rows, bool aol)
{
    struct coeffs c = { .n = 0 };
    CHECK_OK(fit_start(&c, from, rows, aol));
    return c;
}

/* Of an interval, the greedy chain is the best there is (arXiv 2505.16932): a fit that starts
 * elsewhere must come to it, and cannot come below. */
static void test_known_optimum(double low, double high, int rows)
{
    struct greedy_options g = { rows, 5, low, high, 0, 0, false };
    struct greedy best;
    struct fit_options o = FIT_DEFAULT;
    struct trials l = interval(low, high, 3000);
    struct coeffs start = start_of(NULL, rows, false);
    struct fit f;
    o.objective = FIT_MAX;
    o.upper = high;
    o.safety = 0;
    CHECK_OK(greedy_derive(&best, &g));
    double least = (double)best.row[rows - 1].minimax.error;
    CHECK_OK(fit_table(&f, &start, &l, &o));
    /* Points miss a peak by up to 1e-5 of its height: 3000 of them, f'' x^2 some hundred. */
    CHECK(f.after <= least * 1.001 && f.after >= least * 0.9999);
    CHECK(f.after < f.before);
    trials_release(&l);
}

/* The guard, by a scan: within 0 .. 1 + swing, and from the median on over 1 - swing. */
static void check_guard(const struct fit *f, const struct fit_options *o, double median)
{
    CHECK_NEAR(f->guard_after, 0, 0);
    long bad = 0;
    for (int i = 0; i <= 20000; i++) {
        double x = o->upper * pow(1e-5, i / 20000.0), y = coeffs_value(&f->table, x);
        bad += !(y >= 0 && y <= 1 + o->swing && (x < median || y >= 1 - o->swing));
    }
    CHECK_EQ(bad, 0);
}

/* Fitted to some matrices, better than every published set on others. */
static void test_unseen(enum matrix_kind kind, int rows, int cols, bool aol, bool bf16)
{
    int flags = (aol ? TRIAL_AOL : 0) | (bf16 ? TRIAL_VECTORS : 0);
    struct trials seen = { 0, NULL }, unseen = { 0, NULL };
    struct fit_options o = FIT_DEFAULT;
    struct coeffs start = start_of(NULL, aol ? 4 : 5, aol);
    struct fit f;
    for (uint64_t i = 0; i < 3; i++) {
        add_random(&seen, kind, rows, cols, 10 + i, flags);
        add_random(&unseen, kind, rows, cols, 20 + i, flags);
    }
    o.rounded = bf16;
    CHECK_OK(fit_table(&f, &start, &seen, &o));
    CHECK(f.after < f.before);
    for (int i = 0; i < coeffs_set_count(); i++) {
        struct coeffs c;
        struct spread ours = eval_trials(&f.table, &unseen, 0), theirs;
        if (coeffs_set_at(i)->n > f.table.n)
            continue;
        CHECK_OK(coeffs_set_get(&c, coeffs_set_at(i)->name));
        theirs = eval_trials(&c, &unseen, 0);
        if (bf16) {
            CHECK_OK(eval_rounded(&f.table, &unseen, o.how, 0, &ours, NULL, NULL));
            CHECK_OK(eval_rounded(&c, &unseen, o.how, 0, &theirs, NULL, NULL));
        }
        CHECK(ours.rms < theirs.rms);
    }
    check_guard(&f, &o, seen.v[0].x[0]);
    trials_release(&seen);
    trials_release(&unseen);
}

/* What a fit says of itself is so, and it is never worse than where it began. */
static void test_honest(const char *from, enum fit_objective what, bool bf16)
{
    struct trials l = { 0, NULL };
    struct fit_options o = FIT_DEFAULT;
    struct coeffs start = start_of(from, 0, false);
    struct fit f;
    add_random(&l, MATRIX_POWER, 24, 36, 3, bf16 ? TRIAL_VECTORS : 0);
    add_random(&l, MATRIX_LEVY, 30, 30, 4, bf16 ? TRIAL_VECTORS : 0);
    o.objective = what;
    o.rounded = bf16;
    CHECK_OK(fit_table(&f, &start, &l, &o));
    struct spread before = eval_trials(&start, &l, 0);
    struct spread after = eval_trials(&f.table, &l, 0);
    CHECK_NEAR(f.exact_before, what == FIT_MAX ? before.max : before.rms, 1e-12);
    CHECK_NEAR(f.exact_after, what == FIT_MAX ? after.max : after.rms, 1e-12);
    if (bf16) {
        CHECK_OK(eval_rounded(&start, &l, o.how, 0, &before, NULL, NULL));
        CHECK_OK(eval_rounded(&f.table, &l, o.how, 0, &after, NULL, NULL));
    }
    CHECK_NEAR(f.before, what == FIT_MAX ? before.max : before.rms, 1e-12);
    CHECK_NEAR(f.after, what == FIT_MAX ? after.max : after.rms, 1e-12);
    CHECK(f.after <= f.before);
    CHECK(f.table.n == start.n);
    for (int t = 0; t < f.table.n; t++)
        CHECK(start.row[t][2] != 0 || f.table.row[t][2] == 0); /* a cubic stays one */
    trials_release(&l);
}

static void test_edges(void)
{
    struct fit_options o = FIT_DEFAULT;
    struct coeffs start = start_of("record-61", 0, false);
    struct fit f;
    for (int n = 1; n <= 3; n += 2) { /* fewer values than coefficients */
        struct trials l = interval(0.01, 0.5, n);
        CHECK_OK(fit_table(&f, &start, &l, &o));
        CHECK(f.after <= 1e-9);
        char said[256];
        fit_describe(&f, &start, &o, said, sizeof said);
        CHECK(!strstr(said, "inf") && strstr(said, f.after > 0 ? "times less" : ": exact"));
        trials_release(&l);
    }
    struct trials far = interval(0.01, 0.98, 2); /* what its norm made zero */
    far.v[0].x[1] = 0;
    CHECK_OK(fit_table(&f, &start, &far, &o));
    CHECK_NEAR(f.after, sqrt(0.5), 1e-6);
    CHECK(f.guard_after <= f.guard_before);
    trials_release(&far);
    struct trials l = interval(0.01, 0.5, 10);
    o.lower = 0.6;
    CHECK_ERR(fit_table(&f, &start, &l, &o), GPT_INPUT, "no singular value of 0.6 or more");
    o.lower = 1;
    CHECK_ERR(fit_table(&f, &start, &l, &o), GPT_USAGE, "lower < upper");
    o.lower = 0.1;
    CHECK_OK(fit_table(&f, &start, &l, &o));
    CHECK(f.low >= 0.1 && f.count < 10);
    o.swing = NAN;
    CHECK_ERR(fit_table(&f, &start, &l, &o), GPT_USAGE, "swing");
    trials_release(&l);

    CHECK_ERR(fit_start(&start, "none", 0, false), GPT_USAGE, "no such set");
    CHECK_ERR(fit_start(&start, "you", 3, false), GPT_USAGE, "you has 5 rows, expected 3");
    CHECK_ERR(fit_start(&start, "jordan", 3, true), GPT_USAGE, "or one more");
    struct coeffs you = start_of("you", 0, false), turbo = start_of("turbo-muon", 0, true);
    start = start_of("you", 4, true); /* how turbo-muon came about */
    CHECK_STR(start.name, "you without its first");
    CHECK(start.n == 4 && !memcmp(start.row, turbo.row, 4 * sizeof turbo.row[0]));
    CHECK(!memcmp(start.row, you.row[1], 4 * sizeof you.row[0]));
}

/* Ten thousand singular values, five rows: 10 s of one core are asked for. */
static void test_time(void)
{
    struct trials l = interval(1e-4, 0.9, 10000);
    struct fit_options o = FIT_DEFAULT;
    struct coeffs start = start_of(NULL, 5, false);
    struct fit f;
    clock_t from = clock();
    CHECK_OK(fit_table(&f, &start, &l, &o));
    CHECK((double)(clock() - from) / CLOCKS_PER_SEC < 10);
    trials_release(&l);
}

int main(void)
{
    blas_threads(1); /* other tests run beside this one */
    test_known_optimum(1e-3, 1, 5);
    test_known_optimum(0.02, 0.8, 3);
    test_known_optimum(0.3, 1, 1);
    test_unseen(MATRIX_GAUSSIAN, 128, 128, false, false);
    test_unseen(MATRIX_LEVY, 128, 128, false, false);
    test_unseen(MATRIX_GAUSSIAN, 128, 128, true, false);
    test_unseen(MATRIX_LEVY, 96, 384, true, false);
    test_unseen(MATRIX_GAUSSIAN, 64, 64, false, true);
    test_unseen(MATRIX_LEVY, 64, 64, true, true);
    test_honest("record-61", FIT_RMS, false);
    test_honest("you", FIT_MAX, false);
    test_honest("cubic", FIT_RMS, false);
    test_honest("jordan", FIT_RMS, true);
    test_honest("cans", FIT_MAX, true);
    test_edges();
    test_time();
    return check_done();
}
