/* follow.h - a run in progress: its distance to the baseline, and whether it can still be a record.
 * Of a group 0, which has no baseline, its validations alone.
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
 * Each is reported once a run. Threads: one.
 */
#ifndef RUNS_FOLLOW_H
#define RUNS_FOLLOW_H

#include "runs/judge.h"

/* Reported so far of the present run: that it cannot become a record, by its loss, its number of
 * steps or its clock, or is forecast not to, by its clock or its loss. */
enum {
    FOLLOW_LOSS = 1,
    FOLLOW_STEPS = 2,
    FOLLOW_CLOCK = 4,
    FOLLOW_CLOCK_FORECAST = 8,
    FOLLOW_LOSS_FORECAST = 16
};
struct follow {
    const struct gather *g;
    int group;
    struct criteria k;
    struct group_sum base, own; /* own: the runs of the group before this one */
    double *base_time; /* seconds of the mean baseline run after each step */
    int32_t base_steps;
    unsigned reported;
    bool remarked; /* the last text says more than how the run stands */
    int trial;
};
int follow_begin(struct follow *f, const struct gather *g, int group,
                 const struct criteria *k) MUST_CHECK;
void follow_end(struct follow *f);
/* True where text is set: at a validation, and where the run can no longer, or is forecast not to,
 * become a record. */
bool follow_step(struct follow *f, const struct run *r, const struct stepline *s, char *text,
                 size_t size);

#endif
