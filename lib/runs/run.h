/* run.h - one training run, as its log tells it: what it is, its curve, its steps.
 *
 * A log may hold several (trials). logread gives each with arrays and facts of its own, which hold
 * until the callback returns; group_add keeps a copy, without facts, and all that compares, prints or
 * draws runs reads that. Losses are those printed, and so is the time: in the logs of 2024 the clock
 * starts anew after step 10 and leaves out what came before. What a log does not say is NaN.
 */
#ifndef RUNS_RUN_H
#define RUNS_RUN_H

#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"
#include "runs/facts.h"

struct run_val {
    int32_t step;
    int digits; /* of the loss, behind the point */
    double loss, time_ms;
};
/* A train line: the objective, the next token's part of it, the norm of the gradients, the run's clock
 * and the time of the step alone, where the line has that. */
struct run_step {
    int32_t step;
    double loss, next, norm, time_ms, own_ms;
};

/* Where the time went, in seconds, as gpt-train says it. */
struct run_cost {
    double start, validation, checkpoints, whole;
};

struct run {
    const char *path;
    int trial; /* 1 .. in its file */
    long first_line, last_line;
    int32_t first, last, total; /* steps; total 0: the log does not say; last 0: a published list */
    bool ended; /* its last line is the validation after the last step */
    bool record; /* of the speed-run: by the layout of its log, or by its recipe's name */
    double loss, time_ms; /* at the end */
    int loss_digits; /* behind the point */
    bool fine_clock; /* its time is given to a ms: equal ones are of one run */
    int32_t clock_restart; /* where the clock that counts begins; 0: with the run */
    int32_t resumed; /* continues another run from here; its clock is its own */
    double pass_tokens; /* that a pass over the data trains on; 0: not known */
    int32_t missing; /* steps without a train line between others that have one */
    struct run_cost cost;
    int64_t seed; /* of our recipe; -1: not known */
    uint64_t identity; /* of recipe and data in our header; 0: none */
    const char *list; /* the set of a published list, "" where it has no name; NULL: a log */
    uint64_t list_digest; /* of all losses of the list */
    int list_at; /* which of them */
    struct run_val *val;
    struct run_step *step;
    int vals, steps;
    const struct facts *facts;
    /* set by group.c, in the group's copy */
    int fact[FACTS]; /* index of a variant; -1 when the log does not say */
    bool alone; /* resumed: the run that it continues is not in the group */
    uint64_t loss_digest; /* of its losses, to find equal ones */
    int32_t losses; /* how many losses it has, in training and validation */
};

/* A copy with its own path, list and arrays, and no facts. */
int run_copy(struct run *to, const struct run *r) MUST_CHECK;
void run_release(struct run *r); /* of a copy */
/* Makes e, a copy, one run with its continuation from a step on, at which its clock was at so many ms. */
int run_join(struct run *e, const struct run *r, int32_t step, double clock_ms) MUST_CHECK;
/* Sets loss_digest and losses. */
void run_digest(struct run *r);
/* FNV-1a of words, which begins at 0. */
uint64_t run_mix(uint64_t h, double x);
/* The clock in ms when a step had ended; NaN where no line tells. */
double run_clock_at(const struct run *r, int32_t step);

#endif
