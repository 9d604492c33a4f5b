/* schedule.h - what changes from step to step, as pure functions of the recipe.
 *
 *     struct step_schedule p;
 *     schedule_at(r, step, &p);            // 0 <= step <= total; total is the last validation
 *     n = schedule_rope(r, step, freq, &scale);    // YaRN: a table for n still holds
 *
 * Formulas: records 61 and 74 as published; golden tables tests/golden/r??-schedule.tsv.
 * Pure functions; any thread.
 */
#ifndef RECIPE_SCHEDULE_H
#define RECIPE_SCHEDULE_H

#include "recipe/recipe.h"

struct step_schedule {
    int step, stage;
    int64_t tokens; /* global batch */
    int chunk_tokens; /* T: tokens of one rank's micro-batch */
    int sequence;
    int window_long, window_short; /* tokens (keys back) */
    int blocks_long, blocks_short;
    double lr; /* multiplier, of parameters without a schedule of their own */
    double momentum;
    int n_mtp;
    double mtp[MAX_MTP];
    double prefix; /* weight of the next token's prefix in the loss */
    bool prefixes; /* the stage has such a term */
    bool tied; /* head and embedding are still one */
    double tied_mix; /* of the embedding's gradient in the head's */
    int change; /* how many of the steps at which some rule passes on are behind */
    bool untie; /* they are separate after this step's update */
};

/* The first step at or after a point: up to 2 a fraction of the steps, above a step. */
int schedule_point(const struct recipe *r, double point);
/* Returns the chains of a rule that run in the step, a bit each: of "A then B" the first until that point,
 * and the second from where its moments begin. */
unsigned schedule_chains(const struct recipe *r, const struct rule *rule, int step);
/* Returns the multiplier of a parameter's rate in a step (gpt-recipe(5), [schedules]). */
double schedule_lr(const struct recipe *r, const struct param_spec *s,
                   const struct step_schedule *at);
/* A number of a parameter's chain in a step. */
double schedule_number(const struct recipe *r, const struct param_spec *s, const struct number *n,
                       const struct step_schedule *at);
/* Weight of a joined rule's second chain in the update (optimizers.md 4.6). */
double schedule_second_part(const struct recipe *r, const struct param_spec *s,
                            const struct step_schedule *at);
/* True if validation before that step reads other weights than training. */
bool schedule_reads_apart(const struct recipe *r, int step);
/* True if the run validates before that step, from 0 to the total. */
bool schedule_validates(const struct recipe *r, int step);
int schedule_total(const struct recipe *r); /* steps + extension */
void schedule_at(const struct recipe *r, int step, struct step_schedule *p);
/* The long windows, in blocks, that the model went through up to a step, those before this run first,
 * each other than the one before it; returns how many. */
enum { SCHEDULE_WINDOWS = MAX_ROPE_WINDOWS + MAX_STAGES };
int schedule_windows(const struct recipe *r, int step, int at[SCHEDULE_WINDOWS]);
/* Rotary frequencies freq (rope_dim/2) and softmax scale of a step, with all YaRN updates up to it.
 * Returns the number of updates, which determines freq and scale. */
int schedule_rope(const struct recipe *r, int step, float *freq, double *scale);
void schedule_rope_initial(const struct recipe *r, float *freq);
void schedule_rope_yarn(float *freq, int n, int block, int w_old, int w_new, double *scale);
/* The step after whose update head and embedding part: the first from `untie` on in which they are
 * updated (an odd one if they move every step or every second); -1: nothing is tied. */
int schedule_untie_step(const struct recipe *r);

#endif
