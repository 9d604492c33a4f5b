/* runlog.h - writing a run log: header, recipe, step lines (gpt-runlog(5)).
 *
 * `key: value` lines say what made the run, the recipe stands in full between
 * two rules of '=', then come the step lines of modded-nanogpt, so that its
 * tools read them; extra `name:value` pairs stand between.
 *
 *     struct runlog l = { .f = stdout, .total = 1765 };
 *     runlog_key(&l, "tool", "gpt-train %s", GPT_VERSION);
 *     runlog_recipe(&l, recipe_canonical(r));
 *     runlog_val(&l, 0, 10.8284, 0, 0);
 *     runlog_step(&l, 1, 18.64, 10.82, -1, 42.1, 42.1);
 *     if ((rc = runlog_status(&l))) ...        // a closed pipe or a full disk
 *
 * runlog_keep adds a copy in the run's folder. Then no failure to write ends the run: where f fails
 * the copy goes on, and what a full disk keeps out of the copy waits in memory.
 *
 * Threads: one. f may be NULL: nothing is written.
 */
#ifndef TRAIN_RUNLOG_H
#define TRAIN_RUNLOG_H

#include <stdbool.h>
#include <stdio.h>
#include "base/err.h"

#define RUNLOG_NAME "log.txt" /* of the copy */
struct runlog {
    FILE *f;
    int total;
    void (*warn)(void *ctx, const char *message); /* of the first failure; NULL: not told */
    void *ctx;
    bool broken, said; /* f has failed */
    int error; /* errno of that */
    char why[256];
    char *path; /* of the copy; NULL: none */
    int fd;
    char *rest; /* what the copy lacks: n bytes */
    size_t n, room;
    bool said_copy, torn; /* torn: a line is lost for want of memory */
};

/* Makes dir/log.txt, or goes on at its end. */
int runlog_keep(struct runlog *l, const char *dir) MUST_CHECK;

void runlog_key(struct runlog *l, const char *key, const char *fmt, ...) PRINTF_LIKE(3, 4);
void runlog_recipe(struct runlog *l, const char *text);
/* Seconds from the start of the program until the first step was queued, by what this process's first rank
 * did, one after the other. contexts: until its thread ran, on GPUs with the contexts of all; device: its streams,
 * pinned memory and libraries; weights: memory for weights and activations; data: waited for them; values: what
 * was left to wait for of drawing or reading them, and the upload; ranks: waited for the communicator; memory: of
 * the optimizer, and shared with other ranks; others: waited for these; first_step: its batch and launch. */
struct runlog_start {
    double contexts, device, weights, data, values, ranks, memory, others, first_step;
    double opening, joining; /* that the data and the communicator took, beside it */
    double capture; /* of the first step's, to make its graph */
};
void runlog_start(struct runlog *l, double total, const struct runlog_start *s);
/* After step `done` (1 ..): the objective a token, the next token's loss or NaN, the gradients' norm or
 * -1, time since the start without validations, and that time divided by the steps, in ms. */
void runlog_step(struct runlog *l, int done, double loss, double next, double norm, double time_ms,
                 double avg_ms);
/* A step that was skipped, in place of its loss how many were so far. */
void runlog_skip(struct runlog *l, int done, int skips, double time_ms, double avg_ms);
void runlog_val(struct runlog *l, int step, double loss, double time_ms, double avg_ms);
/* Exchanges of a sparse gradient, how many of them were dense, the MB that a rank sent (mean over
 * ranks), and those that dense exchanges would have sent. */
void runlog_sparse(struct runlog *l, int exchanges, int dense, double sent_mb, double dense_mb);
/* The head's fp8 copy at the end: the largest magnitude of its weight, and the largest one that
 * e4m3 represents. */
void runlog_head(struct runlog *l, double amax, double limit);
/* Seconds that the whole run took since the start of the program, and what they went for. */
struct runlog_clock {
    double whole, start, steps, validation, checkpoints;
};
void runlog_clock(struct runlog *l, const struct runlog_clock *e);
void runlog_memory(struct runlog *l, double allocated_mib);
/* Writes the lines so far. GPT_SYSTEM where f fails and there is no copy. */
int runlog_status(struct runlog *l) MUST_CHECK;
/* After the last line: GPT_SYSTEM where f or the copy has not been written in full. */
int runlog_end(struct runlog *l) MUST_CHECK;
/* True if the copy holds every line. */
bool runlog_kept(const struct runlog *l);
void runlog_sync(struct runlog *l); /* the copy is on the disk */
void runlog_release(struct runlog *l);
/* False if the log.txt in dir has no validation after the last step, `step`. */
bool runlog_validated(const char *dir, int step);

#endif
