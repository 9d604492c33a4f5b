/* run.h - a training run: batches in, steps, validations, checkpoints, log out.
 *
 * One thread a rank, each with its own device, model and optimizer; they share
 * the communicator and the loader. run.c starts and ends the ranks, start.c is what a rank does before its
 * steps, loop.c these, save.c writes and reads checkpoints, check.c verifies, memory.c takes
 * and counts memory, begin.c begins with another run's weights, plan.c prints what a run would take,
 * bench.c times steps without data, one_batch.c looks at one.
 *
 *     struct run_options o = { .recipe = r, .data = "shards", .ranks = 2,
 *                              .backend = &cpu, .log = stdout };
 *     rc = run_train(&o);
 *
 * A run that was killed resumes from its last complete checkpoint and ends with the
 * same bits as one that was not. run_stop() may be called from a signal handler: the run
 * writes a checkpoint at the next step where it may, and returns RUN_STOPPED. So does any other end
 * but a fault of the state, of the device or of the communicator: data used up or damaged, a stream
 * that ends; it returns the code that the end has.
 */
#ifndef TRAIN_RUN_H
#define TRAIN_RUN_H

#include <stdbool.h>
#include <stdio.h>
#include "base/progress.h"
#include "device/backend.h"
#include "recipe/schedule.h"

struct initial; /* recipe/initial.h */

struct run_options {
    const struct recipe *recipe;
    struct initial
        *drawn; /* the recipe's initial values, of a new run, begun before; run_train frees
                              them. NULL: it draws them itself */
    const char *data; /* shards: see data/corpus.h; "-": a stream of shards, data/shard_stream.h */
    int64_t *used; /* set: tokens of a stream that the steps have passed over; NULL: not wanted */
    const char *vocab; /* vocabulary of losses that need one (vocabulary.h); NULL: GPT-2's */
    const char *val; /* validation shards; NULL: those of data */
    const char *out; /* directory of checkpoints and of a copy of the log; NULL: none are written */
    const char *resume; /* directory of checkpoints, or one of them; NULL: from the start */
    const char *init; /* the same: its weights are the initial ones; NULL: drawn ones */
    int ranks; /* of this process */
    size_t ops_bytes; /* that single ops take: of run_fits or run_memory */
    bool no_graph;
    bool no_verify; /* read shards without holding them against their MANIFEST */
    bool profile; /* with bench: also the time of each kernel in one stage */
    const char *trace; /* with bench: a file for the timeline of one stage; NULL: none */
    int stage; /* which */
    bool wide; /* with bench: its table is not broken for a terminal */
    struct run_one { /* of one batch, training nothing: */
        const char *gradients; /* write its gradients into this file; NULL: do not */
        bool stats; /* print a table of its activations on log */
        int batch; /* which: so many after the one of the step that would come */
        int after; /* steps on it before that */
    } one;
    const char *format; /* of that table, and of bench's; NULL: by what stdout is */
    int bench; /* measure this many pairs of steps a stage; 0: train */
    int estimate; /* with bench: also the run's time on that many ranks (estimate.h); 0: not wanted */
    double bandwidth; /* with estimate: GB/s that a rank sends; 0: the usual */
    int keep; /* checkpoints to keep in out, newest first; 0: all */
    bool keep_all_else; /* those that were there at the start stay */
    struct backend *backend;
    FILE *log;
    enum progress_mode progress;
    void (*warn)(const char *message); /* tells what does not end the run; any rank's thread */
    void (*note)(
        const char *message); /* the same of what the run is like, before it; NULL: not wanted */
    const char *arguments; /* command line, for the log */
    double began; /* time at which the program started (now_seconds) */
};

/* True if the run is no run, but a look at one batch. */
static inline bool run_looks(const struct run_options *o)
{
    return o->one.gradients || o->one.stats;
}

enum { MAX_GRAPHS = 32 }; /* of a run; what is beyond is launched op by op */
/* Sets what a run of this recipe wants of GPUs: of which w->ranks are this process's. */
int run_wants(struct backend_wants *w, const struct recipe *r, bool no_graph) MUST_CHECK;

enum {
    RUN_STOPPED = -20, /* a signal ended the run; its state is saved */
    RUN_ENDED = -21 /* the checkpoint to resume is of the last step: there is nothing to do */
};

/* Steps done, -1: the run has not begun; and the step of the newest checkpoint, -1: there is none.
 * Async-signal-safe. */
struct run_progress {
    int reached, kept;
};
struct run_progress run_progress(void);

int run_train(const struct run_options *o) MUST_CHECK;
/* Creates the directory of checkpoints and tests that one can be written there, so that a run does not
 * fail at its first. made: it was not there. */
int run_try_output(const char *dir, bool *made) MUST_CHECK;
void run_stop(void); /* async-signal-safe */

/* GPT_NO: DIR, the folder of a run's checkpoints, holds none, or is not there. */
int run_begun(const char *dir) MUST_CHECK;
/* The checkpoint to begin at: path itself, or the newest complete one in it. Caller frees. */
int run_checkpoint(const char *path, char **dir) MUST_CHECK;

/* A command says this of a run's recipe. */
struct run_source {
    const char *recipe; /* a file, a name, or a run's folder; NULL: that of the checkpoint */
    const char *resume; /* a folder of checkpoints, or one of them; or NULL */
    const char *init; /* the same; with resume: what the run began with */
    const char *const *set; /* overrides */
    int n;
    bool
        again; /* the command that began the run to resume: a recipe given has the same overrides */
    bool fit; /* the resumed run may have keys that --fit set */
    bool pipe; /* its data pass once: data.cycle is no unless an override sets it */
    void (*note)(const char *message); /* tells what follows from that; NULL: not wanted */
};
/* Reads the recipe of a run; a resumed run's is the checkpoint's, which one given beside it must equal. */
int run_source_recipe(struct recipe **r, const struct run_source *s) MUST_CHECK;

/* The recipe of a run that begins with that checkpoint's weights: `recipe`, or, NULL, that in the
 * checkpoint, with overrides; model.rope_windows is set, so that rotary frequencies go on from there. said:
 * in which line the models differ, so that the weights compute something else; "": in none. */
int run_init_recipe(struct recipe **r, const char *path, const char *recipe, const char *const *set,
                    int n, char *said, size_t size) MUST_CHECK;
/* Writes "model.rope_windows=3 7 8" for n windows in blocks. */
enum { WINDOWS_KEY_SIZE = 32 + 12 * SCHEDULE_WINDOWS };
void run_windows_key(char set[WINDOWS_KEY_SIZE], const int *at, int n);

/* Bytes of device memory that a rank takes, the most of any rank, by what they are for: all are
 * taken before its first step. Counted by the code that takes them, on a device that computes nothing. */
struct run_memory {
    size_t weights; /* and gradients */
    size_t activations; /* and rotary tables */
    size_t optimizer; /* states, and the update at hand */
    size_t batches;
    size_t ops; /* what single ops take for themselves: the most of any */
};
int run_memory(struct run_memory *m, const struct recipe *r, const struct backend *be) MUST_CHECK;
static inline double run_memory_sum(const struct run_memory *m)
{
    return (double)m->weights + (double)m->activations + (double)m->optimizer + (double)m->batches +
           (double)m->ops;
}
/* GPT_SYSTEM where the ranks of this process need more than there is. The message proposes what
 * would fit: keys with values, which `set` holds then (*n of them; 0: nothing does). */
enum { FIT_KEYS = 2, FIT_KEY_SIZE = 48 };
struct run_fit {
    char set[FIT_KEYS][FIT_KEY_SIZE]; /* "data.chunks=32" */
    int n;
    struct run_memory memory; /* with them */
};
int run_fits(const struct recipe *r, const struct backend *be, int ranks,
             struct run_fit *fit) MUST_CHECK;
/* Does run_fits; with fit, where that proposes keys, *r becomes the recipe with them, and the message
 * goes to note. */
int run_fit_recipe(struct recipe **r, const struct backend *be, int ranks, bool fit,
                   void (*note)(const char *message), size_t *ops_bytes) MUST_CHECK;

/* The order in which rows of gradients become final in the backward of a step's last micro-batch. */
enum { MAX_FINALS = 512 };
struct run_order {
    int n;
    struct final_rows {
        int param, first, n; /* of a bank: matrices; of others: rows */
    } at[MAX_FINALS];
};
int run_order(struct run_order *o, const struct recipe *r, const struct backend *be) MUST_CHECK;

/* Prints parameters, memory, communication and schedule of a run on be->world ranks, and with data, as
 * in run_options, how much of it a pass trains on. wide: tables are not broken for a terminal. */
int run_plan(const struct recipe *r, const struct backend *be, const char *data, const char *val,
             bool wide, FILE *f) MUST_CHECK;

#endif
