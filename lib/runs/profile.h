/* profile.h - how long the steps of a group's runs took, step by step, and what that shows.
 *
 *     struct profile p = { 0 };
 *     for each run: if ((rc = profile_add(&p, run, index))) return rc;
 *     struct stages s;
 *     profile_stages(&p, &s);            // warm-up, stages found from the data, even and odd
 *     profile_release(&p);
 *
 * A step's time is the difference between two train lines. Kept are sums over runs at each
 * step and the longest stalls, so that memory does not grow with the number of runs.
 * Threads: one.
 */
#ifndef RUNS_PROFILE_H
#define RUNS_PROFILE_H

#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"
#include "runs/run.h"

enum { PROFILE_STEPS = 1 << 20, PROFILE_STALLS = 64, PROFILE_STAGES = 64 };

/* A step of more than 3 medians of those around it. An outlier is beyond their median by 50%,
 * six robust deviations and 2 ms. */
struct stall {
    int32_t step;
    int run;
    double ms, median_ms;
};
struct profile_step {
    double sum_ms;
    uint32_t n, outliers, vals;
}; /* vals: ran before it */
struct profile {
    struct profile_step *step; /* [0 .. steps-1] */
    int32_t steps;
    size_t room;
    struct stall stall[PROFILE_STALLS]; /* the longest */
    int kept;
    long stalls; /* how many there were */
};
int profile_add(struct profile *p, const struct run *r, int index) MUST_CHECK;
void profile_release(struct profile *p);
/* Mean ms of a step; NaN where no run has one. */
double profile_ms(const struct profile *p, int32_t step);

struct stage {
    int32_t first, last;
    double median_ms, mean_ms, even_ms, odd_ms, total_s; /* of the mean run */
    bool alternates; /* even and odd differ by more than noise and 2% */
    long outliers, after_val; /* those, and those of them in the two steps behind a
                                       validation, which waits for what was queued */
};
struct stages {
    int32_t warmup; /* the last step of the warm-up; 0: none */
    double warmup_s, warmup_excess_s; /* its time; what it took over the first stage's pace */
    struct stage stage[PROFILE_STAGES];
    int n;
};
int profile_stages(const struct profile *p, struct stages *out) MUST_CHECK;

#endif
