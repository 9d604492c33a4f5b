/* judge.c - see judge.h. */
#include "runs/judge.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "base/text.h"

enum { FEW_LOSSES = 4 }; /* fewer losses than this may be equal by chance */

struct criteria criteria_of(const struct rules *rules)
{
    return (struct criteria){ .rules = rules, .target = rules->target, .alpha = rules->alpha };
}

static const char *tail_name(const struct criteria *k)
{
    return k->tail == TAIL_LOWER ? "lower tail" : "two-sided";
}

/* The text of a verdict: reasons in the order of the checks, "; " between them. */
struct reasons {
    char *at, *end;
    int n;
};

PRINTF_LIKE(2, 3) static void add(struct reasons *r, const char *fmt, ...)
{
    va_list ap;
    int n = snprintf(r->at, (size_t)(r->end - r->at), "%s", r->n++ ? "; " : "");
    r->at += n < r->end - r->at ? n : r->end - r->at - 1;
    va_start(ap, fmt);
    n = vsnprintf(r->at, (size_t)(r->end - r->at), fmt, ap);
    va_end(ap);
    r->at += n < r->end - r->at ? n : r->end - r->at - 1;
}

/* Why there is no p value. */
static const char *no_deviation(const struct sample *a, const struct sample *b)
{
    return a->n < 2 || b->n < 2 ? "one run has no deviation" : "equal values have no deviation";
}

/* A p value below 0.0001 is not written as zero. */
struct p_text {
    char text[48];
};
static struct p_text p_text(double p)
{
    struct p_text t;
    if (p < 0.0001)
        strcpy(t.text, "<0.0001");
    else
        snprintf(t.text, sizeof t.text, "%.4f", p);
    return t;
}

static struct p_text p_below(double p, double alpha)
{
    struct p_text t = p_text(p);
    if (p >= 0.0001)
        snprintf(t.text, sizeof t.text, "%.4f < %g", p, alpha);
    return t;
}

/* --- what must be equal among runs that reached their end; others are not judged --- */

/* The name of a fact; that of the GPU is "device" for runs without one. */
static const char *name_of(const struct gather *g, const struct group *own, enum fact kind)
{
    for (int i = 0; kind == FACT_GPU && i < own->n; i++) {
        int v = own->run[i].fact[kind];
        const char *text = variant_text(&g->variants, v);
        if (text && text_ends(text, " x cpu"))
            return "device";
    }
    return fact_name[kind];
}

static void check_within(struct reasons *r, const struct gather *g, const struct group *own,
                         enum fact kind)
{
    int different;
    group_variant(own, kind, false, &different);
    if (different > 1)
        add(r, "unequal %s: '%s' mixes %d kinds", name_of(g, own, kind), own->name, different);
}

static void check_steps(struct reasons *r, const struct group *g)
{
    int32_t least = 0, most = 0;
    for (int i = 0; i < g->n; i++) {
        if (!g->run[i].ended || !g->run[i].last)
            continue;
        least = least && least < g->run[i].last ? least : g->run[i].last;
        most = most > g->run[i].last ? most : g->run[i].last;
    }
    if (least != most)
        add(r, "unequal steps: '%s' mixes runs of %d and %d", g->name, least, most);
}

/* The clock of one run may start anew where those of others do not. */
static void check_clocks(struct reasons *r, const struct group *g)
{
    int32_t least = INT32_MAX, most = 0;
    for (int i = 0; i < g->n; i++) {
        if (!g->run[i].ended || isnan(g->run[i].time_ms))
            continue;
        least = g->run[i].clock_restart < least ? g->run[i].clock_restart : least;
        most = g->run[i].clock_restart > most ? g->run[i].clock_restart : most;
    }
    if (least < most)
        add(r, "unequal clocks: '%s' mixes runs whose clock begins with step %d and with step %d",
            g->name, least ? least : 1, most);
}

/* A run that is on both sides is compared with itself. */
static void check_shared(struct reasons *r, const struct group *base, const struct group *own)
{
    for (int i = 0; i < own->n; i++)
        if (group_same(base, &own->run[i])) {
            add(r, "the same run in both groups: %.300s", own->run[i].path);
            return;
        }
}

/* A seed that is counted twice makes the deviation too small. */
static void check_twice(struct reasons *r, const struct group *g)
{
    for (int i = 0; i < g->n; i++) {
        const struct run *b = &g->run[i];
        for (int k = 0; k < i; k++) {
            const struct run *a = &g->run[k];
            if (!a->ended || !b->ended || a->losses < FEW_LOSSES ||
                a->loss_digest != b->loss_digest)
                continue;
            add(r, "the same losses twice: %.300s and %.300s", a->path, b->path);
            return;
        }
    }
}

/* The first step of the clock that counts: 0 or, in logs of 2024, 11. */
static int32_t clock_of(const struct group *g)
{
    for (int i = 0; i < g->n; i++)
        if (g->run[i].ended)
            return g->run[i].clock_restart;
    return 0;
}

static void check_between(struct reasons *r, const struct gather *g, const struct group *own,
                          enum fact kind)
{
    const char *name = name_of(g, &g->group[0], kind);
    if (!strcmp(name, fact_name[kind]))
        name = name_of(g, own, kind);
    int different, a = group_variant(&g->group[0], kind, false, &different);
    int b = group_variant(own, kind, false, &different);
    if (a < 0 || b < 0 || a == b)
        return;
    const struct variant *va = &g->variants.v[a], *vb = &g->variants.v[b];
    if (kind == FACT_GPU && va->text && vb->text)
        add(r, "unequal %s: %s and %s", name, va->text, vb->text);
    else
        add(r, "unequal %s", name);
}

static void check_equal(struct reasons *r, const struct gather *g, int group,
                        const struct criteria *k)
{
    const struct group *own = &g->group[group];
    static const enum fact must[] = { FACT_SOURCE, FACT_CODE, FACT_RECIPE, FACT_DATA, FACT_GPU };
    for (int i = group ? 0 : 1; i < 2; i++) {
        const struct group *in = i ? own : &g->group[0];
        for (size_t f = 0; f < sizeof must / sizeof *must; f++)
            check_within(r, g, in, must[f]);
        check_steps(r, in);
        if (k->rules->rule == JUDGE_T)
            check_clocks(r, in);
        if (!k->systems_only)
            check_twice(r, in);
    }
    if (!group)
        return;
    check_shared(r, &g->group[0], own);
    check_between(r, g, own, FACT_DATA);
    if (k->rules->rule != JUDGE_T)
        return;
    check_between(r, g, own, FACT_GPU);
    int32_t a = clock_of(&g->group[0]), b = clock_of(own);
    if (a != b)
        add(r, "unequal clocks: one begins with step %d, the other with step %d", a ? a : 1,
            b ? b : 1);
}

/* --- loss --- */

static void say_needed(struct reasons *r, const struct group_sum *s, const struct criteria *k)
{
    int n = runs_to_show(s->loss.mean, s->loss.sd, k->target, k->alpha);
    int likely = runs_for_power(SHOWN_POWER, s->loss.mean, s->loss.sd, k->target, k->alpha);
    if (s->runs < 2)
        add(r, "loss not demonstrated: one run has no deviation");
    else if (!sample_spreads(&s->loss))
        add(r, "loss not demonstrated: %d equal losses have no deviation", s->runs);
    else if (!n)
        add(r, "loss not demonstrated: p %s >= %g", p_text(s->p).text, k->alpha);
    else
        add(r,
            "loss not demonstrated: p %s >= %g; %d more run%s of this mean and deviation would "
            "demonstrate it (%d in all for a chance of 80%%)",
            p_text(s->p).text, k->alpha, n - s->runs, n - s->runs == 1 ? "" : "s", likely);
}

static void check_loss_z(struct reasons *r, const struct judgement *v, const struct criteria *k)
{
    const struct group_sum *s = &v->own;
    double lead = k->target - s->loss.mean, margin = k->rules->margin;
    if (rules_reach(k->rules, v->lead))
        return;
    if (!(lead > 0))
        add(r, "loss not demonstrated: mean %.5f is not below %g", s->loss.mean, k->target);
    else
        add(r,
            "loss not demonstrated: (%g - %.5f) sqrt(%d) = %.5f < %g; %.0f more runs of this mean "
            "would demonstrate it",
            k->target, s->loss.mean, s->runs, v->lead, margin,
            ceil(margin * margin / (lead * lead) - 1e-9) - s->runs);
    if (!isnan(s->steps) && !k->at_step)
        add(r, "so at each step that all runs validated, of which %g is the last", s->steps);
}

static void check_loss(struct reasons *r, const struct judgement *v, const struct criteria *k)
{
    const struct group_sum *s = &v->own;
    if (!s->runs)
        add(r, "loss not demonstrated: no run reached its end");
    else if (s->not_finite)
        add(r, "loss not demonstrated: %d of %d losses are not finite", s->not_finite, s->runs);
    else if (k->systems_only && !(s->loss.mean <= k->target))
        add(r, "loss not demonstrated: mean %.4f is above %g", s->loss.mean, k->target);
    else if (k->systems_only)
        return;
    else if (k->rules->rule == JUDGE_Z)
        check_loss_z(r, v, k);
    else if (!(s->loss.mean < k->target))
        add(r, "loss not demonstrated: mean %.4f is not below %g", s->loss.mean, k->target);
    else if (!(s->p < k->alpha))
        say_needed(r, s, k);
}

/* --- time --- */

/* Which logs have no time of the whole run. */
static void say_no_time(struct reasons *r, const struct judgement *v, const struct gather *g,
                        int group)
{
    if (!v->own.time.n && !v->base.time.n)
        add(r, "not faster: neither group's logs have times");
    else
        add(r, "not faster: the logs of '%s' have no times",
            g->group[v->own.time.n ? 0 : group].name);
}

static void check_time(struct reasons *r, const struct judgement *v, const struct gather *g,
                       int group, const struct criteria *k)
{
    double difference = v->own.time.mean - v->base.time.mean;
    if (k->rules->rule == JUDGE_Z) {
        if (isnan(v->own.steps - v->base.steps))
            add(r, "not fewer steps: published lists have none");
        else if (!(v->own.steps < v->base.steps))
            add(r, "not fewer steps: %g against %g", v->own.steps, v->base.steps);
    } else if (isnan(difference)) {
        say_no_time(r, v, g, group);
    } else if (!(difference < 0)) {
        add(r, "not faster: %+.4f s", difference);
    } else if (isnan(v->time_p)) {
        add(r, "not demonstrated to be faster: %+.4f s, but %s", difference,
            no_deviation(&v->own.time, &v->base.time));
    } else if (!(v->time_p < k->alpha)) {
        add(r, "not demonstrated to be faster: %+.4f s, time p %s (Welch, %s)", difference,
            p_text(v->time_p).text, tail_name(k));
    }
}

/* --- loss against the baseline's --- */

static const char *test_name(const struct criteria *k) { return k->paired ? "pairs" : "Welch"; }

/* Returns by how much the loss is above the baseline's; of pairs alone where they are what is tested. */
static double difference_of(const struct judgement *v, const struct criteria *k)
{
    return k->paired ? v->paired.mean : v->own.loss.mean - v->base.loss.mean;
}

static void check_better(struct reasons *r, const struct judgement *v, const struct criteria *k)
{
    double difference = difference_of(v, k);
    if (!v->own.runs || !v->base.runs)
        add(r, "not demonstrated to be better: no run reached its end");
    else if (v->own.not_finite || v->base.not_finite)
        add(r, "not demonstrated to be better: %d losses are not finite",
            v->own.not_finite + v->base.not_finite);
    else if (k->paired && !v->paired.pairs)
        add(r, "not demonstrated to be better: no run of one has a partner in the other");
    else if (!(difference < 0))
        add(r, "no better: loss %+.5f", difference);
    else if (isnan(v->loss_p))
        add(r, "not demonstrated to be better: loss %+.5f, but %s", difference,
            k->paired ? "one pair, or pairs of equal difference, have no deviation"
                      : no_deviation(&v->own.loss, &v->base.loss));
    else if (!(v->loss_p < k->alpha))
        add(r, "not demonstrated to be better: loss %+.5f, p %s >= %g (%s, %s)", difference,
            p_text(v->loss_p).text, k->alpha, test_name(k), tail_name(k));
}

/* --- the verdict --- */

static void say_shown(struct reasons *r, const struct judgement *v, int group,
                      const struct criteria *k)
{
    const struct group_sum *s = &v->own;
    if (group && k->rules->rule == JUDGE_LOSS) {
        add(r, "better: mean loss lower by %.5f (p %s, %s, %s)", -difference_of(v, k),
            p_below(v->loss_p, k->alpha).text, test_name(k), tail_name(k));
        return;
    }
    add(r, group ? "record: " : "demonstrated: ");
    r->n = 0;
    if (k->systems_only)
        add(r, "mean loss %.4f <= %g (the test is waived)", s->loss.mean, k->target);
    else if (k->rules->rule == JUDGE_Z)
        add(r, "mean loss %.5f, (%g - mean) sqrt(%d) = %.5f >= %g", s->loss.mean, k->target,
            s->runs, v->lead, k->rules->margin);
    else
        add(r, "mean loss %.4f < %g (p %s)", s->loss.mean, k->target, p_below(s->p, k->alpha).text);
    if (group && k->rules->rule == JUDGE_Z)
        add(r, "%g steps fewer", v->base.steps - s->steps);
    else if (group)
        add(r, "%.4f s faster (time p %s, Welch, %s)", v->base.time.mean - s->time.mean,
            p_text(v->time_p).text, tail_name(k));
}

static void say_rounding(struct reasons *r, const struct judgement *v, const struct criteria *k)
{
    const struct group_sum *s = &v->own;
    if (k->rules->rule == JUDGE_T && !k->systems_only && s->p_low < k->alpha &&
        s->p_high >= k->alpha)
        add(r, "but the losses are rounded and p may be anything from %s to %s",
            p_text(s->p_low).text, p_text(s->p_high).text);
}

/* The pairwise rule decides nothing: it says whether the difference is more than noise. */
static void say_pair(struct reasons *r, const struct judgement *v, const struct criteria *k)
{
    char than[48] = "";
    if (k->against.number)
        snprintf(than, sizeof than, " than result %d", k->against.number);
    if (!isnan(v->pair))
        add(r, "by the pairwise rule %s%s: %.6f %s %g, p %.2g",
            rules_reach(k->rules, v->pair) ? "better" : "not shown to be better", than, v->pair,
            rules_reach(k->rules, v->pair) ? ">=" : "<", k->rules->margin, v->pair_p);
}

double judge_target(const struct gather *g)
{
    for (int i = 0; i < g->n; i++)
        for (int k = 0; k < g->group[i].n; k++)
            if (g->group[i].run[k].record)
                return rules_named("track-1")->target;
    return NAN;
}

/* Returns the step with which judge_place ends a group's runs; 0: they validated none in common. */
static int32_t place_of(const struct group *g, const struct criteria *k)
{
    int32_t last = 0;
    for (int i = 0; i < g->points; i++) {
        const struct curve_point *p = &g->curve[i];
        if (!p->n || p->n != g->validated || !p->step)
            continue;
        last = p->step;
        if (rules_reach(k->rules, (k->target - p->mean) * sqrt(p->n)))
            break;
    }
    return last;
}

int judge_place(struct gather *g, const struct criteria *k)
{
    int rc = 0;
    for (int i = 0; i < g->n && k->rules->rule == JUDGE_Z && !k->at_step && !rc; i++) {
        int32_t step = place_of(&g->group[i], k);
        if (step)
            rc = group_finish(&g->group[i], GROUP_PROFILE, step, NULL);
    }
    return rc;
}

/* Sets the difference that these deviations and numbers of runs can show at all, by the test that is made. */
static void set_shows(struct judgement *v, const struct criteria *k)
{
    const struct sample *a = &v->base.loss, *b = &v->own.loss;
    double error = sqrt(a->sd * a->sd / a->n + b->sd * b->sd / b->n), df = v->loss.df;
    if (k->paired) {
        error = v->paired.error;
        df = v->paired.pairs - 1;
    }
    v->shows =
        k->rules->rule == JUDGE_LOSS && df > 0
            ? shown_difference(error, df, k->alpha, k->tail == TAIL_LOWER ? 1 : 2, SHOWN_POWER)
            : NAN;
}

static void set_z(struct judgement *v, int group, const struct criteria *k)
{
    struct result base = k->against.result;
    struct result own = { v->own.steps, v->own.loss.mean, v->own.loss.n };
    bool z = k->rules->rule == JUDGE_Z, pairs = z && (group || k->against.number);
    if (!k->against.number)
        base = (struct result){ v->base.steps, v->base.loss.mean, v->base.loss.n };
    v->lead = (k->target - v->own.loss.mean) * sqrt(v->own.loss.n);
    v->z = z ? v->lead / k->rules->sigma : NAN;
    v->z_p = z ? rules_p(k->rules, v->lead) : NAN;
    v->pair = pairs ? rules_pair(k->rules, &base, &own) : NAN;
    v->pair_p = rules_p(k->rules, v->pair);
}

int judge_group(struct judgement *v, const struct gather *g, int group, const struct criteria *k)
{
    int rc;
    memset(v, 0, sizeof *v);
    if ((rc = group_sum(&g->group[0], k->target, &v->base)) ||
        (rc = group_sum(&g->group[group], k->target, &v->own)))
        return rc;
    v->time = v->loss = (struct welch){ NAN, NAN, NAN, NAN };
    if (group && sample_spreads(&v->own.time) && sample_spreads(&v->base.time))
        v->time = welch_test(&v->own.time, &v->base.time);
    if (group && sample_spreads(&v->own.loss) && sample_spreads(&v->base.loss))
        v->loss = welch_test(&v->own.loss, &v->base.loss);
    v->time_p = k->tail == TAIL_LOWER ? v->time.p_lower : v->time.p_two_sided;
    v->loss_p = k->tail == TAIL_LOWER ? v->loss.p_lower : v->loss.p_two_sided;
    if (group && k->paired) {
        if ((rc = paired_of(&v->paired, g, group)))
            return rc;
        v->loss_p = k->tail == TAIL_LOWER ? v->paired.p_lower : v->paired.p_two_sided;
    }
    set_z(v, group, k);
    set_shows(v, k);
    struct reasons r = { v->text, v->text + sizeof v->text, 0 };
    if (g->n > 1) {
        add(&r, "%s: ", g->group[group].name);
        r.n = 0;
    }
    if (!group && isnan(k->target)) {
        add(&r, "no target: nothing to judge");
        return 0;
    }
    if (!k->mixed)
        check_equal(&r, g, group, k);
    if (group && k->rules->rule == JUDGE_LOSS) {
        check_better(&r, v, k);
    } else {
        check_loss(&r, v, k);
        if (group)
            check_time(&r, v, g, group, k);
    }
    v->shown = !r.n;
    if (v->shown)
        say_shown(&r, v, group, k);
    say_rounding(&r, v, k);
    say_pair(&r, v, k);
    return 0;
}
