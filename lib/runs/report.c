/* report.c - see report.h. */
#include "runs/report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "runs/curves.h"

/* --- the table of the pull requests --- */

enum { LISTED_RUNS = 32 }; /* of larger groups text does not list each run */

void report_groups(struct doc *d, const struct gather *g, const struct judgement *v,
                   const struct criteria *k)
{
    static const struct doc_column t[] = {
        { "group", "", 's', 0 },
        { "runs", "Runs", 'i', 0 },
        { "steps", "Steps", 'f', 0 },
        { "time_mean", "Time μ", 'f', 4 },
        { "time_sd", "Time σ", 'f', 4 },
        { "time_diff", "Time +/-", 'f', 4 },
        { "time_p", "Time p", 'f', 4 },
        { "loss_mean", "Loss μ", 'f', 4 },
        { "loss_sd", "Loss σ", 'f', 4 },
        { "loss_diff", "Loss +/-", 'f', 4 },
        { "p", "p", 'f', 4 },
        { "p_low", "p from", 'f', 4 },
        { "p_high", "p to", 'f', 4 },
        { "z", "z", 'f', 5 },
        { "loss_p", "Loss p", 'f', 4 },
    };
    struct doc_column c[sizeof t / sizeof *t];
    int n = (int)(sizeof t / sizeof *t), digits = 4;
    bool all = d->format == DOC_TSV || d->format == DOC_JSON;
    memcpy(c, t, sizeof c);
    for (int i = 0; i < g->n; i++) /* losses of five or six digits are shown so */
        if (v[i].own.runs && v[i].own.loss_digits > digits)
            digits = v[i].own.loss_digits < 7 ? v[i].own.loss_digits : 6;
    for (int i = 7; i <= 9; i++)
        c[i].digits = digits;
    if (k->rule != RULE_T && !all) /* what counts stands where p stood */
        c[10] = t[k->rule == RULE_Z ? 13 : 14];
    n -= all ? 0 : k->rule == RULE_T ? 2 : 4;
    doc_table(d, "groups", NULL, c, n);
    for (int i = 0; i < g->n; i++) {
        const struct group_sum *s = &v[i].own, *b = &v[0].own;
        double p = all || k->rule == RULE_T ? s->p : k->rule == RULE_Z ? v[i].z : v[i].loss_p;
        doc_row(d, g->group[i].name, (long)s->runs, s->steps, s->time.mean, s->time.sd,
                s->time.mean - b->time.mean, v[i].time_p, s->loss.mean, s->loss.sd,
                s->loss.mean - b->loss.mean, p, s->p_low, s->p_high, v[i].z, v[i].loss_p);
    }
    doc_table_end(d);
    if (all)
        return;
    if (g->n > 1)
        doc_text(d, "legend", "σ with n - 1. Time p%s: Welch, %s.",
                 k->rule == RULE_LOSS ? ", Loss p" : "",
                 k->tail == TAIL_LOWER ? "lower tail" : "two-sided");
    if (k->rule == RULE_Z)
        doc_text(d, "legend", "z: (target - mean) sqrt(n).");
    else if (k->rule == RULE_T)
        doc_text(d, "legend",
                 "p: one-sample t against %g, lower tail; from, to: as far as the "
                 "rounding of the losses moves it.",
                 k->target);
}

void report_verdicts(struct doc *d, const struct gather *g, const struct judgement *v)
{
    if (d->format != DOC_TEXT && d->format != DOC_MD) {
        static const struct doc_column c[] = { { "group", "", 's', 0 },
                                               { "shown", "", 'b', 0 },
                                               { "text", "", 's', 0 } };
        doc_table(d, "verdicts", NULL, c, 3);
        for (int i = g->n > 1; i < g->n; i++)
            doc_row(d, g->group[i].name, v[i].shown, v[i].text);
        doc_table_end(d);
        return;
    }
    for (int i = g->n > 1; i < g->n; i++)
        doc_text(d, "verdicts", d->format == DOC_MD ? "**%s**" : "%s", v[i].text);
}

/* --- single runs --- */

/* `  losses = [3.2777, 3.2785]`, as the pull requests have it. */
static void list_values(struct doc *d, const struct group *g, bool times)
{
    char text[LISTED_RUNS * 32 + 32];
    int n = snprintf(text, sizeof text, "  %s = [", times ? "times " : "losses");
    bool first = true;
    for (int i = 0; i < g->n; i++) {
        const struct run_end *e = &g->run[i];
        int digits = times ? 4 : e->loss_digits < 10 ? e->loss_digits : 10;
        if (!e->ended || n > (int)sizeof text - 32)
            continue;
        n += snprintf(text + n, sizeof text - (size_t)n, "%s%.*f", first ? "" : ", ", digits,
                      times ? e->time_s : e->loss);
        if (n >= (int)sizeof text)
            n = (int)sizeof text - 1;
        first = false;
    }
    n += snprintf(text + n, sizeof text - (size_t)n, "]");
    doc_line(d, text, (size_t)n);
}

static void list_group(struct doc *d, const struct group *g)
{
    char text[128];
    int ended = 0, n;
    for (int i = 0; i < g->n; i++)
        ended += g->run[i].ended;
    doc_block(d, "runs", g->name);
    if (ended <= LISTED_RUNS) {
        list_values(d, g, false);
        list_values(d, g, true);
    }
    n = ended == g->n ? snprintf(text, sizeof text, "  (n = %d)", ended)
                      : snprintf(text, sizeof text, "  (n = %d; %d more did not reach their end)",
                                 ended, g->n - ended);
    doc_line(d, text, (size_t)n);
    doc_block_end(d);
}

void report_runs(struct doc *d, const struct gather *g)
{
    static const struct doc_column c[] = {
        { "group", "", 's', 0 },        { "path", "", 's', 0 },
        { "trial", "", 'i', 0 },        { "ended", "", 'b', 0 },
        { "last_step", "", 'i', 0 },    { "steps", "", 'i', 0 },
        { "loss", "", 'f', 0 },         { "loss_digits", "", 'i', 0 },
        { "time_s", "", 'f', 0 },       { "clock_from_step", "", 'i', 0 },
        { "resumed_from", "", 'i', 0 }, { "source", "", 's', 0 },
        { "recipe", "", 's', 0 },       { "data", "", 's', 0 },
        { "gpu", "", 's', 0 },          { "driver", "", 's', 0 },
    };
    if (d->format == DOC_TEXT || d->format == DOC_MD) {
        for (int i = 0; i < g->n; i++)
            list_group(d, &g->group[i]);
        return;
    }
    doc_table(d, "runs", NULL, c, (int)(sizeof c / sizeof *c));
    for (int i = 0; i < g->n; i++)
        for (int k = 0; k < g->group[i].n; k++) {
            const struct run_end *e = &g->group[i].run[k];
            const char *said[FACTS];
            for (int f = 0; f < FACTS; f++) {
                const struct variant *v = e->fact[f] >= 0 ? &g->variants.v[e->fact[f]] : NULL;
                said[f] = !v                                               ? NULL
                          : (f == FACT_GPU || f == FACT_DRIVER) && v->text ? v->text
                                                                           : v->hash;
            }
            doc_row(d, g->group[i].name, e->path, (long)e->trial, e->ended, (long)e->last,
                    (long)e->total, e->loss, (long)e->loss_digits, e->time_s,
                    (long)e->clock_restart, (long)e->resumed, said[FACT_SOURCE], said[FACT_RECIPE],
                    said[FACT_DATA], said[FACT_GPU], said[FACT_DRIVER]);
        }
    doc_table_end(d);
}

/* --- curves --- */

static void say_parted(struct doc *d, const struct gather *g, int own, const struct curves *c,
                       double alpha)
{
    const char *a = g->group[0].name, *b = g->group[own].name;
    if (c->parted >= 0)
        doc_text(d, "parted",
                 "'%s' and '%s' part by more than noise at step %d (p < %g / %d "
                 "steps)",
                 a, b, c->parted, alpha, (int)(alpha / c->alpha + 0.5));
    else if (c->tested)
        doc_text(d, "parted",
                 "'%s' and '%s' do not part by more than noise at any of %d common "
                 "steps",
                 a, b, c->rows);
    else
        doc_text(d, "parted", "whether '%s' and '%s' part is not known: %s", a, b,
                 c->rows ? "one run has no deviation" : "they have no validated step in common");
}

void report_curves(struct doc *d, const struct gather *g, double alpha)
{
    static const struct doc_column c[] = {
        { "group", "", 's', 0 },
        { "step", "Step", 'i', 0 },
        { "base_mean", "Base μ", 'f', 5 },
        { "base_sd", "Base σ", 'f', 5 },
        { "mean", "Loss μ", 'f', 5 },
        { "sd", "Loss σ", 'f', 5 },
        { "diff", "Loss +/-", 'f', 5 },
        { "error", "Error", 'f', 5 },
        { "p", "p", 'f', 4 },
        { "parts", "", 's', 0 },
    };
    for (int i = 1; i < g->n; i++) {
        struct curves s = curves_begin(&g->group[0], &g->group[i], alpha);
        struct curve_row r;
        char title[600];
        snprintf(title, sizeof title, "Validation loss of '%.250s' against '%.250s'",
                 g->group[i].name, g->group[0].name);
        doc_table(d, "curves", title, c, (int)(sizeof c / sizeof *c));
        while (curves_next(&s, &r))
            doc_row(d, g->group[i].name, (long)r.step, r.base.mean, r.base.sd, r.own.mean, r.own.sd,
                    r.difference, r.error, r.p, r.parts ? "parts" : "");
        doc_table_end(d);
    }
    for (int i = 1; i < g->n; i++) {
        struct curves s = curves_begin(&g->group[0], &g->group[i], alpha);
        struct curve_row r;
        while (curves_next(&s, &r)) {}
        say_parted(d, g, i, &s, alpha);
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

static void say_stages(struct doc *d, const struct gather *g, const struct stages *s)
{
    static const struct doc_column c[] = {
        { "group", "", 's', 0 },
        { "stage", "Stage", 'i', 0 },
        { "first", "From", 'i', 0 },
        { "last", "To", 'i', 0 },
        { "median_ms", "Median ms", 'f', 2 },
        { "mean_ms", "Mean ms", 'f', 2 },
        { "mean_diff_ms", "ms +/-", 'f', 2 },
        { "total_s", "Total s", 'f', 3 },
        { "even_ms", "Even ms", 'f', 2 },
        { "odd_ms", "Odd ms", 'f', 2 },
        { "alternates", "Alternates", 'b', 0 },
        { "outliers", "Outliers", 'i', 0 },
        { "after_val", "after val", 'i', 0 },
        { "stalls", "Stalls", 'i', 0 },
    };
    doc_table(d, "stages", "Step times, stage by stage", c, (int)(sizeof c / sizeof *c));
    for (int i = 0; i < g->n; i++)
        for (int k = 0; k < s[i].n; k++) {
            const struct stage *t = &s[i].stage[k];
            doc_row(d, g->group[i].name, (long)k + 1, (long)t->first, (long)t->last, t->median_ms,
                    t->mean_ms, s[i].n == s[0].n ? t->mean_ms - s[0].stage[k].mean_ms : NAN,
                    t->total_s, t->even_ms, t->odd_ms, t->alternates, t->outliers, t->after_val,
                    (long)stalls_in(&g->group[i].profile, t));
        }
    doc_table_end(d);
}

static void say_warmup(struct doc *d, const struct gather *g, const struct stages *s)
{
    static const struct doc_column c[] = {
        { "group", "", 's', 0 },
        { "last_step", "Warm-up to step", 'i', 0 },
        { "seconds", "Seconds", 'f', 3 },
        { "excess_s", "over the pace", 'f', 3 },
    };
    doc_table(d, "warmup", NULL, c, 4);
    for (int i = 0; i < g->n; i++)
        doc_row(d, g->group[i].name, (long)s[i].warmup, s[i].warmup_s, s[i].warmup_excess_s);
    doc_table_end(d);
}

static void say_stalls(struct doc *d, const struct gather *g, const struct stages *s)
{
    static const struct doc_column c[] = {
        { "group", "", 's', 0 },         { "step", "Step", 'i', 0 }, { "ms", "ms", 'f', 0 },
        { "times", "x median", 'f', 1 }, { "path", "Run", 's', 0 },
    };
    long n = 0, hidden = 0;
    for (int i = 0; i < g->n; i++) {
        const struct profile *p = &g->group[i].profile;
        hidden += p->stalls - p->kept;
        for (int k = 0; k < p->kept; k++)
            n += p->stall[k].step > s[i].warmup;
    }
    if (!n)
        return;
    doc_table(d, "stalls", "Steps of more than 3 times the median of those around them", c, 5);
    for (int i = 0; i < g->n; i++) {
        const struct profile *p = &g->group[i].profile;
        for (int k = 0; k < p->kept; k++) {
            const struct stall *t = &p->stall[k];
            if (t->step > s[i].warmup)
                doc_row(d, g->group[i].name, (long)t->step, t->ms, t->ms / t->median_ms,
                        g->group[i].run[t->run].path);
        }
    }
    doc_table_end(d);
    if (hidden)
        doc_text(d, "more_stalls", "%ld shorter stalls are not listed", hidden);
}

int report_steps(struct doc *d, const struct gather *g)
{
    struct stages *s = calloc((size_t)g->n, sizeof *s);
    int rc = s ? 0 : err_set(GPT_SYSTEM, "out of memory");
    bool any = false;
    for (int i = 0; i < g->n && !rc; i++) {
        rc = profile_stages(&g->group[i].profile, &s[i]);
        any |= s[i].n > 0;
    }
    if (!rc && any) {
        say_stages(d, g, s);
        say_warmup(d, g, s);
        say_stalls(d, g, s);
    } else if (!rc) {
        doc_text(d, "stages", "these logs do not tell the times of steps");
    }
    free(s);
    return rc;
}

/* --- what could not be read --- */

void report_notes(struct doc *d, const struct gather *g)
{
    static const struct doc_column c[] = { { "path", "", 's', 0 },
                                           { "line", "", 'i', 0 },
                                           { "text", "", 's', 0 } };
    if (d->format != DOC_TSV && d->format != DOC_JSON)
        return;
    doc_table(d, "notes", NULL, c, 3);
    for (int i = 0; i < g->notes; i++)
        doc_row(d, g->note[i].path, g->note[i].line, g->note[i].text);
    doc_table_end(d);
}
