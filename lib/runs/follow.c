/* follow.c - see follow.h. */
#include "runs/follow.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "runs/curves.h"

int follow_begin(struct follow *f, const struct gather *g, int group, const struct criteria *k)
{
    const struct profile *p = &g->group[0].profile;
    int rc;
    *f = (struct follow){ .g = g, .group = group, .k = *k };
    if (!group)
        return 0;
    if ((rc = group_sum(&g->group[0], k->target, &f->base)) ||
        (rc = group_sum(&g->group[group], k->target, &f->own)))
        return rc;
    f->base_steps = p->steps - 1;
    if (p->steps < 2 || !(f->base.time.mean > 0))
        return 0;
    if (!(f->base_time = malloc((size_t)p->steps * sizeof *f->base_time)))
        return err_memory();
    f->base_time[0] = 0;
    for (int32_t i = 1; i < p->steps; i++) {
        double ms = profile_ms(p, i);
        f->base_time[i] = f->base_time[i - 1] + (isnan(ms) ? 0 : ms / 1e3);
    }
    return 0;
}

void follow_end(struct follow *f)
{
    free(f->base_time);
    f->base_time = NULL;
}

struct words {
    char *at;
    size_t left;
};

PRINTF_LIKE(2, 3) static void say(struct words *w, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(w->at, w->left, fmt, ap);
    va_end(ap);
    if (n > 0 && (size_t)n < w->left) {
        w->at += n;
        w->left -= (size_t)n;
    }
}

static bool first_time(struct follow *f, unsigned what)
{
    bool first = !(f->reported & what);
    f->reported |= what;
    return first;
}

/* What this run may reach at most so that the mean of its group is still below a bound. */
static double allowed(double bound, const struct sample *others)
{
    return others->n ? (others->n + 1) * bound - others->n * others->mean : bound;
}

/* --- certain --- */

static void check_certain(struct follow *f, const struct run *r, const struct stepline *s,
                          struct words *w)
{
    double now = s->time_ms.given ? s->time_ms.value / 1e3 : NAN;
    double most = allowed(f->base.time.mean, &f->own.time);
    bool not_finite =
        (s->val.given && !isfinite(s->val.value)) || (s->train.given && !isfinite(s->train.value));
    if (not_finite && first_time(f, FOLLOW_LOSS))
        say(w, f->k.rules->rule == JUDGE_LOSS
                   ? "; the loss is not finite"
                   : "; can no longer become a record: the loss is not finite");
    if (!f->group)
        return;
    if (f->k.rules->rule == JUDGE_Z && s->step >= f->base.steps && first_time(f, FOLLOW_STEPS))
        say(w, "; can no longer become a record: the baseline passes at step %g", f->base.steps);
    if (f->k.rules->rule == JUDGE_T && !r->resumed && now >= most && r->clock_restart == 0 &&
        first_time(f, FOLLOW_CLOCK))
        say(w,
            "; can no longer become a record: its clock is at %.3f s and may end at %.3f s at "
            "most",
            now, most);
}

/* --- forecasts --- */

/* Seconds the baseline took from this share of its steps to its end. */
static double rest_of_base(const struct follow *f, double share)
{
    double at = share * f->base_steps;
    int32_t i = (int32_t)at;
    if (!f->base_time || i >= f->base_steps)
        return f->base_time ? 0 : NAN;
    double done = f->base_time[i] + (at - i) * (f->base_time[i + 1] - f->base_time[i]);
    return f->base_time[f->base_steps] - done;
}

static void forecast_clock(struct follow *f, const struct run *r, const struct stepline *s,
                           struct words *w)
{
    double now = s->time_ms.given ? s->time_ms.value / 1e3 : NAN;
    double end = now + 0.95 * rest_of_base(f, (double)s->step / r->total);
    double most = allowed(f->base.time.mean, &f->own.time);
    if (f->k.rules->rule == JUDGE_T && !r->resumed && end > most && !(f->reported & FOLLOW_CLOCK) &&
        r->clock_restart == 0 && first_time(f, FOLLOW_CLOCK_FORECAST))
        say(w,
            "; is unlikely to become a record: from here 5%% faster than the baseline it would "
            "end at %.1f s, and may at %.3f s at most",
            end, most);
}

static void forecast_loss(struct follow *f, const struct run *r, const struct stepline *s,
                          struct words *w)
{
    double sd, at = s->step * f->base.steps / r->total;
    double there = curve_between(&f->g->group[0], at, &sd);
    double ahead = s->val.value - there, end = f->base.loss.mean + ahead;
    double more = 1 + 1.0 / f->base.runs;
    double error = sqrt(more * (sd * sd + f->base.loss.sd * f->base.loss.sd));
    double most = allowed(f->k.target, &f->own.loss);
    if (end - 4 * error > most && first_time(f, FOLLOW_LOSS_FORECAST))
        say(w,
            "; is unlikely to become a record: carried to the end its loss is %.4f (deviation "
            "%.4f), and may be %.4f at most",
            end, error, most);
}

/* --- the line --- */

static void stand(struct follow *f, const struct run *r, const struct stepline *s, struct words *w)
{
    const struct curve_point *p = f->group ? group_at(&f->g->group[0], s->step) : NULL;
    say(w, "step %d", s->step);
    if (r->total)
        say(w, "/%d", r->total);
    if (s->val.given)
        say(w, ": loss %.*f", s->val.digits < 10 ? s->val.digits : 10, s->val.value);
    if (s->val.given && p && p->n && isfinite(s->val.value))
        say(w, " (%+.4f against the baseline)", s->val.value - p->mean);
    if (!s->time_ms.given || !isfinite(s->time_ms.value))
        return;
    say(w, "%s %.3f s", s->val.given ? "," : ":", s->time_ms.value / 1e3);
    if (p && p->timed && s->val.given && s->step > 0 && !r->resumed)
        say(w, " (%+.3f s)", s->time_ms.value / 1e3 - p->time_s);
}

bool follow_step(struct follow *f, const struct run *r, const struct stepline *s, char *text,
                 size_t size)
{
    char remarks[1024] = "";
    struct words w = { text, size }, end = { remarks, sizeof remarks };
    if (r->trial != f->trial) {
        f->trial = r->trial;
        f->reported = 0;
    }
    check_certain(f, r, s, &end);
    if (f->group && f->k.rules->rule != JUDGE_LOSS && s->val.given && r->total &&
        s->step >= r->total - s->step && s->step < r->total && !(f->reported & FOLLOW_LOSS)) {
        forecast_clock(f, r, s, &end);
        forecast_loss(f, r, s, &end);
    }
    if (!s->val.given && !*remarks)
        return false;
    f->remarked = *remarks;
    stand(f, r, s, &w);
    say(&w, "%s", remarks);
    return true;
}
