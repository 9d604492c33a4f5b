/* estimate.c - see estimate.h. */
#include "train/estimate.h"

#include <math.h>
#include "recipe/schedule.h"
#include "recipe/share.h"
#include "recipe/states.h"
#include "train/rank.h"

void estimate_steps(const struct recipe *r, int *steps)
{
    struct step_schedule p;
    int last = r->n_stages > 1 ? r->n_stages - 2 : 0;
    for (int i = 0; i <= last; i++)
        steps[i] = 0;
    for (int i = 0; i < schedule_total(r); i++) {
        schedule_at(r, i, &p);
        steps[p.stage < last ? p.stage : last]++;
    }
}

double estimate_sent(const struct recipe *r, int stage, int ranks)
{
    struct step_schedule p;
    double sent = 0;
    int tied = 0, n = 0;
    for (int step = 0; step < schedule_total(r); step++) {
        schedule_at(r, step, &p);
        n += p.stage == stage;
        tied += p.stage == stage && p.tied;
    }
    for (int i = 0; i < r->n_params; i++)
        sent += plan_ring_bytes(r, i, ranks) / r->params[i].every *
                (i == r->order.tied_embed && n ? 1 - (double)tied / n : 1);
    return sent;
}

/* Bytes of gradient and states that an update of a parameter's part on one rank reads or writes. */
static double update_bytes(const struct recipe *r, int param, int ranks)
{
    struct state s[MAX_STATES];
    double bytes = 0;
    for (int k = 0, n = states_of(r, param, s); k < n;
         k++) /* read, and but for the gradient written */
        bytes +=
            (double)states_bytes(r, param, &s[k], ranks) * (s[k].role == STATE_GRADIENT ? 1 : 2);
    return bytes;
}

double estimate_update(const struct recipe *r, int ranks, const struct estimate_rates *at,
                       double *cut)
{
    double flops = 0, moved[2] = { 0, 0 }; /* replicated, cut */
    for (int k = 0; k < ranks; k++) {
        double own = 0;
        for (int i = 0; i < r->n_params; i++)
            if (r->params[i].comms != COMMS_REPLICATED)
                own += share_cost(r, i) * (double)share_of(r, i, k, ranks).count;
        flops = fmax(flops, own);
    }
    for (int i = 0; i < r->n_params; i++) {
        bool whole = r->params[i].comms == COMMS_REPLICATED;
        moved[!whole] += update_bytes(r, i, ranks) / r->params[i].every;
        if (whole)
            moved[0] +=
                share_cost(r, i) * (double)param_units(&r->params[i]) / at->products * at->copy;
    }
    *cut = flops / at->products + moved[1] / at->copy;
    return *cut + moved[0] / at->copy;
}

struct stage_estimate estimate_stage(const struct recipe *r, const struct stage_time *t, int ranks,
                                     const struct estimate_rates *at)
{
    double cut, seen = fmax(t->exposed, 0), sent = estimate_sent(r, t->stage, ranks);
    double before = estimate_sent(r, t->stage, t->ranks);
    struct stage_estimate e = { .micros = rank_micros(r->data.chunks, 0, ranks), .sent = sent };
    e.model = t->model * e.micros / rank_micros(r->data.chunks, 0, t->ranks);
    e.optim =
        t->optim * estimate_update(r, ranks, at, &cut) / estimate_update(r, t->ranks, at, &cut);
    if (ranks == t->ranks) {
        e.least = e.most = t->step;
        return e;
    }
    e.least = e.model + e.optim + (before > 0 ? seen * sent / before : 0);
    e.most = fmax(e.least, e.model + e.optim + 1e3 * sent / at->send);
    return e;
}
