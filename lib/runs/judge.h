/* judge.h - is a group a record against the baseline, and if not, why not?
 *
 *     struct criteria k = criteria_of(rules_named("track-1"));
 *     struct judgement v;
 *     if ((rc = judge_place(&gather, &k))) return rc;
 *     if ((rc = judge_group(&v, &gather, 1, &k))) return rc;     // group 1 against group 0
 *     puts(v.text);
 *     ok = v.shown;
 *
 * The rules of track 1: the runs are of one program, recipe, data, machine and number of
 * steps; their mean loss lies below the target with p < alpha (one sample, lower tail); they
 * are faster with p < alpha (Welch). JUDGE_Z is track 3's: (target - mean) sqrt(n) >= 0.004 at the
 * group's first passing step, and fewer steps instead of less time; all runs that validated count, also
 * those that were cut off. JUDGE_LOSS asks only whether the mean loss is below the baseline's, p < alpha
 * (Welch, or with `paired` Student's test of the differences of pairs). Group 0 itself is compared with
 * the target alone; without a target nothing is judged of it.
 */
#ifndef RUNS_JUDGE_H
#define RUNS_JUDGE_H

#include <stdbool.h>
#include "runs/benchmark.h"
#include "runs/gather.h"
#include "runs/paired.h"

enum tail { TAIL_TWO, TAIL_LOWER };
struct criteria {
    const struct rules *rules;
    double target, alpha; /* target NaN: none; then only JUDGE_LOSS judges */
    int32_t at_step; /* runs are judged there; 0: at their end */
    enum tail tail; /* of Welch's tests, and of that of pairs */
    bool systems_only; /* the loss need not be shown, only its mean be below target */
    bool mixed; /* judge although runs differ in what must be equal */
    bool paired; /* JUDGE_LOSS: by pairs */
    struct standing
        against; /* JUDGE_Z: the older result of the pairwise rule; number 0: the baseline */
};
/* Returns what the rules say, two-sided tests, and nothing that an option gives. */
struct criteria criteria_of(const struct rules *rules);

/* The target that runs have of themselves: the record's where one of them is of the speed-run; NaN. */
double judge_target(const struct gather *g);
/* With JUDGE_Z ends the runs of each group with its first passing step, the first of those that all its
 * validated runs validated at which their mean passes, or, where none does, with the last of those. Nothing
 * of other rules, or with at_step. */
int judge_place(struct gather *g, const struct criteria *k) MUST_CHECK;

#define SHOWN_POWER 0.8
struct judgement {
    bool shown;
    struct group_sum base, own;
    struct welch time, loss; /* own against base; NaN for group 0 */
    double time_p, loss_p; /* by the tail */
    double shows; /* JUDGE_LOSS: the difference that the test shows with a chance of SHOWN_POWER */
    double lead, z, z_p; /* (target - mean) sqrt(n); in sigmas; P(Z >= z) */
    double pair, pair_p; /* JUDGE_Z: the pairwise rule's lead of own on the older result */
    struct paired paired; /* own less base, n 0 for group 0 */
    char text[2048];
};
int judge_group(struct judgement *v, const struct gather *g, int group,
                const struct criteria *k) MUST_CHECK;

#endif
