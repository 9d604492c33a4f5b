/* group.c - see group.h. */
#include "runs/group.h"

#include <math.h>
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
        free((char *)g->run[i].path);
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

struct run *group_same(const struct group *g, const struct run *r)
{
    for (int i = 0; r->ended && i < g->n; i++) {
        struct run *e = &g->run[i];
        if (e->ended && e->last == r->last && e->loss == r->loss && e->time_ms == r->time_ms)
            return e; /* not where the time is NaN: losses alone may be equal by chance */
    }
    return NULL;
}

/* Of a second log of a run, the whole one or an excerpt: what the first did not tell. */
static int add_to(struct group *g, struct variants *v, struct run *e, const struct run *r,
                  unsigned flags)
{
    int rc = 0;
    for (int i = 0; !rc && i < r->vals && r->val[i].step < e->first; i++)
        rc = add_point(g, &r->val[i]);
    if (!rc && (flags & GROUP_PROFILE) && !e->ticks)
        rc = profile_add(&g->profile, r, (int)(e - g->run));
    for (int i = 0; !rc && i < FACTS; i++)
        if (e->fact[i] < 0)
            rc = intern(v, i, &r->facts->of[i], &e->fact[i]);
    if (r->losses > e->losses) {
        e->losses = r->losses;
        e->loss_digest = r->loss_digest;
    }
    e->first = r->first < e->first ? r->first : e->first;
    e->ticks = r->ticks > e->ticks ? r->ticks : e->ticks;
    return rc;
}

int group_add(struct group *g, struct variants *v, const struct run *r, unsigned flags)
{
    struct run *same = group_same(g, r);
    if (same) {
        g->again++;
        return add_to(g, v, same, r, flags);
    }
    int rc = grow_one(&g->run, g->n, sizeof *g->run);
    for (int i = 0; !rc && i < r->vals; i++)
        rc = add_point(g, &r->val[i]);
    if (!rc && (flags & GROUP_PROFILE))
        rc = profile_add(&g->profile, r, g->n);
    if (rc)
        return rc;
    struct run *e = &g->run[g->n];
    *e = *r;
    e->val = NULL;
    e->tick = NULL;
    e->facts = NULL;
    for (int i = 0; i < FACTS; i++)
        if ((rc = intern(v, i, &r->facts->of[i], &e->fact[i])))
            return rc;
    if (!(e->path = strdup(r->path)))
        return err_memory();
    g->validated += r->vals > 0;
    g->n++;
    return 0;
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
    if (sample_spreads(&out->loss)) {
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
