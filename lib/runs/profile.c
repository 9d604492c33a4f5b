/* profile.c - see profile.h. */
#include "runs/profile.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/grow.h"
#include "base/stats.h"

/* Steps are judged in blocks, and again by NEAR to either side. The logs' clock has whole ms. */
enum { BLOCK = 50, NEAR = 5, STALL_TIMES = 3, CLOCK_MS = 2 };

void profile_release(struct profile *p)
{
    free(p->step);
    memset(p, 0, sizeof *p);
}

static int reserve(struct profile *p, int32_t steps)
{
    size_t had = p->room;
    if (grow_to(&p->step, &p->room, steps, sizeof *p->step))
        return GPT_SYSTEM;
    memset(p->step + had, 0, (p->room - had) * sizeof *p->step);
    if (steps > p->steps)
        p->steps = steps;
    return 0;
}

double profile_ms(const struct profile *p, int32_t step)
{
    if (step < 0 || step >= p->steps || !p->step[step].n)
        return NAN;
    return p->step[step].sum_ms / p->step[step].n;
}

/* --- one run --- */

static void keep_stall(struct profile *p, struct stall s)
{
    int at = p->kept;
    p->stalls++;
    if (p->kept == PROFILE_STALLS) { /* the shortest makes room */
        at = 0;
        for (int i = 1; i < p->kept; i++)
            if (p->stall[i].ms < p->stall[at].ms)
                at = i;
        if (p->stall[at].ms >= s.ms)
            return;
    } else {
        p->kept++;
    }
    p->stall[at] = s;
}

struct timed {
    int32_t step;
    double ms;
};

/* The median of the steps around t[i]: where a stage changes, of those on its own side. */
static double local_median(const struct timed *t, int n, int i)
{
    double x[2 * NEAR + 1];
    int a = i > NEAR ? i - NEAR : 0, b = i + NEAR < n ? i + NEAR + 1 : n;
    for (int k = a; k < b; k++)
        x[k - a] = t[k].ms;
    return stats_median(x, b - a);
}

/* t[from .. from+n-1] are a block of all t[0 .. all-1]. */
static void judge_block(struct profile *p, const struct timed *t, int all, int from, int n, int run)
{
    double x[BLOCK], mid, least;
    for (int i = 0; i < n; i++)
        x[i] = t[from + i].ms;
    mid = stats_median(x, n);
    for (int i = 0; i < n; i++)
        x[i] = fabs(t[from + i].ms - mid);
    least = fmax(6 * 1.4826 * stats_median(x, n), CLOCK_MS);
    for (int i = from; i < from + n; i++) {
        if (fabs(t[i].ms - mid) <= fmax(least, 0.5 * mid))
            continue;
        double near = local_median(t, all, i);
        if (fabs(t[i].ms - near) > fmax(least, 0.5 * near))
            p->step[t[i].step].outliers++;
        if (t[i].ms > fmax(STALL_TIMES * near, near + CLOCK_MS))
            keep_stall(p, (struct stall){ t[i].step, run, t[i].ms, near });
    }
}

/* What a run's clock says of single steps; returns how many. */
static int time_steps(const struct run *r, struct timed *t)
{
    int n = 0;
    for (int i = 0; i < r->ticks; i++) {
        const struct run_tick *now = &r->tick[i];
        double before = i ? now[-1].time_ms : now->step == 1 ? 0 : NAN;
        if (!i && r->vals && r->val[0].step == 0 && r->val[0].time_ms > 0)
            before = r->val[0].time_ms;
        double ms = now->time_ms - before;
        if (now->step < PROFILE_STEPS && ms >= 0 && isfinite(ms) &&
            (!i || now->step == now[-1].step + 1) && now->step != r->clock_restart)
            t[n++] = (struct timed){ now->step, ms };
    }
    return n;
}

int profile_add(struct profile *p, const struct run *r, int index)
{
    struct timed *t = r->ticks ? malloc((size_t)r->ticks * sizeof *t) : NULL;
    int n = t ? time_steps(r, t) : 0, rc;
    if (r->ticks && !t)
        return err_memory();
    if (n && (rc = reserve(p, t[n - 1].step + 1))) {
        free(t);
        return rc;
    }
    for (int i = 0; i < r->vals && n; i++)
        if (r->val[i].step + 1 < p->steps)
            p->step[r->val[i].step + 1].vals++;
    for (int i = 0; i < n; i++) {
        p->step[t[i].step].sum_ms += t[i].ms;
        p->step[t[i].step].n++;
    }
    for (int i = 0; i < n; i += BLOCK)
        judge_block(p, t, n, i, n - i < BLOCK ? n - i : BLOCK, index);
    free(t);
    return 0;
}
