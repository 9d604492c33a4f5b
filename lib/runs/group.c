/* group.c - see group.h. */
#include "runs/group.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/grow.h"

void variants_release(struct variants *v)
{
    for (int i = 0; i < v->n; i++)
        free(v->v[i].text);
    free(v->v);
    memset(v, 0, sizeof *v);
}

static int intern(struct variants *v, enum fact kind, const struct fact_text *t, int *index)
{
    *index = -1;
    if (!*t->hash)
        return 0;
    for (int i = 0; i < v->n; i++)
        if (v->v[i].kind == kind && !strcmp(v->v[i].hash, t->hash)) {
            *index = i;
            return 0;
        }
    int rc = grow_one(&v->v, v->n, sizeof *v->v);
    if (rc)
        return rc;
    struct variant *add = &v->v[v->n];
    *add = (struct variant){ .kind = kind, .cut = t->cut };
    strcpy(add->hash, t->hash);
    if (t->text && v->texts[kind] < VARIANT_TEXTS) {
        if (!(add->text = malloc(t->n + 1)))
            return err_memory();
        memcpy(add->text, t->text, t->n);
        add->text[t->n] = '\0';
        add->n = t->n;
        v->texts[kind]++;
    }
    *index = v->n++;
    return 0;
}

void group_release(struct group *g)
{
    for (int i = 0; i < g->n; i++)
        run_release(&g->run[i]);
    free(g->run);
    free(g->curve);
    free(g->name);
    profile_release(&g->profile);
    memset(g, 0, sizeof *g);
}

/* --- curve --- */

static int find_step(const struct group *g, int32_t step)
{
    int lo = 0, hi = g->points;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (g->curve[mid].step < step)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

const struct curve_point *group_at(const struct group *g, int32_t step)
{
    int i = find_step(g, step);
    return i < g->points && g->curve[i].step == step ? &g->curve[i] : NULL;
}

static int add_point(struct group *g, const struct run_val *v)
{
    int i = find_step(g, v->step);
    if (i == g->points || g->curve[i].step != v->step) {
        int rc = grow_one(&g->curve, g->points, sizeof *g->curve);
        if (rc)
            return rc;
        memmove(g->curve + i + 1, g->curve + i, (size_t)(g->points - i) * sizeof *g->curve);
        g->curve[i] = (struct curve_point){ .step = v->step, .digits = v->digits };
        g->points++;
    }
    struct curve_point *c = &g->curve[i];
    if (!isfinite(v->loss))
        return 0;
    double d = v->loss - c->mean; /* Welford's update */
    c->n++;
    c->mean += d / c->n;
    c->m2 += d * (v->loss - c->mean);
    if (v->digits < c->digits)
        c->digits = v->digits;
    if (isfinite(v->time_ms)) {
        c->timed++;
        c->time_s += (v->time_ms / 1e3 - c->time_s) / c->timed;
    }
    return 0;
}

/* A value printed with d digits stands for an interval of 10^-d; uniform over it, its variance
 * is a twelfth of the square: the least variance that printed values can show. */
double curve_sd(const struct curve_point *p)
{
    double rounding = pow(10, -2 * p->digits) / 12;
    return p->n < 2 ? NAN : sqrt(fmax(p->m2 / (p->n - 1), rounding));
}

/* --- runs --- */

static bool near(double a, double b) { return fabs(a - b) < 0.01; } /* of ms; false for NaN */

struct run *group_same(const struct group *g, const struct run *r)
{
    for (int i = 0; r->ended && i < g->n; i++) {
        struct run *e = &g->run[i];
        bool others = e->identity && r->identity && e->identity != r->identity;
        if (!e->ended || e->loss != r->loss || others)
            continue;
        bool one_list = e->list && r->list && e->list_digest == r->list_digest;
        if (one_list && e->list_at == r->list_at)
            return e;
        /* not where the time is NaN: losses alone may be equal by chance */
        if (!one_list && (e->last == r->last || e->list || r->list) && e->fine_clock &&
            r->fine_clock && near(e->time_ms, r->time_ms))
            return e;
    }
    return NULL;
}

static int intern_all(struct run *e, struct variants *v, const struct facts *f)
{
    int rc = 0;
    for (int i = 0; !rc && i < FACTS; i++)
        if (e->fact[i] < 0)
            rc = intern(v, i, &f->of[i], &e->fact[i]);
    return rc;
}

/* Takes from a second log of a run, whole or an excerpt, what the first did not tell. */
static int take_whole(struct run *e, const struct run *r)
{
    struct run copy;
    int rc = run_copy(&copy, r);
    if (rc)
        return rc;
    if (copy.vals > e->vals) {
        struct run_val *v = e->val;
        e->val = copy.val, copy.val = v;
        e->vals = copy.vals;
    }
    if (copy.steps > e->steps) {
        struct run_step *s = e->step;
        e->step = copy.step, copy.step = s;
        e->steps = copy.steps;
    }
    e->first = r->first < e->first ? r->first : e->first;
    if (isnan(e->time_ms))
        e->time_ms = r->time_ms;
    if (e->list && !r->list) {
        e->last = r->last;
        e->total = r->total;
        free((char *)e->list);
        e->list = NULL;
    }
    run_release(&copy);
    return 0;
}

int group_add(struct group *g, struct variants *v, const struct run *r)
{
    struct run *same = group_same(g, r);
    int rc;
    if (same) {
        g->again++;
        rc = take_whole(same, r);
        return rc ? rc : intern_all(same, v, r->facts);
    }
    if ((rc = grow_one(&g->run, g->n, sizeof *g->run)) || (rc = run_copy(&g->run[g->n], r)))
        return rc;
    struct run *e = &g->run[g->n++];
    for (int i = 0; i < FACTS; i++)
        e->fact[i] = -1;
    return intern_all(e, v, r->facts);
}

/* --- runs that continue others --- */

PRINTF_LIKE(4, 5)
static void say(const struct group_notes *to, const struct run *r, long line, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    if (!to || !to->note)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    to->note(to->arg, r->path, line, text);
}

/* The run that r continues: of those that reach its first step one in the same file, else one that has
 * no end, else the last; NULL: none. */
static struct run *continued(const struct group *g, const struct run *r)
{
    struct run *best = NULL;
    int most = 0;
    for (int i = 0; i < g->n; i++) {
        struct run *e = &g->run[i];
        if (e == r || e->resumed || !e->identity || e->identity != r->identity ||
            e->last < r->resumed || e->first > r->resumed)
            continue;
        int rank = 1 + !e->ended + 2 * !strcmp(e->path, r->path);
        if (rank >= most) {
            best = e;
            most = rank;
        }
    }
    return best;
}

static int join(struct group *g, struct run *e, struct run *r, const struct group_notes *to)
{
    int32_t at = r->resumed;
    if (e->ended && r->ended && e->loss != r->loss) {
        say(to, r, r->first_line,
            "continues %.300s from step %d to another end: not one run with it", e->path, at);
        return 0;
    }
    if (!e->ended) {
        double clock = run_clock_at(e, at);
        if (e->fact[FACT_GPU] != r->fact[FACT_GPU])
            clock = NAN;
        int rc = run_join(e, r, at, clock);
        if (rc)
            return rc;
    }
    g->again++;
    int i = (int)(r - g->run);
    run_release(r);
    memmove(r, r + 1, (size_t)(g->n - i - 1) * sizeof *r);
    g->n--;
    return 0;
}

static int join_resumed(struct group *g, const struct group_notes *to)
{
    for (;;) {
        struct run *first = NULL, *e;
        for (int i = 0; i < g->n; i++) /* in the order of their first steps */
            if (g->run[i].resumed && !g->run[i].alone &&
                (!first || g->run[i].resumed < first->resumed))
                first = &g->run[i];
        if (!first)
            return 0;
        int before = g->n, rc = (e = continued(g, first)) ? join(g, e, first, to) : 0;
        if (rc)
            return rc;
        if (g->n < before)
            continue;
        first->alone = true;
        if (!e)
            say(to, first, first->first_line,
                "continues a run from step %d: its clock is not the whole run's", first->resumed);
    }
}

/* --- the whole group --- */

/* Ends a run with the validation of a step. */
static void end_at(struct run *r, int32_t step, const struct group_notes *to)
{
    double loss = NAN, time = NAN;
    r->ended = false;
    for (int i = 0; i < r->vals; i++)
        if (r->val[i].step == step) {
            r->ended = true;
            r->last = step;
            loss = r->val[i].loss;
            r->loss_digits = r->val[i].digits;
            time = r->resumed ? NAN : r->val[i].time_ms;
        }
    r->loss = loss;
    r->time_ms = time;
    if (r->clock_restart > step)
        r->clock_restart = 0;
    if (!r->ended)
        say(to, r, r->last_line, "no validation of the step of --at-step");
}

int group_finish(struct group *g, unsigned flags, int32_t at_step, const struct group_notes *to)
{
    int rc = join_resumed(g, to);
    free(g->curve);
    g->curve = NULL;
    g->points = g->validated = 0;
    profile_release(&g->profile);
    for (int i = 0; i < g->n && !rc; i++) {
        struct run *r = &g->run[i];
        if (at_step)
            end_at(r, at_step, to);
        run_digest(r);
        g->validated += r->vals > 0;
        for (int k = 0; k < r->vals && !rc; k++)
            rc = add_point(g, &r->val[k]);
        if (!rc && (flags & GROUP_PROFILE))
            rc = profile_add(&g->profile, r, i);
    }
    return rc;
}

int group_sum(const struct group *g, double target, struct group_sum *out)
{
    double *x = malloc((2 * (size_t)g->n + 1) * sizeof *x), *t = x ? x + g->n : NULL;
    if (!x)
        return err_memory();
    int n = 0, timed = 0;
    bool steps = true;
    *out = (struct group_sum){ .loss_digits = 17 };
    for (int i = 0; i < g->n; i++) {
        const struct run *e = &g->run[i];
        out->left_out += !e->ended;
        if (!e->ended)
            continue;
        out->not_finite += !isfinite(e->loss);
        out->steps += e->last;
        steps &= e->last > 0;
        x[n++] = e->loss;
        if (!isnan(e->time_ms))
            t[timed++] = e->time_ms / 1e3;
        if (e->loss_digits < out->loss_digits)
            out->loss_digits = e->loss_digits;
    }
    out->runs = n;
    out->steps = n && steps ? out->steps / n : NAN;
    out->loss = sample_of(x, n);
    out->time = sample_of(t, timed);
    out->p = out->p_low = out->p_high = NAN;
    if (sample_spreads(&out->loss) && !isnan(target)) {
        out->p = mean_below_p(&out->loss, target);
        mean_below_p_range(x, n, 0.5 * pow(10, -out->loss_digits), target, &out->p_low,
                           &out->p_high);
    }
    free(x);
    return 0;
}

int group_variant(const struct group *g, enum fact kind, bool all, int *different)
{
    int best = -1, most = 0;
    *different = 0;
    for (int i = 0; i < g->n; i++) {
        int k = g->run[i].fact[kind], count = 0;
        bool first = k >= 0 && (all || g->run[i].ended);
        for (int j = 0; first && j < g->n; j++) {
            if (g->run[j].fact[kind] != k || !(all || g->run[j].ended))
                continue;
            if (j < i)
                first = false;
            count++;
        }
        if (!first)
            continue;
        ++*different;
        if (count > most) {
            most = count;
            best = k;
        }
    }
    return best;
}
