/* paired_test.c - pairs of runs by seed and by order, and their error, on losses made by hand. */
#include <math.h>
#include <stdlib.h>
#include "check.h"
#include "runs/gather.h"
#include "runs/paired.h"

static void add(struct group *g, double loss, int64_t seed, bool ended)
{
    static struct variants none;
    static const struct facts unknown;
    struct run_val val = { 10, 6, loss, NAN };
    struct run run = { .path = "made",
                       .last = 10,
                       .total = 10,
                       .ended = ended,
                       .loss = loss,
                       .loss_digits = 6,
                       .time_ms = NAN,
                       .seed = seed,
                       .val = &val,
                       .vals = 1,
                       .facts = &unknown };
    CHECK_OK(group_add(g, &none, &run));
}

static struct gather two_groups(void)
{
    struct gather g = { .n = 2, .live = -1 };
    g.group = calloc(2, sizeof *g.group);
    return g;
}

/* Differences 0.01, 0.02, 0.03: mean 0.02, sample deviation 0.01, t = 0.02 / (0.01 / sqrt 3) = 2 sqrt 3. Of two
 * degrees of freedom P(T > t) = 1/2 - t / (2 sqrt(2 + t^2)). */
static void test_by_seed(void)
{
    struct gather g = two_groups();
    struct paired p;
    const double t = 2 * sqrt(3), tail = 0.5 - t / (2 * sqrt(2 + t * t));
    add(&g.group[0], 3.0, 1, true);
    add(&g.group[0], 4.0, 2, true);
    add(&g.group[0], 5.0, 3, true);
    add(&g.group[0], 9.0, 7, true); /* no partner */
    add(&g.group[1], 5.03, 3, true);
    add(&g.group[1], 8.0, 4, false); /* no end */
    add(&g.group[1], 3.01, 1, true);
    add(&g.group[1], 4.02, 2, true);
    CHECK_OK(paired_of(&p, &g, 1));
    CHECK(p.by_seed);
    CHECK_EQ(p.pairs, 3);
    CHECK_EQ(p.left_out, 1);
    CHECK_NEAR(p.mean, 0.02, 1e-12);
    CHECK_NEAR(p.error, 0.01 / sqrt(3), 1e-12);
    /* deviations 1 and 1.01 */
    CHECK_NEAR(p.unpaired, sqrt((1 + 1.01 * 1.01) / 3), 1e-12);
    CHECK_NEAR(p.p_two_sided, 2 * tail, 1e-10);
    CHECK_NEAR(p.p_lower, 1 - tail, 1e-10);
    gather_release(&g);
}

/* A seed that is not told, or that stands twice, leaves the order of the logs. */
static void test_by_order(void)
{
    for (int twice = 0; twice < 2; twice++) {
        struct gather g = two_groups();
        struct paired p;
        add(&g.group[0], 3.0, 1, true);
        add(&g.group[0], 7.0, 3, false);
        add(&g.group[0], 4.0, twice ? 1 : -1, true);
        add(&g.group[1], 2.5, 1, true);
        add(&g.group[1], 3.4, 2, true);
        add(&g.group[1], 3.3, 3, true);
        CHECK_OK(paired_of(&p, &g, 1));
        CHECK(!p.by_seed);
        CHECK_EQ(p.pairs, 2);
        CHECK_EQ(p.left_out, 1);
        CHECK_NEAR(p.mean, -0.55, 1e-12);
        CHECK_NEAR(p.error, 0.05, 1e-12); /* of -0.5 and -0.6 */
        CHECK(p.p_lower < 0.5);
        gather_release(&g);
    }
}

/* One pair, or equal differences, have no error; no pair has nothing. */
static void test_nothing(void)
{
    struct gather g = two_groups();
    struct paired p;
    CHECK_OK(paired_of(&p, &g, 1));
    CHECK(p.pairs == 0 && isnan(p.mean) && isnan(p.error) && isnan(p.p_lower));
    add(&g.group[0], 3.0, 1, true);
    add(&g.group[1], 2.9, 1, true);
    CHECK_OK(paired_of(&p, &g, 1));
    CHECK(p.pairs == 1 && isnan(p.error) && isnan(p.p_two_sided));
    CHECK_NEAR(p.mean, -0.1, 1e-12);
    add(&g.group[0], 3.5, 2, true);
    add(&g.group[1], 3.4, 2, true); /* the same difference but for its rounding */
    CHECK_OK(paired_of(&p, &g, 1));
    CHECK(p.pairs == 2 && isnan(p.p_two_sided));
    gather_release(&g);
}

int main(void)
{
    test_by_seed();
    test_by_order();
    test_nothing();
    return check_done();
}
