/* schedule.h - what changes from step to step, as pure functions of the recipe.
 *
 *     struct step_schedule p;
 *     schedule_at(r, step, &p);            // 0 <= step <= total; total is the last validation
 *     n = schedule_rope(r, step, freq, &scale);    // YaRN: a table for n still holds
 *
 * Formulas: records 61 and 74 as published; golden tables tests/golden/r??-schedule.tsv.
 * Pure; any thread.
 */
#ifndef MODEL_SCHEDULE_H
#define MODEL_SCHEDULE_H

#include "model/recipe.h"

struct step_schedule {
    int step, stage;
    int64_t tokens; /* global batch */
    int chunk_tokens; /* T: tokens of one rank's micro-batch */
    int sequence;
    int window_long, window_short; /* tokens (keys back) */
    int blocks_long, blocks_short;
    double lr; /* multiplier */
    double momentum;
    int n_mtp;
    double mtp[MAX_MTP];
    bool adam; /* Adam parameters are updated */
    bool tied; /* head and embedding are still one */
    bool untie; /* after this step's update they part */
};

int schedule_total(const struct recipe *r); /* steps + extension */
void schedule_at(const struct recipe *r, int step, struct step_schedule *p);
/* Rotary state before step: freq (head_dim/4) and the softmax scale, all YaRN updates
 * at steps <= step applied. Returns how many: where that is the same, so are freq and scale. */
int schedule_rope(const struct recipe *r, int step, float *freq, double *scale);
void schedule_rope_initial(const struct recipe *r, float *freq);
void schedule_rope_yarn(float *freq, int n, int block, int w_old, int w_new, double *scale);
/* The first step of those that `untie` leaves after which Adam's states are settled: an odd one, or
 * with adam_every above 2 the next in which Adam moves; -1: nothing is tied. */
int schedule_untie_step(const struct recipe *r);

#endif
