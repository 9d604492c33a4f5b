/* tables.c - see tables.h. */
#include "runs/tables.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "runs/curves.h"

/* --- the table of the pull requests --- */

enum { LISTED_RUNS = 32 }; /* of larger groups text does not list each run */

static void report_cells(struct report *r, const double *x, int n)
{
    for (int i = 0; i < n; i++)
        report_cell_real(r, x[i]);
}

void tables_groups(struct report *r, const struct gather *g, const struct judgement *v,
                   const struct criteria *k)
{
    bool all = r->format == REPORT_TSV || r->format == REPORT_JSON;
    enum rule rule = k->rules->rule;
    int digits = 4;
    char columns[512];
    for (int i = 0; i < g->n; i++) /* losses of five or six digits are shown so */
        if (v[i].own.runs && v[i].own.loss_digits > digits)
            digits = v[i].own.loss_digits < 7 ? v[i].own.loss_digits : 6;
    snprintf(columns, sizeof columns,
             "group:s: runs:i:Runs steps:f0:Steps time_mean:f4:Time_μ time_sd:f4:Time_σ "
             "time_diff:f4:Time_+/- time_p:p:Time_p loss_mean:f%d:Loss_μ loss_sd:f%d:Loss_σ "
             "loss_diff:f%d:Loss_+/- %s",
             digits, digits, digits,
             all ? "p:p p_low:p p_high:p lead:f5 z:f2 z_p:g2 pair:f6 pair_p:g2 loss_p:p "
                   "loss_shows:f5"
             : rule == JUDGE_T ? "p:p p_low:p:p_from p_high:p:p_to"
             : rule == JUDGE_Z ? "lead:f5:Lead z:f2 z_p:g2:p pair:f6:Pair pair_p:g2:Pair_p"
             : g->n > 1        ? "loss_p:p:Loss_p loss_shows:f5:Shows"
                               : "");
    report_table(r, "groups", NULL, columns);
    for (int i = 0; i < g->n; i++) {
        const struct group_sum *s = &v[i].own, *b = &v[0].own;
        report_cell_text(r, g->group[i].name);
        report_cell_real(r, s->runs);
        double cell[] = { s->steps,    s->time.mean, s->time.sd, s->time.mean - b->time.mean,
                          v[i].time_p, s->loss.mean, s->loss.sd, s->loss.mean - b->loss.mean };
        report_cells(r, cell, sizeof cell / sizeof *cell);
        if (all || rule == JUDGE_T)
            report_cells(r, (double[]){ s->p, s->p_low, s->p_high }, 3);
        if (all || rule == JUDGE_Z)
            report_cells(r, (double[]){ v[i].lead, v[i].z, v[i].z_p, v[i].pair, v[i].pair_p }, 5);
        if (all || (rule == JUDGE_LOSS && g->n > 1))
            report_cells(r, (double[]){ v[i].loss_p, v[i].shows }, 2);
    }
    if (all)
        return;
    if (g->n > 1)
        report_line(r, "legend", "σ with n - 1. Time p%s: Welch, %s.",
                    rule == JUDGE_LOSS && !k->paired ? ", Loss p" : "",
                    k->tail == TAIL_LOWER ? "lower tail" : "two-sided");
    if (rule == JUDGE_LOSS && g->n > 1)
        report_line(
            r, "legend",
            "Shows: the difference of losses that this test, with these deviations and runs, "
            "shows with a chance of %.0f%% at p < %g.",
            100 * SHOWN_POWER, k->alpha);
    if (k->at_step)
        report_line(r, "legend", "Losses and times are those at step %d.", (int)k->at_step);
    if (rule == JUDGE_Z)
        report_line(
            r, "legend",
            "Steps: the first that passes, else the last in common. Lead: (%g - mean) sqrt(n); z: lead / %g; p: P(Z >= z); "
            "Pair: the pairwise rule, %g of loss for 100 steps.",
            k->target, k->rules->sigma, 100 * k->rules->step_loss);
    else if (rule == JUDGE_T)
        report_line(r, "legend",
                    "p: one-sample t against %g, lower tail; from, to: as far as the "
                    "rounding of the losses moves it.",
                    k->target);
}

void tables_verdicts(struct report *r, const struct gather *g, const struct judgement *v,
                     const struct criteria *k)
{
    if (g->n == 1 && isnan(k->target))
        return;
    if (r->format != REPORT_TEXT && r->format != REPORT_MARKDOWN) {
        report_table(r, "verdicts", NULL, "group:s shown:b text:s");
        for (int i = g->n > 1; i < g->n; i++)
            report_row(r, g->group[i].name, v[i].shown, v[i].text);
        return;
    }
    for (int i = g->n > 1; i < g->n; i++)
        report_line(r, "verdicts", r->format == REPORT_MARKDOWN ? "**%s**" : "%s", v[i].text);
}

void tables_paired(struct report *r, const struct gather *g, const struct judgement *v,
                   const struct criteria *k)
{
    if (!k->paired)
        return;
    report_table(r, "paired", NULL,
                 "group:s: pairs:i:Pairs by:s:Paired_by left_out:i:Without loss_diff:f5:Loss_+/- "
                 "error:f5:Error unpaired_error:f5:Unpaired p:p:p");
    for (int i = 1; i < g->n; i++) {
        const struct paired *p = &v[i].paired;
        report_row(r, g->group[i].name, (int64_t)p->pairs, p->by_seed ? "seed" : "order",
                   (int64_t)p->left_out, p->mean, p->error, p->unpaired,
                   k->tail == TAIL_LOWER ? p->p_lower : p->p_two_sided);
    }
    if (r->format == REPORT_TEXT || r->format == REPORT_MARKDOWN)
        report_line(
            r, "legend",
            "Error: of the mean difference of pairs; Unpaired: of the difference of the same "
            "runs' means; p: Student's of the pairs, %s.",
            k->tail == TAIL_LOWER ? "lower tail" : "two-sided");
}

/* --- the benchmark's table --- */

/* A row: a published result, or, number 0, a group's. */
struct place {
    int number;
    struct result result;
    const char *description, *date, *log;
};

static int by_steps(const void *a, const void *b)
{
    const struct place *p = a, *q = b;
    return p->result.steps != q->result.steps ? (p->result.steps > q->result.steps ? 1 : -1)
                                              : p->number - q->number;
}

static void say_place(struct report *r, const struct place *p, double fewest,
                      const struct criteria *k)
{
    char number[16], steps[32], evidence[64], log[512];
    bool passes = rules_reach(k->rules, (k->rules->target - p->result.mean) * sqrt(p->result.n));
    snprintf(number, sizeof number, "%d", p->number);
    snprintf(steps, sizeof steps, "%.0f%s", p->result.steps,
             !p->number && passes && p->result.steps < fewest ? " (!)" : "");
    snprintf(evidence, sizeof evidence, "%.4f (n=%d)%s", p->result.mean, p->result.n,
             passes ? "✓" : "⊗");
    snprintf(log, sizeof log, r->format == REPORT_MARKDOWN ? "[log](%s)" : "%s",
             p->log ? p->log : "");
    report_row(r, p->number ? number : NULL, steps, evidence,
               *p->description ? p->description : NULL, p->date && *p->date ? p->date : NULL,
               p->log ? log : NULL, (const char *)NULL);
}

int tables_standings(struct report *r, const struct gather *g, const struct judgement *v,
                     const struct criteria *k)
{
    struct standing *list;
    char columns[200];
    int n, rows, rc = standings_read(k->rules, &list, &n);
    struct place *p = rc ? NULL : calloc((size_t)(n + g->n) + 1, sizeof *p);
    double fewest = INFINITY;
    if (!p) {
        free(rc ? NULL : list);
        return rc ? rc : err_memory();
    }
    for (rows = 0; rows < n; rows++) {
        const struct standing *s = &list[rows];
        p[rows] = (struct place){ s->number, s->result, s->description, s->date, NULL };
        fewest = fmin(fewest, s->result.steps);
    }
    for (int i = 0; i < g->n; i++)
        if (v[i].own.runs && !isnan(v[i].own.steps))
            p[rows++] =
                (struct place){ .result = { v[i].own.steps, v[i].own.loss.mean, v[i].own.loss.n },
                                .description = g->group[i].name,
                                .log = g->group[i].run[0].path };
    qsort(p, (size_t)rows, sizeof *p, by_steps);
    snprintf(columns, sizeof columns,
             "number:s:# steps:s:Steps_to_%g evidence:s:Evidence description:s:Description "
             "date:s:Date log:s:Log contributors:s:Contributors",
             k->rules->target);
    report_table(r, "standings", NULL, columns);
    for (int i = 0; i < rows; i++)
        say_place(r, &p[i], fewest, k);
    free(p);
    free(list);
    return 0;
}

/* --- single runs --- */

/* `  losses = [3.2777, 3.2785]`, as the pull requests have it. */
static void list_values(struct report *r, const struct group *g, bool times)
{
    char text[LISTED_RUNS * 32 + 32];
    int n = snprintf(text, sizeof text, "  %s = [", times ? "times " : "losses");
    bool first = true;
    for (int i = 0; i < g->n; i++) {
        const struct run *e = &g->run[i];
        int digits = times ? 4 : e->loss_digits < 10 ? e->loss_digits : 10;
        if (!e->ended || n > (int)sizeof text - 32)
            continue;
        n += times && isnan(e->time_ms)
                 ? snprintf(text + n, sizeof text - (size_t)n, "%s–", first ? "" : ", ")
                 : snprintf(text + n, sizeof text - (size_t)n, "%s%.*f", first ? "" : ", ", digits,
                            times ? e->time_ms / 1e3 : e->loss);
        if (n >= (int)sizeof text)
            n = (int)sizeof text - 1;
        first = false;
    }
    snprintf(text + n, sizeof text - (size_t)n, "]");
    report_block_list(r, text, (int)strlen("  losses = ["));
}

static void list_group(struct report *r, const struct group *g)
{
    char text[128];
    int ended = 0, timed = 0, n;
    for (int i = 0; i < g->n; i++) {
        ended += g->run[i].ended;
        timed += g->run[i].ended && !isnan(g->run[i].time_ms);
    }
    report_block(r, "runs", g->name);
    if (ended <= LISTED_RUNS) {
        list_values(r, g, false);
        if (timed)
            list_values(r, g, true);
    }
    n = snprintf(text, sizeof text, "  (n = %d", ended);
    if (ended < g->n)
        n += snprintf(text + n, sizeof text - (size_t)n, "; %d more did not reach their end",
                      g->n - ended);
    if (g->again)
        n += snprintf(text + n, sizeof text - (size_t)n, "; %d further %s", g->again,
                      g->again == 1 ? "log of a counted run" : "logs of counted runs");
    n += snprintf(text + n, sizeof text - (size_t)n, ")");
    report_block_line(r, text, (size_t)n);
    report_block_end(r);
}

/* A number that is 0 where the log does not say it. */
static int64_t if_known(int64_t n) { return n ? n : REPORT_NONE; }

void tables_runs(struct report *r, const struct gather *g)
{
    if (r->format == REPORT_TEXT || r->format == REPORT_MARKDOWN) {
        for (int i = 0; i < g->n; i++)
            list_group(r, &g->group[i]);
        return;
    }
    report_table(r, "runs", NULL,
                 "group:s path:s trial:i ended:b last_step:i steps:i loss:f0 loss_digits:i "
                 "time_s:f0 clock_from_step:i resumed_from:i source:s recipe:s data:s gpu:s "
                 "driver:s code:s");
    for (int i = 0; i < g->n; i++)
        for (int k = 0; k < g->group[i].n; k++) {
            const struct run *e = &g->group[i].run[k];
            const char *said[FACTS];
            for (int f = 0; f < FACTS; f++) {
                const struct variant *v = e->fact[f] >= 0 ? &g->variants.v[e->fact[f]] : NULL;
                said[f] = !v                                               ? NULL
                          : (f == FACT_GPU || f == FACT_DRIVER) && v->text ? v->text
                                                                           : v->hash;
            }
            report_row(r, g->group[i].name, e->path, (int64_t)e->trial, e->ended, if_known(e->last),
                       if_known(e->total), e->loss,
                       e->ended ? (int64_t)e->loss_digits : REPORT_NONE, e->time_ms / 1e3,
                       e->last ? (int64_t)e->clock_restart : REPORT_NONE, if_known(e->resumed),
                       said[FACT_SOURCE], said[FACT_RECIPE], said[FACT_DATA], said[FACT_GPU],
                       said[FACT_DRIVER], said[FACT_CODE]);
        }
}

/* --- curves --- */

static void say_parted(struct report *r, const struct gather *g, int own, const struct curves *c,
                       double alpha)
{
    const char *a = g->group[0].name, *b = g->group[own].name;
    if (c->parted >= 0)
        report_line(r, "parted",
                    "'%s' and '%s' part by more than noise at step %d (p < %g / %d "
                    "steps)",
                    a, b, c->parted, alpha, (int)(alpha / c->alpha + 0.5));
    else if (c->tested)
        report_line(r, "parted",
                    "'%s' and '%s' do not part by more than noise at any of %d common "
                    "steps",
                    a, b, c->rows);
    else
        report_line(r, "parted", "whether '%s' and '%s' part is not known: %s", a, b,
                    c->rows ? "one run has no deviation" : "they have no validated step in common");
}

void tables_curves(struct report *r, const struct gather *g, double alpha)
{
    for (int i = 1; i < g->n; i++) {
        struct curves s = curves_begin(&g->group[0], &g->group[i], alpha);
        struct curve_row row;
        char title[600];
        snprintf(title, sizeof title, "Validation loss of '%.250s' against '%.250s'",
                 g->group[i].name, g->group[0].name);
        report_table(r, "curves", title,
                     "group:s: step:i:Step base_mean:f5:Base_μ base_sd:f5:Base_σ "
                     "mean:f5:Loss_μ sd:f5:Loss_σ diff:f5:Loss_+/- error:f5:Error p:p:p "
                     "parts:s:");
        while (curves_next(&s, &row))
            report_row(r, g->group[i].name, (int64_t)row.step, row.base.mean, row.base.sd,
                       row.own.mean, row.own.sd, row.difference, row.error, row.p,
                       row.parts ? "parts" : "");
    }
    for (int i = 1; i < g->n; i++) {
        struct curves s = curves_begin(&g->group[0], &g->group[i], alpha);
        struct curve_row row;
        while (curves_next(&s, &row)) {}
        say_parted(r, g, i, &s, alpha);
    }
}

/* --- step times --- */

static int stalls_in(const struct profile *p, const struct stage *s)
{
    int n = 0;
    for (int i = 0; i < p->kept; i++)
        n += p->stall[i].step >= s->first && p->stall[i].step <= s->last;
    return n;
}

static void say_stages(struct report *r, const struct gather *g, const struct stages *s)
{
    report_table(r, "stages", "Step times, stage by stage",
                 "group:s: stage:i:Stage first:i:From last:i:To median_ms:f2:Median_ms "
                 "mean_ms:f2:Mean_ms mean_diff_ms:f2:ms_+/- total_s:f3:Total_s "
                 "even_ms:f2:Even_ms odd_ms:f2:Odd_ms alternates:b:Alternates "
                 "outliers:i:Outliers after_val:i:after_val stalls:i:Stalls");
    for (int i = 0; i < g->n; i++)
        for (int k = 0; k < s[i].n; k++) {
            const struct stage *t = &s[i].stage[k];
            report_row(r, g->group[i].name, (int64_t)k + 1, (int64_t)t->first, (int64_t)t->last,
                       t->median_ms, t->mean_ms,
                       s[i].n == s[0].n ? t->mean_ms - s[0].stage[k].mean_ms : NAN, t->total_s,
                       t->even_ms, t->odd_ms, t->alternates, (int64_t)t->outliers,
                       (int64_t)t->after_val, (int64_t)stalls_in(&g->group[i].profile, t));
        }
}

static void say_warmup(struct report *r, const struct gather *g, const struct stages *s)
{
    report_table(r, "warmup", NULL,
                 "group:s: last_step:i:Warm-up_to_step seconds:f3:Seconds "
                 "excess_s:f3:over_the_pace");
    for (int i = 0; i < g->n; i++)
        if (s[i].n)
            report_row(r, g->group[i].name, (int64_t)s[i].warmup, s[i].warmup_s,
                       s[i].warmup_excess_s);
}

static void say_stalls(struct report *r, const struct gather *g, const struct stages *s)
{
    long n = 0, hidden = 0;
    for (int i = 0; i < g->n; i++) {
        const struct profile *p = &g->group[i].profile;
        hidden += p->stalls - p->kept;
        for (int k = 0; k < p->kept; k++)
            n += p->stall[k].step > s[i].warmup;
    }
    if (!n)
        return;
    report_table(r, "stalls", "Steps of more than 3 times the median of those around them",
                 "group:s: step:i:Step ms:f0:ms times:f1:x_median path:s:Run");
    for (int i = 0; i < g->n; i++) {
        const struct profile *p = &g->group[i].profile;
        for (int k = 0; k < p->kept; k++) {
            const struct stall *t = &p->stall[k];
            if (t->step > s[i].warmup)
                report_row(r, g->group[i].name, (int64_t)t->step, t->ms, t->ms / t->median_ms,
                           g->group[i].run[t->run].path);
        }
    }
    if (hidden)
        report_line(r, "more_stalls", "%ld shorter stalls are not listed", hidden);
}

int tables_steps(struct report *r, const struct gather *g)
{
    struct stages *s = calloc((size_t)g->n, sizeof *s);
    int rc = s ? 0 : err_memory();
    bool any = false;
    for (int i = 0; i < g->n && !rc; i++) {
        rc = profile_stages(&g->group[i].profile, &s[i]);
        any |= s[i].n > 0;
    }
    if (!rc && any) {
        say_stages(r, g, s);
        say_warmup(r, g, s);
        say_stalls(r, g, s);
    } else if (!rc) {
        report_line(r, "stages", "these logs do not tell the times of steps");
    }
    free(s);
    return rc;
}

/* --- what could not be read --- */

void tables_notes(struct report *r, const struct gather *g)
{
    if (r->format != REPORT_TSV && r->format != REPORT_JSON)
        return;
    report_table(r, "notes", NULL, "path:s line:i text:s");
    for (int i = 0; i < g->notes; i++)
        report_row(r, g->note[i].path, if_known(g->note[i].line), g->note[i].text);
}
