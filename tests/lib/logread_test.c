/* Run logs: every layout gives the numbers it was made from; what cannot be read is named, with
 * its line, and never guessed. The layouts' texts are made here (runlog_made.c). */
#include <stdlib.h>
#include <string.h>
#include "check.h"
#include "runlog_made.h"
#include "runlog_seen.h"
#include "train/runlog.h"

/* Swaps text for another of any length; the first occurrence. */
static char *with(const char *text, const char *old, const char *new)
{
    const char *at = strstr(text, old);
    char *s = NULL;
    CHECK(at != NULL);
    if (at && asprintf(&s, "%.*s%s%s", (int)(at - text), text, new, at + strlen(old)) < 0)
        abort();
    return s ? s : strdup(text);
}

/* The number of the line on which text stands. */
static long line_of(const char *text, const char *part)
{
    const char *at = strstr(text, part);
    long line = 1;
    CHECK(at != NULL);
    for (const char *p = text; at && p < at; p++)
        line += *p == '\n';
    return line;
}

/* --- single lines --- */

static void test_lines(void)
{
    static const struct {
        const char *text;
        enum stepline_kind kind;
        int step, total, digits;
        double val, train, time_ms, avg_ms;
        bool closed;
    } v[] = {
        { "step:250/1775 val_loss:4.6077 train_time:8344ms step_avg:33.38ms", STEP_OK, 250, 1775, 4,
          4.6077, -1, 8344, 33.38, true },
        { "step:3325/3325 val_loss:3.279061 train_time:678.200s step_avg:203.97ms", STEP_OK, 3325,
          3325, 6, 3.279061, -1, 678200, 203.97, true },
        { "step:5/6200 train_loss:7.2838 train_time:76607ms step_avg:nanms", STEP_OK, 5, 6200, 0,
          -1, 7.2838, 76607, NAN, true },
        { "step:1/3500 train_time:11.161s step_avg:11160.96ms step_time:11160.96ms mfu:3.06%",
          STEP_OK, 1, 3500, 0, -1, -1, 11161, 11160.96, true },
        { "[rank0]: step:7/9 val_loss:3.1 train_time:0.0005s", STEP_OK, 7, 9, 1, 3.1, -1, 0.5, -1,
          true },
        { "s:250 tel:6.1710", STEP_OK, 250, 0, 4, 6.171, -1, -1, -1, false },
        { "s:3 trl:10.7157 lr:0.000003 norm:13.12", STEP_OK, 3, 0, 0, -1, 10.7157, -1, -1, false },
        { "s:250 eval:0.2634", STEP_OK, 250, 0, 0, -1, -1, -1, -1, false },
        { "step:4/9 val_loss:1.25e1 train_time:4ms", STEP_OK, 4, 9, 17, 12.5, -1, 4, -1, true },
        { "step:4/9 val_loss:+inf train_time:4ms", STEP_OK, 4, 9, 0, INFINITY, -1, 4, -1, true },
        { "step:4/9 val_loss:0003.5\ttrain_time:4ms ", STEP_OK, 4, 9, 1, 3.5, -1, 4, -1, true },
        { "step:4/9 val_loss:3.", STEP_BAD, 0, 0, 0, 0, 0, 0, 0, false },
        { "step:4/9 val_loss:.5", STEP_BAD, 0, 0, 0, 0, 0, 0, 0, false },
        { "step:4/9 val_loss:3,5", STEP_BAD, 0, 0, 0, 0, 0, 0, 0, false },
        { "step:4/9 val_loss:0x3", STEP_BAD, 0, 0, 0, 0, 0, 0, 0, false },
        { "step:4/9 val_loss:3.5e", STEP_BAD, 0, 0, 0, 0, 0, 0, 0, false },
        { "step:4/9 val_loss:", STEP_BAD, 0, 0, 0, 0, 0, 0, 0, false },
        { "step:4/9 train_time:5m", STEP_BAD, 0, 0, 0, 0, 0, 0, 0, false },
        { "step:4/9 train_time:5min", STEP_BAD, 0, 0, 0, 0, 0, 0, 0, false },
        { "step:4/0 val_loss:3.5", STEP_BAD, 0, 0, 0, 0, 0, 0, 0, false },
        { "step:4/ val_loss:3.5", STEP_BAD, 0, 0, 0, 0, 0, 0, 0, false },
        { "step:4/9val_loss:3.5", STEP_BAD, 0, 0, 0, 0, 0, 0, 0, false },
        { "step:10/9 val_loss:3.5", STEP_BAD, 0, 0, 0, 0, 0, 0, 0, false },
        { "step:{step}/{steps} val_loss:3.5", STEP_NONE, 0, 0, 0, 0, 0, 0, 0, false },
        { "[default0]:step:4/9 val_loss:3.5", STEP_OK, 4, 9, 1, 3.5, -1, -1, -1, false },
        { "0: step:4/9 val_loss:3.5 train_time:4ms", STEP_OK, 4, 9, 1, 3.5, -1, 4, -1, true },
        { "[1,0]<stdout>:step:4/9 val_loss:3.5", STEP_OK, 4, 9, 1, 3.5, -1, -1, -1, false },
        { "[1,0]<stdout>: s:4 tel:3.5", STEP_OK, 4, 0, 1, 3.5, -1, -1, -1, false },
        { "2026-11-26 11:35:33,041 - INFO - step:4/9 val_loss:3.5", STEP_OK, 4, 9, 1, 3.5, -1, -1,
          -1, false },
        { "[2026-11-26 11:35:33] [rank0]: step:4/9 val_loss:3.5", STEP_OK, 4, 9, 1, 3.5, -1, -1, -1,
          false },
        { "2026-11-26T11:35:33.5Z step:4/9 val_loss:3.5", STEP_OK, 4, 9, 1, 3.5, -1, -1, -1,
          false },
        { "11:35:33 \t\033[1;32mstep:4/9 val_loss:3.5", STEP_OK, 4, 9, 1, 3.5, -1, -1, -1, false },
        { "12 step:4/9 val_loss:3.5", STEP_NONE, 0, 0, 0, 0, 0, 0, 0, false },
        { "print step:4/9 val_loss:3.5", STEP_NONE, 0, 0, 0, 0, 0, 0, 0, false },
        { "step:4/9 val_loss:-3.5", STEP_BAD, 0, 0, 0, 0, 0, 0, 0, false },
        { "step:4/9 train_loss:-3.5", STEP_OK, 4, 9, 0, -1, -3.5, -1, -1, false },
        { "step 250: train loss 4.5, val loss 4.6077", STEP_OK, 250, 0, 4, 4.6077, -1, -1, -1,
          false },
        { "step 250: train loss 4.5, val loss 4.6077, or so", STEP_NONE, 0, 0, 0, 0, 0, 0, 0,
          false },
        { "iter 250: loss 4.5000, time 33.38ms, mfu -100.00%", STEP_OK, 251, 0, 0, -1, 4.5, -1, -1,
          true },
        { "iter 250: loss", STEP_NONE, 0, 0, 0, 0, 0, 0, 0, false },
        { "step  250/1775 | loss 4.607700 (+nanz)| norm 0.3000 (+nanz)| lr 6.00e-04 | 33.38 ms | 9 t/s",
          STEP_OK, 250, 1775, 0, -1, 4.6077, -1, -1, true },
        { "step  250/1775 | train loss 4.6077 | norm 0.3 | lr 6.0e-04 | (33.38 ms | 9 tok/s)",
          STEP_OK, 250, 1775, 0, -1, 4.6077, -1, -1, true },
        { "step  250/1775 | norm 0.3000", STEP_BAD, 0, 0, 0, 0, 0, 0, 0, false },
        { "val loss 4.607700", STEP_OK, -1, 0, 6, 4.6077, -1, -1, -1, false },
        { "val loss 4.6 nats", STEP_NONE, 0, 0, 0, 0, 0, 0, 0, false },
        { " step:4/9 val_loss:3.5", STEP_OK, 4, 9, 1, 3.5, -1, -1, -1, false },
        { "stop:4/9 val_loss:3.5", STEP_NONE, 0, 0, 0, 0, 0, 0, 0, false },
        { "", STEP_NONE, 0, 0, 0, 0, 0, 0, 0, false },
    };
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        struct stepline s;
        const char *why;
        enum stepline_kind kind = stepline_parse(v[i].text, strlen(v[i].text), &s, &why);
        if (!CHECK_EQ(kind, v[i].kind) || kind != STEP_OK) {
            CHECK(kind == v[i].kind || !printf("  of: %s\n", v[i].text));
            continue;
        }
        CHECK_EQ(s.step, v[i].step);
        CHECK_EQ(s.total, v[i].total);
        CHECK_EQ(s.closed, v[i].closed);
        CHECK(s.val.given == (v[i].val != -1) && s.train.given == (v[i].train != -1));
        CHECK(s.time_ms.given == (v[i].time_ms != -1) && s.avg_ms.given == (v[i].avg_ms != -1));
        CHECK(!s.val.given || (s.val.value == v[i].val && s.val.digits == v[i].digits));
        CHECK(!s.train.given || s.train.value == v[i].train);
        CHECK(!s.time_ms.given || s.time_ms.value == v[i].time_ms);
        CHECK(!s.avg_ms.given || s.avg_ms.value == v[i].avg_ms || isnan(v[i].avg_ms));
    }
}

/* --- all layouts --- */

static void check_made(const struct made *m, const struct seen *s)
{
    CHECK_OK(s->rc);
    CHECK_EQ(s->runs, m->trials);
    for (int i = 0; i < s->runs; i++) {
        const struct run *r = &s->run[i];
        CHECK_EQ(r->trial, i + 1);
        CHECK(r->ended);
        CHECK_EQ(r->last, m->steps);
        CHECK_EQ(r->total, m->timed ? m->steps : 0);
        CHECK_EQ(r->loss_digits, m->digits);
        CHECK(r->loss == made_loss(m, i + 1, m->steps));
        /* ours are ms as printed, and seconds are ms to the last digit */
        if (m->timed)
            CHECK(r->time_ms == round(made_clock_ms(m, m->steps)));
        else
            CHECK(isnan(r->time_ms));
        CHECK_EQ(r->clock_restart, m->restarts ? 11 : 0);
        CHECK_EQ(r->vals, 1 + (m->steps + m->every - 1) / m->every);
        CHECK_EQ(r->missing, 0);
    }
    for (int i = 0; i < s->vals; i++)
        CHECK(s->val[i].v.loss == made_loss(m, s->val[i].trial, s->val[i].v.step));
    CHECK_EQ(s->steps, m->steps);
    for (int i = 0; i < s->steps; i++) {
        bool from_0 = m->layout == MADE_LLMC || m->layout == MADE_LLMC_NORM;
        CHECK_EQ(s->step[i].step, from_0 ? i : i + 1);
        CHECK(m->timed ? s->step[i].time_ms == round(made_clock_ms(m, i + 1))
                       : isnan(s->step[i].time_ms));
    }
    /* of a good log nothing is said, but where the layout itself leaves something open */
    CHECK_EQ(s->notes, m->timed ? 0 : 1);
}

static void check_facts(const struct made *m, const struct seen *s)
{
    bool source = m->layout == MADE_TODAY || m->restarts;
    char gpu[128];
    snprintf(gpu, sizeof gpu, "2 x %s", m->gpu);
    CHECK_EQ(*s->hash[0][FACT_SOURCE] != 0, source);
    CHECK_EQ(*s->hash[0][FACT_RECIPE] != 0, m->layout == MADE_OURS);
    CHECK_EQ(*s->hash[0][FACT_DRIVER] != 0, source);
    CHECK_EQ(*s->hash[0][FACT_DATA] != 0, m->layout == MADE_OURS || m->layout == MADE_RULES4_2024);
    if (source || m->layout == MADE_TRACK3)
        CHECK_STR(s->gpu, gpu);
    if (m->layout == MADE_OURS)
        CHECK_STR(s->environment, "tool: gpt-train 0.1.0\n"
                                  "program: fedcba9876543210fedcba9876543210fedcba98\n"
                                  "device: cpu\nranks: 2\n");
    if (m->layout == MADE_TODAY)
        CHECK_STR(s->environment,
                  "python: 3.12.12 | packaged by conda-forge | [GCC 14.3.0]\n"
                  "pytorch: 2.10.0.dev20251210+cu126 compiled for CUDA 12.6\ntriton: 3.6.0\n"
                  "driver: 535.129.03\ncuda of the driver: 12.2\n"
                  "gpu: 2 x NVIDIA H100 80GB HBM3\n");
}

static char *crlf(const char *text, size_t n, size_t *out)
{
    char *s = malloc(2 * n + 1), *p = s;
    for (size_t i = 0; s && i < n; i++) {
        if (text[i] == '\n')
            *p++ = '\r';
        *p++ = text[i];
    }
    *out = (size_t)(p - s);
    return s;
}

static void test_layouts(void)
{
    for (int layout = 0; layout < MADE_LAYOUTS; layout++) {
        struct made m = made_default((enum made_layout)layout);
        size_t n, k;
        char *text = made_text(&m, &n), *dos = crlf(text, n, &k);
        struct seen s;
        static const size_t pieces[] = { 0, 1, 7, 4096 };
        for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
            seen_read(&s, text, n, pieces[i]);
            check_made(&m, &s);
            if (s.runs)
                check_facts(&m, &s);
            seen_release(&s);
        }
        seen_read(&s, dos, k, 0);
        check_made(&m, &s);
        if (s.runs)
            check_facts(&m, &s);
        seen_release(&s);
        free(dos);
        free(text);
    }
}

/* The same source on another day and another GPU is the same source; one changed line is not. */
static void test_facts_differ(void)
{
    struct made m = made_default(MADE_TODAY), other = m, days = m, ours = made_default(MADE_OURS);
    struct made seeds = ours, recipe = ours;
    struct made *all[] = { &m, &other, &days, &ours, &seeds, &recipe };
    struct seen s[6];
    other.source = 2;
    days.seed = 7;
    days.gpu = "NVIDIA H200";
    seeds.seed = 9;
    recipe.source = 2;
    for (int i = 0; i < 6; i++) {
        size_t n;
        char *text = made_text(all[i], &n);
        seen_read(&s[i], text, n, 0);
        CHECK_EQ(s[i].runs, 1);
        free(text);
    }
    CHECK(strcmp(s[0].hash[0][FACT_SOURCE], s[1].hash[0][FACT_SOURCE]) != 0);
    CHECK_STR(s[0].hash[0][FACT_ENVIRONMENT], s[1].hash[0][FACT_ENVIRONMENT]);
    CHECK_STR(s[0].hash[0][FACT_SOURCE], s[2].hash[0][FACT_SOURCE]);
    CHECK_STR(s[0].hash[0][FACT_DRIVER], s[2].hash[0][FACT_DRIVER]);
    CHECK(strcmp(s[0].hash[0][FACT_GPU], s[2].hash[0][FACT_GPU]) != 0);
    CHECK_STR(s[2].gpu, "2 x NVIDIA H200");
    CHECK_STR(s[3].hash[0][FACT_RECIPE], s[4].hash[0][FACT_RECIPE]);
    CHECK(strcmp(s[3].hash[0][FACT_RECIPE], s[5].hash[0][FACT_RECIPE]) != 0);
    CHECK(s[0].run[0].loss_digest != s[2].run[0].loss_digest);
    CHECK(s[0].run[0].loss_digest == s[1].run[0].loss_digest);
    for (int i = 0; i < 6; i++)
        seen_release(&s[i]);
}

/* Environment first, then the source: sections are known by their content. */
static void test_environment_first(void)
{
    struct made m = made_default(MADE_TODAY);
    size_t n;
    char *text = made_text(&m, &n), *turned;
    char *rule = strstr(text, "\n====") + 1, *env = strchr(rule, '\n') + 1;
    char *second = strstr(env, "\n====") + 1, *rest = strchr(second, '\n') + 1;
    struct seen a, b;
    CHECK(asprintf(&turned, "%.*s%.*s%.*s%.*s%.*s%s", (int)(env - rule), rule, (int)(second - env),
                   env, (int)(env - rule), rule, (int)(rule - text), text, (int)(env - rule), rule,
                   rest) > 0);
    seen_read(&a, text, n, 0);
    seen_read(&b, turned, strlen(turned), 0);
    CHECK(a.runs == 1 && b.runs == 1 && !b.notes);
    if (a.runs == 1 && b.runs == 1)
        for (int f = 0; f < FACTS; f++)
            CHECK_STR(b.hash[0][f], a.hash[0][f]);
    seen_release(&a);
    seen_release(&b);
    free(turned);
    free(text);
}

/* What our own writer writes. */
static void test_own_writer(void)
{
    char *text;
    size_t n;
    struct seen s;
    FILE *f = open_memstream(&text, &n);
    struct runlog l = { .f = f, .total = 2 };
    runlog_key(&l, "tool", "gpt-train %s", "0.1.0");
    runlog_key(&l, "device", "cpu");
    runlog_key(&l, "ranks", "1");
    runlog_recipe(&l, "name = x\nseed = 3\n");
    runlog_val(&l, 0, 10.8284, 0, 0);
    runlog_step(&l, 1, 18.64, NAN, -1, 42.4, 42.4);
    runlog_step(&l, 2, 17.25, 9.75, 3.5, 81, 40.5);
    runlog_val(&l, 2, 9.5, 81, 40.5);
    runlog_memory(&l, 512);
    CHECK_OK(runlog_status(&l));
    fclose(f);
    seen_read(&s, text, n, 0);
    CHECK_EQ(s.runs, 1);
    CHECK_EQ(s.notes, 0);
    CHECK(s.runs && s.run[0].ended && s.run[0].loss == 9.5 && s.run[0].time_ms == 81);
    CHECK(s.runs && *s.hash[0][FACT_RECIPE]);
    CHECK(s.steps == 2 && s.step[0].loss == 18.64 && isnan(s.step[0].next) &&
          isnan(s.step[0].norm));
    CHECK(s.steps == 2 && s.step[1].loss == 17.25 && s.step[1].next == 9.75 &&
          s.step[1].norm == 3.5);
    seen_release(&s);
    free(text);
}

/* --- what is wrong with a log is said --- */

/* Reads the log with one text for another, and expects a note on that line. */
static void check_named(const struct made *made, const char *old, const char *new, const char *say,
                        int ended)
{
    struct made m = *made;
    struct seen s;
    size_t n;
    char *text = made_text(&m, &n), *changed = with(text, old, new);
    long line = line_of(text, old);
    seen_read(&s, changed, strlen(changed), 0);
    CHECK_OK(s.rc);
    if (!CHECK(seen_note_has(&s, line, say)))
        for (int i = 0; i < s.notes; i++)
            printf("  line %ld: %s (wanted line %ld: %s)\n", s.note[i].line, s.note[i].text, line,
                   say);
    int count = 0;
    for (int i = 0; i < s.runs; i++)
        count += s.run[i].ended;
    CHECK_EQ(count, ended);
    seen_release(&s);
    free(changed);
    free(text);
}

static void test_named(void)
{
    struct made m = made_default(MADE_TODAY);
    const char *last = "step:60/60 val_loss:3.2784 train_time:6000ms step_avg:100.00ms\n";
    check_named(&m, last, "step:60/60 val_loss:3.2x84 train_time:6000ms\n", "no number", 0);
    check_named(&m, last, "step:60/60 val_loss:nan train_time:6000ms\n", "not finite", 1);
    check_named(&m, last, "step:60/60 val_loss:3.2784 train_time:6000\n", "no number of ms", 0);
    check_named(&m, last, "step:61/60 val_loss:3.2784 train_time:6000ms\n", "beyond the last", 0);
    check_named(&m, last, "step:60/70 val_loss:3.2784 train_time:6000ms\n", "changes from 60", 0);
    check_named(&m, last, "step:60/60\n", "nothing else", 0);
    check_named(&m, last, "step:60/60 3.2784\n", "name:value", 0);
    check_named(&m, last, "step:60/60 val_loss:3.2784 val_loss:3.2785\n", "twice", 0);
    check_named(&m, last, "step:99999999999/60 val_loss:3.2784\n", "too large", 0);
    check_named(&m, last, "step:60/60 val_loss: 3.2784\n", "no number", 0);
    /* a digit of the clock is wrong: the average tells, and the line is named */
    check_named(&m, "step:30/60 train_time:3000ms", "step:30/60 train_time:3900ms",
                "does not agree", 1);
    check_named(&m, "val_loss:3.2784 train_time:6000ms step_avg:100.00ms",
                "val_loss:3.2784 train_time:6600ms step_avg:100.00ms", "does not agree", 1);
}

static void test_gaps(void)
{
    struct made m = made_default(MADE_TODAY);
    struct seen s;
    size_t n;
    char *text = made_text(&m, &n);
    char *gap = with(text, "step:31/60 train_time:3100ms step_avg:100.00ms\n", "");
    seen_read(&s, gap, strlen(gap), 0);
    CHECK(seen_note_has(&s, -1, "step lines missing: 1"));
    CHECK(s.runs == 1 && s.run[0].ended);
    seen_release(&s);
    /* no last validation */
    text[strstr(text, "step:60/60 val_loss") - text] = '\0';
    seen_read(&s, text, strlen(text), 0);
    CHECK(seen_note_has(&s, -1, "ends at step 60 of 60: no last validation"));
    CHECK(s.runs == 1 && !s.run[0].ended && isnan(s.run[0].loss) && isnan(s.run[0].time_ms));
    seen_release(&s);
    free(gap);
    free(text);
}

/* A last line without its end counts when a unit closes it, and not when a digit may be missing. */
static void test_no_newline(void)
{
    struct made m = made_default(MADE_BARE), l = made_default(MADE_LLMC);
    struct seen s;
    size_t n;
    char *text = made_text(&m, &n);
    char *end = strstr(text, "\npeak memory");
    seen_read(&s, text, (size_t)(end - text), 0);
    CHECK(s.runs == 1 && s.run[0].ended && s.run[0].loss == 3.2784);
    CHECK_EQ(s.notes, 0);
    seen_release(&s);
    free(text);
    text = made_text(&l, &n);
    seen_read(&s, text, n - 1, 0);
    CHECK(s.runs == 1 && !s.run[0].ended);
    CHECK(seen_note_has(&s, -1, "may lack digits"));
    seen_release(&s);
    free(text);
}

/* Several logs in one file, each with its own facts; also in source that holds a rule. */
static void test_several_logs(void)
{
    struct made a = made_default(MADE_TODAY), b = a, c = made_default(MADE_OURS);
    struct seen s, one;
    size_t na, nb, nc;
    b.source = 2;
    b.loss = 3.2701;
    char *ta = made_text(&a, &na), *tb = made_text(&b, &nb), *tc = made_text(&c, &nc), *all;
    CHECK(asprintf(&all, "%s%s%s", ta, tb, tc) > 0);
    seen_read(&s, all, strlen(all), 0);
    CHECK_EQ(s.runs, 3);
    CHECK_EQ(s.notes, 0);
    if (s.runs == 3) {
        CHECK(s.run[0].loss == 3.2784 && s.run[1].loss == 3.2701 && s.run[2].loss == 3.2784);
        seen_read(&one, ta, na, 0);
        CHECK_STR(s.hash[0][FACT_SOURCE], one.hash[0][FACT_SOURCE]);
        seen_release(&one);
        seen_read(&one, tb, nb, 0);
        CHECK_STR(s.hash[1][FACT_SOURCE], one.hash[0][FACT_SOURCE]);
        CHECK_STR(s.hash[1][FACT_ENVIRONMENT], one.hash[0][FACT_ENVIRONMENT]);
        seen_release(&one);
        seen_read(&one, tc, nc, 0);
        CHECK_STR(s.hash[2][FACT_SOURCE], "");
        CHECK_STR(s.hash[2][FACT_RECIPE], one.hash[0][FACT_RECIPE]);
        CHECK_STR(s.hash[2][FACT_ENVIRONMENT], one.hash[0][FACT_ENVIRONMENT]);
        seen_release(&one);
    }
    seen_release(&s);
    free(ta);
    free(tb);
    free(tc);
    free(all);
}

/* A run that continues another has a clock of its own. */
static void test_resumed(void)
{
    const char *text =
        "tool: gpt-train 0.1.0\nresumed: step 10 of run/step-10\n"
        "===================================================================================="
        "================\nseed = 1\n========================================================"
        "============================================\n"
        "step:11/12 train_loss:5.0 train_time:40ms step_avg:40.00ms\n"
        "step:12/12 train_loss:4.9 train_time:80ms step_avg:40.00ms\n"
        "step:12/12 val_loss:4.9000 train_time:80ms step_avg:40.00ms\n";
    struct seen s;
    seen_read(&s, text, strlen(text), 0);
    CHECK(s.runs == 1 && s.run[0].ended && s.run[0].loss == 4.9 && isnan(s.run[0].time_ms));
    CHECK(s.runs == 1 && s.run[0].resumed == 10 && s.run[0].first == 11);
    seen_release(&s);
}

static void test_hostile(void)
{
    static const char rest[] = "\nstep:1/1 val_loss:3.0000 train_time:5ms step_avg:5.00ms\n";
    size_t n = 3 << 20;
    char *text = malloc(n + sizeof rest);
    struct seen s;
    memset(text, '7', n);
    memcpy(text, "step:1/2 val_loss:", 18); /* a number of three million digits */
    memcpy(text + n, rest, sizeof rest);
    seen_read(&s, text, n + sizeof rest - 1, 0);
    CHECK(seen_note_has(&s, 1, "step line of over"));
    CHECK(s.runs == 1 && s.run[0].loss == 3);
    CHECK(s.runs == 1 && s.run[0].first_line == 2);
    seen_release(&s);
    memset(text, 'x', n); /* a long line that is none */
    seen_read(&s, text, n + sizeof rest - 1, 100000);
    CHECK_EQ(s.notes, 0);
    CHECK(s.runs == 1 && s.run[0].loss == 3);
    seen_release(&s);
    free(text);
    static const char nul[] = "step:1/1 val_loss:3.0\0 train_time:5ms\n";
    seen_read(&s, nul, sizeof nul - 1, 0);
    CHECK(s.runs == 0 && seen_note_has(&s, 1, "not read") && seen_note_has(&s, 0, "no step lines"));
    seen_release(&s);
    seen_read(&s, "", 0, 0);
    CHECK(s.runs == 0 && s.notes == 1 && seen_note_has(&s, 0, "no step lines"));
    seen_release(&s);
}

int main(void)
{
    test_lines();
    test_layouts();
    test_environment_first();
    test_facts_differ();
    test_own_writer();
    test_named();
    test_gaps();
    test_no_newline();
    test_several_logs();
    test_resumed();
    test_hostile();
    return check_done();
}
