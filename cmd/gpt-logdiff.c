/* gpt-logdiff - compares run logs: does this run beat the record?
 *
 *     gpt-logdiff base=records/61 new=logs
 *     gpt-train ... | tee run.log | gpt-logdiff --follow base=records/61 new=-
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/file.h"
#include "base/opt.h"
#include "base/text.h"
#include "base/zio.h"
#include "runs/follow.h"
#include "runs/gather.h"
#include "runs/plot.h"
#include "runs/tables.h"
#include "runs/why.h"

static struct {
    double target, alpha;
    const char *rule, *tail, *format, *plot;
    int64_t at_step, threads, lines, context; /* the last two -1: not given */
    bool systems_only, mixed, curves, steps, why, follow, wide, force, quiet;
} o = { .alpha = 0.01, .tail = "two", .format = "text", .lines = -1, .context = -1 };
enum { LINES = 200, CONTEXT = 1 };

static const struct opt table[] = {
    OPT_HEADING("The rules"),
    OPT_REAL("target", "LOSS", &o.target, 1e-9, 1e9,
             "the loss to be below (3.28 for runs of the speed-run, else none)"),
    OPT_REAL("alpha", "P", &o.alpha, 1e-12, 0.5, "what a p value must be below (0.01)"),
    OPT_WORD("rule", &o.rule, "t|z|loss",
             "t: Student's test and time (with a target the default); z: track 3, (target - mean) "
             "sqrt(n) >= 0.004 and steps; loss: mean loss below the baseline's (else)"),
    OPT_WORD("tail", &o.tail, "two|lower", "tail of Welch's tests: two (default) or lower"),
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
    OPT_SWITCH('w', "why", &o.why, "differences of source, recipe, environment and data"),
    OPT_NUMBER("context", "N", &o.context, 0, 1000, "lines around a difference (1)"),
    OPT_NUMBER("lines", "N", &o.lines, 0, 1e9, "lines of a difference at most (200); 0: all"),
    OPT_HEADING("Output"),
    OPT_WORD("format", &o.format, "text|tsv|json|md",
             "text (default), tsv, json or md, for a pull request"),
    OPT_SWITCH(0, "wide", &o.wide, "text as wide as it is, not broken for the terminal"),
    OPT_TEXT(0, "plot", "FILE", &o.plot, "loss curves, step times and loss against time as SVG"),
    OPT_SWITCH('f', "force", &o.force, "replace the file of --plot"),
    OPT_HEADING("Other"),
    OPT_SWITCH(0, "follow", &o.follow, "read '-' as it grows and say how that run stands"),
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

/* --- a run that is still going --- */

struct live {
    struct gather *g;
    struct follow f;
    int runs;
};

static int live_run(void *arg, const struct run *r)
{
    struct live *l = arg;
    l->runs++;
    return group_add(&l->g->group[l->f.group], &l->g->variants, r);
}

static int live_step(void *arg, const struct run *r, const struct stepline *s)
{
    struct live *l = arg;
    char text[2048];
    FILE *to = report_format_of(o.format, false) == REPORT_TEXT ? stdout : stderr;
    if (follow_step(&l->f, r, s, text, sizeof text)) {
        text_line(to, "%s", text);
        if (fflush(to))
            return err_sys("cannot write");
    }
    return 0;
}

static void live_note(void *arg, const char *path, long line, const char *text)
{
    struct live *l = arg;
    gather_note(l->g, path, line, text);
    say_note(path, line, text);
}

static int follow_stdin(struct gather *g, const struct criteria *k,
                        const struct gather_options *how)
{
    struct live l = { .g = g };
    struct logsink sink = { .run = live_run, .step = live_step, .note = live_note, .arg = &l };
    struct logread *r = NULL;
    struct zreader *z = NULL;
    char buf[65536];
    int rc = follow_begin(&l.f, g, g->stdin_group, k);
    if (!rc)
        rc = logread_new(&r, "stdin", o.why, &sink);
    if (!rc)
        rc = zreader_open(&z, "-");
    for (size_t n = 1; !rc && n;)
        if (!(rc = zreader_some(z, buf, sizeof buf, &n)))
            rc = logread_feed(r, buf, n);
    zreader_close(z);
    if (!rc)
        rc = logread_end(r);
    if (!rc && !l.runs)
        rc = err_set(GPT_INPUT, "stdin: held no run");
    if (!rc)
        rc = gather_finish(g, how);
    logread_free(r);
    follow_end(&l.f);
    return rc;
}

/* --- the report --- */

static int write_plot(const struct gather *g, double target)
{
    struct output out;
    int rc = output_open(&out, o.plot, o.force);
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
    const char *rule = o.rule ? o.rule : none ? "loss" : "t";
    if (none && *rule != 'l')
        return err_set(GPT_USAGE, "--rule %s needs --target: these are no runs of the speed-run",
                       rule);
    if (none && o.systems_only)
        return err_set(GPT_USAGE,
                       "--systems-only needs --target: these are no runs of the speed-run");
    *k = (struct criteria){ .target = target,
                            .alpha = o.alpha,
                            .rule = *rule == 'z'   ? JUDGE_Z
                                    : *rule == 'l' ? JUDGE_LOSS
                                                   : JUDGE_T,
                            .tail = *o.tail == 'l' ? TAIL_LOWER : TAIL_TWO,
                            .at_step = (int32_t)o.at_step,
                            .systems_only = o.systems_only,
                            .mixed = o.mixed };
    return 0;
}

static int write_tables(struct report *r, const struct gather *g, const struct judgement *v,
                        const struct criteria *k)
{
    bool text = r->format == REPORT_TEXT || r->format == REPORT_MARKDOWN, none = isnan(k->target);
    bool one = tables_one_run(g);
    int rc = 0;
    if (!text || !one || !none) {
        tables_groups(r, g, v, k);
        tables_verdicts(r, g, v, k);
        tables_runs(r, g);
    }
    if (!none)
        rc = tables_worth(r, g, k->target);
    if (!rc && one)
        rc = tables_run(r, g);
    else if (none || (o.curves && g->n == 1))
        tables_side_by_side(r, g);
    if (o.curves && g->n > 1)
        tables_curves(r, g, o.alpha);
    if (o.steps && !rc)
        rc = tables_steps(r, g);
    if (o.why && !rc)
        rc = why_report(r, g, o.context < 0 ? CONTEXT : (int)o.context,
                        o.lines < 0 ? LINES : o.lines);
    tables_notes(r, g);
    return rc;
}

static int write_report(const struct gather *g, const struct criteria *k)
{
    struct judgement *v = calloc((size_t)g->n, sizeof *v);
    struct report r;
    bool shown = g->n == 1 && isnan(k->target);
    int rc = v ? 0 : err_memory();
    for (int i = 0; i < g->n && !rc; i++) {
        rc = judge_group(&v[i], g, i, k);
        shown |= v[i].shown && (i || g->n == 1);
    }
    if (!rc && o.plot)
        rc = write_plot(g, k->target);
    if (!rc) {
        report_begin(&r, stdout, report_format_of(o.format, o.wide));
        rc = write_tables(&r, g, v, k);
        int end = report_end(&r);
        rc = rc ? rc : end;
    }
    free(v);
    return rc ? rc : shown ? GPT_OK : GPT_NO;
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
    if (o.systems_only && o.rule && *o.rule == 'l')
        return err_set(GPT_USAGE, "--systems-only waives what --rule loss asks for: choose one");
    if (o.at_step && o.follow)
        return err_set(GPT_USAGE, "--at-step beside --follow: choose one");
    if (o.plot && !strcmp(o.plot, "-"))
        return err_set(GPT_USAGE, "--plot: standard output takes the report, so expected a file");
    struct gather_options how = { .threads = (int)o.threads,
                                  .keep_texts = o.why,
                                  .flags = GROUP_PROFILE,
                                  .at_step = (int32_t)o.at_step,
                                  .leave_stdin = o.follow };
    output_cleanup_on_signal();
    struct gather g;
    struct criteria k;
    rc = gather_read(&g, argv + first, argc - first, &how);
    if (!rc && o.follow && (g.stdin_group < 0 || (g.stdin_group == 0 && g.n > 1)))
        rc = err_set(GPT_USAGE, "--follow needs '-', alone or behind a baseline");
    say_notes(&g, 0);
    if (!rc && o.follow && !(rc = choose_criteria(&k, &g)))
        rc = follow_stdin(&g, &k, &how);
    if (!rc && !(rc = choose_criteria(&k, &g)))
        rc = write_report(&g, &k);
    gather_release(&g);
    return rc;
}

int main(int argc, char **argv) { return opt_exit(&command, run(argc, argv)); }
