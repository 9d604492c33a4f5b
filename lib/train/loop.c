/* loop.c - what one rank does from its first step to its last.
 *
 * A chunk of the loader is uploaded (batch_upload) while the previous step computes; forward and
 * backward of each micro-batch and the optimizer are queued, eagerly or as graphs (step_launch);
 * the loss is read and logged (report_step) one step later where work is queued, so that the device
 * never waits for the host, and at once elsewhere. Validation and checkpoints are done between
 * steps (between_steps).
 */
#include <math.h>
#include <signal.h>
#include <unistd.h>
#include "train/rank.h"

static volatile sig_atomic_t stop_asked;

static volatile sig_atomic_t wake = -1;

void run_stop_wakes(int fd) { wake = fd; }

void run_stop(void)
{
    static const uint64_t one = 1;
    stop_asked = 1;
    if (wake >= 0 && write(wake, &one, sizeof one) < 0) {
        /* it is set already */
    }
}

bool run_stopping(void) { return stop_asked; }

int rank_status(struct rank *k)
{
    int rc = k->ops->status(k->ops);
    return rc ? rc : k->comm->status(k->comm);
}

void rank_enter(struct rank *k, const char *phase, bool watched)
{
    const struct backend *be = k->run->opt->backend;
    k->phase = phase;
    if (be->phase && k->comm)
        be->phase(k->comm, watched ? phase : NULL);
}

/* -- batches ------------------------------------------------------------------------- */

struct chunk_shape batch_chunk(const struct recipe *r, int tokens, bool csr)
{
    return (struct chunk_shape){ .tokens = tokens,
                                 .bound = cu_bound(tokens, r->data.max_documents),
                                 .vocab = r->model.vocab,
                                 .bigram_rows = r->model.bigram.rows,
                                 .csr = csr };
}

size_t batch_slot_bytes(const struct recipe *r, int64_t tokens, bool csr)
{
    struct chunk_shape s = batch_chunk(r, (int)tokens, csr);
    return chunk_block_bytes(&s);
}

/* The address on the device of p, which points into the chunk's block on the host. */
static const int32_t *uploaded(char *slot, const struct chunk *c, const int32_t *p)
{
    return p ? (const int32_t *)(slot + ((const char *)p - (const char *)c->block)) : NULL;
}

struct batch batch_upload(struct rank *k, char *slot, const struct chunk *c, bool ahead)
{
    (ahead ? k->ops->upload_ahead : k->ops->upload)(k->ops, slot, c->block, c->block_bytes);
    return (struct batch){
        .tokens = c->tokens,
        .tgt = uploaded(slot, c, c->tgt),
        .cu = uploaded(slot, c, c->cu),
        .ncu = c->bound,
        .token = { c->tokens, uploaded(slot, c, c->tok), uploaded(slot, c, c->order),
                   uploaded(slot, c, c->start) },
        .bigram = { c->bigram ? c->tokens : 0, uploaded(slot, c, c->bigram),
                    uploaded(slot, c, c->bigram_order), uploaded(slot, c, c->bigram_start) },
    };
}

/* Called by the loader in its own thread; no chunks: the run has ended. */
struct batch_shape batch_of_step(void *ctx, int64_t step)
{
    const struct recipe *r = ctx;
    struct step_schedule p;
    if (step >= schedule_total(r))
        return (struct batch_shape){ 0 };
    schedule_at(r, (int)step, &p);
    return (struct batch_shape){ .chunks = r->data.chunks,
                                 .tokens = p.chunk_tokens,
                                 .cap = p.sequence,
                                 .bound = cu_bound(p.chunk_tokens, r->data.max_documents) };
}

struct batch_shape batch_largest(const struct recipe *r)
{
    struct batch_shape s = { .chunks = r->data.chunks };
    for (int i = 0; i < r->n_stages; i++)
        if (r->stages[i].tokens / r->data.chunks > s.tokens)
            s.tokens = (int)(r->stages[i].tokens / r->data.chunks);
    s.bound = cu_bound(s.tokens, r->data.max_documents);
    return s;
}

/* -- forward, backward, optimizer -------------------------------------------------------- */

/* In a timeline: that what is queued so far is done. */
static void mark(struct rank *k, int mark, int64_t part)
{
    if (k->run->opt->trace)
        k->run->opt->backend->mark(k->ops, mark, (int)part);
}

/* Marks: from OF_FINAL on a parameter each, whose part is the matrix that is final; from OF_ACTION on an action
 * of the plan each, whose part is the parameter. */
enum { OF_FINAL = TRACE_STEP + 1, OF_ACTION = OF_FINAL + MAX_PARAMS };

void rank_mark_label(void *ctx, int mark, int part, char *text, size_t size)
{
    const struct recipe *r = ctx;
    const struct param_spec *s = &r->params[mark < OF_ACTION ? mark - OF_FINAL : part];

    if (mark >= OF_ACTION)
        snprintf(text, size, "%s %s", step_plan_word((enum act)(mark - OF_ACTION)), s->label);
    else if (s->matrices > 1)
        snprintf(text, size, "gradient of %s %d final", s->label, part);
    else
        snprintf(text, size, "gradient of %s final", s->label);
}

static void on_done(void *ctx, enum act act, int i) { mark(ctx, OF_ACTION + (int)act, i); }

static void note_final(struct run_order *o, int param, int first, int n)
{
    struct final_rows *last = o->n ? &o->at[o->n - 1] : NULL;
    if (last && last->param == param && last->first == first + n) {
        last->first = first;
        last->n += n;
    } else if (last && last->param == param && last->first + last->n == first) {
        last->n += n;
    } else if (o->n < MAX_FINALS) {
        o->at[o->n++] = (struct final_rows){ param, first, n };
    }
}

/* Callbacks of the model: a gradient becomes final, a weight is needed. */
static void on_final(void *ctx, struct param *p, int64_t first, int64_t n)
{
    struct rank *k = ctx;
    int i = (int)(p - k->banks.p);
    int64_t unit = param_unit_rows(p);
    mark(k, OF_FINAL + i, first / unit);
    if (k->order)
        note_final(k->order, i, (int)(first / unit), (int)(n / unit));
    optim_reduce_early(&k->optim, (int)(p - k->banks.p), first, n);
}

static void on_need(void *ctx, struct param *p)
{
    struct rank *k = ctx;
    optim_need(&k->optim, (int)(p - k->banks.p));
}

static void launch_gradients(struct rank *k, const struct batch *b)
{
    mark(k, TRACE_STEP, 0);
    k->optim.on_done = k->run->opt->trace ? on_done : NULL;
    k->optim.ctx = k;
    k->ops->zero(k->ops, tensor_of(k->loss, DT_REAL, 1, LOSSES));
    k->model.stale = true; /* --bench calls model_set once for many steps */
    optim_begin(&k->optim);
    k->model.ctx = k;
    k->model.final = on_final;
    for (int m = 0; m < k->micros; m++) {
        k->model.need = m == 0 ? on_need : NULL;
        k->model.more = m + 1 < k->micros;
        model_train(&k->model, &b[m], k->loss);
    }
    k->model.need = NULL;
    optim_pause(&k->optim);
}

void step_launch_model(struct rank *k, const struct batch *b)
{
    banks_begin(&k->banks, UINT32_MAX);
    k->model.final = NULL;
    k->model.stale = true;
    for (int m = 0; m < k->micros; m++) {
        k->model.more = m + 1 < k->micros;
        model_train(&k->model, &b[m], k->loss);
    }
}

static void launch_update(struct rank *k, const struct batch *b)
{
    (void)b;
    optim_step(&k->optim);
}

static void launch_step(struct rank *k, const struct batch *b)
{
    launch_gradients(k, b);
    launch_update(k, b);
}

/* No launch of a step depends on values in device memory, so a step is captured whole, in one
 * graph. A sparse gradient is exchanged by counts that the host must know: such a step is two
 * graphs, with the exchange between them. */
typedef void launches(struct rank *k, const struct batch *b);

/* The graph of `part` of a step: steps differ by the shape of their batches, by which of two sets of batches they
 * read, and by what their plan queues. NULL: there is none yet, and no room for more. */
static struct graph *graph_of(struct rank *k, const struct step_schedule *p, int part)
{
    struct graph at = { p->stage, p->step & 1, k->optim.plan->queued, part, NULL };
    for (int i = 0; i < k->n_graphs; i++) {
        struct graph *g = &k->graph[i];
        if (g->stage == at.stage && g->slots == at.slots && g->queued == at.queued &&
            g->part == at.part)
            return g;
    }
    if (k->n_graphs == MAX_GRAPHS)
        return NULL;
    k->graph[k->n_graphs] = at;
    return &k->graph[k->n_graphs++];
}

/* Queues `part` of a step: with graphs, launches its own, which is captured at first use. */
static int launch_part(struct rank *k, int part, launches *f, const struct step_schedule *p,
                       const struct batch *b)
{
    struct backend *be = k->run->opt->backend;
    struct graph *g = be->capture && !k->run->opt->no_graph ? graph_of(k, p, part) : NULL;
    int rc;

    if (!g) {
        f(k, b);
        return 0;
    }
    if (!g->captured) {
        double from = now_seconds();
        if ((rc = be->capture(k->ops)))
            return rc;
        f(k, b);
        if ((rc = be->capture_end(k->ops, &g->captured)))
            return rc;
        k->captured += now_seconds() - from;
    }
    be->launch(k->ops, g->captured);
    return 0;
}

int step_launch(struct rank *k, const struct step_schedule *p, const struct batch *b)
{
    int rc;
    if (!optim_exchanges(&k->optim))
        return launch_part(k, 0, launch_step, p, b);
    if ((rc = launch_part(k, 0, launch_gradients, p, b)) || (rc = optim_exchange(&k->optim)))
        return rc;
    return launch_part(k, 1, launch_update, p, b);
}

/* -- one step -------------------------------------------------------------------------- */

/* After a resumed run has passed over what it had used. */
static void report_skipped(struct run *run, int64_t tokens)
{
    if (run->resume_dir)
        runlog_key(&run->log, "skipped", "%lld tokens of the stream", (long long)tokens);
}

void upload_step(struct rank *k, int set, const struct step_batch *s, bool ahead, struct batch *b)
{
    for (int m = 0; m < k->micros; m++) {
        char *slot = k->slots + (size_t)(set * k->micros + m) * k->slot_bytes;
        const struct chunk *c = &s->chunk[m * k->world + k->rank];
        b[m] = batch_upload(k, slot, c, ahead);
        optim_touch(&k->optim, c->bigram, c->bigram ? c->tokens : 0);
    }
}

/* Queues one step: forward and backward of each micro-batch, the optimizer. The slots
 * are two sets that steps use in turn: the batch is uploaded while the previous step computes, and
 * the step before that, which read this set, has been reported. */
int train_step(struct rank *k, const struct step_schedule *p, const struct step_batch *s)
{
    struct batch b[MAX_MICRO];
    int rc;

    rank_enter(k, "step", true);
    model_set(&k->model, p);
    optim_prepare(&k->optim, p);
    upload_step(k, p->step & 1, s, true, b);
    if ((rc = step_launch(k, p, b)))
        return rc;
    k->ops->fetch(k->ops, k->loss, LOSSES * sizeof *k->loss);
    if (k->optim.gate)
        k->ops->fetch(k->ops, &k->optim.gate->gate, sizeof k->optim.gate->gate);
    optim_finish(&k->optim, p);
    k->after = s->after;
    k->ended[p->step & 1] = s->ended;
    k->passes = s->passes;
    k->tokens_seen += p->tokens;
    if (k->run->stream && !k->local && k->step == k->run->first)
        report_skipped(k->run, s->from);
    if (!k->local && k->run->opt->used)
        *k->run->opt->used = s->upto;
    return rank_status(k);
}

/* -- log lines --------------------------------------------------------------------------- */

static double elapsed_ms(const struct rank *k)
{
    return 1e3 * (now_seconds() - k->started - k->paused);
}

/* What the gate decided on step `done`, the same on all ranks. */
static int read_gate(struct rank *k, int done, const struct step_schedule *p, double loss,
                     struct step_gate *g)
{
    int most = k->run->recipe->optimizer.max_skips;
    *g = (struct step_gate){ 0 };
    if (!k->optim.gate)
        return 0;
    k->ops->fetched(k->ops, g, sizeof *g);
    int rc = rank_status(k);
    if (rc)
        return rc;
    optim_outcome(&k->optim, p, g->skip);
    k->skips += g->skip != 0;
    k->skips_in_a_row = g->skip ? k->skips_in_a_row + 1 : 0;
    if (k->skips_in_a_row <= most)
        return 0;
    char what[160];
    snprintf(what, sizeof what,
             "step %d: the gradients are not finite; steps skipped in a row: %d, at most "
             "optimizer.max_skips = %d",
             done, k->skips_in_a_row, most);
    return check_origin(k, done - k->skips_in_a_row, !isfinite(loss), what);
}

/* Logs the pass over the data that ended before step `done` or in it. */
static void report_pass(struct rank *k, int done)
{
    const struct pass *p = &k->ended[(done - 1) & 1];
    char text[PASS_TEXT];
    if (!p->number)
        return;
    pass_text(p, text, sizeof text);
    runlog_key(&k->run->log, "pass", "%lld has ended, trained on %s", (long long)p->number, text);
}

int gather_loss(struct rank *k, const real *sum, const struct step_schedule *p, struct step_loss *l)
{
    enum { STOP = LOSSES, TOLD };
    double mine[TOLD], all[TOLD * MAX_RANKS];
    int rc;

    *l = (struct step_loss){ 0 };
    for (int i = 0; i < LOSSES; i++)
        mine[i] = (double)sum[i] / (double)p->tokens;
    mine[STOP] = stop_asked;
    if ((rc = rank_status(k)) || (rc = k->comm->gather_host(k->comm, mine, TOLD, all)))
        return rc;
    for (int i = 0; i < k->world; i++) {
        l->loss += all[TOLD * i];
        l->next += all[TOLD * i + 1];
        l->stop |= all[TOLD * i + STOP] != 0;
    }
    l->next = k->model.next ? l->next : NAN;
    return 0;
}

int step_outcome(struct rank *k, int done, struct step_loss *l, struct step_gate *gate)
{
    struct step_schedule p;
    real sum[LOSSES];
    int rc;

    schedule_at(k->run->recipe, done - 1, &p);
    k->ops->fetched(k->ops, sum, sizeof sum);
    if ((rc = read_gate(k, done, &p, (double)sum[0], gate)) || (rc = gather_loss(k, sum, &p, l)))
        return rc;
    if (!isfinite(l->loss) && !gate->skip)
        return check_loss(k, done, l->loss, !isfinite((double)sum[0]));
    return 0;
}

/* Logs step `done`. *stop: some rank has been asked to stop. */
static int report_step(struct rank *k, int done, bool *stop)
{
    struct run *run = k->run;
    struct step_schedule p;
    struct step_gate gate;
    struct step_loss l;
    int rc = step_outcome(k, done, &l, &gate);
    if (rc)
        return rc;
    schedule_at(run->recipe, done - 1, &p);
    *stop |= l.stop;
    if (!k->local)
        run_reaches(done);
    if (k->rank)
        return 0;
    double ms = elapsed_ms(k), rest = ms / (done - run->first) * (run->total - done) / 1e3;
    char left[16];
    report_pass(k, done);
    if (gate.skip)
        runlog_skip(&run->log, done, k->skips, ms, ms / (done - run->first));
    else
        runlog_step(&run->log, done, l.loss, l.next, k->optim.gate ? (double)gate.norm : -1, ms,
                    ms / (done - run->first));
    char objective[40] = "";
    if (k->model.next)
        snprintf(objective, sizeof objective, " (objective %.4f)", l.loss);
    progress_line(&run->progress, "step %d/%d  loss %.4f%s  %.0f tokens/s  %s left", done,
                  run->total, k->model.next ? l.next : l.loss, objective,
                  (double)p.tokens * (done - run->first) / ms * 1e3, format_duration(left, rest));
    return runlog_status(&run->log);
}

/* Says where the time went from the start of the program until the first step is queued, without a validation
 * before it. */
static int report_start(struct rank *k)
{
    struct run *run = k->run;
    double now = now_seconds() - k->paused;
    if (k->rank)
        return 0;
    runlog_start(&run->log, now - run->opt->began,
                 &(struct runlog_start){ .contexts = k->began - run->opt->began,
                                         .device = k->start[START_DEVICE],
                                         .weights = k->start[START_WEIGHTS],
                                         .data = k->start[START_DATA],
                                         .values = k->start[START_VALUES],
                                         .ranks = k->start[START_RANKS],
                                         .memory = k->start[START_MEMORY],
                                         .others = k->start[START_OTHERS],
                                         .first_step = now - k->lapped,
                                         .opening = run->opened - run->chosen,
                                         .joining = k->joining.seconds,
                                         .capture = k->captured });
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

static void log_exchange(struct rank *k)
{
    if (!k->optim.sparse)
        return;
    struct sparse_stats s = sparse_stats(k->optim.sparse);
    runlog_sparse(&k->run->log, (int)s.exchanges, (int)s.dense, s.sent_bytes / 1e6,
                  s.dense_bytes / 1e6);
}

/* With an fp8 copy of the head: the largest magnitude of its weights on any rank. */
static int log_head(struct rank *k)
{
    const struct fp8_copy *copy = &k->model.p.lm_head->fp8;
    double mine, all[MAX_RANKS], most = 0;
    real amax;
    if (!copy->codes.data)
        return 0;
    k->ops->download(k->ops, &amax, copy->amax, sizeof amax);
    mine = (double)amax;
    int rc = rank_status(k);
    if (!rc)
        rc = k->comm->gather_host(k->comm, &mine, 1, all);
    for (int r = 0; r < k->world && !rc; r++)
        most = isnan(most) || all[r] <= most ? most : all[r];
    if (!rc && !k->rank)
        runlog_head(&k->run->log, most, 448 * (double)copy->scale_inv);
    return rc;
}

int log_end(struct rank *k)
{
    if (!k->rank)
        log_exchange(k);
    int rc = log_head(k);
    if (!rc && !k->rank && k->passes > 0)
        runlog_key(&k->run->log, "passes", "%.2f", k->passes);
    if (!rc && !k->rank)
        runlog_clock(&k->run->log,
                     &(struct runlog_clock){ .whole = now_seconds() - k->run->opt->began,
                                             .start = k->started - k->run->opt->began,
                                             .steps = elapsed_ms(k) / 1e3,
                                             .validation = k->paused - k->saving,
                                             .checkpoints = k->saving });
    if (!rc && !k->rank)
        runlog_memory(&k->run->log, (double)k->ops->allocated(k->ops) / (1 << 20));
    return rc;
}

/* -- between steps ------------------------------------------------------------------------- */

/* A pair that the mask bars would have no probability. Shards which do not say what made them may be
 * another tokenizer's. Every validation has the same tokens, so the first one checks them. */
static int check_canonical(const struct token_mask *never, const struct chunk *c)
{
    for (int t = 0; never->bits && t < c->tokens; t++)
        if (token_mask_never(never, c->tok[t], c->tgt[t]))
            return err_set(GPT_INPUT,
                           "validation: token %d after %d, which no text of the vocabulary of "
                           "--vocab has; use that of the shards, or data.val_canonical=no",
                           c->tgt[t], c->tok[t]);
    return 0;
}

/* This rank's part of the sum of validation losses; RUN_STOPPED: a signal came. */
static int validate_chunks(struct rank *k, int64_t n, real *sum)
{
    *sum = 0;
    for (int64_t i = k->rank; i < n; i += k->world) {
        struct chunk c;
        int rc = stop_asked ? RUN_STOPPED : val_chunk(k->run->val, k->local, i, &c);
        if (!rc && !k->val_seen)
            rc = check_canonical(&k->run->vocabulary.never, &c);
        if (rc)
            return rc;
        struct batch b = batch_upload(k, k->val_slot, &c, false);
        model_eval(&k->model, &b, k->loss);
    }
    k->val_seen = true;
    k->ops->download(k->ops, sum, k->loss, sizeof *sum);
    return 0;
}

/* Mean loss over the validation tokens; the same on all ranks. Where the tokens of a rank cannot be
 * read it returns that code, and the others -code; RUN_STOPPED after a signal to any. */
static int validate(struct rank *k, const struct step_schedule *at, double *mean)
{
    const struct recipe *r = k->run->recipe;
    struct step_schedule p = *at;
    int64_t n = r->data.val.tokens / r->data.val.chunk;
    double mine[2], all[2 * MAX_RANKS];
    real sum;

    rank_enter(k, "validation", false);
    p.sequence = (int)r->data.val.chunk; /* documents are not truncated */
    optim_settle(&k->optim);
    bool apart = schedule_reads_apart(r, at->step);
    if (apart)
        optim_read_apart(&k->optim, true);
    model_set(&k->model, &p);
    k->ops->zero(k->ops, tensor_of(k->loss, DT_REAL, 1, 1));
    int ended = validate_chunks(k, n, &sum);
    if (apart)
        optim_read_apart(&k->optim, false);
    int rc = ended ? 0 : rank_status(k);
    mine[0] = (double)sum;
    mine[1] = ended;
    if (!rc)
        rc = k->comm->gather_host(k->comm, mine, 2, all);
    *mean = 0;
    for (int i = 0; i < k->world && !rc; i++) {
        int other = (int)all[2 * i + 1];
        *mean += all[2 * i] / (double)(n * r->data.val.chunk);
        if (other > 0 && ended <= 0) /* an error counts more */
            ended = -other;
        else if (other == RUN_STOPPED && !ended)
            ended = RUN_STOPPED;
    }
    return rc ? rc : ended;
}

/* Is a thing that is done every `every` steps due? 0: never. */
static bool due(int64_t step, int64_t every) { return every && step % every == 0; }

/* Ends the run, whose data fail, before step k->step, in which nothing has been queued. code: this
 * rank has its message; or -code where another has it, or RUN_STOPPED. Saves the state if it is not
 * saved yet. */
static int end_here(struct rank *k, bool pending, int code)
{
    struct run *run = k->run;
    char said[sizeof run->message];
    bool stop = true;
    snprintf(said, sizeof said, "%s", err_message());
    if (rank_status(k) || (code == GPT_SYSTEM && k->world > run->opt->ranks))
        return err_set(code, "%s", said); /* or this process alone cannot read */
    int rc = pending ? report_step(k, k->step, &stop) : 0;
    if (!rc && run->opt->out && k->step > run->first && run_progress().kept < k->step)
        rc = save_checkpoint(k, code == RUN_STOPPED);
    if (rc || code == RUN_STOPPED)
        return rc ? rc : code;
    return code < 0 ? k->comm->barrier(k->comm) : err_set(code, "%s", said);
}

/* Writes a checkpoint; its time is the run's, not the steps'. */
static int save_timed(struct rank *k, bool needed)
{
    double from = now_seconds();
    int rc = save_checkpoint(k, needed);
    k->saving += now_seconds() - from;
    return rc;
}

/* Validation and checkpoint that are due before step k->step; not counted in the training time. *stop:
 * the run stops here if its state is whole, without the validation. */
static int between_steps(struct rank *k, const struct step_schedule *p, bool *stop)
{
    struct run *run = k->run;
    const struct recipe *r = run->recipe;
    double begin = now_seconds(), ms = elapsed_ms(k), loss;
    bool last = k->step == run->total, validates = schedule_validates(r, k->step);
    int rc = 0;

    if (validates && !*stop) {
        if ((rc = validate(k, p, &loss)) && rc != RUN_STOPPED)
            return end_here(k, false, rc);
        *stop = rc == RUN_STOPPED;
        if (!*stop && (rc = report_val(k, loss, ms)))
            return rc;
    }
    bool ends = *stop && (last ? validates : save_whole(k));
    if (run->opt->out && k->step > run->first && save_whole(k) &&
        (ends || last || due(k->step, r->data.checkpoint_every)))
        rc = save_timed(k, ends || last);
    else
        rc = 0;
    k->paused += now_seconds() - begin;
    return !rc && ends ? RUN_STOPPED : rc;
}

/* -- all steps ------------------------------------------------------------------------------- */

int rank_loop(struct rank *k)
{
    struct run *run = k->run;
    const struct step_batch *batch;
    int rc, pending = 0;
    bool stop = false;

    k->started = now_seconds();
    for (k->step = run->first;; k->step++) {
        struct step_schedule p;
        bool last = k->step == run->total;
        schedule_at(run->recipe, k->step, &p);
        bool pause = last || (stop && save_whole(k)) || schedule_validates(run->recipe, k->step) ||
                     due(k->step, run->recipe->data.checkpoint_every);
        if (pause && pending) {
            if ((rc = report_step(k, k->step, &stop)))
                return rc;
            pending = 0;
        }
        if (pause && (rc = between_steps(k, &p, &stop)))
            return rc;
        if (last)
            return 0;
        rank_enter(k, "data", false);
        if ((rc = loader_next(run->loader, k->rank, &batch)))
            return end_here(k, pending, rc == LOADER_STOPPED ? RUN_STOPPED : rc);
        if ((rc = train_step(k, &p, batch)))
            return rc;
        if (k->step == run->first && (rc = report_start(k)))
            return rc;
        if (run->recipe->precision.check_weights && (rc = check_weights(k)))
            return rc;
        if (pending && (rc = report_step(k, k->step, &stop)))
            return rc;
        pending = 1;
        if (!run->opt->backend->queues) { /* the step has ended */
            if ((rc = report_step(k, k->step + 1, &stop)))
                return rc;
            pending = 0;
        }
    }
}
