/* start.c - the start of a rank, in an order in which little waits:
 *
 *     process        opens the data ------------------------------> open or not
 *     rank's thread  device | weights | waits for the data | values | waits | memory | connected
 *     beside it             | communicator ------------------------------>
 *
 * A communicator takes all ranks and most of a start: between GPUs half a second and more. It is made as soon as
 * the rank has a device, which meanwhile takes memory and receives its initial values.
 */
#include <string.h>
#include <sys/eventfd.h>
#include "train/rank.h"

/* Adds the time since the last call to a part of the start. */
static void lap(struct rank *k, enum start_part part)
{
    double now = now_seconds();
    k->start[part] += now - k->lapped;
    k->lapped = now;
}

/* -- the process opens the data ------------------------------------------------------------- */

void opening_ends(struct run *run, bool open)
{
    pthread_mutex_lock(&run->lock);
    run->opening = open ? OPENING_DONE : OPENING_FAILED;
    run->opened = now_seconds();
    pthread_cond_broadcast(&run->change);
    pthread_mutex_unlock(&run->lock);
}

/* Keeps the first failure: later ones follow from it. */
void run_failed(struct run *run, int rc, const char *message)
{
    pthread_mutex_lock(&run->lock);
    if (!run->code) {
        run->code = rc;
        snprintf(run->message, sizeof run->message, "%s", message);
    }
    pthread_cond_broadcast(&run->change);
    pthread_mutex_unlock(&run->lock);
}

void opening_interrupt(struct run *run)
{
    pthread_mutex_lock(&run->lock);
    bool over = run->opening != OPENING;
    pthread_mutex_unlock(&run->lock);
    if (over && run->loader)
        loader_stop(run->loader);
    else if (!over && run->wake >= 0)
        eventfd_write(run->wake, 1); /* it may wait for a pipe */
}

/* Waits for the data; RUN_STOPPED: they could not be opened, which the process knows. */
static int wait_open(struct rank *k)
{
    struct run *run = k->run;
    pthread_mutex_lock(&run->lock);
    while (run->opening == OPENING && run->code <= 0)
        pthread_cond_wait(&run->change, &run->lock);
    int rc = run->code > 0 ? run->code : run->opening == OPENING_DONE ? 0 : RUN_STOPPED;
    if (rc > 0) {
        err_set(rc, "%s", run->message);
        k->named = true;
    }
    pthread_mutex_unlock(&run->lock);
    k->after = run->start;
    k->tokens_seen = run->tokens_seen;
    return rc;
}

/* -- the communicator ------------------------------------------------------------------------ */

static void *join_main(void *arg)
{
    struct rank *k = arg;
    struct joining *j = &k->joining;
    const struct backend *be = k->run->opt->backend;
    double from = now_seconds();
    j->code = be->comm_new(&j->comm, k->ops, k->rank, k->world, be->group);
    if (j->code) {
        snprintf(j->message, sizeof j->message, "%s", err_message());
        run_failed(k->run, j->code, j->message); /* the rank may wait for the data */
        opening_interrupt(k->run);
    }
    j->seconds = now_seconds() - from;
    return NULL;
}

/* Begins to make the communicator beside the rank's thread, or makes it there where no thread starts. */
static void join_begin(struct rank *k)
{
    struct joining *j = &k->joining;
    j->beside = k->world > 1 && !pthread_create(&j->thread, NULL, join_main, k);
    if (!j->beside)
        join_main(k);
}

/* Ends the making of the communicator, after a failure rc of the rank, too, whose message stays. */
static int join_end(struct rank *k, int rc)
{
    struct joining *j = &k->joining;
    if (j->beside)
        pthread_join(j->thread, NULL);
    k->comm = j->comm;
    if (rc || !j->code)
        return rc;
    k->named = true; /* the message names the rank: this one, or another that failed */
    return err_set(j->code, "%s", j->message);
}

/* -- a rank ------------------------------------------------------------------------------------ */

/* Takes memory and initial values, which need no other rank. */
static int start_alone(struct rank *k, struct run_memory *taken)
{
    struct run *run = k->run;
    int rc = rank_weights(k, taken);
    if (rc)
        return rc;
    k->ops->reserve(k->ops, run->opt->ops_bytes);
    lap(k, START_WEIGHTS);
    if (!(rc = k->ops->status(k->ops)))
        rc = wait_open(k);
    lap(k, START_DATA);
    if (!rc && run->initial)
        rc = banks_fill(&k->banks, run->initial);
    lap(k, START_VALUES);
    return rc;
}

static int start_together(struct rank *k, struct run_memory *taken)
{
    struct run *run = k->run;
    bool unties = !run->opt->bench && schedule_untie_step(run->recipe) >= run->first;
    int rc = rank_states(k, taken);
    if (rc || (rc = optim_connect(&k->optim, unties)))
        return rc;
    if (k->model.prefix && run->vocabulary.prefix)
        model_prefixes(&k->model, run->vocabulary.prefix);
    if (run->vocabulary.never.bits)
        model_never(&k->model, &run->vocabulary.never);
    if ((rc = k->ops->status(k->ops)))
        return rc;
    lap(k, START_MEMORY);
    rc = run->initial ? optim_masters(&k->optim, run->initial) : resume_rank(k);
    lap(k, START_VALUES);
    return rc;
}

int rank_start(struct rank *k)
{
    const struct backend *be = k->run->opt->backend;
    struct run_memory taken;
    int rc = 0;

    k->began = k->lapped = now_seconds();
    rank_enter(k, "start", false);
    if (!be->queues) /* the processors are the device: first the data, which may be refused */
        rc = wait_open(k);
    lap(k, START_DATA);
    if (rc || (rc = be->ops_new(&k->ops, k->local, be->group)))
        return rc;
    lap(k, START_DEVICE);
    join_begin(k);
    rc = join_end(k, start_alone(k, &taken));
    lap(k, START_RANKS);
    if (rc || (rc = start_together(k, &taken)) || (rc = k->ops->sync(k->ops)) ||
        (rc = k->comm->barrier(k->comm)))
        return rc;
    lap(k, START_OTHERS);
    if (!k->local) { /* after the barrier no rank needs them */
        initial_free(k->run->initial);
        k->run->initial = NULL;
    }
    return 0;
}
