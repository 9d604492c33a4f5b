/* Logs whose numbers are far from those of any run: equal to the last bit, infinite, immense. What
 * is made of them ends, and stays finite where it is a mean. */
#include <stdlib.h>
#include <unistd.h>
#include "check.h"
#include "runlog_seen.h"
#include "runs/plot.h"
#include "base/report.h"
#include "base/stats.h"
#include "runs/ttest.h"
#include "scratch.h"

/* A log of 20 steps whose last line says this loss and this time. */
static char *make_log(const char *name, const char *loss, const char *time)
{
    char *path = strdup(scratch(name));
    FILE *f = fopen(path, "w");
    CHECK(f != NULL);
    fprintf(f, "step:0/20 val_loss:10.8 train_time:0ms step_avg:nanms\n");
    for (int s = 1; s <= 20; s++)
        fprintf(f, "step:%d/20 train_loss:5.%s train_time:%d00ms step_avg:100.00ms\n", s, name, s);
    fprintf(f, "step:20/20 val_loss:%s train_time:%s step_avg:100.00ms\n", loss, time);
    CHECK(!fclose(f));
    return path;
}

/* Axes of a range that numbers can hardly tell apart, or cannot count: an axis steps forward and
 * has few ticks. It stood still once, and the picture filled the disk. */
static void test_plot(void)
{
    static const struct {
        const char *a_loss, *a_time, *b_loss, *b_time;
    } v[] = {
        { "3.280000000000001", "2000ms", "3.28", "2000ms" },
        { "3.28", "1000000000000000.1ms", "3.28", "1000000000000000.4ms" },
        { "1e-300", "2000ms", "2e-300", "2000ms" },
        { "1.7e308", "2000ms", "1e-308", "2000ms" },
        { "nan", "infms", "inf", "nanms" },
        { "0", "0ms", "0", "0ms" },
    };
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        struct gather g;
        char *text = NULL, *path[] = { make_log("1", v[i].a_loss, v[i].a_time),
                                       make_log("2", v[i].b_loss, v[i].b_time) };
        size_t n = 0;
        FILE *f = open_memstream(&text, &n);
        CHECK_OK(gather_read(&g, path, 2, &(struct gather_options){ .flags = GROUP_PROFILE }));
        alarm(100);
        CHECK_OK(plot_svg(f, &g, 3.28));
        alarm(0);
        CHECK(!fclose(f) && n > 100 && n < 40000);
        CHECK(!strstr(text, "nan") && !strstr(text, "inf"));
        gather_release(&g);
        free(path[0]);
        free(path[1]);
        free(text);
    }
}

/* A clock that stops telling the time tells none; the steps before keep theirs. */
static void test_infinite_clock(void)
{
    struct run_step t[400];
    struct profile p = { 0 };
    struct stages s;
    for (int i = 0; i < 400; i++)
        t[i] = (struct run_step){ .step = i + 1,
                                  .own_ms = NAN,
                                  .time_ms = i < 200   ? 100 * (i + 1)
                                             : i < 300 ? INFINITY
                                                       : NAN };
    struct run r = { .path = "x", .step = t, .steps = 400 };
    CHECK_OK(profile_add(&p, &r, 0));
    CHECK_OK(profile_stages(&p, &s));
    CHECK_EQ(s.n, 1);
    CHECK_EQ(s.stage[0].last, 200);
    CHECK_NEAR(s.stage[0].mean_ms, 100, 1e-9);
    CHECK_EQ(p.stalls, 0);
    profile_release(&p);
}

static void test_resumed(void)
{
    static const struct {
        const char *line;
        int step;
    } v[] = {
        { "12 of run", 12 }, { "1073741824", 1 << 30 },        { "1073741825", 0 }, { "", 0 },
        { "4294967297", 0 }, { "99999999999999999999999", 0 }, { "-5", 0 },         { " 7", 0 },
    };
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        struct seen s;
        char text[512];
        int n = snprintf(text, sizeof text,
                         "tool: gpt-train 1\nresumed: step %s\n"
                         "step:1/1 val_loss:3.2 train_time:20ms step_avg:1.00ms\n",
                         v[i].line);
        seen_read(&s, text, (size_t)n, 0);
        CHECK(s.runs == 1);
        CHECK_EQ(s.runs == 1 ? s.run[0].resumed : -1, v[i].step);
        seen_release(&s);
    }
}

/* One degree of freedom, a noncentrality of thousands and more: the normal's own deviation hardly
 * counts any longer, and U alone is chi with one degree: P(U <= 1) = erf(1 / sqrt(2)). */
static void test_noncentral_far(void)
{
    static const double delta[] = { 2.9e3, 1e5, 1e9, 1e300 };
    alarm(100);
    for (size_t i = 0; i < sizeof delta / sizeof *delta; i++)
        for (int sign = -1; sign <= 1; sign += 2) {
            double p = erf(M_SQRT1_2), d = sign * delta[i];
            CHECK_NEAR(t_noncentral_cdf(d, 1, d), sign < 0 ? p : 1 - p, 1e-7);
        }
    CHECK_EQ(runs_for_power(0.8, 3.27, 1e-9, 3.28, 1e-12), 3);
    alarm(0);
}

/* A number too long for its cell is not cut to a shorter, other number. */
static void test_long_numbers(void)
{
    struct report r;
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    report_begin(&r, f, REPORT_TEXT);
    report_table(&r, "t", NULL, "x:f4");
    report_row(&r, 1.5e300);
    report_row(&r, -INFINITY);
    report_row(&r, 12345.6789);
    CHECK_OK(report_end(&r));
    CHECK(!fclose(f) && strstr(text, " 1.5e+300\n") && strstr(text, "-inf\n") &&
          strstr(text, "12345.6789\n"));
    free(text);
}

int main(void)
{
    test_plot();
    test_infinite_clock();
    test_resumed();
    test_noncentral_far();
    test_long_numbers();
    return check_done();
}
