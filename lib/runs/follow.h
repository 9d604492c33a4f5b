/* follow.h - a run that is still going: how it stands, and whether it can still be a record.
 *
 *     struct follow f;
 *     if ((rc = follow_begin(&f, &gather, group, &criteria))) return rc;
 *     // for each step line of the run, r and s as a logsink's step gives them:
 *     if (follow_step(&f, r, s, text, sizeof text)) puts(text);
 *
 * Certain are: a loss that is not finite, more steps than the rule allows, a clock so late
 * that the group's mean cannot lie below the baseline's. Two more are forecasts and say so:
 * the clock, if the rest ran 5% faster than the baseline did; the loss, if it stays as far
 * from the baseline's curve as it is, less four deviations. Both wait for half of the run.
 * Each is said once. Threads: one.
 */
#ifndef RUNS_FOLLOW_H
#define RUNS_FOLLOW_H

#include "runs/judge.h"

enum hopeless { LOST_LOSS = 1, LOST_STEPS = 2, LOST_CLOCK = 4, DIM_CLOCK = 8, DIM_LOSS = 16 };
struct follow {
    const struct gather *g;
    int group;
    struct criteria k;
    struct group_sum base, own; /* own: the runs of the group before this one */
    double *base_time; /* seconds of the mean baseline run after each step */
    int32_t base_steps;
    unsigned said;
    int trial;
};
int follow_begin(struct follow *f, const struct gather *g, int group,
                 const struct criteria *k) MUST_CHECK;
void follow_end(struct follow *f);
/* True when there is something to say: at a validation, or when hope is lost. */
bool follow_step(struct follow *f, const struct run *r, const struct stepline *s, char *text,
                 size_t size);

#endif
