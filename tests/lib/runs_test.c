/* Statistics against values from elsewhere, and the parts of gpt-logdiff that are no parsing.
 *
 * Reference values of t, its quantiles and noncentral t were computed with mpmath at 40 digits,
 * each in two ways that agree to 1e-37: the distribution by quadrature of the density and by
 * the regularised incomplete beta function; noncentral t by the Poisson mixture of incomplete
 * beta functions (Lenth, AS 243) and by quadrature over the chi density. */
#include <stdlib.h>
#include <string.h>
#include "base/rng.h"
#include "check.h"
#include "runs/linediff.h"
#include "runs/profile.h"
#include "base/stats.h"
#include "runs/ttest.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))

/* --- distributions --- */

static void test_t(void)
{
    static const struct {
        double t, df, p;
    } v[] = {
        { -0.1, 1, 0.46827448256944642874 },
        { -1, 1, 0.25 },
        { -63.65674116287158, 1, 0.0049999999999999998325 },
        { -1e6, 1, 3.1830988618368456824e-7 },
        { -0.5, 2, 0.33333333333333333333 },
        { -9.925, 2, 0.0049998443790547072914 },
        { -3.3649, 5, 0.010000327323408180329 },
        { -6.0131, 7, 0.00026761299390218347045 },
        { -2.998, 7, 0.0099993147886007636982 },
        { -40, 7, 7.9510899924251852343e-10 },
        { -1.5, 13.7, 0.078151860904682120737 },
        { -12.25, 11.93, 2.0426071758719226821e-8 },
        { -2.5, 0.7, 0.15985218134063690097 },
        { -3, 30, 0.0026949820328259733064 },
        { -1.96, 200, 0.025692420422906644025 },
        { -4.5, 1000, 3.7965355132491221502e-6 },
        { -3, 100000, 0.001350230442032359595 },
        { -0.001, 4, 0.49962500007812497948 },
        { -25, 14, 2.5626649524428735284e-13 },
    };
    for (size_t i = 0; i < COUNT(v); i++) {
        /* ten digits of the small tail itself, not only of its distance from 0 */
        CHECK_NEAR(t_cdf(v[i].t, v[i].df), v[i].p, 1e-10 * v[i].p);
        CHECK_NEAR(t_cdf(-v[i].t, v[i].df), 1 - v[i].p, 1e-10 * v[i].p + 2e-16);
    }
    CHECK_EQ(t_cdf(0, 3) == 0.5, 1);
    CHECK(t_cdf(-INFINITY, 3) == 0 && t_cdf(INFINITY, 3) == 1);
    CHECK(isnan(t_cdf(NAN, 3)) && isnan(t_cdf(1, NAN)));
    CHECK(isnan(t_cdf(1, 0)) && isnan(t_cdf(1, -2)));
    CHECK_NEAR(t_cdf(-1, INFINITY), 0.15865525393145705141, 1e-15); /* erfc(1/sqrt(2)) / 2 */
    CHECK(t_cdf(-1e200, 3) >= 0 && t_cdf(-1e200, 3) < 1e-300);
}

static void test_quantile(void)
{
    static const struct {
        double p, df, t;
    } v[] = {
        { 0.01, 7, -2.9979515668685284338 },     { 0.01, 3, -4.5407028585681335553 },
        { 0.01, 1, -31.820515953773958039 },     { 0.005, 12.5, -3.0324366528705629584 },
        { 0.4, 9, -0.26095533647391101148 },     { 1e-8, 5, -62.404506110967291556 },
        { 0.25, 1000, -0.67473516460700943738 }, { 0.99, 7, 2.9979515668685284338 },
        { 0.975, 1, 12.706204736174704646 },     { 0.001, 2, -22.327124770119875435 },
    };
    for (size_t i = 0; i < COUNT(v); i++)
        CHECK_NEAR(t_quantile(v[i].p, v[i].df), v[i].t, 1e-10 * fabs(v[i].t));
    CHECK(t_quantile(0, 5) == -INFINITY && t_quantile(1, 5) == INFINITY && t_quantile(0.5, 5) == 0);
    CHECK(isnan(t_quantile(-0.1, 5)) && isnan(t_quantile(1.1, 5)) && isnan(t_quantile(0.5, 0)));
}

static void test_noncentral(void)
{
    static const struct {
        double t, df, delta, p;
    } v[] = {
        { 1, 1, 1, 0.42202003039262763731 },        { 2.5, 3, 1.5, 0.71104841764687715942 },
        { -2.998, 7, -3, 0.53801780909342280563 },  { -2.998, 7, -6.0131, 0.99180310015961028662 },
        { -2.896, 8, -1, 0.069063229779253750285 }, { 0, 4, 1.3, 0.096800484585610325542 },
        { 3, 4, 0, 0.98002901596414058636 },        { -1, 5, 2, 0.0023163756540751190482 },
        { 1.5, 5, -2, 0.9991840930539906479 },      { 10, 2, 3, 0.90652708390611392915 },
        { -2.403, 50, -5, 0.99439302388197453528 }, { -2.33, 999, -2.5, 0.5676334580283166016 },
        { 30, 1, 10, 0.73902233986682692094 },      { -4, 12.5, -3.7, 0.4344947022186465417 },
        { 0.5, 0.8, 0.3, 0.52848382917680420291 },  { -3.747, 4, -12, 0.99999860767310141135 },
    };
    for (size_t i = 0; i < COUNT(v); i++)
        CHECK_NEAR(t_noncentral_cdf(v[i].t, v[i].df, v[i].delta), v[i].p, 1e-10 * v[i].p);
    CHECK_NEAR(t_noncentral_cdf(-1.7, 6, 0), t_cdf(-1.7, 6), 1e-12);
    CHECK(isnan(t_noncentral_cdf(1, 0, 1)) && isnan(t_noncentral_cdf(1, 3, INFINITY)));
}

/* --- tests on runs --- */

static const double base_loss[] = {
    3.2777, 3.2785, 3.2790, 3.2785, 3.2788, 3.2791, 3.2766, 3.2784
};
static const double base_time[] = { 105.3690, 105.5950, 105.4140, 105.5520,
                                    105.5610, 105.5820, 105.6090, 105.6070 };
static const double new_loss[] = { 3.2781, 3.2803, 3.2767, 3.2799, 3.2794, 3.2767, 3.2767, 3.2780 };
static const double new_time[] = { 104.6490, 104.4420, 104.2430, 104.4540,
                                   104.4860, 104.3220, 104.6550, 104.4120 };

/* Half a unit of the fourth digit, as the published table prints it. */
static const double print4 = 0.5e-4 + 1e-12;

/* The table published with record 61 (modded-nanogpt, UnifiedOptimizers). */
static void test_record_61(void)
{
    struct sample a = sample_of(base_loss, 8), b = sample_of(new_loss, 8);
    struct sample ta = sample_of(base_time, 8), tb = sample_of(new_time, 8);
    CHECK_NEAR(a.mean, 3.2783, print4);
    CHECK_NEAR(a.sd, 0.0008, print4);
    CHECK_NEAR(mean_below_p(&a, 3.28), 0.0003, print4);
    CHECK_NEAR(b.mean, 3.2782, print4);
    CHECK_NEAR(b.sd, 0.0015, print4);
    CHECK_NEAR(mean_below_p(&b, 3.28), 0.0060, print4);
    CHECK_NEAR(ta.mean, 105.5361, print4);
    CHECK_NEAR(ta.sd, 0.0923, print4);
    CHECK_NEAR(tb.mean, 104.4579, print4);
    CHECK_NEAR(tb.sd, 0.1430, print4);
    CHECK_NEAR(tb.mean - ta.mean, -1.0782, print4);
    struct welch w = welch_test(&tb, &ta);
    /* mpmath, from the sixteen times: t, Welch-Satterthwaite degrees of freedom, p */
    CHECK_NEAR(w.t, -17.9174206468535106, 1e-10 * 17.9);
    CHECK_NEAR(w.df, 11.9681457205711885, 1e-10 * 12);
    CHECK_NEAR(w.p_two_sided, 5.21369249658998448e-10, 1e-10 * 5.2e-10);
    CHECK_NEAR(w.p_lower, 2.60684624829499224e-10, 1e-10 * 2.6e-10);
}

/* The power at the difference that is shown is the one asked for, by the noncentral t of the tests above; of many
 * degrees of freedom it is the normal distribution's: quantiles 1.959964 and 0.841621. */
static void test_shown_difference(void)
{
    for (int tails = 1; tails <= 2; tails++) {
        double d = shown_difference(0.5, 14, 0.01, tails, 0.8);
        CHECK(d > 0);
        CHECK_NEAR(t_noncentral_cdf(t_quantile(0.01 / tails, 14), 14, -d / 0.5), 0.8, 1e-9);
    }
    CHECK_NEAR(shown_difference(2, 1e7, 0.05, 2, 0.8), 2 * (1.959964 + 0.841621), 2e-5);
    CHECK(isnan(shown_difference(0, 14, 0.01, 2, 0.8)) &&
          isnan(shown_difference(NAN, 14, 0.01, 2, 0.8)));
    CHECK(isnan(shown_difference(0.5, 0, 0.01, 2, 0.8)) &&
          isnan(shown_difference(0.5, NAN, 0.01, 2, 0.8)));
}

static void test_degenerate(void)
{
    const double same[] = { 3.27, 3.27, 3.27 }, odd[] = { 3.27, NAN };
    struct sample one = sample_of(same, 1), three = sample_of(same, 3), bad = sample_of(odd, 2);
    struct sample none = sample_of(same, 0);
    CHECK(isnan(none.mean) && isnan(none.sd) && isnan(one.sd) && one.mean == 3.27);
    CHECK(isnan(mean_below_p(&one, 3.28)));
    CHECK(mean_below_p(&three, 3.28) == 0 && mean_below_p(&three, 3.26) == 1);
    CHECK(isnan(mean_below_p(&three, 3.27)));
    CHECK(isnan(mean_below_p(&bad, 3.28)) && isnan(welch_test(&bad, &three).p_lower));
    CHECK(isnan(welch_test(&one, &three).p_lower) && isnan(welch_test(&three, &three).t));
    double lo, hi;
    mean_below_p_range(odd, 2, 1e-4, 3.28, &lo, &hi);
    CHECK(isnan(lo) && isnan(hi));
    mean_below_p_range(same, 1, 1e-4, 3.28, &lo, &hi);
    CHECK(isnan(lo) && isnan(hi));
}

/* --- what rounding allows --- */

/* Record 74: p 0.0097 of four losses. Of all 3^4 ways to put each loss in the middle or at an
 * end of its interval none lies outside, and the extremes are at such points. */
static void test_rounding(void)
{
    const double x[] = { 3.2783, 3.2789, 3.2795, 3.2786 };
    struct sample s = sample_of(x, 4);
    double lo, hi, least = 1, most = 0;
    CHECK_NEAR(mean_below_p(&s, 3.28), 0.0097, print4);
    mean_below_p_range(x, 4, 5e-5, 3.28, &lo, &hi);
    for (int code = 0; code < 81; code++) {
        double y[4];
        for (int i = 0, c = code; i < 4; i++, c /= 3)
            y[i] = x[i] + 5e-5 * (c % 3 - 1);
        struct sample t = sample_of(y, 4);
        least = fmin(least, mean_below_p(&t, 3.28));
        most = fmax(most, mean_below_p(&t, 3.28));
    }
    CHECK_NEAR(hi, most, 1e-9);
    CHECK(lo <= least * (1 + 1e-9));
    CHECK(lo >= 0.0070 && most <= 0.0130);
    CHECK(lo < mean_below_p(&s, 3.28) && hi > mean_below_p(&s, 3.28));
}

/* Against draws from the box: inside and corners. None may lie outside, and the best come close. */
static void test_rounding_drawn(void)
{
    struct rng r = rng_make(7, 0);
    uint64_t at = 0;
    for (int trial = 0; trial < 200; trial++) {
        int n = 2 + (int)rng_below(&r, at++, 5);
        double shift = ((double)rng_below(&r, at++, 21) - 10) * 1e-4, half = 5e-5, lo, hi;
        double x[8], y[8], least = 2, most = -1;
        for (int i = 0; i < n; i++) {
            x[i] = 3.28 + shift + ((double)rng_below(&r, at++, 31) - 15) * 1e-4;
            x[i] = round(x[i] * 1e4) / 1e4;
        }
        mean_below_p_range(x, n, half, 3.28, &lo, &hi);
        for (int k = 0; k < 3000; k++) {
            for (int i = 0; i < n; i++) {
                double u = rng_uniform(&r, at++);
                u = k % 2 && u < 0.7 ? u < 0.35 : u;
                y[i] = x[i] + half * (2 * u - 1);
            }
            struct sample s = sample_of(y, n);
            double p = mean_below_p(&s, 3.28);
            if (isnan(p))
                continue;
            least = fmin(least, p);
            most = fmax(most, p);
        }
        CHECK(lo <= least + 1e-12 && hi >= most - 1e-12);
        /* 3,000 draws of up to six losses come within a sixth of the interval of both ends */
        CHECK(least - lo <= (hi - lo) / 6 && hi - most <= (hi - lo) / 6);
    }
}

/* --- how many runs --- */

static void test_runs_needed(void)
{
    /* n is enough and n - 1 is not, by the test itself */
    static const double means[] = { 3.2795, 3.279, 3.2785, 3.27 };
    for (size_t i = 0; i < COUNT(means); i++) {
        int n = runs_to_show(means[i], 0.0013, 3.28, 0.01);
        struct sample s = { n, means[i], 0.0013 }, fewer = { n - 1, means[i], 0.0013 };
        CHECK(n >= 2 && mean_below_p(&s, 3.28) < 0.01);
        CHECK(n == 2 || !(mean_below_p(&fewer, 3.28) < 0.01));
        int m = runs_for_power(0.8, means[i], 0.0013, 3.28, 0.01);
        CHECK(power_to_show(m, means[i], 0.0013, 3.28, 0.01) >= 0.8);
        CHECK(m == 2 || power_to_show(m - 1, means[i], 0.0013, 3.28, 0.01) < 0.8);
        CHECK(m >= n);
    }
    CHECK_EQ(runs_to_show(3.28, 0.0013, 3.28, 0.01), 0);
    CHECK_EQ(runs_to_show(3.29, 0.0013, 3.28, 0.01), 0);
    CHECK_EQ(runs_to_show(3.279, NAN, 3.28, 0.01), 0);
    CHECK_EQ(runs_to_show(3.28 - 1e-9, 0.0013, 3.28, 0.01), 0); /* over RUNS_MAX */
    /* the power by simulation: 20,000 samples of 8, 5 deviations of their share allowed */
    struct rng r = rng_make(11, 0);
    int shown = 0, all = 20000;
    for (int k = 0; k < all; k++) {
        double x[8];
        for (int i = 0; i < 8; i++)
            x[i] = 3.279 + 0.001 * rng_normal(&r, (uint64_t)(8 * k + i));
        struct sample s = sample_of(x, 8);
        shown += mean_below_p(&s, 3.28) < 0.01;
    }
    double power = power_to_show(8, 3.279, 0.001, 3.28, 0.01);
    CHECK_NEAR((double)shown / all, power, 5 * sqrt(power * (1 - power) / all));
}

/* --- diffs --- */

enum { LINES = 30 };
struct shown {
    int minus, plus;
    char *text;
};

static struct shown diff_of(const char *a, size_t na, const char *b, size_t nb, int context)
{
    struct shown s = { 0 };
    size_t n;
    FILE *f = open_memstream(&s.text, &n);
    CHECK_OK(linediff(f, a, na, b, nb, context));
    fclose(f);
    for (const char *p = s.text; *p; p = strchr(p, '\n') + 1) {
        s.minus += *p == '-';
        s.plus += *p == '+';
    }
    return s;
}

static void make_text(char *text, const int *letter, int n)
{
    for (int i = 0; i < n; i++) {
        text[2 * i] = (char)('a' + letter[i]);
        text[2 * i + 1] = '\n';
    }
    text[2 * n] = '\0';
}

static int common_length(const int *a, int n, const int *b, int m)
{
    int best[LINES + 1][LINES + 1] = { { 0 } };
    for (int i = 1; i <= n; i++)
        for (int j = 1; j <= m; j++) {
            int up = best[i - 1][j], left = best[i][j - 1];
            best[i][j] = a[i - 1] == b[j - 1] ? best[i - 1][j - 1] + 1 : up > left ? up : left;
        }
    return best[n][m];
}

/* Applies what was emitted to a; the result must be b. */
static void check_applies(const char *a, int n, const char *b, const struct shown *s)
{
    char made[8192];
    int at = 0, used = 0;
    for (const char *p = s->text; *p; p = strchr(p, '\n') + 1) {
        int line, count;
        if (*p == '@' && sscanf(p, "@@ -%d,%d", &line, &count) == 2) {
            for (int to = count ? line - 1 : line; used < to; used++) {
                made[at++] = a[2 * used];
                made[at++] = '\n';
            }
            continue;
        }
        if (*p != '+')
            CHECK_EQ(p[1], a[2 * used++]);
        if (*p != '-') {
            made[at++] = p[1];
            made[at++] = '\n';
        }
    }
    for (; used < n; used++) {
        made[at++] = a[2 * used];
        made[at++] = '\n';
    }
    made[at] = '\0';
    CHECK_STR(made, b);
}

static void test_linediff(void)
{
    struct rng r = rng_make(3, 0);
    uint64_t at = 0;
    for (int trial = 0; trial < 3000; trial++) {
        int a[LINES], b[LINES], n = (int)rng_below(&r, at++, LINES + 1);
        int m = (int)rng_below(&r, at++, LINES + 1), letters = 1 + (int)rng_below(&r, at++, 5);
        char ta[2 * LINES + 1], tb[2 * LINES + 1];
        for (int i = 0; i < LINES; i++) {
            a[i] = (int)rng_below(&r, at++, (uint64_t)letters);
            b[i] = trial % 2 && rng_below(&r, at++, 8) ? a[i] : (int)rng_below(&r, at++, 5);
        }
        make_text(ta, a, n);
        make_text(tb, b, m);
        struct shown s = diff_of(ta, strlen(ta), tb, strlen(tb), trial % 4);
        int common = common_length(a, n, b, m);
        CHECK_EQ(s.minus, n - common); /* no shorter script exists */
        CHECK_EQ(s.plus, m - common);
        check_applies(ta, n, tb, &s);
        free(s.text);
    }
}

static void test_linediff_text(void)
{
    static const struct {
        const char *a, *b;
        int context;
        const char *diff;
    } v[] = {
        { "a\nb\nc\nd\ne", "a\nb\nX\nd\ne", 1, "@@ -2,3 +2,3 @@\n b\n-c\n+X\n d\n" },
        { "a\nb\nc\nd\ne", "a\nb\nX\nd\ne", 0, "@@ -3,1 +3,1 @@\n-c\n+X\n" },
        { "a\nb\nc\n", "a\nb\nc", 3, "" },
        { "", "", 1, "" },
        { "", "x\n", 1, "@@ -0,0 +1,1 @@\n+x\n" },
        { "x", "", 1, "@@ -1,1 +0,0 @@\n-x\n" },
        { "a\nb\n", "c\nd\n", 1, "@@ -1,2 +1,2 @@\n-a\n-b\n+c\n+d\n" },
        /* two changes are one hunk with 2 lines between and one of context, two with 3 between */
        { "a\n1\n2\nb\n", "A\n1\n2\nB\n", 1, "@@ -1,4 +1,4 @@\n-a\n+A\n 1\n 2\n-b\n+B\n" },
        { "a\n1\n2\n3\nb\n", "A\n1\n2\n3\nB\n", 1,
          "@@ -1,2 +1,2 @@\n-a\n+A\n 1\n@@ -4,2 +4,2 @@\n 3\n-b\n+B\n" },
    };
    for (size_t i = 0; i < sizeof v / sizeof v[0]; i++) {
        struct shown s = diff_of(v[i].a, strlen(v[i].a), v[i].b, strlen(v[i].b), v[i].context);
        CHECK_STR(s.text, v[i].diff);
        free(s.text);
    }
}

/* n lines "K\n" of numbers from `first` on. */
static char *numbered(int first, int n)
{
    char *text = malloc((size_t)n * 8 + 1), *p = text;
    for (int i = 0; i < n; i++)
        p += sprintf(p, "%d\n", first + i);
    return text;
}

/* Long texts. One changed line of 20,000 is one. Beside 6,000 others 6,000 are all removed and added,
 * with a line in common: the table is not made for so many. For 5,000 it is. */
static void test_linediff_long(void)
{
    char *a = numbered(100000, 20000), *b = strdup(a), *c = numbered(500000, 6000);
    memcpy(b + 7 * 9999, "x", 1);
    struct shown s = diff_of(a, strlen(a), b, strlen(b), 0);
    CHECK_STR(s.text, "@@ -10000,1 +10000,1 @@\n-109999\n+x09999\n");
    free(s.text);
    memcpy(c, a + 7 * 5999, 7);
    s = diff_of(a, (size_t)6000 * 7, c, (size_t)6000 * 7, 1);
    CHECK_EQ(s.minus, 6000);
    CHECK_EQ(s.plus, 6000);
    CHECK(!strncmp(s.text, "@@ -1,6000 +1,6000 @@\n-100000\n", 30));
    free(s.text);
    s = diff_of(a + 7 * 1000, (size_t)5000 * 7, c, (size_t)5000 * 7, 1);
    CHECK_EQ(s.minus, 4999);
    CHECK_EQ(s.plus, 4999);
    free(s.text);
    free(a), free(b), free(c);
}

/* --- step times --- */

/* 1,000 steps: three slow ones first, 20 ms up to step 400 (even ones 2 ms more), then 40 ms;
 * one step may stall. */
static void make_run(struct run *r, struct run_step *t, int32_t stall)
{
    double clock = 0;
    for (int32_t i = 1; i <= 1000; i++) {
        double ms = i <= 3 ? 100 : i <= 400 ? i % 2 ? 20 : 22 : 40;
        clock += i == stall ? 500 : ms;
        t[i - 1] = (struct run_step){ .step = i, .time_ms = clock, .own_ms = NAN };
    }
    *r = (struct run){ .path = "x", .step = t, .steps = 1000 };
}

static void test_stages(void)
{
    struct run_step t[1000];
    struct profile p = { 0 };
    struct stages s;
    struct run r;
    for (int i = 0; i < 4; i++) {
        make_run(&r, t, i == 2 ? 701 : 0);
        CHECK_OK(profile_add(&p, &r, i));
    }
    CHECK_OK(profile_stages(&p, &s));
    CHECK_EQ(s.warmup, 3);
    CHECK_NEAR(s.warmup_s, 0.3, 1e-9);
    CHECK_EQ(s.n, 2);
    CHECK_EQ(s.stage[0].first, 4);
    CHECK_EQ(s.stage[0].last, 400);
    CHECK_EQ(s.stage[1].first, 401);
    CHECK_EQ(s.stage[1].last, 1000);
    CHECK_NEAR(s.stage[0].even_ms, 22, 1e-9);
    CHECK_NEAR(s.stage[0].odd_ms, 20, 1e-9);
    CHECK(s.stage[0].alternates && !s.stage[1].alternates);
    CHECK_NEAR(s.stage[1].median_ms, 40, 1e-9);
    CHECK_EQ(s.stage[1].outliers, 1);
    CHECK_EQ(s.stage[0].outliers, 0);
    int found = 0;
    for (int i = 0; i < p.kept; i++)
        if (p.stall[i].step == 701) {
            found++;
            CHECK_EQ(p.stall[i].run, 2);
            CHECK_NEAR(p.stall[i].ms, 500, 1e-9);
            CHECK_NEAR(p.stall[i].median_ms, 40, 1e-9);
        }
    CHECK_EQ(found, 1);
    profile_release(&p);
    CHECK_OK(profile_stages(&p, &s)); /* of nothing */
    CHECK_EQ(s.n, 0);
}

int main(void)
{
    test_t();
    test_quantile();
    test_noncentral();
    test_shown_difference();
    test_record_61();
    test_degenerate();
    test_rounding();
    test_rounding_drawn();
    test_runs_needed();
    test_linediff();
    test_linediff_text();
    test_linediff_long();
    test_stages();
    return check_done();
}
