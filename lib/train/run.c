/* run.c - the run: ranks as threads, and the loop that each of them goes through. */
#include "train/run.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include "base/version.h"
#include "train/rank.h"

static volatile sig_atomic_t stop_asked;

void run_stop(void) { stop_asked = 1; }

/* -- one rank ------------------------------------------------------------------- */

static int ready(struct rank *k)
{
    int rc = k->ops->status(k->ops);
    return rc ? rc : k->comm->status(k->comm);
}

/* What this rank does, for messages; a watched phase must not last. */
static void enter(struct rank *k, const char *phase, bool watched)
{
    const struct backend *be = k->run->opt->backend;
    k->phase = phase;
    if (be->phase && k->comm)
        be->phase(k->comm, watched ? phase : NULL);
}

static int rank_init(struct rank *k)
{
    struct run *run = k->run;
    const struct recipe *r = run->recipe;
    struct backend *be = run->opt->backend;
    struct batch_shape big = feed_largest(r);
    int rc;

    enter(k, "start", false);
    if ((rc = be->ops_new(&k->ops, k->local, be->group)))
        return rc;
    if ((rc = be->comm_new(&k->comm, k->ops, k->rank, k->world, be->group))) {
        k->named = true; /* this rank, or another one that failed and ended the meeting */
        return rc;
    }
    k->device = now_seconds();
    if ((rc = banks_init(&k->banks, r, k->ops, k->rank, k->world)) ||
        (rc =
             model_init(&k->model, &k->banks, big.tokens, r->val_tokens ? (int)r->val_chunk : 0)) ||
        (rc = optim_init(&k->optim, r, &k->banks, k->ops, k->comm)))
        return rc;
    k->slot_bytes = feed_slot_bytes(r, big.tokens, true);
    k->slots = k->ops->alloc(k->ops, 2 * (size_t)k->micros * k->slot_bytes, "batches");
    k->val_slot =
        k->ops->alloc(k->ops, feed_slot_bytes(r, r->val_chunk, false), "validation batch");
    k->loss = k->ops->alloc(k->ops, sizeof *k->loss, "loss");
    k->bad = k->ops->alloc(k->ops, sizeof *k->bad, "flag");
    if ((rc = k->ops->status(k->ops)))
        return rc;
    k->memory = now_seconds();
    rc = run->resume_dir ? resume_rank(k) : banks_fill(&k->banks, run->initial);
    k->values = now_seconds();
    return rc;
}

/* Mean loss over the validation tokens, on every rank the same. */
static int validate(struct rank *k, const struct step_schedule *at, double *mean)
{
    const struct recipe *r = k->run->recipe;
    struct step_schedule p = *at;
    int64_t n = r->val_tokens / r->val_chunk;
    double mine, all[MAX_RANKS];
    real sum;

    enter(k, "validation", false);
    p.sequence = (int)r->val_chunk; /* documents are not cut */
    optim_settle(&k->optim);
    model_set(&k->model, &p);
    k->ops->zero(k->ops, tensor_of(k->loss, DT_REAL, 1, 1));
    for (int64_t i = k->rank; i < n; i += k->world) {
        struct chunk c;
        int rc = val_chunk(k->run->val, k->local, i, &c);
        if (rc)
            return rc;
        struct batch b = feed_batch(k, k->val_slot, &c, false);
        model_eval(&k->model, &b, k->loss);
    }
    k->ops->download(k->ops, &sum, k->loss, sizeof sum);
    mine = (double)sum;
    int rc = ready(k);
    if (!rc)
        rc = k->comm->gather_host(k->comm, &mine, 1, all);
    *mean = 0;
    for (int i = 0; i < k->world; i++)
        *mean += all[i] / (double)(n * r->val_chunk);
    return rc;
}

/* One step: batch, forward and backward of each micro-batch, optimizer. The batch is copied while
 * the step before computes; the one before that, which read these slots, has been reported. */
static int train_step(struct rank *k, const struct step_schedule *p)
{
    const struct step_batch *s;
    struct batch b[MAX_MICRO];
    int rc;

    enter(k, "data", false);
    if ((rc = loader_next(k->run->loader, k->rank, &s)))
        return rc;
    enter(k, "step", true);
    model_set(&k->model, p);
    optim_prepare(&k->optim, p);
    for (int m = 0; m < k->micros; m++) {
        char *slot = k->slots + (size_t)((p->step & 1) * k->micros + m) * k->slot_bytes;
        const struct chunk *c = &s->chunk[m * k->world + k->rank];
        b[m] = feed_batch(k, slot, c, true);
        optim_touch(&k->optim, c->bigram, c->bigram ? c->tokens : 0);
    }
    if ((rc = step_launch(k, p, b)))
        return rc;
    k->ops->fetch(k->ops, k->loss, sizeof *k->loss);
    optim_finish(&k->optim, p);
    k->after = s->after;
    k->tokens_seen += p->tokens;
    return ready(k);
}

static double elapsed_ms(const struct rank *k)
{
    return 1e3 * (now_seconds() - k->started - k->paused);
}

/* The loss of the step before the one just queued: logs it and learns whether any
 * rank was asked to stop. */
static int report_step(struct rank *k, int done, bool *stop)
{
    struct run *run = k->run;
    double mine[2], all[2 * MAX_RANKS], loss = 0;
    struct step_schedule p;
    real sum;
    int rc;

    schedule_at(run->recipe, done - 1, &p);
    k->ops->fetched(k->ops, &sum, sizeof sum);
    mine[0] = (double)sum / (double)p.tokens;
    mine[1] = stop_asked;
    if ((rc = ready(k)) || (rc = k->comm->gather_host(k->comm, mine, 2, all)))
        return rc;
    for (int i = 0; i < k->world; i++) {
        loss += all[2 * i];
        *stop |= all[2 * i + 1] != 0;
    }
    if (!isfinite(loss))
        return check_loss(k, done, loss);
    if (k->rank)
        return 0;
    double ms = elapsed_ms(k), rest = ms / (done - run->first) * (run->total - done) / 1e3;
    char left[16];
    runlog_step(&run->log, done, loss, ms, ms / (done - run->first));
    progress_line(&run->progress, "step %d/%d  loss %.4f  %.0f tokens/s  %s left", done, run->total,
                  loss, (double)p.tokens * (done - run->first) / ms * 1e3,
                  format_duration(left, rest));
    return runlog_status(&run->log);
}

/* From the program's start until the first step is queued, less a validation before it. */
static int report_start(struct rank *k)
{
    struct run *run = k->run;
    double ready = run->opened, now = now_seconds() - k->paused;
    if (k->rank)
        return 0;
    runlog_start(&run->log, now - run->opt->began,
                 &(struct runlog_start){ .data = ready - run->opt->began,
                                         .device = k->device - ready,
                                         .memory = k->memory - k->device,
                                         .values = k->values - k->memory,
                                         .first_step = now - k->values });
    return runlog_status(&run->log);
}

static int report_val(struct rank *k, double loss, double ms)
{
    int n = k->step - k->run->first;
    if (k->rank)
        return 0;
    runlog_val(&k->run->log, k->step, loss, ms, ms / (n > 1 ? n : 1));
    return runlog_status(&k->run->log);
}

/* Something that is done every so many steps; 0: never. */
static bool due(int64_t step, int64_t every) { return every && step % every == 0; }

/* Validation and checkpoint due before step k->step; off the clock. */
static int between_steps(struct rank *k, const struct step_schedule *p, bool stop)
{
    struct run *run = k->run;
    const struct recipe *r = run->recipe;
    double begin = now_seconds(), ms = elapsed_ms(k), loss;
    bool whole = k->step % r->adam_every == 0 || k->step == run->total;
    bool save =
        k->step == run->total || (stop && whole) || (due(k->step, r->checkpoint_every) && whole);
    int rc = 0;

    if (r->val_tokens && (k->step == run->total || due(k->step, r->val_every))) {
        if (!(rc = validate(k, p, &loss)))
            rc = report_val(k, loss, ms);
        if (rc)
            return rc;
    }
    if (run->opt->out && save && k->step > run->first) {
        enter(k, "checkpoint", false);
        rc = save_checkpoint(k);
    }
    k->paused += now_seconds() - begin;
    return rc;
}

/* Reports run one step behind the launches, so that the device never waits for them. */
static int rank_loop(struct rank *k)
{
    struct run *run = k->run;
    int rc, pending = 0;
    bool stop = false;

    k->started = now_seconds();
    for (k->step = run->first;; k->step++) {
        struct step_schedule p;
        bool last = k->step == run->total;
        schedule_at(run->recipe, k->step, &p);
        bool halt = stop && k->step % run->recipe->adam_every == 0;
        bool pause = last || halt || due(k->step, run->recipe->val_every) ||
                     due(k->step, run->recipe->checkpoint_every);
        if (pause && pending) {
            if ((rc = report_step(k, k->step, &stop)))
                return rc;
            pending = 0;
            halt = stop && k->step % run->recipe->adam_every == 0;
        }
        if (pause && (rc = between_steps(k, &p, halt)))
            return rc;
        if (last || halt)
            return last ? 0 : RUN_STOPPED;
        if ((rc = train_step(k, &p)))
            return rc;
        if (k->step == run->first && (rc = report_start(k)))
            return rc;
        if (run->recipe->check_weights && (rc = check_weights(k)))
            return rc;
        if (pending && (rc = report_step(k, k->step, &stop)))
            return rc;
        pending = 1;
    }
}

static void rank_release(struct rank *k)
{
    for (int i = 0; i < GRAPHS; i++)
        if (k->graph[i])
            k->run->opt->backend->graph_free(k->graph[i]);
    optim_release(&k->optim);
    if (k->comm)
        k->comm->free(k->comm);
    if (k->ops)
        k->ops->free(k->ops);
}

/* The first failure is the run's; the others are its consequence. */
static void set_failure(struct run *run, int rc, const char *message)
{
    pthread_mutex_lock(&run->lock);
    if (!run->code) {
        run->code = rc;
        snprintf(run->message, sizeof run->message, "%s", message);
    }
    pthread_mutex_unlock(&run->lock);
}

static void rank_failed(struct rank *k, int rc)
{
    struct run *run = k->run;
    char own[600], named[600];
    snprintf(own, sizeof own, "%s", err_message());
    /* By another rank, which it names. */
    bool told = k->named || (k->comm && k->comm->status(k->comm));
    snprintf(named, sizeof named, "rank %d, %s: %.500s", k->rank, k->phase, own);
    set_failure(run, rc, told ? err_message() : k->world == 1 ? own : named);
    if (k->comm)
        k->comm->abort(k->comm, rc, own);
    else if (run->opt->backend->abort)
        run->opt->backend->abort(run->opt->backend->group, k->rank, rc, own);
    if (run->loader)
        loader_stop(run->loader);
    enter(k, "end", false); /* back from its device: what hangs now is another rank's */
}

/* Written when all ranks are ready: a run that cannot start logs nothing. */
static int log_header(struct run *run)
{
    const struct run_options *o = run->opt;
    struct runlog *l = &run->log;
    runlog_key(l, "tool", "gpt-train %s", GPT_VERSION);
    if (o->arguments)
        runlog_key(l, "arguments", "%s", o->arguments);
    runlog_key(l, "recipe", "%s %s", run->recipe->name, run->recipe->hash);
    runlog_key(l, "data", "%s", loader_id(run->loader));
    runlog_key(l, "seed", "%lld", (long long)run->recipe->seed);
    runlog_key(l, "device", "%s", o->backend->name);
    runlog_key(l, "ranks", "%d", o->backend->world);
    if (run->resume_dir)
        runlog_key(l, "resumed", "step %d of %s", run->first, run->resume_dir);
    runlog_recipe(l, recipe_canonical(run->recipe));
    return runlog_status(l);
}

static void log_exchange(struct rank *k)
{
    if (!k->optim.sparse)
        return;
    struct sparse_stats s = sparse_stats(k->optim.sparse);
    runlog_sparse(&k->run->log, (int)s.exchanges, (int)s.dense, s.sent_bytes / 1e6,
                  s.dense_bytes / 1e6);
}

/* Of the head's fp8 copy, if there is one: the largest weight on any rank. */
static int log_head(struct rank *k)
{
    const struct fp8_copy *copy = &k->model.p.lm_head->fp8;
    double mine, all[MAX_RANKS], most = 0;
    real amax;
    if (!copy->codes.data)
        return 0;
    k->ops->download(k->ops, &amax, copy->amax, sizeof amax);
    mine = (double)amax;
    int rc = ready(k);
    if (!rc)
        rc = k->comm->gather_host(k->comm, &mine, 1, all);
    for (int r = 0; r < k->world && !rc; r++)
        most = isnan(most) || all[r] <= most ? most : all[r];
    if (!rc && !k->rank)
        runlog_head(&k->run->log, most, 448 * (double)copy->scale_inv);
    return rc;
}

/* What only the end of a run knows. */
static int log_end(struct rank *k)
{
    if (!k->rank)
        log_exchange(k);
    int rc = log_head(k);
    if (!rc && !k->rank)
        runlog_memory(&k->run->log, (double)k->ops->allocated(k->ops) / (1 << 20));
    return rc;
}

static int rank_work(struct rank *k)
{
    const struct run_options *o = k->run->opt;
    int rc;
    if ((rc = rank_init(k)) || (rc = k->ops->sync(k->ops)) || (rc = k->comm->barrier(k->comm)))
        return rc;
    if (!k->local) { /* every rank has its values */
        initial_free(k->run->initial);
        k->run->initial = NULL;
    }
    if (o->bench)
        return bench_rank(k, o->bench, o->log);
    if (!k->rank && (rc = log_header(k->run)))
        return rc;
    rc = rank_loop(k);
    return rc ? rc : log_end(k);
}

static void *rank_main(void *arg)
{
    struct rank *k = arg;
    int rc = rank_work(k);
    if (rc > 0)
        rank_failed(k, rc);
    else if (rc == RUN_STOPPED && !k->local)
        k->run->code = RUN_STOPPED;
    rank_release(k);
    return NULL;
}

/* -- the whole run ------------------------------------------------------------------ */

static int open_data(struct run *run)
{
    const struct recipe *r = run->recipe;
    const struct backend *be = run->opt->backend;
    int n = run->opt->ranks, rc;
    struct loader_config c = {
        .data = run->opt->data,
        .world = be->world,
        .first_rank = be->first,
        .local_ranks = n,
        .vocab = r->vocab,
        .bos = r->bos,
        .cycle = r->cycle,
        .csr = true,
        .bigram_rows = r->bigram_rows,
        .shape = feed_shape,
        .ctx = (void *)r,
        .max = feed_largest(r),
    };
    if ((rc = loader_new(&run->loader, &c)))
        return rc;
    if (!r->val_tokens)
        return 0;
    struct val_config v = {
        .data = run->opt->data,
        .ranks = n,
        .vocab = r->vocab,
        .bos = r->bos,
        .bigram_rows = r->bigram_rows,
        .shape = { .chunks = r->chunks, .tokens = (int)r->val_chunk },
        .total = r->val_tokens / r->val_chunk,
    };
    return val_new(&run->val, &v);
}

/* The i-th rank of this process has no thread: those that would wait for it end, too. */
static void not_started(struct run *run, int i, int error)
{
    const struct backend *be = run->opt->backend;
    errno = error;
    int rc = err_sys("cannot start rank %d", be->first + i);
    set_failure(run, rc, err_message());
    if (be->abort)
        be->abort(be->group, be->first + i, rc, err_message());
    if (run->loader)
        loader_stop(run->loader);
}

static int run_ranks(struct run *run)
{
    const struct backend *be = run->opt->backend;
    int n = run->opt->ranks, started = 0, error = 0;
    struct rank *k = calloc((size_t)n, sizeof *k);
    pthread_t *t = calloc((size_t)n, sizeof *t);
    if (!k || !t)
        not_started(run, 0, ENOMEM);
    while (k && t && started < n && !error) {
        k[started] = (struct rank){ .run = run,
                                    .local = started,
                                    .rank = be->first + started,
                                    .world = be->world,
                                    .micros = run->recipe->chunks / be->world,
                                    .after = run->start,
                                    .tokens_seen = run->tokens_seen };
        error = pthread_create(&t[started], NULL, rank_main, &k[started]);
        if (error)
            not_started(run, started, error);
        else
            started++;
    }
    for (int i = 0; i < started; i++)
        pthread_join(t[i], NULL);
    free(k);
    free(t);
    return run->code;
}

int run_train(const struct run_options *o)
{
    struct run run = { .opt = o,
                       .recipe = o->recipe,
                       .total = schedule_total(o->recipe),
                       .lock = PTHREAD_MUTEX_INITIALIZER };
    int rc;
    run.log = (struct runlog){ o->log, run.total };
    if ((rc = check_ranks(o->recipe, o->backend->world)))
        return rc;
    if (!o->resume && (rc = initial_new(&run.initial, o->recipe, (uint64_t)o->recipe->seed)))
        return rc;
    if (o->bench) {
        rc = run_ranks(&run);
        initial_free(run.initial);
        return rc > 0 ? err_set(rc, "%s", run.message) : rc;
    }
    if (!(rc = open_data(&run)) && o->resume && !(rc = resume_open(&run)))
        rc = loader_seek(run.loader, &run.start);
    if (!rc)
        rc = save_check(&run);
    run.opened = now_seconds();
    if (!rc) {
        progress_init(&run.progress, o->progress);
        rc = run_ranks(&run);
        progress_end(&run.progress);
        if (rc > 0)
            rc = err_set(rc, "%s", run.message);
        else if (runlog_status(&run.log))
            rc = err_code();
    }
    initial_free(run.initial);
    loader_free(run.loader);
    val_free(run.val);
    free(run.resume_dir);
    return rc;
}
