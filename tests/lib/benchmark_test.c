/* benchmark_test.c - the rules of track 3 against the benchmark's own check values: limits of one to twenty
 * runs, result 36, the pairwise table, the published standings. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "check.h"
#include "runs/benchmark.h"

static const struct rules *track_3(void) { return rules_named("track-3"); }

/* Half a unit of the last digit as the benchmark prints it. */
#define PRINTED(digits) (0.5 * pow(10, -(digits)) + 1e-12)

static void test_names(void)
{
    CHECK(track_3() && track_3()->rule == JUDGE_Z && track_3()->target == 3.28);
    CHECK(rules_named("track-1")->rule == JUDGE_T && isnan(rules_named("loss")->target));
    CHECK(!rules_named("track-2") && !rules_named(""));
}

/* The greatest means that pass, of n = 1, 4, 10, 20 runs. */
static void test_limits(void)
{
    static const struct {
        int n;
        double mean;
    } limit[] = { { 1, 3.276 }, { 4, 3.278 }, { 10, 3.27873509 }, { 20, 3.27910557 } };
    for (int i = 0; i < 4; i++) {
        double root = sqrt(limit[i].n), mean = limit[i].mean;
        CHECK(rules_reach(track_3(), (3.28 - (mean - 1e-8)) * root));
        CHECK(!rules_reach(track_3(), (3.28 - (mean + 1e-8)) * root));
    }
    CHECK(
        rules_reach(track_3(), (3.28 - 3.276) * 1)); /* equal, though 3.28 - 3.276 < 0.004 in f64 */
    /* z = 3.0769, p <= 0.00105 */
    CHECK_NEAR(track_3()->margin / track_3()->sigma, 3.0769, PRINTED(4));
    CHECK(rules_p(track_3(), track_3()->margin) <= 0.00105);
    CHECK_NEAR(rules_p(track_3(), track_3()->margin), 0.00105, 5e-6);
    CHECK(isnan(rules_p(rules_named("loss"), 0.004)));
}

static void test_pairs(void)
{
    static const struct {
        struct result older, newer;
        double lead, p, to; /* to: half a unit of the printed p */
    } row[] = {
        { { 3225, 3.2785, 16 }, { 3210, 3.2785, 10 }, 0.001674, 0.099, 0.0005 },
        { { 3250, 3.2778, 10 }, { 3210, 3.2785, 10 }, 0.002460, 0.029, 0.0005 },
        { { 3375, 3.2788, 20 }, { 3325, 3.2790, 20 }, 0.006483, 3.1e-7, 0.5e-8 },
        { { 3250, 3.2771, 8 }, { 3225, 3.2785, 16 }, -0.000635, 0.69, 0.005 },
        { { 3150, 3.2776, 4 }, { 3125, 3.2784, 8 }, 0.000531, 0.34, 0.005 },
        /* the benchmark's text has #8 with 16 runs here; P(Z > 2.10) is 0.0179 in tables */
        { { 3250, 3.2778, 16 }, { 3210, 3.2785, 10 }, 0.0027, 0.0179, 0.0001 },
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        double lead = rules_pair(track_3(), &row[i].older, &row[i].newer);
        CHECK_NEAR(lead, row[i].lead, PRINTED(i < 5 ? 6 : 4));
        CHECK_NEAR(rules_p(track_3(), lead), row[i].p, row[i].to);
        CHECK(rules_reach(track_3(), lead) == (i == 2));
    }
    struct result none = { 3250, 3.2778, 0 }, some = { NAN, 3.2778, 10 };
    CHECK(isnan(rules_pair(track_3(), &none, &row[0].newer)));
    CHECK(isnan(rules_pair(track_3(), &some, &row[0].newer)));
    /* a surplus of 3.2790 - 3.2720 is worth 156 steps */
    CHECK_NEAR((3.2790 - 3.2720) / track_3()->step_loss, 156, 0.5);
}

/* Number 36, and that all but the early single run pass as their marks say. */
static void test_standings(void)
{
    struct standing *s = NULL;
    int n = 0, found = 0, passed = 0;
    CHECK_OK(standings_read(track_3(), &s, &n));
    CHECK_EQ(n, 34);
    for (int i = 0; i < n; i++) {
        CHECK(i == 0 || s[i].number > s[i - 1].number);
        CHECK(s[i].number >= 1 && s[i].number <= 46 && s[i].result.n >= 1);
        CHECK(s[i].result.steps >= 2690 && s[i].result.mean > 3.27 && s[i].result.mean < 3.28);
        passed += rules_reach(track_3(), (3.28 - s[i].result.mean) * sqrt(s[i].result.n));
        if (s[i].number != 36)
            continue;
        found++;
        CHECK(s[i].result.steps == 3250 && s[i].result.mean == 3.2787 && s[i].result.n == 10);
        CHECK_STR(s[i].date, "2026/06/11");
    }
    CHECK_EQ(found, 1);
    CHECK_EQ(passed, 33); /* not #2, one run of 3.2790 */
    free(s);
    CHECK_OK(standings_read(rules_named("loss"), &s, &n));
    CHECK(!s && n == 0);
    struct standing one;
    CHECK_OK(standing_of(track_3(), 46, &one));
    CHECK(one.number == 46 && one.result.steps == 2690 && one.result.n == 8);
    CHECK_ERR(standing_of(track_3(), 15, &one), GPT_USAGE, "track-3 has no result 15 here");
    struct rules bad = *track_3();
    bad.standings = "# a line\n1\t3250\t3.28\n";
    CHECK_ERR(standings_read(&bad, &s, &n), GPT_INPUT, "standings:2: expected number");
    CHECK(!s);
}

int main(void)
{
    test_names();
    test_limits();
    test_pairs();
    test_standings();
    return check_done();
}
