/* one_batch.c - in place of a run: one batch, after some steps on it or none, for what is said of its gradients
 * (gradients.c) or activations (activations.c). */
#include <stdlib.h>
#include "train/rank.h"

/* The steps and the batch are of one shape: GPT_USAGE where the schedule changes it among them. */
static int check_steps(const struct run *run)
{
    const struct run_one *g = &run->opt->one;
    int most = g->batch > g->after - 1 ? g->batch : g->after - 1;
    struct step_schedule first, p;
    schedule_at(run->recipe, run->first, &first);
    for (int i = 0; i <= most; i++) {
        if (run->first + i >= run->total)
            return err_set(GPT_USAGE, "%s: step %d of %d has no %d after it",
                           g->batch >= g->after ? "--batch" : "--after", run->first, run->total,
                           most);
        schedule_at(run->recipe, run->first + i, &p);
        if (p.stage != first.stage || p.tied != first.tied || (i < g->after && p.untie))
            return err_set(
                GPT_USAGE, "%s: from step %d to %d the batch's shape, or what is tied, changes",
                g->batch >= g->after ? "--batch" : "--after", run->first, run->first + i);
    }
    return 0;
}

/* Takes the steps that come before, all on that batch. */
static int take_steps(struct rank *k, const struct step_batch *s)
{
    struct step_schedule p;
    struct step_gate gate;
    struct step_loss l;
    int rc = 0;
    for (int i = 0; i < k->run->opt->one.after && !rc; i++) {
        k->step = k->run->first + i;
        schedule_at(k->run->recipe, k->step, &p);
        if (!(rc = train_step(k, &p, s)))
            rc = step_outcome(k, k->step + 1, &l, &gate);
    }
    return rc;
}

int one_batch_floats(struct rank *k, struct tensor t, float **x)
{
    size_t n = (size_t)tensor_count(t);
    void *stored = malloc(tensor_bytes(t) + 1);
    int rc;
    *x = malloc(n * sizeof **x + 1);
    rc = stored && *x ? 0 : err_memory();
    if (!rc) {
        k->ops->download(k->ops, stored, t.data, tensor_bytes(t));
        rc = rank_status(k);
    }
    for (size_t i = 0; i < n && !rc; i++)
        (*x)[i] = t.dtype == DT_BF16 ? bf16_to_f32(((const uint16_t *)stored)[i])
                                     : ((const float *)stored)[i];
    free(stored);
    if (rc) {
        free(*x);
        *x = NULL;
    }
    return rc;
}

int one_batch_rank(struct rank *k)
{
    const struct run_one *one = &k->run->opt->one;
    const struct step_batch *s = NULL;
    struct step_schedule p;
    int rc = check_steps(k->run);
    rank_enter(k, "data", false);
    for (int i = 0; i <= one->batch && !rc; i++)
        rc = loader_next(k->run->loader, k->rank, &s);
    if (rc == LOADER_STOPPED)
        return RUN_STOPPED;
    if (rc || (rc = take_steps(k, s)))
        return rc;
    schedule_at(k->run->recipe, k->run->first, &p);
    optim_settle(&k->optim);
    model_set(&k->model, &p);
    return one->gradients ? gradients_of_batch(k, s) : activations_of_batch(k, s);
}
