/* Random and cut logs: no crash, no hang, and no number that is not in the text.
 *
 * This is a libFuzzer harness with a driver of its own, so that `make check-all` runs it without
 * clang: every log of runlog_made.c cut at every byte, then mutated for a while. Long runs:
 *
 *     clang -g -O1 -fsanitize=fuzzer,address,undefined -DLIBFUZZER -D_GNU_SOURCE -Ilib \
 *         -Itests/check -Itests/inputs tests/lib/runs_fuzz_test.c tests/inputs/runlog_*.c \
 *         tests/check/check.c lib/runs/[a-z]*.c lib/base/[a-z]*.c -lzstd -lz -lm -lpthread -o runs_fuzz && ./runs_fuzz
 *
 * Environment: FUZZ_SECONDS (2) and FUZZ_SEED (1) of the driver. */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "base/rng.h"
#include "check.h"
#include "runlog_made.h"
#include "runlog_seen.h"
#include "runs/follow.h"
#include "runs/page.h"
#include "runs/plot.h"
#include "runs/rows.h"
#include "runs/prefix.h"
#include "runs/tables.h"
#include "runs/why.h"

/* --- what must hold of any input --- */

/* Does the number stand in the text as it was printed? */
static int stands_in(const char *text, size_t n, const struct run_val *v)
{
    char number[64];
    if (fabs(v->loss) * pow(10, v->digits) >= 1e15 || v->digits > 15)
        return 1; /* with an exponent, or more digits than a double tells */
    if (isnan(v->loss))
        return memmem(text, n, "nan", 3) != NULL;
    if (isinf(v->loss))
        return memmem(text, n, "inf", 3) != NULL;
    int k = snprintf(number, sizeof number, "%.*f", v->digits, fabs(v->loss));
    /* leading zeros and a sign may stand in front, which the text then has as well */
    return memmem(text, n, number, (size_t)k) != NULL;
}

static void check_run(const struct run *r)
{
    CHECK(r->first >= 0 && r->first <= r->last && r->last <= STEP_MAX);
    CHECK(r->total == 0 || r->last <= r->total);
    CHECK(r->first_line >= 1 && r->first_line <= r->last_line);
    CHECK(r->vals >= 0 && r->steps >= 0);
    CHECK(!r->ended || (r->vals > 0) == (r->last > 0)); /* neither: of a published list */
    CHECK(r->ended || (isnan(r->loss) && isnan(r->time_ms)));
    CHECK(!r->ended || !r->total || r->last == r->total);
}

static int same_double(double a, double b) { return a == b || (isnan(a) && isnan(b)); }

static void check_same(const struct seen *a, const struct seen *b)
{
    CHECK_EQ(a->runs, b->runs);
    CHECK_EQ(a->vals, b->vals);
    CHECK_EQ(a->notes, b->notes);
    for (int i = 0; i < a->runs && i < b->runs; i++) {
        CHECK(a->run[i].loss_digest == b->run[i].loss_digest);
        CHECK(same_double(a->run[i].loss, b->run[i].loss));
        CHECK_STR(a->hash[i][FACT_SOURCE], b->hash[i][FACT_SOURCE]);
        CHECK_STR(a->hash[i][FACT_ENVIRONMENT], b->hash[i][FACT_ENVIRONMENT]);
    }
}

/* --- the report of it --- */

struct job {
    struct gather g;
    struct follow f;
    int group;
};

static int add_run(void *arg, const struct run *r)
{
    struct job *j = arg;
    return group_add(&j->g.group[j->group], &j->g.variants, r);
}

static int follow_line(void *arg, const struct run *r, const struct stepline *s)
{
    struct job *j = arg;
    char text[300];
    if (follow_step(&j->f, r, s, text, sizeof text))
        CHECK(*text && strlen(text) < sizeof text);
    return 0;
}

static void read_into(struct job *j, const char *text, size_t n, bool follow)
{
    struct logsink sink = { .run = add_run, .step = follow ? follow_line : NULL, .arg = j };
    struct logread *r;
    CHECK_OK(logread_new(&r, "fuzz", true, &sink));
    CHECK_OK(logread_feed(r, text, n));
    CHECK_OK(logread_end(r));
    logread_free(r);
    CHECK_OK(gather_finish(&j->g, &(struct gather_options){ .flags = GROUP_PROFILE }));
}

/* A row has a step of its own, and steps ascend. */
static void write_rows(FILE *f, const struct gather *g, const struct run *r)
{
    const char *recipe = r->fact[FACT_RECIPE] < 0 ? NULL : g->variants.v[r->fact[FACT_RECIPE]].text;
    struct rows o;
    struct row row;
    int32_t last = -1;
    CHECK_OK(rows_open(&o, r, recipe));
    for (int n = 0; rows_next(&o, INT32_MAX, &row); n++) {
        rows_write(f, n % 2 ? ROWS_CSV : ROWS_JSONL, "a group", r, &row);
        CHECK(row.step > last);
        last = row.step;
    }
    rows_close(&o);
}

static void write_all(struct gather *g, const struct criteria *k, enum report_format format)
{
    struct judgement v[2];
    struct report r;
    char *text;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    CHECK_OK(judge_group(&v[0], g, 0, k));
    CHECK_OK(judge_group(&v[1], g, 1, k));
    report_begin(&r, f, format);
    if (k->rules->standings)
        CHECK_OK(tables_standings(&r, g, v, k));
    tables_groups(&r, g, v, k);
    tables_verdicts(&r, g, v, k);
    tables_paired(&r, g, v, k);
    tables_runs(&r, g);
    CHECK_OK(tables_worth(&r, g, k->target));
    if (g->group[0].n)
        CHECK_OK(tables_run(&r, g));
    tables_side_by_side(&r, g);
    tables_curves(&r, g, 0.01);
    CHECK_OK(tables_steps(&r, g));
    CHECK_OK(why_report(&r, g, 1, 50));
    tables_notes(&r, g);
    CHECK_OK(report_end(&r));
    CHECK_OK(plot_svg(f, g, k->target));
    CHECK_OK(page_write(f, g, k->target, "{}", "test"));
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < g->group[i].n; j++)
            write_rows(f, g, &g->group[i].run[j]);
    fclose(f);
    CHECK(n > 0 && strlen(text) == n); /* no NUL of the log comes through */
    /* a run that is not there, or has no end, is in no mean */
    for (int i = 0; i < 2; i++)
        CHECK(v[i].own.runs + v[i].own.left_out == g->group[i].n);
    CHECK(!v[1].shown ||
          (v[1].own.loss.mean < k->target && (k->rules->rule == JUDGE_Z || v[1].own.runs > 1)));
    free(text);
}

/* The log against half of itself. */
static void report_on(const char *text, size_t n)
{
    struct group groups[2] = { { .name = strdup("base") }, { .name = strdup("a|b\x1b\n\xff") } };
    struct job j = { .g = { .n = 2, .live = -1 } };
    struct criteria k = criteria_of(rules_named(n % 2 ? "track-1" : "track-3"));
    j.g.group = malloc(sizeof groups);
    memcpy(j.g.group, groups, sizeof groups);
    read_into(&j, text, n, false);
    CHECK_OK(follow_begin(&j.f, &j.g, 1, &k));
    j.group = 1;
    read_into(&j, text, n / 2, true);
    follow_end(&j.f);
    CHECK_OK(judge_place(&j.g, &k));
    write_all(&j.g, &k, (enum report_format)(n / 2 % 4));
    gather_release(&j.g);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const char *text = (const char *)data;
    struct seen all, pieces;
    seen_read(&all, text, n, 0);
    seen_read(&pieces, text, n, n % 61 + 1);
    CHECK_OK(all.rc);
    check_same(&all, &pieces);
    for (int i = 0; i < all.runs; i++)
        check_run(&all.run[i]);
    char *plain = malloc(n + 1);
    memcpy(plain, text, n);
    size_t left = prefix_uncolour(plain, n);
    for (int i = 0; i < all.vals; i++)
        CHECK(stands_in(plain, left, &all.val[i].v));
    free(plain);
    seen_release(&all);
    seen_release(&pieces);
    report_on(text, n);
#ifdef LIBFUZZER
    if (check_failures())
        abort();
#endif
    return 0;
}

#ifndef LIBFUZZER

/* --- every log cut at every byte --- */

static int has_val(const struct seen *s, const struct seen_val *v)
{
    for (int i = 0; i < s->vals; i++)
        if (s->val[i].trial == v->trial && s->val[i].v.step == v->v.step)
            return s->val[i].v.loss == v->v.loss && s->val[i].v.digits == v->v.digits &&
                   same_double(s->val[i].v.time_ms, v->v.time_ms);
    return 0;
}

static int has_step(const struct seen *s, const struct run_step *t)
{
    for (int i = 0; i < s->steps; i++)
        if (s->step[i].step == t->step)
            return same_double(s->step[i].time_ms, t->time_ms) &&
                   same_double(s->step[i].loss, t->loss);
    return 0;
}

/* A part of a log says nothing but what the whole says, and has an end only if it has all of it.
 * Where a log does not tell the number of steps, that its last validation is the end is said. */
static void check_cut(const struct made *m, const struct seen *whole, const struct seen *cut)
{
    for (int i = 0; i < cut->vals; i++)
        CHECK(has_val(whole, &cut->val[i]));
    for (int i = 0; i < cut->steps; i++)
        CHECK(has_step(whole, &cut->step[i]));
    for (int i = 0; i < cut->runs; i++) {
        const struct run *r = &cut->run[i];
        CHECK(!r->ended || i < whole->runs);
        CHECK(r->ended || cut->notes > 0);
        if (r->ended && m->timed)
            CHECK(r->loss == whole->run[i].loss && r->time_ms == whole->run[i].time_ms);
        else if (r->ended)
            CHECK(seen_note_has(cut, r->last_line, "is taken for the end"));
    }
}

static void test_cut(void)
{
    for (int layout = 0; layout < MADE_LAYOUTS; layout++) {
        struct made m = made_default((enum made_layout)layout);
        struct seen whole, cut;
        size_t n;
        char *text = made_text(&m, &n);
        seen_read(&whole, text, n, 0);
        CHECK_EQ(whole.runs, m.trials);
        for (size_t k = 0; k < n; k++) {
            seen_read(&cut, text, k, 0);
            CHECK_OK(cut.rc);
            check_cut(&m, &whole, &cut);
            seen_release(&cut);
        }
        seen_release(&whole);
        free(text);
    }
}

/* --- mutations --- */

enum { TEXT_MAX = 1 << 16 };
struct text {
    char s[TEXT_MAX];
    size_t n;
};

static void put(struct text *t, size_t at, const char *s, size_t n)
{
    if (n > TEXT_MAX - t->n)
        n = TEXT_MAX - t->n;
    memmove(t->s + at + n, t->s + at, t->n - at);
    memcpy(t->s + at, s, n);
    t->n += n;
}

static void mutate(struct text *t, const struct rng *r, uint64_t *at)
{
    static const char *const words[] = {
        "\n",
        "\r\n",
        "\r",
        "step:",
        "step:0/",
        "/",
        " val_loss:",
        "val_loss:nan ",
        "tel:",
        " ",
        "train_time:",
        "ms",
        "s",
        "step_avg:nanms",
        "-",
        "1e308",
        "9999999999",
        ".",
        "..",
        "inf",
        "[rank0]: ",
        "tool: gpt-train 0.1.0\n",
        "import os\nimport sys\n",
        "resumed: step 7\n",
        "\xff\xfe",
        "\xc3",
        "step:60/60 val_loss:1.0000 train_time:1ms step_avg:1.00ms\n",
        "\n========================================================================================"
        "============\n",
        "|   0  ",
        "  On  |",
        "Driver Version: ",
        "Running on device_name=",
        "losses = [3.27, 3.28,\n",
        "times  = [1.5, 1.6]\n",
        "]",
        "val_losses = [3.2, 3.1]\n",
        "new:\naccs = [",
        "[default0]:",
        "0: ",
        "[1,0]<stdout>:",
        "\033[32m",
        "2026-11-26 11:35:33,041 INFO ",
        "step 250: train loss 4.6, val loss 4.6077\n",
        "iter 250: loss 4.5, time 33.38ms, mfu 3.06%\n",
        "step    1/60 | loss 10.9 (+nanz)| norm 15.3 (+nanz)| lr 1e-06 | 30.56 ms | 9 tok/s\n",
        "val loss 3.5\n",
        "recipe: record-61 d78088fcfd4d787a2438bbadda56d513\n",
        "start: 0.5 s (data 0.1, device 0.1, memory 0.1, values 0.1, first step 0.1)\n",
        "end: 9.5 s (start 0.5, steps 8.0, validation 0.7, checkpoints 0.3)\n",
    };
    size_t i = rng_below(r, (*at)++, t->n + 1), n = rng_below(r, (*at)++, 40) + 1;
    const char *word = words[rng_below(r, (*at)++, sizeof words / sizeof *words)];
    char zeros[40] = { 0 };
    n = n < t->n - i ? n : t->n - i;
    switch (rng_below(r, (*at)++, 8)) {
    case 0: /* a byte */
        if (i < t->n)
            t->s[i] = (char)rng_below(r, (*at)++, 256);
        break;
    case 1: /* cut */ t->n = i; break;
    case 2: /* take out */
        memmove(t->s + i, t->s + i + n, t->n - i - n);
        t->n -= n;
        break;
    case 3: { /* double a stretch of up to 2,000 bytes */
        size_t k = rng_below(r, (*at)++, 2000);
        char copy[2000];
        k = k < t->n - i ? k : t->n - i;
        memcpy(copy, t->s + i, k);
        put(t, i, copy, k);
        break;
    }
    case 4: put(t, i, zeros, n); break;
    default: put(t, i, word, strlen(word));
    }
}

static void test_mutations(double seconds, uint64_t seed)
{
    struct rng r = rng_make(seed, 0);
    struct text *t = malloc(sizeof *t);
    clock_t end = clock() + (clock_t)(seconds * CLOCKS_PER_SEC);
    static const char lists[] = "losses = [3.2777, 3.2785,\n  3.2790] # three\n"
                                "times = [105.369, 105.595, 105.414]\n";
    uint64_t at = 0;
    long done = 0;
    while (t && clock() < end) {
        struct made m = made_default((enum made_layout)rng_below(&r, at++, MADE_LAYOUTS));
        m.steps = m.restarts ? 20 : (int)rng_below(&r, at++, 30) + 1;
        size_t n = sizeof lists - 1;
        char *text = done % 8 ? made_text(&m, &n) : strdup(lists);
        t->n = n < TEXT_MAX ? n : TEXT_MAX;
        memcpy(t->s, text, t->n);
        free(text);
        for (uint64_t k = rng_below(&r, at++, 12) + 1; k > 0; k--)
            mutate(t, &r, &at);
        /* in memory of just its size, so that a sanitizer sees what is read beyond it */
        uint8_t *exact = malloc(t->n + !t->n);
        memcpy(exact, t->s, t->n);
        LLVMFuzzerTestOneInput(exact, t->n);
        free(exact);
        done++;
    }
    free(t);
    /* a driver that does nothing finds nothing; valgrind makes some hundred of them */
    CHECK(done >= 50);
    printf("%ld mutated logs\n", done);
}

static void test_random_bytes(void)
{
    struct rng r = rng_make(5, 0);
    uint8_t data[4096];
    uint64_t at = 0;
    for (int k = 0; k < 300; k++) {
        size_t n = rng_below(&r, at++, sizeof data);
        for (size_t i = 0; i < n; i++) {
            uint64_t x = rng_below(&r, at++, 512);
            data[i] = x < 256 ? (uint8_t)x : (uint8_t) "step:0123456789/ val_loss.\nms="[x % 30];
        }
        LLVMFuzzerTestOneInput(data, n);
    }
}

int main(void)
{
    const char *seconds = getenv("FUZZ_SECONDS"), *seed = getenv("FUZZ_SEED");
    test_cut();
    test_random_bytes();
    test_mutations(seconds ? atof(seconds) : 2, seed ? strtoull(seed, NULL, 10) : 1);
    return check_done();
}
#endif
