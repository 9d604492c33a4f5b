/* run.c - a run: its data, one thread a rank, and the end of a run on a failure. */
#include "train/run.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include "base/version.h"
#include "base/zio.h"
#include "checkpoint/checkpoint_dir.h"
#include "data/shard_stream.h"
#include "recipe/remarks.h"
#include "train/rank.h"

static _Atomic int reached = -1, kept = -1;

void run_reaches(int step) { reached = step; }

void run_keeps(int step) { kept = step; }

struct run_progress run_progress(void) { return (struct run_progress){ reached, kept }; }

/* -- one rank ------------------------------------------------------------------- */

static void rank_release(struct rank *k)
{
    for (int i = 0; i < k->n_graphs; i++)
        if (k->graph[i].captured)
            k->run->opt->backend->graph_free(k->graph[i].captured);
    optim_release(&k->optim);
    free(k->aside);
    if (k->comm)
        k->comm->free(k->comm);
    if (k->ops)
        k->ops->free(k->ops);
}

static void rank_failed(struct rank *k, int rc)
{
    struct run *run = k->run;
    char own[600], named[600];
    snprintf(own, sizeof own, "%s", err_message());
    /* The message of another rank names that rank. */
    bool names_rank = k->named || (k->comm && k->comm->status(k->comm));
    snprintf(named, sizeof named, "rank %d, %s: %.500s", k->rank, k->phase, own);
    run_failed(run, rc, names_rank ? err_message() : k->world == 1 ? own : named);
    if (k->comm)
        k->comm->abort(k->comm, rc, own);
    else if (run->opt->backend->abort)
        run->opt->backend->abort(run->opt->backend->group, k->rank, rc, own);
    opening_interrupt(run); /* now that whoever waits for the loader finds the failure */
    rank_enter(k, "end",
               false); /* this rank has left CUDA: a hang from here on is another rank's */
}

/* Logs which files train, which validate, and which that were named do neither. */
static void log_files(struct run *run)
{
    const struct corpus *train = loader_files(run->loader);
    const struct corpus *val = run->val ? val_files(run->val) : NULL;
    char names[1024];
    if (run->stream)
        return;
    corpus_names(train, names, sizeof names);
    runlog_key(&run->log, "training", "%s%s", names,
               run->old_choice ? " (chosen as when the run began)" : "");
    if (val) {
        corpus_names(val, names, sizeof names);
        runlog_key(&run->log, "validation", "%s", names);
    }
    if (corpus_unused(train, val, names, sizeof names))
        runlog_key(&run->log, "unused", "%s", names);
    if (*run->twice)
        runlog_key(&run->log, "twice", "%s", run->twice);
    if (run->shared >= 0)
        runlog_key(&run->log, "shared", "%s", train->shard[run->shared].name);
}

void run_warn(struct run *run, const char *message)
{
    pthread_mutex_lock(&run->lock);
    if (run->opt->warn)
        run->opt->warn(message);
    pthread_mutex_unlock(&run->lock);
}

static void warn_of_log(void *run, const char *message) { run_warn(run, message); }

/* True if the recipe names its training data and these are not they: losses do not compare. */
static bool has_other_data(const struct run *run)
{
    const char *expect = run->recipe->data.expect;
    return *expect && strcmp(expect, loader_id(run->loader));
}

/* Written when all ranks have started: a run that cannot start writes no log. */
static int log_header(struct run *run)
{
    const struct run_options *o = run->opt;
    struct runlog *l = &run->log;
    int rc = o->out ? runlog_keep(l, o->out) : 0;
    if (rc)
        return rc;
    runlog_key(l, "tool", "gpt-train %s", GPT_VERSION);
    runlog_key(l, "commit", "%s", version_commit());
    runlog_key(l, "program", "%s", version_program());
    if (o->arguments)
        runlog_key(l, "arguments", "%s", o->arguments);
    runlog_key(l, "recipe", "%s %s", run->recipe->name, run->recipe->hash);
    runlog_key(l, "data", "%s", loader_id(run->loader));
    if (has_other_data(run))
        runlog_key(l, "other data", "the recipe expects %s", run->recipe->data.expect);
    if (o->val && run->val && val_files(run->val))
        runlog_key(l, "validation data", "%s", val_files(run->val)->id);
    log_files(run);
    runlog_key(l, "seed", "%lld", (long long)run->recipe->seed);
    runlog_key(l, "device", "%s", o->backend->name);
    if (*o->backend->about)
        runlog_key(l, strcmp(o->backend->name, "cpu") ? "gpu" : "kernels", "%s", o->backend->about);
    const struct backend_software *has = &o->backend->software;
    if (has->cuda)
        runlog_key(l, "cuda", "%s", has->cuda);
    if (has->nccl)
        runlog_key(l, "nccl", "%s", has->nccl);
    if (has->driver)
        runlog_key(l, "driver", "%s", has->driver);
    runlog_key(l, "ranks", "%d", o->backend->world);
    if (run->from)
        runlog_key(l, "init", "%s of %s", run->begun, begin_path(run));
    else if (*run->begun)
        runlog_key(l, "init", "%s", run->begun);
    if (run->init_ids)
        runlog_key(l, "init_ids", "the first %lld of %d", (long long)run->init_ids,
                   run->recipe->model.vocab);
    if (run->resume_dir)
        runlog_key(l, "resumed", "step %d of %s", run->first, run->resume_dir);
    if (run->pass.tokens) {
        char text[PASS_TEXT];
        pass_text(&run->pass, text, sizeof text);
        runlog_key(l, "pass", "trains on %s", text);
    }
    runlog_recipe(l, recipe_canonical(run->recipe));
    return runlog_status(l);
}

static int rank_work(struct rank *k)
{
    const struct run_options *o = k->run->opt;
    int rc;
    if ((rc = rank_start(k)))
        return rc;
    if (o->bench)
        return bench_rank(k, o->bench, o->log);
    if (run_looks(o)) {
        rc = check_first(k);
        return rc ? rc : one_batch_rank(k);
    }
    if ((rc = check_first(k)) || (rc = save_room(k)) || (!k->rank && (rc = log_header(k->run))))
        return rc;
    if (!k->local) {
        run_reaches(k->run->first);
        run_keeps(k->run->resume_dir ? k->run->first : -1);
    }
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
        run_failed(k->run, rc, "");
    rank_release(k);
    return NULL;
}

/* -- the whole run ------------------------------------------------------------------ */

static int open_val(struct run *run)
{
    const struct recipe *r = run->recipe;
    const struct run_options *o = run->opt;
    struct val_config v = {
        .data = o->val        ? o->val
                : run->stream ? "standard input"
                              : o->data,
        .only_val = o->val,
        .choice = { .old = run->old_choice },
        .stream = o->val ? NULL : run->stream,
        .ranks = o->ranks,
        .vocab = r->model.vocab,
        .bos = r->data.bos,
        .bigram_rows = r->model.bigram.rows,
        .row = recipe_row(r),
        .shape = { .chunks = recipe_val_group(r),
                   .tokens = (int)r->data.val.chunk,
                   .bound = cu_bound((int)r->data.val.chunk, r->data.max_documents) },
        .total = r->data.val.tokens / r->data.val.chunk,
        .no_verify = run->opt->no_verify,
    };
    int rc = r->data.val.tokens ? val_new(&run->val, &v) : 0;
    const char *here = rc || !run->val || v.stream ? "" : val_files(run->val)->tokenizer;
    const char *trains = run->loader ? loader_tokenizer(run->loader) : "";
    if (*here && *trains && strcmp(here, trains))
        rc = err_set(GPT_INPUT, "%s: validation has the tokens of '%s', training those of '%s'",
                     v.data, here, trains);
    return rc;
}

struct loader_config loader_config_of(const struct recipe *r, const char *data, const char *val)
{
    return (
        struct loader_config){ .data = data,
                               .choice = { .val = val, .wants_val = !val && r->data.val.tokens },
                               .wake = -1,
                               .world = 1,
                               .local_ranks = 1,
                               .vocab = r->model.vocab,
                               .bos = r->data.bos,
                               .cut = r->data.cut,
                               .piece = r->data.piece,
                               .cycle = r->data.cycle,
                               .repeat = r->data.repeat,
                               .csr = true,
                               .bigram_rows = r->model.bigram.rows,
                               .shape = batch_of_step,
                               .ctx = (void *)r,
                               .max = batch_largest(r) };
}

static struct loader_config config_of(const struct run *run)
{
    const struct backend *be = run->opt->backend;
    struct loader_config c = loader_config_of(
        run->recipe, run->stream ? "standard input" : run->opt->data, run->opt->val);
    c.choice.old = run->old_choice;
    c.stream = run->stream;
    c.wake = run->wake;
    c.world = be->world;
    c.first_rank = be->first;
    c.local_ranks = run->opt->ranks;
    c.no_verify = run->opt->no_verify;
    c.repeat_from = run->repeat_from;
    return c;
}

/* Says on one process how much of the data a pass trains on, if that is little. */
static int foretell(struct run *run)
{
    struct loader_config c = config_of(run);
    char text[PASS_TEXT], line[PASS_TEXT + 200];
    bool tells = run->opt->note && !run->opt->backend->first;
    if (tells && *run->twice) {
        char more[1200];
        snprintf(more, sizeof more, "%s: a pass trains on it twice", run->twice);
        run->opt->note(more);
    }
    int rc = run->stream ? 0 : loader_pass(&c, run->first, &run->pass);
    if (!rc && tells && run->pass.startless) {
        char more[200];
        int bos = run->recipe->data.bos;
        snprintf(
            more, sizeof more,
            "token %d, which begins a document, is not among the first %lld tokens of -d, taken for "
            "one document: -s data.bos=N names what begins documents there",
            bos >= 0 ? bos : loader_files(run->loader)->bos, (long long)run->pass.startless);
        run->opt->note(more);
    }
    if (rc || run->stream || !tells || run->pass.used >= run->pass.tokens / 2)
        return rc;
    pass_text(&run->pass, text, sizeof text);
    snprintf(line, sizeof line,
             run->recipe->data.cut == CUT_ROWS
                 ? "a pass trains on %s: what a shard has left over is less than a step"
                 : "a pass trains on %s: documents are cut, and what is cut off is not used; "
                   "-s data.cut=pieces trains on all of it",
             text);
    run->opt->note(line);
    return 0;
}

static int open_loader(struct run *run)
{
    struct loader_config c = config_of(run);
    int rc = loader_new(&run->loader, &c);
    const char *made = rc ? "" : loader_tokenizer(run->loader);
    const char *losses = run->vocabulary.tokenizer;
    if (*losses && *made && strcmp(made, losses))
        return err_set(GPT_INPUT, "%s: the shards were made with the vocabulary %s, found %s",
                       c.data, made, losses);
    const struct corpus *train = rc ? NULL : loader_files(run->loader);
    int a, b;
    if (train && corpus_twice(train, &a, &b))
        snprintf(run->twice, sizeof run->twice, "%s and %s are one file", train->shard[a].path,
                 train->shard[b].path);
    return rc;
}

/* Holds each validation chunk against its room for documents, where none is validated before the first
 * step: at the run's end it would be too late. */
static int check_val(struct run *run)
{
    const struct recipe *r = run->recipe;
    struct chunk c;
    int rc = 0;
    if (!run->val || schedule_validates(r, run->first) || run_looks(run->opt))
        return 0;
    for (int64_t k = 0; k < r->data.val.tokens / r->data.val.chunk && !rc; k++)
        rc = val_chunk(run->val, 0, k, &c);
    return rc;
}

static int open_stream(struct run *run)
{
    if (run->opt->backend->world > run->opt->ranks)
        return err_set(GPT_USAGE, "-d -: the ranks of several processes cannot share a pipe");
    if (run->recipe->data.cycle) /* before anything is waited for */
        return err_set(GPT_USAGE, "-d -: a stream of shards passes once, so data.cycle must be no "
                                  "(-s data.cycle=no)");
    return shard_stream_open(&run->stream, "-", run->saved_bytes);
}

/* Makes the eventfd that ends the waiting for a pipe. */
static int make_wake(struct run *run)
{
    if ((run->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0)
        return err_sys("cannot make an eventfd");
    zio_wake(run->wake);
    run_stop_wakes(run->wake);
    return 0;
}

/* The beginning of a stream is for validation, so that comes first there. */
static int open_data(struct run *run)
{
    int rc = strcmp(run->opt->data, "-") ? 0 : open_stream(run);
    if (!rc && *run->saved_data && !run->stream) {
        struct loader_config c = config_of(run);
        run->old_choice = corpus_was_old(c.data, &c.choice, run->saved_data);
    }
    if (!rc && run->stream)
        rc = open_val(run);
    if (!rc)
        rc = open_loader(run);
    if (rc || run->stream || (rc = open_val(run)))
        return rc;
    run->shared = run->val ? corpus_shared(loader_files(run->loader), val_files(run->val)) : -1;
    return 0;
}

static void close_data(struct run *run)
{
    loader_free(run->loader);
    val_free(run->val);
    shard_stream_close(run->stream);
    run_stop_wakes(-1);
    zio_wake(-1);
    if (run->wake >= 0)
        close(run->wake);
}

/* This process's ranks, a thread each. */
struct ranks {
    struct rank *k;
    pthread_t *t;
    int started;
};

/* The thread of this process's i-th rank could not be started: ends the ranks that wait for it. */
static void not_started(struct run *run, int i, int error)
{
    const struct backend *be = run->opt->backend;
    errno = error;
    int rc = err_sys("cannot start rank %d", be->first + i);
    run_failed(run, rc, err_message());
    if (be->abort)
        be->abort(be->group, be->first + i, rc, err_message());
    opening_interrupt(run);
}

/* Starts the ranks' threads; a failure is the run's. */
static void ranks_begin(struct ranks *all, struct run *run)
{
    const struct backend *be = run->opt->backend;
    int n = run->opt->ranks, error = 0;
    *all =
        (struct ranks){ calloc((size_t)n, sizeof *all->k), calloc((size_t)n, sizeof *all->t), 0 };
    if (!all->k || !all->t)
        not_started(run, 0, ENOMEM);
    while (all->k && all->t && all->started < n && !error) {
        int i = all->started;
        all->k[i] = (struct rank){ .run = run,
                                   .local = i,
                                   .rank = be->first + i,
                                   .world = be->world,
                                   .micros = rank_micros(run->recipe->data.chunks, be->first + i,
                                                         be->world) };
        error = pthread_create(&all->t[i], NULL, rank_main, &all->k[i]);
        if (error)
            not_started(run, i, error);
        else
            all->started++;
    }
}

/* Waits until all ranks have ended, and returns the run's code. */
static int ranks_end(struct ranks *all, struct run *run)
{
    for (int i = 0; i < all->started; i++)
        pthread_join(all->t[i], NULL);
    free(all->k);
    free(all->t);
    return run->code > 0 ? err_set(run->code, "%s", run->message) : run->code;
}

static void note_remark(void *run, const char *text) { ((struct run *)run)->opt->note(text); }

/* GPT_INPUT where data that do not cycle end before the run. */
static int check_tokens(const struct run *run)
{
    const struct recipe *r = run->recipe;
    char fewer[64] = "";
    int64_t n = loader_most_steps(run->loader);
    if (n >= run->total)
        return 0;
    if (n > r->schedule.extension)
        snprintf(fewer, sizeof fewer, ", -s schedule.steps=%lld ends before that",
                 (long long)(n - r->schedule.extension));
    return err_set(
        GPT_INPUT,
        "%s: expected tokens for %d steps, found enough for %lld at most, and data.cycle "
        "is no: -s data.cycle=yes starts over%s",
        run->opt->data, run->total, (long long)n, fewer);
}

/* Notes what of -d the run leaves aside, and a model of far more ids than -d has. */
static void note_data(const struct run *run)
{
    const struct corpus *train = loader_files(run->loader);
    char names[1024], text[1200];
    if (run->stream)
        return;
    if (corpus_unused(train, run->val ? val_files(run->val) : NULL, names, sizeof names)) {
        snprintf(text, sizeof text,
                 "%s: in -d, but neither trains nor validates: the MANIFEST, or without one the "
                 "name, says what does",
                 names);
        run->opt->note(text);
    }
    if (run->shared >= 0) {
        snprintf(text, sizeof text,
                 "%s: trains and validates: val_loss is of tokens that are trained on",
                 train->shard[run->shared].path);
        run->opt->note(text);
    }
    if (train->vocab_size && run->recipe->model.vocab / 2 > train->vocab_size) {
        snprintf(
            text, sizeof text,
            "model.vocab is %d, and the vocabulary of -d has %d ids: other rows of embedding and "
            "head are of no token",
            run->recipe->model.vocab, train->vocab_size);
        run->opt->note(text);
    }
}

/* Opens and checks all that a run reads, while its ranks' devices start. */
static int open_run(struct run *run)
{
    const struct run_options *o = run->opt;
    int rc = open_data(run);
    if (!rc && o->resume && !(rc = resume_open(run)))
        rc = loader_seek(run->loader, &run->start);
    if (!rc && o->init)
        rc = begin_open(run);
    if (!rc && !(rc = save_check(run)))
        rc = foretell(run);
    if (!rc)
        rc = check_val(run);
    if (!rc)
        rc = check_tokens(run);
    if (rc > 0 && run_stopping()) /* it waited for a pipe */
        rc = RUN_STOPPED;
    if (!rc && o->note && !o->backend->first) {
        recipe_remarks(o->recipe, note_remark, run);
        note_data(run);
        if (has_other_data(run))
            note_remark(run,
                        "data.expect: the recipe's losses are compared on other training data");
    }
    return rc;
}

static int run_bench(struct run *run)
{
    struct ranks ranks;
    run->opening = OPENING_DONE;
    ranks_begin(&ranks, run);
    return ranks_end(&ranks, run);
}

static int run_all(struct run *run)
{
    struct ranks ranks;
    int rc;
    ranks_begin(&ranks, run);
    rc = ranks.started < run->opt->ranks ? 0 : open_run(run);
    bool open = !rc;
    if (open)
        progress_init(&run->progress, run->opt->progress);
    opening_ends(run, open);
    int ended = ranks_end(&ranks, run);
    if (!open)
        return ended > 0 ? ended : rc;
    progress_end(&run->progress);
    int unwritten = runlog_end(&run->log);
    if (ended > 0)
        rc = err_set(ended, "%s", run->message);
    else
        rc = unwritten && !(ended == RUN_STOPPED && runlog_kept(&run->log)) ? unwritten : ended;
    return rc;
}

int run_train(const struct run_options *o)
{
    struct run run = { .opt = o,
                       .recipe = o->recipe,
                       .total = schedule_total(o->recipe),
                       .wake = -1,
                       .shared = -1,
                       .chosen = now_seconds(),
                       .lock = PTHREAD_MUTEX_INITIALIZER,
                       .change = PTHREAD_COND_INITIALIZER };
    int rc;
    run.initial = o->drawn;
    run.log = (struct runlog){ .f = o->log, .total = run.total, .warn = warn_of_log, .ctx = &run };
    rc = check_ranks(o->recipe, o->backend->world);
    if (!rc && o->estimate && check_ranks(o->recipe, o->estimate))
        rc = err_prefix("--estimate");
    if (!rc && !run.initial && !o->resume && !o->init)
        rc = initial_new(&run.initial, o->recipe, (uint64_t)o->recipe->seed, NULL);
    if (rc || o->bench) {
        rc = rc ? rc : run_bench(&run);
        initial_free(run.initial);
        return rc;
    }
    rc = run_vocabulary_read(&run.vocabulary, o->vocab, o->recipe);
    if (!rc)
        rc = make_wake(&run);
    if (!rc && o->resume)
        rc = resume_find(&run);
    if (!rc)
        rc = run_all(&run);
    runlog_release(&run.log);
    if (o->out)
        ckpt_let_go(o->out);
    initial_free(run.initial);
    run_vocabulary_release(&run.vocabulary);
    begin_close(&run);
    close_data(&run);
    free(run.resume_dir);
    return rc;
}
