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
    for (int i = 0; i < r->steps; i++) {
        const struct run_step *now = &r->step[i];
        double before = i ? now[-1].time_ms : now->step == 1 ? 0 : NAN;
        if (!i && r->vals && r->val[0].step == 0 && r->val[0].time_ms > 0)
            before = r->val[0].time_ms;
        double ms = isnan(now->own_ms) ? now->time_ms - before : now->own_ms;
        bool alone = i && now->step != now[-1].step + 1 && isnan(now->own_ms);
        if (now->step < PROFILE_STEPS && ms >= 0 && isfinite(ms) && !alone &&
            now->step != r->clock_restart)
            t[n++] = (struct timed){ now->step, ms };
    }
    return n;
}

int profile_add(struct profile *p, const struct run *r, int index)
{
    struct timed *t = r->steps ? malloc((size_t)r->steps * sizeof *t) : NULL;
    int n = t ? time_steps(r, t) : 0, rc;
    if (r->steps && !t)
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

/* --- warm-up, stages, even and odd steps ---
 *
 * Stages are found by binary segmentation of the steps' times after a running median of five:
 * a stretch is cut where two means explain it best, if that gains more than noise would and
 * the means differ by 4%. */

enum { SMOOTH = 2, SHORTEST = 24, WARMUP_MAX = 100 };

struct series {
    int n;
    int32_t first; /* the step of x[0] */
    double *x, *y, *sums; /* as measured; smoothed; sums of y */
    double noise;
};

static double median_of(const double *x, int n, double *room)
{
    if (n > 0)
        memcpy(room, x, (size_t)n * sizeof *x);
    return stats_median(room, n);
}

static void smooth(struct series *s, double *room)
{
    for (int i = 0; i < s->n; i++) {
        int a = i < SMOOTH ? 0 : i - SMOOTH, b = i + SMOOTH < s->n ? i + SMOOTH + 1 : s->n;
        s->y[i] = median_of(s->x + a, b - a, room);
    }
    s->sums[0] = 0;
    for (int i = 0; i < s->n; i++)
        s->sums[i + 1] = s->sums[i] + s->y[i];
}

/* From steps two apart, so that even and odd do not count as noise. Lines carry whole ms. */
static double noise_of(const struct series *s, double *room)
{
    double *d = room + s->n;
    for (int i = 2; i < s->n; i++)
        d[i - 2] = fabs(s->y[i] - s->y[i - 2]);
    return fmax(1.4826 / M_SQRT2 * median_of(d, s->n - 2, room), 0.1);
}

static double mean(const struct series *s, int a, int b)
{
    return (s->sums[b] - s->sums[a]) / (b - a);
}

/* Where a .. b-1 is best cut; 0 when nothing is to be gained. */
static int best_cut(const struct series *s, int a, int b)
{
    int best = 0;
    double most = 10 * s->noise * s->noise * log(s->n);
    for (int c = a + SHORTEST; c + SHORTEST <= b; c++) {
        double left = mean(s, a, c), right = mean(s, c, b), step = left - right;
        double gain = step * step * (c - a) * (double)(b - c) / (b - a);
        if (gain > most) {
            most = gain;
            best = c;
        }
    }
    return best;
}

static int by_int(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

/* cuts: 0, ..., n in order; returns how many stretches there are. */
static int segment(const struct series *s, int cuts[PROFILE_STAGES + 1])
{
    int n = 1;
    bool done[PROFILE_STAGES] = { false };
    cuts[0] = 0;
    cuts[1] = s->n;
    for (bool found = true; found && n < PROFILE_STAGES;) {
        found = false;
        for (int i = 0; i < n && !found; i++) {
            int c = done[i] ? 0 : best_cut(s, cuts[i], cuts[i + 1]);
            done[i] = !c;
            if (!c)
                continue;
            cuts[n + 1] = c;
            n++;
            qsort(cuts, (size_t)n + 1, sizeof *cuts, by_int);
            memmove(done + i + 1, done + i, (size_t)(n - i - 1) * sizeof *done);
            done[i] = done[i + 1] = false;
            found = true;
        }
    }
    for (int i = 1; i < n;) { /* neighbours that are alike are one stage */
        double left = mean(s, cuts[i - 1], cuts[i]), right = mean(s, cuts[i], cuts[i + 1]);
        if (fabs(left - right) > 0.04 * fmin(left, right)) {
            i++;
            continue;
        }
        memmove(cuts + i, cuts + i + 1, (size_t)(n - i) * sizeof *cuts);
        n--;
    }
    return n;
}

/* Puts a cut where the measured times change, within the reach of the smoothing. */
static int sharpen(const struct series *s, int c)
{
    double left = mean(s, c - SHORTEST / 2, c), right = mean(s, c, c + SHORTEST / 2);
    double half = 0.5 * (left + right);
    bool up = right > left;
    int from = c - 2 * SMOOTH, to = c + 2 * SMOOTH, best = c, most = -1;
    for (int k = from; k <= to; k++) {
        int right_side = 0;
        for (int i = from; i < to; i++)
            right_side += i < k ? (s->x[i] > half) != up : (s->x[i] > half) == up;
        if (right_side > most) {
            most = right_side;
            best = k;
        }
    }
    return best;
}

static void measure(const struct profile *p, const struct series *s, int a, int b,
                    struct stage *out, double *room)
{
    double sum[2] = { 0, 0 }, squares[2] = { 0, 0 }, count[2] = { 0, 0 };
    *out = (struct stage){ .first = s->first + a, .last = s->first + b - 1 };
    out->median_ms = median_of(s->x + a, b - a, room);
    for (int i = a; i < b; i++) {
        const struct profile_step *t = &p->step[s->first + i];
        out->total_s += s->x[i] / 1e3;
        out->outliers += t->outliers;
        if (t->vals || (i > 0 && t[-1].vals))
            out->after_val += t->outliers;
        else if (fabs(s->x[i] - out->median_ms) <= 0.5 * out->median_ms) {
            int odd = (s->first + i) & 1;
            sum[odd] += s->x[i];
            squares[odd] += s->x[i] * s->x[i];
            count[odd]++;
        }
    }
    out->mean_ms = 1e3 * out->total_s / (b - a);
    out->even_ms = sum[0] / count[0];
    out->odd_ms = sum[1] / count[1];
    double v0 = squares[0] / count[0] - out->even_ms * out->even_ms;
    double v1 = squares[1] / count[1] - out->odd_ms * out->odd_ms;
    double error = sqrt(fmax(v0, 0) / count[0] + fmax(v1, 0) / count[1]);
    double difference = fabs(out->even_ms - out->odd_ms);
    out->alternates = difference > 4 * error && difference > 0.02 * out->median_ms;
}

static void find(const struct profile *p, struct series *s, struct stages *out, double *room)
{
    int limit = s->n / 4 < WARMUP_MAX ? s->n / 4 : WARMUP_MAX, cuts[PROFILE_STAGES + 1];
    double base = median_of(s->x, limit > 16 ? limit : s->n, room);
    for (int i = 0; i < limit; i++)
        if (fabs(s->x[i] - base) > 0.5 * base)
            out->warmup = s->first + i;
    int warm = out->warmup ? out->warmup - s->first + 1 : 0;
    for (int i = 0; i < warm; i++)
        out->warmup_s += s->x[i] / 1e3;
    s->x += warm;
    s->first += warm;
    s->n -= warm;
    if (s->n < 3)
        return;
    smooth(s, room);
    s->noise = noise_of(s, room);
    out->n = segment(s, cuts);
    for (int i = 1; i < out->n; i++)
        cuts[i] = sharpen(s, cuts[i]);
    for (int i = 0; i < out->n; i++)
        measure(p, s, cuts[i], cuts[i + 1], &out->stage[i], room);
    out->warmup_excess_s = out->warmup_s - warm * out->stage[0].median_ms / 1e3;
}

int profile_stages(const struct profile *p, struct stages *out)
{
    memset(out, 0, sizeof *out);
    int32_t first = 1, last = p->steps - 1;
    while (first <= last && !p->step[first].n)
        first++;
    while (last > first && !p->step[last].n)
        last--;
    int n = last - first + 1;
    if (n < 3)
        return 0;
    double *room = malloc((5 * (size_t)n + 1) * sizeof *room);
    if (!room)
        return err_memory();
    struct series s = { .n = n, .first = first, .x = room, .y = room + n, .sums = room + 2 * n };
    for (int i = 0; i < n; i++) { /* a step no run has takes as long as the last */
        double ms = profile_ms(p, first + i);
        s.x[i] = isnan(ms) ? i ? s.x[i - 1] : 0 : ms;
    }
    find(p, &s, out, room + 3 * n + 1);
    free(room);
    return 0;
}
