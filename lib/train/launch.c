/* launch.c - the launches of a step, eagerly or as graphs.
 *
 * One graph holds forward, backward and optimizer: nothing in it looks at the
 * device. Where a sparse gradient is exchanged, by counts that only the host
 * knows, the step is cut in two around that.
 */
#include "train/rank.h"

/* -- what the model calls -------------------------------------------------------------- */

static void early(void *ctx, struct param *p, int64_t first, int64_t n)
{
    struct rank *k = ctx;
    optim_reduce_early(&k->optim, k->at, (int)(p - k->banks.p), first, n);
}

static void needed(void *ctx, struct param *p)
{
    struct rank *k = ctx;
    optim_need(&k->optim, (int)(p - k->banks.p));
}

/* -- the parts of a step --------------------------------------------------------------- */

static void launch_gradients(struct rank *k, const struct step_schedule *p, const struct batch *b)
{
    k->ops->zero(k->ops, tensor_of(k->loss, DT_REAL, 1, 1));
    banks_begin(&k->banks, p->step % k->run->recipe->adam_every == 0);
    optim_begin(&k->optim, p);
    k->at = p;
    k->model.ctx = k;
    for (int m = 0; m < k->micros; m++) {
        k->model.need = m == 0 ? needed : NULL;
        k->model.final = m + 1 == k->micros ? early : NULL;
        model_train(&k->model, &b[m], k->loss);
    }
    k->model.need = NULL;
    if (optim_exchanges(&k->optim, p))
        optim_pause(&k->optim);
}

static void launch_update(struct rank *k, const struct step_schedule *p, const struct batch *b)
{
    (void)b;
    optim_step(&k->optim, p);
}

static void launch_step(struct rank *k, const struct step_schedule *p, const struct batch *b)
{
    launch_gradients(k, p, b);
    launch_update(k, p, b);
}

typedef void launches(struct rank *k, const struct step_schedule *p, const struct batch *b);

/* Does `part` of a step, from its graph where the backend has graphs. */
static int launch_part(struct rank *k, int part, launches *f, const struct step_schedule *p,
                       const struct batch *b)
{
    struct backend *be = k->run->opt->backend;
    int rc, key = ((p->stage * 2 + p->step % 2) * 2 + p->tied) * 2 + part;
    if (!be->capture || !run_captures(k->run->recipe, k->run->opt->no_graph)) {
        f(k, p, b);
        return 0;
    }
    if (!k->graph[key]) {
        if ((rc = be->capture(k->ops)))
            return rc;
        f(k, p, b);
        if ((rc = be->capture_end(k->ops, &k->graph[key])))
            return rc;
    }
    be->launch(k->ops, k->graph[key]);
    return 0;
}

int step_launch(struct rank *k, const struct step_schedule *p, const struct batch *b)
{
    int rc;
    if (!optim_exchanges(&k->optim, p))
        return launch_part(k, 0, launch_step, p, b);
    if ((rc = launch_part(k, 0, launch_gradients, p, b)) || (rc = optim_exchange(&k->optim)))
        return rc;
    return launch_part(k, 1, launch_update, p, b);
}
