/* recipe_fuzz_test.c - recipes with mistakes: each is refused with one message, or is one that
 * --plan and the model can run.
 *
 * The three recipes at a small size, with one to three mistakes of the kind that people and disks
 * make: words replaced by absurd ones, lines lost, doubled or cut. What is still accepted goes
 * through the plan and through a forward and backward, which must write every gradient; the
 * sanitizers (make asan=1) watch. FUZZ_SECONDS (2) and FUZZ_SEED (1) of the environment.
 */
#include <stdlib.h>
#include <time.h>
#include "base/file.h"
#include "base/rng.h"
#include "check.h"
#include "floats.h"
#include "small_model.h"
#include "train/run.h"

enum { MOST_TEXT = 1 << 14 };

static struct rng rng;
static uint64_t drawn;
static int below(int n) { return (int)rng_below(&rng, drawn++, (uint64_t)n); }

/* -- recipes ---------------------------------------------------------------------------------- */

static bool small_text(const char *name, bool bigrams, char *out)
{
    const char *set[] = { "model.vocab=32",
                          "model.heads=2",
                          "model.head_dim=8",
                          "model.mlp_width=20",
                          "model.block=4",
                          "schedule.steps=9",
                          "schedule.extension=2",
                          "precision.head_fp8=no",
                          "stages.0=128 3 16 1 1,0.5,0.25>0",
                          "stages.1=128 7 32 1.52 1,0.5>0",
                          "stages.2=128 11 32 1.73 1",
                          "stages.3=128 13 32 - 1",
                          "data.val_chunk=64",
                          "data.val_tokens=512",
                          "model.bigram_rows=24" };
    const char *share = getenv("GPT_SHARE");
    struct recipe *r;
    char path[512];

    snprintf(path, sizeof path, "%s/recipes/%s.recipe", share ? share : "share", name);
    if (!CHECK_OK(recipe_read(&r, path, set, (int)(sizeof set / sizeof *set) - !bigrams)))
        return false;
    snprintf(out, MOST_TEXT, "%s", recipe_canonical(r));
    recipe_free(r);
    return true;
}

/* -- mistakes --------------------------------------------------------------------------------- */

static const char *const words[] = {
    "0",
    "-1",
    "1",
    "2",
    "3",
    "7",
    "10",
    "11",
    "12",
    "13",
    "22",
    "64",
    "1e9",
    "1e308",
    "-1e308",
    "nan",
    "inf",
    "-0",
    "1/0",
    "0/0",
    "99999999999999999999",
    "2147483647",
    "2147483648",
    "16777216",
    "1048576",
    "67108865",
    "-",
    "",
    ",",
    ",,",
    ":",
    "/",
    "*",
    ">",
    "1,",
    "1>",
    "d",
    "4d",
    "b",
    "99d",
    "1Gd",
    "1G,1G,1G",
    "1,1,1",
    "v,d",
    "d,v",
    "yes",
    "no",
    "none",
    "plain",
    "paired",
    "adam",
    "normuon",
    "sparse",
    "sharded",
    "replicated",
    "f32",
    "bf16",
    "weight",
    "zero",
    "attn",
    "embed",
    "lm_head",
    "scalars",
    "value_embed:4",
    "value_embed:5",
    "ve0",
    "ve1:1",
    "values:1*36",
    "values:,*",
    "values:1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7,8",
    "transpose:embed",
    "transpose:",
    "[model]",
    "before",
    "after",
    "attention",
    "half",
    "split",
    "\x01",
    "caf\xc3\xa9",
    "=",
    "model.heads=1",
};

/* The word at a random place becomes another; the line around it stays. */
static void replace_word(char *t)
{
    char copy[MOST_TEXT];
    const char *word = words[below((int)(sizeof words / sizeof *words))];
    size_t at = (size_t)below((int)strlen(t)), end;
    while (at && !strchr(" \n=", t[at - 1]))
        at--;
    end = at + strcspn(t + at, " \n");
    if (strlen(t) + strlen(word) + 1 >= sizeof copy)
        return;
    snprintf(copy, sizeof copy, "%.*s%s%s", (int)at, t, word, t + end);
    strcpy(t, copy);
}

static void spoil_line(char *t)
{
    size_t at = (size_t)below((int)strlen(t)), end;
    while (at && t[at - 1] != '\n')
        at--;
    end = at + strcspn(t + at, "\n");
    end += t[end] == '\n';
    switch (below(3)) {
    case 0: /* lost */ memmove(t + at, t + end, strlen(t + end) + 1); return;
    case 1: /* doubled */
        if (strlen(t) + (end - at) < MOST_TEXT)
            memmove(t + end, t + at, strlen(t + at) + 1);
        return;
    default: /* cut */
        if (end > at)
            memmove(t + at + below((int)(end - at)), t + end - 1, strlen(t + end - 1) + 1);
    }
}

static void spoil(char *t)
{
    for (int n = 1 + below(3); n; n--)
        switch (below(8)) {
        case 0: t[below((int)strlen(t))] = (char)(32 + below(95)); break;
        case 1: spoil_line(t); break;
        default: replace_word(t);
        }
    if (below(64) == 0)
        t[below((int)strlen(t))] = 0;
}

/* -- what must hold --------------------------------------------------------------------------- */

static bool small_enough(const struct recipe *r)
{
    double n = r->model.bigram.rows + r->model.vocab + 40.0 * r->model.head_dim;
    for (int i = 0; i < r->n_params; i++)
        n += (double)(r->params[i].matrices * r->params[i].rows * r->params[i].cols);
    return n < 2e5 && r->model.mlp_width < 1000;
}

/* Memory is poisoned with NaN, so that a gradient nobody wrote shows. */
static void run_model(struct recipe *r, const char *text)
{
    struct small_size size = { .tokens = 24,
                               .vocab = r->model.vocab,
                               .document = 7,
                               .rows = r->model.bigram.rows ? r->model.bigram.rows : 2 };
    struct small s = { .r = r };
    struct ops *o;

    if (!CHECK_OK(ops_cpu_new(&o)) || !CHECK_OK(small_model(&s, o, &size, 3)))
        return;
    double train = small_loss(&s), eval = small_eval(&s);
    bool finite = isfinite(train) && isfinite(eval);
    for (int i = 0; i < s.b.n; i++) {
        float *g = floats_of(o, s.b.p[i].g);
        for (int64_t k = 0; k < tensor_count(s.b.p[i].g); k++)
            finite &= isfinite(g[k]);
        free(g);
    }
    check_that(finite, __FILE__, __LINE__, "losses %g, %g or a gradient: not finite with\n%s",
               train, eval, text);
    CHECK_OK(small_close(&s));
}

static int count(struct ops **o, int i, void *group)
{
    (void)i, (void)group;
    return ops_cpu_counting(o, 2);
}
static const struct backend counting = { .name = "cpu", .world = 1, .ops_counting = count };

static void check_text(const char *text, FILE *sink, int *accepted)
{
    struct recipe *r = NULL, *again = NULL;
    int rc = recipe_parse(&r, "fuzz", text, NULL, 0);

    if (rc) {
        CHECK(r == NULL);
        check_that(rc == GPT_INPUT || (rc == GPT_SYSTEM && strstr(err_message(), "coeffs")),
                   __FILE__, __LINE__, "code %d: %s", rc, err_message());
        CHECK(*err_message() && !strchr(err_message(), '\n'));
        return;
    }
    ++*accepted;
    if (CHECK_OK(recipe_parse(&again, "again", recipe_canonical(r), NULL, 0)))
        CHECK_STR(again->hash, r->hash);
    recipe_free(again);
    if (schedule_total(r) < 1000)
        CHECK_OK(run_plan(r, &counting, NULL, NULL, false, sink));
    if (small_enough(r))
        run_model(r, text); /* takes r */
    else
        recipe_free(r);
}

int main(void)
{
    static char base[3][MOST_TEXT], text[MOST_TEXT];
    const char *seconds = getenv("FUZZ_SECONDS"), *seed = getenv("FUZZ_SEED");
    double budget = seconds ? atof(seconds) : 2;
    struct timespec begin, now;
    int n = 0, accepted = 0;
    FILE *sink = fopen("/dev/null", "w");

    rng = rng_make(seed ? strtoull(seed, NULL, 0) : 1, 0);
    CHECK(sink != NULL);
    if (!small_text("tiny", false, base[0]) || !small_text("record-61", false, base[1]) ||
        !small_text("record-74", true, base[2]))
        return check_done();
    for (int i = 0; i < 3; i++)
        check_text(base[i], sink, &accepted);
    CHECK_EQ(accepted, 3);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do {
        strcpy(text, base[n++ % 3]);
        spoil(text);
        check_text(text, sink, &accepted);
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((double)(now.tv_sec - begin.tv_sec) + 1e-9 * (double)(now.tv_nsec - begin.tv_nsec) <
             budget);
    printf("%d recipes with mistakes, %d of them accepted\n", n, accepted - 3);
    fclose(sink);
    return check_done();
}
