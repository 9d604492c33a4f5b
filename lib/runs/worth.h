/* worth.h - what a difference of losses is worth in steps, and at equal time.
 *
 *     struct worth w;
 *     if ((rc = worth_of(&w, &gather, 1, 3.28))) return rc;     // group 1, against group 0
 *     ... w.cushion.value steps, +- w.cushion.error; w.at_time.value at w.time_s seconds ...
 *
 * Slope: each run's derivative, at its end, of the parabola through its last three validations that
 * all runs of the group have (of the line through two); the group's is their mean. Cushion: (target -
 * mean loss) / -slope, the steps by which the curve at its slope there is ahead of the target; below 0
 * it lacks them. Its error is by the delta method from the runs' variances and the covariance of loss
 * and slope. Differences to group 0: of the runs' losses at the last step that both groups have reached,
 * and at the last time, each between its run's validations by the line through them; errors are
 * Welch's. All errors are standard errors. NaN: not known.
 */
#ifndef RUNS_WORTH_H
#define RUNS_WORTH_H

#include "runs/gather.h"

struct estimate {
    double value, error;
};
struct worth {
    struct estimate slope, cushion;
    double step, time_s; /* at which are */
    struct estimate at_step, at_time; /* the losses less group 0's */
};
int worth_of(struct worth *w, const struct gather *g, int group, double target) MUST_CHECK;

#endif
