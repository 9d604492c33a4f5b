/* run_tables.c - the parts of a report that show curves of runs as they are: of one run with its speed
 * and where its time went, of groups side by side. See tables.h. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/stats.h"
#include "runs/pace.h"
#include "runs/tables.h"
#include "runs/worth.h"

enum {
    TEXT_ROWS = 32,
    EVEN_ROWS = 20
}; /* of a curve: in text at most; of a run without validations */

bool tables_one_run(const struct gather *g) { return g->n == 1 && g->group[0].n == 1; }

/* Text shows of n rows some, evenly, the first and the last among them. */
static bool is_row(const struct report *r, int i, int n, int most)
{
    bool all = r->format == REPORT_TSV || r->format == REPORT_JSON || n <= most;
    return all || i == 0 ||
           (int64_t)i * (most - 1) / (n - 1) != (int64_t)(i - 1) * (most - 1) / (n - 1);
}

/* --- one run --- */

struct curve_of {
    const struct run *run;
    struct pace pace;
    int at; /* the next train line */
    int32_t step; /* of the row before */
    double time_s;
    bool next, tokens; /* columns that it has */
};

/* Means of the train lines up to a step. */
static void take_lines(struct curve_of *c, int32_t step, double *loss, double *next)
{
    int n = 0;
    *loss = *next = 0;
    for (; c->at < c->run->steps && c->run->step[c->at].step <= step; c->at++, n++) {
        *loss += c->run->step[c->at].loss;
        *next += c->run->step[c->at].next;
    }
    *loss = n ? *loss / n : NAN;
    *next = n ? *next / n : NAN;
}

static double tokens_at(const struct curve_of *c, int32_t step)
{
    return step >= 0 && step <= c->pace.steps ? (double)c->pace.tokens[step] : NAN;
}

/* Text and Markdown, whose tables of one run have its name above them. */
static bool is_text(const struct report *r)
{
    return r->format == REPORT_TEXT || r->format == REPORT_MARKDOWN;
}

static void put_row(struct report *r, struct curve_of *c, const char *name, int32_t step,
                    double val, double time_s)
{
    double loss, next, since = step > c->step ? step - c->step : NAN;
    take_lines(c, step, &loss, &next);
    double tokens = tokens_at(c, step), more = tokens - tokens_at(c, c->step);
    double seconds = time_s - c->time_s;
    if (!is_text(r))
        report_cell_text(r, name);
    report_cell_real(r, step);
    if (c->tokens)
        report_cell_real(r, tokens);
    report_cell_real(r, time_s);
    report_cell_real(r, loss);
    if (c->next)
        report_cell_real(r, next);
    report_cell_real(r, val);
    report_cell_real(r, seconds / since * 1e3);
    if (c->tokens)
        report_cell_real(r, seconds > 0 && more > 0 ? more / seconds : NAN);
    c->step = step;
    c->time_s = time_s;
}

static void put_curve(struct report *r, struct curve_of *c, const char *name)
{
    const struct run *run = c->run;
    char columns[256], title[640];
    bool vals = run->vals > 1 || !run->steps;
    int n = vals ? run->vals : run->steps;
    for (int i = 0; i < run->steps; i++)
        c->next |= !isnan(run->step[i].next);
    c->tokens = c->pace.steps >= 0;
    snprintf(columns, sizeof columns,
             "%sstep:f0:Step %sseconds:f1:Seconds train:f4:Train %sval:f4:Val step_ms:f2:ms/step%s",
             is_text(r) ? "" : "group:s: ", c->tokens ? "tokens:f0:Tokens " : "",
             c->next ? "next:f4:Next " : "", c->tokens ? " tokens_s:f0:Tokens/s" : "");
    snprintf(title, sizeof title, "%.500s: losses; %s since the row above", name,
             c->next ? "Train is the objective, Next the next token's, their means"
                     : "Train is the mean");
    report_table(r, "curve", title, columns);
    for (int i = 0; i < n; i++) {
        if (!is_row(r, i, n, vals ? TEXT_ROWS : EVEN_ROWS))
            continue;
        if (vals)
            put_row(r, c, name, run->val[i].step, run->val[i].loss, run->val[i].time_ms / 1e3);
        else
            put_row(r, c, name, run->step[i].step, NAN, run->step[i].time_ms / 1e3);
    }
}

/* The last time on its clock, in seconds. */
static double clock_of(const struct run *r)
{
    double ms = r->vals ? r->val[r->vals - 1].time_ms : NAN;
    for (int i = r->steps - 1; i >= 0 && isnan(ms); i--)
        ms = r->step[i].time_ms;
    return ms / 1e3;
}

static int put_speed(struct report *r, const struct curve_of *c, const struct profile *p)
{
    double *ms = malloc(((size_t)p->steps + 1) * sizeof *ms), clock = clock_of(c->run);
    double tokens = tokens_at(c, c->run->last) - tokens_at(c, c->run->first);
    int n = 0;
    if (!ms)
        return err_memory();
    for (int32_t i = 0; i < p->steps; i++)
        if (!isnan(profile_ms(p, i)))
            ms[n++] = profile_ms(p, i);
    stats_sort(ms, n);
    if (n) {
        report_table(r, "speed", NULL,
                     "steps:i:Steps seconds:f1:Seconds median_ms:f2:Median_ms low_ms:f2:10% "
                     "high_ms:f2:90% tokens:f0:Tokens tokens_s:f0:Tokens/s");
        report_row(r, (int64_t)(c->run->last - c->run->first), clock, stats_median(ms, n),
                   ms[n / 10], ms[n - 1 - n / 10], tokens, tokens / clock);
    }
    free(ms);
    return 0;
}

static void put_cost(struct report *r, const char *what, double seconds, double whole)
{
    if (!isnan(seconds))
        report_row(r, what, seconds, 100 * seconds / whole);
}

static int put_spent(struct report *r, const struct run *run, const struct profile *p)
{
    struct stages s;
    const struct run_cost *c = &run->cost;
    double clock = clock_of(run), stalls = 0, whole = isnan(c->whole) ? clock : c->whole;
    int rc = profile_stages(p, &s);
    if (rc || isnan(clock))
        return rc;
    for (int i = 0; i < p->kept; i++)
        stalls += p->stall[i].step > s.warmup ? (p->stall[i].ms - p->stall[i].median_ms) / 1e3 : 0;
    report_table(r, "spent", NULL, "what:s:Where_the_time_went seconds:f2:Seconds share:f1:%");
    put_cost(r, "start", c->start, whole);
    put_cost(r, "steps", clock, whole);
    put_cost(r, "  of these warm-up, beyond the pace",
             s.n && s.warmup_excess_s > 0 ? s.warmup_excess_s : NAN, whole);
    put_cost(r, "  of these stalls, beyond the median", stalls > 0 ? stalls : NAN, whole);
    put_cost(r, "validation", c->validation, whole);
    put_cost(r, "checkpoints", c->checkpoints, whole);
    put_cost(r, "all", whole, whole);
    return 0;
}

int tables_run(struct report *r, const struct gather *g)
{
    const struct group *in = &g->group[0];
    struct curve_of c = { .run = &in->run[0] };
    int recipe = c.run->fact[FACT_RECIPE];
    c.step = c.run->first > 1 ? c.run->first : 0;
    c.time_s = c.run->first > 1 ? NAN : 0;
    int rc = pace_open(&c.pace, variant_text(&g->variants, recipe));
    if (!rc && (c.run->vals || c.run->steps)) {
        put_curve(r, &c, in->name);
        rc = put_speed(r, &c, &in->profile);
        if (!rc)
            rc = put_spent(r, c.run, &in->profile);
    }
    pace_close(&c.pace);
    return rc;
}

/* --- groups --- */

static void put_means(struct report *r, const struct gather *g)
{
    report_table(r, "curve", g->n > 1 ? NULL : "Validation loss",
                 "group:s: step:i:Step runs:i:Runs mean:f5:Loss_μ sd:f5:Loss_σ "
                 "time_s:f3:Seconds_μ");
    for (int i = 0; i < g->n; i++)
        for (int k = 0; k < g->group[i].points; k++) {
            const struct curve_point *p = &g->group[i].curve[k];
            if (is_row(r, k, g->group[i].points, TEXT_ROWS))
                report_row(r, g->group[i].name, (int64_t)p->step, (int64_t)p->n,
                           p->n ? p->mean : NAN, curve_sd(p), p->timed ? p->time_s : NAN);
        }
}

/* The steps at which any group has a validation, ascending; -1 behind the last. */
static int32_t next_step(const struct gather *g, int32_t after)
{
    int32_t least = -1;
    for (int i = 0; i < g->n; i++)
        for (int k = 0; k < g->group[i].points; k++) {
            int32_t step = g->group[i].curve[k].step;
            if (step > after && (least < 0 || step < least))
                least = step;
            if (step > after)
                break;
        }
    return least;
}

void tables_side_by_side(struct report *r, const struct gather *g)
{
    if (g->n == 1 || r->format == REPORT_TSV || r->format == REPORT_JSON) {
        put_means(r, g);
        return;
    }
    enum { COLUMN = 64 };
    char columns[REPORT_COLUMNS * COLUMN] = "step:f0:Step";
    int groups = g->n < REPORT_COLUMNS - 1 ? g->n : REPORT_COLUMNS - 1, n = 0, row = 0;
    size_t used = strlen(columns);
    for (int i = 0; i < groups; i++) {
        char head[32];
        snprintf(head, sizeof head, "%s", g->group[i].name);
        for (char *c = head; *c; c++)
            *c = *c == ' ' ? '_' : *c;
        used += (size_t)snprintf(columns + used, sizeof columns - used, " g%d:f4:%s", i, head);
    }
    for (int32_t s = next_step(g, -1); s >= 0; s = next_step(g, s))
        n++;
    if (n)
        report_table(r, "curve", "Validation loss, means of the runs", columns);
    for (int32_t s = next_step(g, -1); s >= 0; s = next_step(g, s)) {
        if (!is_row(r, row++, n, TEXT_ROWS))
            continue;
        report_cell_real(r, s);
        for (int i = 0; i < groups; i++) {
            const struct curve_point *p = group_at(&g->group[i], s);
            report_cell_real(r, p && p->n ? p->mean : NAN);
        }
    }
}

/* --- what losses are worth --- */

static void put_worth(struct report *r, const char *name, const struct worth *w, bool alone)
{
    report_cell_text(r, name);
    report_cell_real(r, w->slope.value);
    report_cell_real(r, w->cushion.value);
    report_cell_real(r, w->cushion.error);
    if (alone)
        return;
    report_cell_real(r, isnan(w->at_step.value) ? NAN : w->step);
    report_cell_real(r, w->at_step.value);
    report_cell_real(r, w->at_step.error);
    report_cell_real(r, isnan(w->at_time.value) ? NAN : w->time_s);
    report_cell_real(r, w->at_time.value);
    report_cell_real(r, w->at_time.error);
}

int tables_worth(struct report *r, const struct gather *g, double target)
{
    bool alone = is_text(r) && g->n == 1, any = false;
    struct worth *w = calloc((size_t)g->n, sizeof *w);
    int rc = w ? 0 : err_memory();
    for (int i = 0; i < g->n && !rc; i++) {
        rc = worth_of(&w[i], g, i, target);
        any |= !isnan(w[i].cushion.value) || !isnan(w[i].at_step.value);
    }
    if (!rc && any) {
        report_table(r, "worth", NULL,
                     alone ? "group:s: slope:g3:Slope cushion:f1:Cushion cushion_error:f1:±"
                           : "group:s: slope:g3:Slope cushion:f1:Cushion cushion_error:f1:± "
                             "step:f0:Step step_diff:f5:Loss_+/- step_error:f5:± "
                             "time_s:f2:Seconds time_diff:f5:Loss_+/- time_error:f5:±");
        for (int i = 0; i < g->n; i++)
            put_worth(r, g->group[i].name, &w[i], alone);
        if (is_text(r))
            report_line(r, "legend",
                        "Cushion: steps by which the mean is ahead of the target, at the slope of "
                        "the curve's end.");
        if (is_text(r) && !alone)
            report_line(r, "legend",
                        "Loss +/-: against '%s' at equal steps, and at equal time. ±: standard "
                        "errors.",
                        g->group[0].name);
    }
    free(w);
    return rc;
}
