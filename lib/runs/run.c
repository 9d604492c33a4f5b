/* run.c - see run.h. */
#include "runs/run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FNV 14695981039346656037u /* where FNV-1a begins */

/* FNV-1a, a word at a time. */
uint64_t run_mix(uint64_t h, double x)
{
    uint64_t word;
    memcpy(&word, &x, sizeof word);
    h = ((h ? h : FNV) ^ word) * 1099511628211u;
    return h ^ h >> 32;
}

void run_digest(struct run *r)
{
    uint64_t h = 0;
    r->losses = 0;
    for (int i = 0; i < r->vals; i++, r->losses++)
        h = run_mix(run_mix(h, r->val[i].step), r->val[i].loss);
    for (int i = 0; i < r->steps; i++) {
        if (isnan(r->step[i].loss))
            continue;
        h = run_mix(run_mix(h, r->step[i].step), r->step[i].loss);
        r->losses++;
    }
    r->loss_digest = h;
}

static void *copy(const void *from, int n, size_t size)
{
    void *to = malloc((size_t)n * size + 1);
    if (to && n)
        memcpy(to, from, (size_t)n * size);
    return to;
}

int run_copy(struct run *to, const struct run *r)
{
    *to = *r;
    to->facts = NULL;
    to->path = strdup(r->path);
    to->list = r->list ? strdup(r->list) : NULL;
    to->val = copy(r->val, r->vals, sizeof *r->val);
    to->step = copy(r->step, r->steps, sizeof *r->step);
    if (to->path && to->val && to->step && (to->list || !r->list))
        return 0;
    run_release(to);
    return err_memory();
}

void run_release(struct run *r)
{
    free((char *)r->path);
    free((char *)r->list);
    free(r->val);
    free(r->step);
    memset(r, 0, sizeof *r);
}

/* --- curves --- */

/* Elements, which begin with a step, of `head` up to a step and of `tail` beyond it. */
static void *joined(const void *head, int heads, const void *tail, int tails, size_t size,
                    int32_t step, int *kept, int *n)
{
    char *to = malloc((size_t)(heads + tails) * size + 1);
    *n = 0;
    for (int part = 0; to && part < 2; part++) {
        const char *from = part ? tail : head;
        for (int i = 0; i < (part ? tails : heads); i++, from += size) {
            int32_t at;
            memcpy(&at, from, sizeof at);
            if (part ? at > step : at <= step)
                memcpy(to + (size_t)(*n)++ * size, from, size);
        }
        if (!part)
            *kept = *n;
    }
    return to;
}

int run_join(struct run *e, const struct run *r, int32_t step, double clock_ms)
{
    int vals, steps, val0, step0;
    struct run_val *v = joined(e->val, e->vals, r->val, r->vals, sizeof *v, step, &val0, &vals);
    struct run_step *s =
        joined(e->step, e->steps, r->step, r->steps, sizeof *s, step, &step0, &steps);
    if (!v || !s) {
        free(v);
        free(s);
        return err_memory();
    }
    for (int i = val0; i < vals; i++)
        v[i].time_ms += clock_ms;
    for (int i = step0; i < steps; i++)
        s[i].time_ms += clock_ms;
    free(e->val);
    free(e->step);
    e->val = v, e->vals = vals;
    e->step = s, e->steps = steps;
    e->last = r->last;
    e->last_line = r->last_line;
    e->total = r->total;
    e->ended = r->ended;
    e->loss = r->loss;
    e->loss_digits = r->loss_digits;
    e->time_ms = r->ended && vals ? v[vals - 1].time_ms : NAN;
    e->missing += r->missing;
    e->cost.start += r->cost.start;
    e->cost.validation += r->cost.validation;
    e->cost.checkpoints += r->cost.checkpoints;
    e->cost.whole += r->cost.whole;
    return 0;
}

double run_clock_at(const struct run *r, int32_t step)
{
    for (int i = 0; i < r->vals; i++)
        if (r->val[i].step == step && !isnan(r->val[i].time_ms))
            return r->val[i].time_ms;
    for (int i = 0; i < r->steps; i++)
        if (r->step[i].step == step)
            return r->step[i].time_ms;
    return NAN;
}
