/* paired.h - the difference of two groups by pairs of runs: of one seed, or in the order given.
 *
 *     struct paired p;
 *     if ((rc = paired_of(&p, &gather, 1))) return rc;       // group 1 less group 0
 *     printf("%d pairs: %+.4f +- %.4f\n", p.pairs, p.mean, p.error);
 *
 * What a seed, or a common beginning, does to both runs of a pair alike is not in the error of their
 * difference. Runs that did not reach their end have no pair. Seeds pair where all runs of both groups tell
 * one and none has another's in its group; else the order of the logs does. One thread.
 */
#ifndef RUNS_PAIRED_H
#define RUNS_PAIRED_H

#include <stdbool.h>
#include "base/err.h"

struct gather;

struct paired {
    int pairs, left_out; /* runs of either group without a partner */
    bool by_seed;
    double mean, error; /* of the differences of pairs; error: standard error, NaN for one pair */
    double unpaired; /* standard error of the difference of the same runs' means */
    double p_lower,
        p_two_sided; /* Student's, of the differences against 0; NaN without a deviation */
};
int paired_of(struct paired *p, const struct gather *g, int group) MUST_CHECK;

#endif
