/* Numbers of activations, against fractions made by hand. */
#include "train/activations.h"

#include <math.h>
#include "check.h"

/* Two rows of three have sums of powers -2, 30, -44, 354; so mean -1/3, variance 44/9, fourth moment 1418/27. */
static const float ROWS[6] = { 1, -2, 0, 3, 0, -4 };

static void check_rows(const struct site_sums *s)
{
    struct site_numbers n = site_numbers(s);
    CHECK_NEAR(n.largest, 4, 0);
    CHECK_NEAR(n.rms, sqrt(5), 1e-15);
    CHECK_NEAR(n.kurtosis, 4254.0 / 1936, 1e-14);
    CHECK_NEAR(n.top1, 16.0 / 30, 1e-15);
    CHECK_NEAR(n.top8, 1, 1e-15);
    CHECK_EQ(n.channel, 2);
}

static void test_by_hand(void)
{
    struct site_sums whole, part, none;
    CHECK_OK(site_new(&whole, 3));
    CHECK_OK(site_new(&part, 3));
    CHECK_OK(site_new(&none, 3));
    site_add(&whole, ROWS, 2);
    check_rows(&whole);
    /* the same of a row each, and of a part without rows */
    site_add(&part, ROWS + 3, 1);
    site_add(&none, ROWS, 1);
    site_join(&part, none.at);
    check_rows(&part);
    site_free(&whole);
    site_free(&part);
    site_free(&none);
}

/* Ten columns of 1 to 4, of which three share the eighth place. */
static void test_top(void)
{
    static const float row[10] = { 1, 2, 1, 2, 3, 1, -4, 2, 2, 2 };
    struct site_sums s;
    CHECK_OK(site_new(&s, 10));
    site_add(&s, row, 1);
    struct site_numbers n = site_numbers(&s);
    /* 16 + 9 + 5 times 4 + 3 times 1 are 48 */
    CHECK_NEAR(n.top1, 16.0 / 48, 1e-15);
    CHECK_NEAR(n.top8, 46.0 / 48, 1e-15);
    CHECK_EQ(n.channel, 6);
    site_free(&s);
}

/* A large mean: the differences from it alone count. Of -1, 1, -1, 1, 2, -2: variance 2, fourth moment 6. */
static void test_beside_a_mean(void)
{
    static const float x[6] = { 4095, 4097, 4095, 4097, 4098, 4094 };
    struct site_sums s, more;
    CHECK_OK(site_new(&s, 2));
    CHECK_OK(site_new(&more, 2));
    site_add(&s, x, 1);
    site_add(&s, x + 2, 1);
    site_add(&more, x + 4, 1);
    site_join(&s, more.at);
    CHECK_NEAR(site_numbers(&s).kurtosis, 1.5, 1e-12);
    site_free(&s);
    site_free(&more);
}

static void test_ends(void)
{
    static const float same[2] = { 2, 2 }, bad[2] = { 5, NAN };
    struct site_sums s;
    CHECK_OK(site_new(&s, 2));
    struct site_numbers n = site_numbers(&s);
    CHECK(isnan(n.largest) && isnan(n.rms) && isnan(n.kurtosis) && isnan(n.top1) && isnan(n.top8));
    site_add(&s, same, 1);
    n = site_numbers(&s);
    CHECK(isnan(n.kurtosis) && n.rms == 2 && n.top1 == 0.5 && n.channel == 0);
    site_add(&s, bad, 1);
    site_add(&s, same, 1);
    n = site_numbers(&s);
    CHECK(isnan(n.largest) && isnan(n.rms) && isnan(n.top1));
    site_free(&s);
}

int main(void)
{
    test_by_hand();
    test_top();
    test_beside_a_mean();
    test_ends();
    return check_done();
}
