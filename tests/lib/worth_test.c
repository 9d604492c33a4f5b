/* What losses are worth: slopes, cushions and differences at equal steps and times of curves that are
 * made up, so that the true values are known, and how often an error holds them. */
#include <stdlib.h>
#include "base/rng.h"
#include "check.h"
#include "runs/worth.h"

/* Curve of a run: at `end` the loss is `loss`, the slope `slope`, the curvature `bend`; the whole run is
 * off by `seed`. A step takes `ms`. */
struct made {
    int32_t end, every;
    double loss, slope, bend, seed, ms;
};

static double made_loss(const struct made *m, int32_t step)
{
    double x = step - m->end;
    return m->loss + m->slope * x + 0.5 * m->bend * x * x + m->seed;
}

static void add(struct group *g, const struct made *m, struct rng *r, uint64_t *at, double noise)
{
    static struct run_val val[64];
    static struct variants none;
    static const struct facts unknown;
    struct run run = { .path = "made",
                       .first = 0,
                       .last = m->end,
                       .total = m->end,
                       .ended = true,
                       .loss_digits = 6,
                       .val = val,
                       .facts = &unknown };
    for (int32_t s = 0; s <= m->end; s += m->every)
        val[run.vals++] =
            (struct run_val){ s, 6, made_loss(m, s) + noise * rng_normal(r, (*at)++), s * m->ms };
    run.loss = val[run.vals - 1].loss;
    run.time_ms = val[run.vals - 1].time_ms + 1e-3 * g->n;
    CHECK_OK(group_add(g, &none, &run));
}

static void begin(struct gather *g, int groups)
{
    *g = (struct gather){ .n = groups, .live = -1 };
    g->group = calloc((size_t)groups, sizeof *g->group);
}

static void finish(struct gather *g) { CHECK_OK(gather_finish(g, &(struct gather_options){ 0 })); }

/* Without noise everything is exact: the parabola is the curve. */
static void test_exact(void)
{
    struct rng r = rng_make(1, 0);
    uint64_t at = 0;
    struct made base = {
        .end = 400, .every = 50, .loss = 3.278, .slope = -4e-4, .bend = 2e-6, .ms = 100
    };
    struct made own = {
        .end = 350, .every = 50, .loss = 3.279, .slope = -5e-4, .bend = 2e-6, .ms = 90
    };
    struct gather g;
    struct worth w;
    begin(&g, 2);
    for (int i = 0; i < 3; i++) {
        base.seed = own.seed = 1e-3 * (i - 1);
        add(&g.group[0], &base, &r, &at, 0);
        add(&g.group[1], &own, &r, &at, 0);
    }
    finish(&g);
    CHECK_OK(worth_of(&w, &g, 0, 3.28));
    CHECK_NEAR(w.slope.value, -4e-4, 1e-12);
    CHECK_NEAR(w.slope.error, 0, 1e-12);
    /* the deviation of the seeds is 1e-3, the slope has none: 1e-3 / sqrt(3) / 4e-4 steps */
    CHECK_NEAR(w.cushion.value, 5, 1e-8);
    CHECK_NEAR(w.cushion.error, 1e-3 / sqrt(3) / 4e-4, 1e-8);
    CHECK(isnan(w.at_step.value) && isnan(w.at_time.value));
    CHECK_OK(worth_of(&w, &g, 1, 3.28));
    CHECK_NEAR(w.cushion.value, 2, 1e-8);
    /* at step 350, which the baseline has validated */
    CHECK_NEAR(w.step, 350, 0);
    CHECK_NEAR(w.at_step.value, 3.279 - made_loss(&base, 350) + 1e-3, 1e-12);
    CHECK_NEAR(w.at_step.error, 1e-3 * sqrt(2.0 / 3), 1e-12);
    /* at 31.5 s, where own ends; the baseline is at step 315, between 300 and 350 */
    base.seed = 0;
    double chord = made_loss(&base, 300) + 0.3 * (made_loss(&base, 350) - made_loss(&base, 300));
    CHECK_NEAR(w.time_s, 31.5, 1e-9);
    CHECK_NEAR(w.at_time.value, 3.279 - chord, 1e-9);
    CHECK_NEAR(w.at_time.error, 1e-3 * sqrt(2.0 / 3), 1e-9);
    gather_release(&g);
}

/* Of 400 groups of eight runs with noise in seed and in each validation, the cushion's true value lies
 * within 1.96 errors as often as a t of 7 degrees of freedom does: 0.909. The share's own deviation is
 * 0.0144; within four of them. The mean of 400 cushions is that of the curve within four errors. */
static void test_coverage(void)
{
    enum { TRIES = 400, RUNS = 8 };
    struct rng r = rng_make(3, 0);
    uint64_t at = 0;
    struct made m = {
        .end = 500, .every = 100, .loss = 3.2785, .slope = -2e-4, .bend = 1e-6, .ms = 60
    };
    double sum = 0, squares = 0;
    int held = 0;
    for (int k = 0; k < TRIES; k++) {
        struct gather g;
        struct worth w;
        begin(&g, 1);
        for (int i = 0; i < RUNS; i++) {
            m.seed = 1e-3 * rng_normal(&r, at++);
            add(&g.group[0], &m, &r, &at, 1e-4);
        }
        finish(&g);
        CHECK_OK(worth_of(&w, &g, 0, 3.28));
        CHECK(w.cushion.error > 0);
        held += fabs(w.cushion.value - 7.5) <= 1.96 * w.cushion.error;
        sum += w.cushion.value;
        squares += w.cushion.value * w.cushion.value;
        gather_release(&g);
    }
    double mean = sum / TRIES, sd = sqrt(squares / TRIES - mean * mean);
    CHECK_NEAR((double)held / TRIES, 0.909, 4 * 0.0144);
    CHECK_NEAR(mean, 7.5, 4 * sd / sqrt(TRIES));
}

/* Differences of 400 pairs of groups, of other numbers of runs: errors hold the true one as often. */
static void test_difference(void)
{
    enum { TRIES = 400 };
    struct rng r = rng_make(4, 0);
    uint64_t at = 0;
    struct made a = { .end = 500, .every = 100, .loss = 3.2785, .slope = -2e-4, .ms = 60 }, b = a;
    b.loss = 3.2775;
    b.ms = 66; /* at 30 s, a's end, b is at step 454.5: 45.5 steps before its end */
    double true_step = -1e-3, true_time = -1e-3 + 2e-4 * (500 - 30000 / 66.0);
    int step = 0, time = 0;
    for (int k = 0; k < TRIES; k++) {
        struct gather g;
        struct worth w;
        begin(&g, 2);
        for (int i = 0; i < 16; i++) {
            a.seed = 1e-3 * rng_normal(&r, at++);
            b.seed = 1e-3 * rng_normal(&r, at++);
            add(&g.group[0], &a, &r, &at, 0);
            if (i < 12)
                add(&g.group[1], &b, &r, &at, 0);
        }
        finish(&g);
        CHECK_OK(worth_of(&w, &g, 1, 3.28));
        step += fabs(w.at_step.value - true_step) <= 1.96 * w.at_step.error;
        time += fabs(w.at_time.value - true_time) <= 1.96 * w.at_time.error;
        gather_release(&g);
    }
    /* t of about 25 degrees of freedom: 0.939, its share's deviation 0.012 */
    CHECK_NEAR((double)step / TRIES, 0.939, 4 * 0.012);
    CHECK_NEAR((double)time / TRIES, 0.939, 4 * 0.012);
}

/* One run has no error; a curve that rises, or has one validation, no cushion. */
static void test_not_known(void)
{
    struct rng r = rng_make(5, 0);
    uint64_t at = 0;
    struct made m = { .end = 500, .every = 100, .loss = 3.27, .slope = -2e-4, .ms = 60 };
    struct gather g;
    struct worth w;
    begin(&g, 1);
    add(&g.group[0], &m, &r, &at, 0);
    finish(&g);
    CHECK_OK(worth_of(&w, &g, 0, 3.28));
    CHECK_NEAR(w.cushion.value, 50, 1e-8);
    CHECK(isnan(w.cushion.error));
    gather_release(&g);
    begin(&g, 1);
    m.slope = 1e-4;
    add(&g.group[0], &m, &r, &at, 0);
    finish(&g);
    CHECK_OK(worth_of(&w, &g, 0, 3.28));
    CHECK(isnan(w.cushion.value));
    gather_release(&g);
    begin(&g, 1);
    m.every = m.end;
    add(&g.group[0], &m, &r, &at, 0);
    finish(&g);
    CHECK_OK(worth_of(&w, &g, 0, 3.28));
    CHECK(isnan(w.slope.value) && isnan(w.cushion.value));
    gather_release(&g);
}

int main(void)
{
    test_exact();
    test_coverage();
    test_difference();
    test_not_known();
    return check_done();
}
