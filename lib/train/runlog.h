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
 * Threads: one. f may be NULL: nothing is written.
 */
#ifndef TRAIN_RUNLOG_H
#define TRAIN_RUNLOG_H

#include <stdio.h>
#include "base/err.h"

struct runlog {
    FILE *f;
    int total;
};

void runlog_key(struct runlog *l, const char *key, const char *fmt, ...) PRINTF_LIKE(3, 4);
void runlog_recipe(struct runlog *l, const char *text);
/* Seconds from the start of the program until the first step was queued, by phase. */
struct runlog_start {
    double data, device, memory, values, first_step;
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
struct runlog_spent {
    double whole, start, steps, validation, checkpoints;
};
void runlog_spent(struct runlog *l, const struct runlog_spent *e);
void runlog_memory(struct runlog *l, double allocated_mib);
int runlog_status(struct runlog *l) MUST_CHECK;

#endif
