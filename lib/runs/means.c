/* means.c - see means.h. */
#include "runs/means.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "runs/pace.h"

/* --- validation --- */

static int take_vals(struct means *m, const struct group *g, const struct pace *p)
{
    if (!(m->val = calloc((size_t)g->points + 1, sizeof *m->val)))
        return err_memory();
    for (int i = 0; i < g->points; i++) {
        const struct curve_point *c = &g->curve[i];
        if (!c->n || c->n != g->validated) /* a mean over fewer runs than the next one's jumps */
            continue;
        m->val[m->vals++] = (struct mean_point){ .at = { c->step, pace_tokens(p, c->step),
                                                         c->timed ? c->time_s : NAN },
                                                 .mean = c->mean,
                                                 .sd = curve_sd(c) };
    }
    return 0;
}

/* --- training --- */

struct sum {
    int n;
    double loss, step, time_s;
    int timed;
};

/* Over runs, of a stretch of steps. */
struct stretch {
    int n, timed;
    double mean, m2, step, time_s;
};

static int32_t last_line(const struct group *g)
{
    int32_t last = 0;
    for (int i = 0; i < g->n; i++)
        if (g->run[i].steps && g->run[i].step[g->run[i].steps - 1].step > last)
            last = g->run[i].step[g->run[i].steps - 1].step;
    return last;
}

static bool all_have_next(const struct group *g)
{
    bool any = false;
    for (int i = 0; i < g->n; i++)
        for (int k = 0; k < g->run[i].steps; k++) {
            const struct run_step *s = &g->run[i].step[k];
            if (isnan(s->next) && !isnan(s->loss))
                return false;
            any |= !isnan(s->next);
        }
    return any;
}

static void add_sum(struct stretch *t, const struct sum *s)
{
    double x = s->loss / s->n, d = x - t->mean; /* Welford's update */
    t->n++;
    t->mean += d / t->n;
    t->m2 += d * (x - t->mean);
    t->step += (s->step / s->n - t->step) / t->n;
    if (s->timed) {
        t->timed++;
        t->time_s += (s->time_s / s->timed - t->time_s) / t->timed;
    }
}

/* Adds a run's stretches; false where it has no training losses. */
static bool add_run(struct stretch *t, const struct run *r, int32_t width, bool next)
{
    struct sum s = { 0 };
    int at = 0;
    bool any = false;
    for (int i = 0; i <= r->steps; i++) {
        const struct run_step *line = i < r->steps ? &r->step[i] : NULL;
        int to = line && line->step > 0 ? (line->step - 1) / width : 0;
        if (s.n && (!line || to != at)) {
            add_sum(&t[at], &s);
            s = (struct sum){ 0 };
            any = true;
        }
        double loss = !line ? NAN : next ? line->next : line->loss;
        at = to;
        if (!isfinite(loss))
            continue;
        s.n++;
        s.loss += loss;
        s.step += line->step;
        s.timed += isfinite(line->time_ms);
        s.time_s += isfinite(line->time_ms) ? line->time_ms / 1e3 : 0;
    }
    return any;
}

static int take_trains(struct means *m, const struct group *g, const struct pace *p)
{
    int32_t last = last_line(g), width = (last + MEANS_POINTS - 1) / MEANS_POINTS;
    struct stretch *t = calloc(MEANS_POINTS, sizeof *t);
    int runs = 0;
    if (!t || !(m->train = calloc(MEANS_POINTS, sizeof *m->train))) {
        free(t);
        return err_memory();
    }
    m->next = all_have_next(g);
    for (int i = 0; i < g->n && last; i++)
        runs += add_run(t, &g->run[i], width, m->next);
    for (int i = 0; i < MEANS_POINTS; i++)
        if (t[i].n && t[i].n == runs)
            m->train[m->trains++] =
                (struct mean_point){ .at = { t[i].step, pace_tokens(p, t[i].step),
                                             t[i].timed ? t[i].time_s : NAN },
                                     .mean = t[i].mean,
                                     .sd = t[i].n > 1 ? sqrt(t[i].m2 / (t[i].n - 1)) : NAN };
    free(t);
    return 0;
}

int means_of(struct means *m, const struct gather *g, int group)
{
    const struct group *in = &g->group[group];
    struct pace p;
    int different, recipe = group_variant(in, FACT_RECIPE, true, &different);
    *m = (struct means){ 0 };
    int rc = pace_open(&p, variant_text(&g->variants, recipe));
    if (!rc)
        rc = take_vals(m, in, &p);
    if (!rc)
        rc = take_trains(m, in, &p);
    pace_close(&p);
    return rc;
}

void means_release(struct means *m)
{
    free(m->val);
    free(m->train);
    *m = (struct means){ 0 };
}
