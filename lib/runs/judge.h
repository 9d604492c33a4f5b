/* judge.h - is a group a record against the baseline, and if not, why not?
 *
 *     struct criteria k = { .target = 3.28, .alpha = 0.01 };
 *     struct judgement v;
 *     if ((rc = judge_group(&v, &gather, 1, &k))) return rc;     // group 1 against group 0
 *     puts(v.text);
 *     ok = v.shown;
 *
 * The rules of track 1: the runs are of one program, recipe, data, machine and number of
 * steps; their mean loss lies below the target with p < alpha (one sample, lower tail); they
 * are faster with p < alpha (Welch). JUDGE_Z is track 3's: (target - mean) sqrt(n) >= 0.004,
 * and fewer steps instead of less time. JUDGE_LOSS asks only whether the mean loss is below the
 * baseline's, p < alpha (Welch). Group 0 itself is compared with the target alone; without a target
 * nothing is judged of it.
 */
#ifndef RUNS_JUDGE_H
#define RUNS_JUDGE_H

#include <stdbool.h>
#include "runs/gather.h"

#define Z_MARGIN 0.004 /* track 3: three deviations of 0.0013 */
enum rule { JUDGE_T, JUDGE_Z, JUDGE_LOSS };
enum tail { TAIL_TWO, TAIL_LOWER };
struct criteria {
    double target, alpha; /* target NaN: none; then only JUDGE_LOSS judges */
    int32_t at_step; /* runs are judged there; 0: at their end */
    enum rule rule;
    enum tail tail; /* of Welch's tests */
    bool systems_only; /* the loss need not be shown, only its mean be below target */
    bool mixed; /* judge although runs differ in what must be equal */
};

#define RECORD_TARGET 3.28
/* The target that runs have of themselves: the record's where one of them is of the speed-run; NaN. */
double judge_target(const struct gather *g);

struct judgement {
    bool shown;
    struct group_sum base, own;
    struct welch time, loss; /* own against base; NaN for group 0 */
    double time_p, loss_p; /* by the tail */
    double z;
    char text[2048];
};
int judge_group(struct judgement *v, const struct gather *g, int group,
                const struct criteria *k) MUST_CHECK;

#endif
