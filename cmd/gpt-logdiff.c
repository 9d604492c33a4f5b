/* gpt-logdiff - compares run logs: does this run beat the record?
 *
 *     gpt-logdiff base=records/61 new=logs
 *     gpt-train ... | tee run.log | gpt-logdiff --follow base=records/61 new=-
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "base/chart.h"
#include "base/file.h"
#include "base/opt.h"
#include "base/progress.h"
#include "base/text.h"
#include "base/version.h"
#include "runs/follow.h"
#include "runs/gather.h"
#include "runs/page.h"
#include "runs/plot.h"
#include "runs/rows.h"
#include "runs/screen.h"
#include "runs/tables.h"
#include "runs/livelog.h"
#include "runs/why.h"

static struct {
    double target, alpha;
    const char *rules, *tail, *format, *plot, *html;
    char *arguments;
    int64_t at_step, against, threads, lines, context; /* the last two -1: not given */
    bool systems_only, mixed, paired, standings, curves, steps, why, follow, wide, force, quiet;
} o = { .tail = "two", .format = "text", .lines = -1, .context = -1 };
enum { LINES = 200, CONTEXT = 1 };

static const struct opt table[] = {
    OPT_HEADING("The rules"),
    OPT_REAL("target", "LOSS", &o.target, 1e-9, 1e9,
             "the loss to be below (3.28 for runs of the speed-run, else none)"),
    OPT_REAL("alpha", "P", &o.alpha, 1e-12, 0.5, "what a p value must be below (0.01)"),
    OPT_WORD(
        "rules", &o.rules, "track-1|track-3|loss",
        "track-1: the speed-run's, Student's test and time (with a target the default); track-3: "
        "the optimizer benchmark's, first passing step; loss: mean loss below the baseline's "
        "(else)"),
    OPT_NUMBER("against", "N", &o.against, 1, 1e6,
               "of --rules track-3: the pairwise rule against published result N"),
    OPT_WORD("tail", &o.tail, "two|lower",
             "tail of Welch's tests and of pairs: two (default) or lower"),
    OPT_SWITCH(0, "paired", &o.paired,
               "pair runs with the baseline's, by seed, else in order; with --rules loss judge so"),
    OPT_SWITCH(0, "systems-only", &o.systems_only,
               "a change that leaves the losses as they are: only their mean must not be above "
               "the target"),
    OPT_NUMBER("at-step", "N", &o.at_step, 1, STEP_MAX,
               "judge by the validation of step N, of runs that were ended early by design, too"),
    OPT_SWITCH(0, "mixed", &o.mixed,
               "judge although something is unequal or two runs have one seed"),
    OPT_HEADING("What is shown besides the table and the verdict"),
    OPT_SWITCH(
        'c', "curves", &o.curves,
        "validation losses at common steps, and where the groups part; of one group its curve"),
    OPT_SWITCH('s', "steps", &o.steps,
               "step times: warm-up, stages, outliers, stalls, even and odd"),
    OPT_SWITCH(0, "standings", &o.standings,
               "the benchmark's table: published results and these groups"),
    OPT_SWITCH('w', "why", &o.why, "differences of source, recipe, environment and data"),
    OPT_NUMBER("context", "N", &o.context, 0, 1000, "lines around a difference (1)"),
    OPT_NUMBER("lines", "N", &o.lines, 0, 1e9, "lines of a difference at most (200); 0: all"),
    OPT_HEADING("Output"),
    OPT_WORD(
        "format", &o.format, "text|tsv|json|md|csv|jsonl",
        "text (default), tsv, json or md, for a pull request; csv or jsonl: a row a step, by the "
        "names that trackers take"),
    OPT_SWITCH(0, "wide", &o.wide, "text as wide as it is, not broken for the terminal"),
    OPT_TEXT(0, "plot", "FILE", &o.plot,
             "losses over steps, tokens and time, step times, loss against time: an SVG"),
    OPT_TEXT(0, "html", "FILE", &o.html,
             "a page with curves, tables, differences, system and code; needs no network"),
    OPT_SWITCH('f', "force", &o.force, "replace the file of --plot or --html"),
    OPT_HEADING("Other"),
    OPT_SWITCH(0, "follow", &o.follow,
               "read '-' or the last PATH as it grows and show how that run stands"),
    OPT_NUMBER("threads", "N", &o.threads, 1, 64, "logs read at a time (one a processor)"),
    OPT_SWITCH('q', "quiet", &o.quiet, "do not name what could not be read"),
    OPT_END
};
static const struct command command = {
    "gpt-logdiff", "[OPTION]... [NAME=]PATH...",
    "Compares groups of runs, the first being the baseline, and says whether the\n"
    "others are better, or records; of one run it shows the curve and where the time\n"
    "went. A PATH is a log, a run's folder, a folder of either, or '-'.",
    table
};

static void say_note(const char *path, long line, const char *text)
{
    if (o.quiet)
        return;
    if (line)
        text_line(stderr, "gpt-logdiff: %s:%ld: %s", path, line, text);
    else
        text_line(stderr, "gpt-logdiff: %s: %s", path, text);
}

static void say_notes(const struct gather *g, int from)
{
    for (int i = from; i < g->notes; i++)
        say_note(g->note[i].path, g->note[i].line, g->note[i].text);
    if (g->more_notes && !o.quiet)
        text_line(stderr, "gpt-logdiff: %ld more like these", g->more_notes);
}

/* True if an option was given with that word. */
static bool is_word(const char *given, const char *word) { return given && !strcmp(given, word); }

/* --- rows --- */

/* True if rows are written in place of a report; to which format. */
static bool rows_asked(enum rows_format *format)
{
    bool csv = is_word(o.format, "csv");
    *format = csv ? ROWS_CSV : ROWS_JSONL;
    return csv || is_word(o.format, "jsonl");
}

static int write_rows(const struct gather *g, enum rows_format format)
{
    struct row row;
    int rc = 0;
    rows_head(stdout, format);
    for (int i = 0; i < g->n; i++)
        for (int k = 0; k < g->group[i].n && !rc; k++) {
            const struct run *r = &g->group[i].run[k];
            struct rows all;
            rc = rows_open(&all, r, variant_text(&g->variants, r->fact[FACT_RECIPE]));
            while (!rc && rows_next(&all, INT32_MAX, &row))
                rows_write(stdout, format, g->group[i].name, r, &row);
            rows_close(&all);
        }
    return rc || !ferror(stdout) ? rc : err_sys("cannot write the rows");
}

/* --- a run that is still going --- */

struct live {
    struct gather *g;
    struct follow f;
    struct screen screen;
    bool wants_rows;
    enum rows_format format;
    struct rows rows;
    const struct run *run; /* the present one; NULL: none yet */
    int trial; /* that rows and recipe are of */
    char *recipe; /* NULL: its log has none */
    bool over; /* its last validation has been read */
    int runs;
};

/* Writes the rows of the present run that are below a step. */
static int live_rows(struct live *l, const struct run *r, int32_t before)
{
    struct row row;
    while (l->wants_rows && rows_next(&l->rows, before, &row))
        rows_write(stdout, l->format, l->g->group[l->f.group].name, r, &row);
    return l->wants_rows && fflush(stdout) ? err_sys("cannot write the rows") : 0;
}

static int live_run(void *arg, const struct run *r)
{
    struct live *l = arg;
    l->runs++;
    int rc = live_rows(l, r, INT32_MAX);
    screen_draw(&l->screen, r);
    return rc ? rc : group_add(&l->g->group[l->f.group], &l->g->variants, r);
}

static int live_begin(struct live *l, const struct run *r)
{
    const struct fact_text *recipe = &r->facts->of[FACT_RECIPE];
    free(l->recipe);
    l->recipe = recipe->text ? strndup(recipe->text, recipe->n) : NULL;
    l->trial = r->trial;
    l->run = r;
    rows_close(&l->rows);
    return rows_open(&l->rows, r, l->recipe);
}

static int live_step(void *arg, const struct run *r, const struct stepline *s)
{
    struct live *l = arg;
    char text[2048];
    bool said = follow_step(&l->f, r, s, text, sizeof text);
    FILE *to = !l->wants_rows && report_format_of(o.format, false) == REPORT_TEXT ? stdout : stderr;
    int rc = r->trial != l->trial ? live_begin(l, r) : 0;
    if (!rc)
        rc = live_rows(l, r, s->step);
    l->over = s->val.given && r->total && s->step == r->total;
    if (said && (l->f.remarked || (!l->screen.on && !l->wants_rows))) {
        screen_wipe(&l->screen);
        text_line(to, "%s", text);
        if (fflush(to))
            return err_sys("cannot write");
    }
    return rc ? rc : screen_run(&l->screen, r, l->recipe);
}

static void live_note(void *arg, const char *path, long line, const char *text)
{
    struct live *l = arg;
    gather_note(l->g, path, line, text);
    screen_wipe(&l->screen);
    say_note(path, line, text);
}

/* True if nothing more comes of a log that has stood still for so long. */
static bool live_over(const struct live *l, double still_s)
{
    enum { CLOSING_S = 2 }; /* for the lines behind the last validation */
    return l->over && (!isnan(l->run->cost.whole) || still_s >= CLOSING_S);
}

static int read_live(struct live *l, struct logread *r, const char *path)
{
    const struct timespec nap = { .tv_nsec = 200 * 1000 * 1000 };
    struct livelog t;
    char buf[65536];
    size_t n;
    double since = now_seconds();
    int rc = livelog_open(&t, path);
    while (!rc && !(rc = livelog_some(&t, buf, sizeof buf, &n)) && !t.ended) {
        if (n) {
            rc = logread_feed(r, buf, n);
            since = now_seconds();
            continue;
        }
        if (live_over(l, now_seconds() - since))
            break;
        if (l->run && l->screen.last < since)
            screen_draw(&l->screen, l->run);
        nanosleep(&nap, NULL);
    }
    livelog_close(&t);
    return rc;
}

static int follow_run(struct gather *g, const struct criteria *k, const struct gather_options *how)
{
    struct live l = { .g = g, .rows.pace.steps = -1 };
    struct logsink sink = { .run = live_run, .step = live_step, .note = live_note, .arg = &l };
    struct logread *r = NULL;
    const char *path = g->live_path, *name = strcmp(path, "-") ? path : "stdin";
    l.wants_rows = rows_asked(&l.format);
    int rc = follow_begin(&l.f, g, g->live, k);
    screen_init(&l.screen, stdout, g->group[g->live].name, g->live ? &g->group[0] : NULL);
    l.screen.on &= !l.wants_rows && report_format_of(o.format, false) == REPORT_TEXT;
    if (l.wants_rows)
        rows_head(stdout, l.format);
    if (!rc)
        rc = logread_new(&r, name, how->keep_texts, &sink);
    if (!rc)
        rc = read_live(&l, r, path);
    if (!rc)
        rc = logread_end(r);
    if (!rc && !l.runs)
        rc = err_set(GPT_INPUT, "%s: held no run", name);
    if (!rc)
        rc = gather_finish(g, how);
    if (l.run) /* a note at its end may have wiped it */
        screen_draw(&l.screen, l.run);
    screen_end(&l.screen);
    rows_close(&l.rows);
    free(l.recipe);
    logread_free(r);
    follow_end(&l.f);
    return rc;
}

/* --- the report --- */

static int write_plot(const struct gather *g, double target)
{
    struct output out;
    int rc = chart_open(&out, o.plot, o.force);
    if (rc)
        return rc;
    if ((rc = plot_svg(out.f, g, target))) {
        output_abort(&out);
        return rc;
    }
    return output_commit(&out);
}

/* The rules: of the options, and of what the runs are. */
static int choose_criteria(struct criteria *k, const struct gather *g)
{
    double target = o.target > 0 ? o.target : judge_target(g);
    bool none = isnan(target);
    const struct rules *rules = rules_named(o.rules ? o.rules : none ? "loss" : "track-1");
    if (o.rules && none)
        target = rules->target;
    none = isnan(target);
    if ((o.standings || o.against) && !rules->standings)
        return err_set(GPT_USAGE, "%s: of --rules track-3, found %s",
                       o.against ? "--against" : "--standings", rules->name);
    if (o.paired && g->n == 1)
        return err_set(GPT_USAGE, "--paired: expected a baseline and another group, found one");
    if (none && o.systems_only)
        return err_set(GPT_USAGE,
                       "--systems-only needs --target: these are no runs of the speed-run");
    *k = (struct criteria){ .rules = rules,
                            .target = target,
                            .alpha = o.alpha > 0 ? o.alpha : rules->alpha,
                            .tail = *o.tail == 'l' ? TAIL_LOWER : TAIL_TWO,
                            .at_step = (int32_t)o.at_step,
                            .systems_only = o.systems_only,
                            .mixed = o.mixed,
                            .paired = o.paired };
    return o.against ? standing_of(rules, (int)o.against, &k->against) : 0;
}

/* Parts that are shown besides the table and the verdict. */
struct besides {
    bool curves, steps, why, standings;
};

static int write_tables(struct report *r, const struct gather *g, const struct judgement *v,
                        const struct criteria *k, const struct besides *b)
{
    bool text = r->format == REPORT_TEXT || r->format == REPORT_MARKDOWN, none = isnan(k->target);
    bool one = tables_one_run(g);
    int rc = 0;
    if (b->standings)
        rc = tables_standings(r, g, v, k);
    if (!text || !one || !none) {
        tables_groups(r, g, v, k);
        tables_paired(r, g, v, k);
        tables_verdicts(r, g, v, k);
        tables_runs(r, g);
    }
    if (!rc && !none)
        rc = tables_worth(r, g, k->target);
    if (!rc && one)
        rc = tables_run(r, g);
    else if (none || (b->curves && g->n == 1))
        tables_side_by_side(r, g);
    if (b->curves && g->n > 1)
        tables_curves(r, g, k->alpha);
    if (b->steps && !rc)
        rc = tables_steps(r, g);
    if (b->why && !rc)
        rc = why_report(r, g, o.context < 0 ? CONTEXT : (int)o.context,
                        o.lines < 0 ? LINES : o.lines);
    tables_notes(r, g);
    return rc;
}

/* The page's report is JSON, with all there is. */
static int write_page(const struct gather *g, const struct judgement *v, const struct criteria *k)
{
    struct output out = { 0 };
    struct report r;
    char *text = NULL, made[4096];
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    if (!f)
        return err_memory();
    report_begin(&r, f, REPORT_JSON);
    int rc = write_tables(&r, g, v, k, &(struct besides){ true, true, true, o.standings }),
        end = report_end(&r);
    if (fclose(f) && !end)
        end = err_memory();
    if (!rc && !(rc = end))
        rc = output_open(&out, o.html, o.force);
    version_tool("gpt-logdiff", made, sizeof made);
    size_t used = strlen(made);
    snprintf(made + used, sizeof made - used, "; arguments: %s", o.arguments ? o.arguments : "");
    if (!rc && !(rc = page_write(out.f, g, k->target, text, made)))
        rc = output_commit(&out);
    output_abort(&out);
    free(text);
    return rc;
}

static int write_report(const struct gather *g, const struct criteria *k)
{
    struct judgement *v = calloc((size_t)g->n, sizeof *v);
    struct report r;
    bool shown = g->n == 1 && isnan(k->target);
    enum rows_format rows;
    int rc = v ? 0 : err_memory();
    for (int i = 0; i < g->n && !rc; i++) {
        rc = judge_group(&v[i], g, i, k);
        shown |= v[i].shown && (i || g->n == 1);
    }
    if (!rc && o.plot)
        rc = write_plot(g, k->target);
    if (!rc && o.html)
        rc = write_page(g, v, k);
    if (!rc && rows_asked(&rows)) {
        shown = true;
        rc = o.follow ? 0 : write_rows(g, rows);
    } else if (!rc) {
        report_begin(&r, stdout, report_format_of(o.format, o.wide));
        rc = write_tables(&r, g, v, k, &(struct besides){ o.curves, o.steps, o.why, o.standings });
        int end = report_end(&r);
        rc = rc ? rc : end;
    }
    free(v);
    return rc ? rc : shown ? GPT_OK : GPT_NO;
}

/* The operand that --follow follows: '-' where it is given, else the last. */
static const char *live_operand(char *const *operand, int n)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(operand[i], "-") || text_ends(operand[i], "=-"))
            return operand[i];
    return operand[n - 1];
}

static int run(int argc, char **argv)
{
    int first, rc = opt_parse(&command, argc, argv, &first);
    if (rc)
        return rc;
    if (first == argc)
        return err_set(GPT_USAGE, "expected [NAME=]PATH...");
    if (!o.why && (o.context >= 0 || o.lines >= 0))
        return err_set(GPT_USAGE, "%s is of the differences that --why shows",
                       o.context >= 0 ? "--context" : "--lines");
    if (o.systems_only && is_word(o.rules, "loss"))
        return err_set(GPT_USAGE, "--systems-only waives what --rules loss asks for: choose one");
    if (o.at_step && o.follow)
        return err_set(GPT_USAGE, "--at-step beside --follow: choose one");
    if (is_word(o.plot, "-") || is_word(o.html, "-"))
        return err_set(GPT_USAGE, "%s: standard output takes the report, so expected a file",
                       is_word(o.plot, "-") ? "--plot" : "--html");
    struct gather_options how = { .threads = (int)o.threads,
                                  .keep_texts = o.why || o.html,
                                  .flags = GROUP_PROFILE,
                                  .at_step = (int32_t)o.at_step,
                                  .leave =
                                      o.follow ? live_operand(argv + first, argc - first) : NULL };
    output_cleanup_on_signal();
    struct gather g;
    struct criteria k;
    rc = gather_read(&g, argv + first, argc - first, &how);
    if (!rc && o.follow && g.live == 0 && g.n > 1)
        rc = err_set(GPT_USAGE, "--follow needs '-', or a run, alone or behind a baseline");
    say_notes(&g, 0);
    if (!rc && o.follow && !(rc = choose_criteria(&k, &g)) && !(rc = judge_place(&g, &k)))
        rc = follow_run(&g, &k, &how);
    if (!rc && !(rc = choose_criteria(&k, &g)) && !(rc = judge_place(&g, &k)))
        rc = write_report(&g, &k);
    gather_release(&g);
    return rc;
}

int main(int argc, char **argv)
{
    o.arguments = opt_arguments(argc, argv);
    int rc = run(argc, argv);
    free(o.arguments);
    return opt_exit(&command, rc);
}
