/* estimate_test.c - a run's time on other ranks: steps and bytes against record 61's published ones, the rest by hand. */
#include "train/estimate.h"

#include <math.h>
#include <stdlib.h>
#include "check.h"

static const struct estimate_rates H200 = { .products = 772e12, .copy = 4.25e12, .send = 294e9 };

static struct recipe *record(const char *name)
{
    const char *share = getenv("GPT_SHARE");
    char path[512];
    struct recipe *r = NULL;
    snprintf(path, sizeof path, "%s/recipes/%s.recipe", share ? share : "share", name);
    CHECK_OK(recipe_read(&r, path, NULL, 0));
    return r;
}

/* Stages begin at 0, 575, 1150 and, the extension, 1725 of 1765 steps. A rank of eight sends 280.8 MB in a step without
 * Adam and 821.6 in one with it, after head and embedding part 956.8 (record-61.md 4.9), which they do in step 1151 or 1152. */
static void test_record(const struct recipe *r)
{
    int steps[3];
    estimate_steps(r, steps);
    CHECK(steps[0] == 575 && steps[1] == 575 && steps[2] == 615);
    CHECK_NEAR(estimate_sent(r, 0, 8) / 1e6, (280.8 + 821.6) / 2, 0.06);
    CHECK_NEAR(estimate_sent(r, 2, 8) / 1e6, (280.8 + 956.8) / 2, 0.3);
    CHECK_NEAR(estimate_sent(r, 0, 1), 0, 0);
}

/* The rank with most of eight has 133.6 GFLOP (orthogonalisation.md 6), one rank eight times that; all that is cut is cut
 * in equal parts, and vectors and gates, which are not, are few. */
static void test_update(const struct recipe *r)
{
    struct estimate_rates products = { .products = 1e9, .copy = 1e30, .send = 1 };
    struct estimate_rates copies = { .products = 1e30, .copy = 1e9, .send = 1 };
    double cut, one;
    CHECK_NEAR(estimate_update(r, 8, &products, &cut), 133.6, 0.06);
    CHECK_NEAR(cut, 133.6, 0.06);
    estimate_update(r, 1, &copies, &one);
    double all = estimate_update(r, 8, &copies, &cut);
    CHECK_NEAR(one / cut, 8, 0.01);
    CHECK(all > cut && all < 1.01 * cut);
}

static void test_stage(const struct recipe *r)
{
    struct stage_time t = {
        .stage = 0, .ranks = 2, .step = 90, .model = 80, .optim = 4, .exposed = 6
    };
    double cut, ratio = estimate_update(r, 8, &H200, &cut) / estimate_update(r, 2, &H200, &cut);
    struct stage_estimate e = estimate_stage(r, &t, 2, &H200);
    CHECK(e.least == 90 && e.most == 90); /* as it was measured */
    e = estimate_stage(r, &t, 8, &H200);
    CHECK_EQ(e.micros, 1); /* of four */
    CHECK_NEAR(e.model, 20, 1e-12);
    CHECK_NEAR(e.optim, 4 * ratio, 1e-12);
    CHECK(ratio > 0.25 && ratio < 0.26);
    CHECK_NEAR(e.least, e.model + e.optim + 6 * (7 / 8.0) / (1 / 2.0),
               1e-9); /* rings: (n - 1) / n */
    CHECK_NEAR(e.most, e.least, 1e-12); /* more than all that is sent, at this rate */
    t.exposed = -1; /* less than nothing is noise */
    e = estimate_stage(r, &t, 8, &H200);
    CHECK_NEAR(e.least, e.model + e.optim, 1e-12);
    CHECK_NEAR(e.most, e.least + 1e3 * e.sent / 294e9, 1e-12);
    e = estimate_stage(r, &t, 3, &H200);
    CHECK_EQ(e.micros, 3); /* of 8 chunks one rank has three */
    CHECK_NEAR(e.model, 60, 1e-12);
}

/* Steps of record 61 and 84 on one H200, four and eight, one day, one host (performance.md 2): from those of one the others
 * lie between the ends of the estimate, or within 5% above, by which cards of one kind differ: a step waits for the slowest.
 * How the one GPU's time is split hardly matters, since nearly all of it is cut by rank. */
static void test_measured(const struct recipe *r, const double one[3], const double four[3],
                          const double eight[3])
{
    for (int i = 0; i < 3; i++) {
        struct stage_time t = {
            .stage = i, .ranks = 1, .step = one[i], .model = one[i] - 3, .optim = 3
        };
        struct stage_estimate a = estimate_stage(r, &t, 4, &H200),
                              b = estimate_stage(r, &t, 8, &H200);
        printf("stage %d: four %.2f to %.2f, measured %.2f; eight %.2f to %.2f, measured %.2f\n", i,
               a.least, a.most, four[i], b.least, b.most, eight[i]);
        CHECK(four[i] > a.least && !(four[i] > 1.05 * a.most));
        CHECK(eight[i] > b.least && !(eight[i] > 1.05 * b.most));
    }
}

int main(void)
{
    struct recipe *r = record("record-61"), *s = record("record-84");
    if (!r || !s)
        return check_done();
    test_record(r);
    test_update(r);
    test_stage(r);
    test_measured(r, (double[]){ 169.2, 334.0, 497.2 }, (double[]){ 43.89, 85.33, 126.16 },
                  (double[]){ 22.37, 43.55, 64.61 });
    test_measured(s, (double[]){ 173.5, 340.3, 503.2 }, (double[]){ 46.27, 89.29, 129.14 },
                  (double[]){ 24.53, 45.72, 67.41 });
    recipe_free(r);
    recipe_free(s);
    return check_done();
}
