/* run.h - a training run: batches in, steps, validations, checkpoints, log out.
 *
 * One thread a rank; each has its own device, model and optimizer, and they
 * meet in the communicator and in the loader. run.c is the loop, feed.c brings
 * batches to the device, save.c writes and reads checkpoints, plan.c prints
 * what a run will take.
 *
 *     struct run_options o = { .recipe = r, .data = "shards", .ranks = 2,
 *                              .backend = &cpu, .log = stdout };
 *     rc = run_train(&o);
 *
 * A run killed at any moment resumes from its last complete checkpoint and ends
 * with the same bits. run_stop() may be called from a signal handler: the run
 * writes a checkpoint at the next step where it may, and returns RUN_STOPPED.
 */
#ifndef TRAIN_RUN_H
#define TRAIN_RUN_H

#include <stdbool.h>
#include <stdio.h>
#include "base/progress.h"
#include "comm/comm.h"
#include "model/recipe.h"
#include "ops/ops.h"

/* Where a run's ranks work. cmd picks one. */
struct backend {
    const char *name;
    int world, first; /* ranks of all processes; the first one of this process */
    /* The device of this process's i-th rank. */
    int (*ops_new)(struct ops **o, int i, void *group);
    /* Makes the communicator of one rank, in that rank's thread; group is the caller's. */
    int (*comm_new)(struct comm **c, struct ops *o, int rank, int world, void *group);
    void *group;
    /* A rank failed before it had a communicator: the others shall not wait for it. */
    void (*abort)(void *group, int rank, int code, const char *message);
    /* What a rank does from now on; NULL what: it may take long. The pointer may be NULL. */
    void (*phase)(struct comm *c, const char *what);
    /* A step as a graph; NULL where there are none. */
    int (*capture)(struct ops *o);
    int (*capture_end)(struct ops *o, void **graph);
    void (*launch)(struct ops *o, void *graph);
    void (*graph_free)(void *graph);
    /* Times of each kernel between the two, as TSV; NULL where there are none. */
    int (*profile)(void);
    int (*profile_end)(FILE *f, int steps);
};

struct run_options {
    const struct recipe *recipe;
    const char *data; /* shards: see data/corpus.h */
    const char *out; /* folder of checkpoints; NULL: none are written */
    const char *resume; /* folder of checkpoints, or one of them; NULL: from the start */
    int ranks; /* of this process */
    bool no_graph;
    bool profile; /* with bench: also where the first stage's time goes */
    int bench; /* measure this many pairs of steps a stage; 0: train */
    int keep; /* checkpoints kept, the newest among them; 0: all */
    struct backend *backend;
    FILE *log;
    enum progress_mode progress;
    const char *arguments; /* for the log: how the program was called */
    double began; /* and its clock then (now_seconds) */
};

/* Are steps captured, where the backend has graphs? There is one for each parity of steps. */
static inline bool run_captures(const struct recipe *r, bool no_graph)
{
    return !no_graph && r->adam_every <= 2;
}

enum { RUN_STOPPED = -2 }; /* a signal ended the run, its state is saved */

int run_train(const struct run_options *o) MUST_CHECK;
void run_stop(void); /* async-signal-safe */

/* The checkpoint to resume: path itself, or the newest complete one in it. Caller frees. */
int run_checkpoint(const char *path, char **dir) MUST_CHECK;
/* The recipe that it carries, with overrides. */
int run_recipe(struct recipe **r, const char *path, const char *const *set, int n) MUST_CHECK;

/* Parameter table, shards, memory, communication, schedule; trains nothing. */
int run_plan(const struct recipe *r, int ranks, enum dtype act, FILE *f) MUST_CHECK;

#endif
