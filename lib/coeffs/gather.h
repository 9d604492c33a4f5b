/* gather.h - trials from files of singular values and from random matrices, as a user names them.
 *
 *     struct gather g = { .spectrum = files, .n_spectrum = 2, .matrices = 2, .seed = 1 };
 *     if ((rc = gather_check(&g)) || (rc = gather_trials(&g, TRIAL_AOL, 0, &t))) return rc;
 *
 * Thread-safe.
 */
#ifndef COEFFS_GATHER_H
#define COEFFS_GATHER_H

#include "coeffs/trial.h"

struct gather {
    const char *const *spectrum, *const *shape, *const *kind;
    int n_spectrum, n_shape, n_kind;
    int matrices; /* of each shape and kind */
    uint64_t seed;
};
/* GPT_USAGE: what is no shape or no kind. */
int gather_check(const struct gather *g) MUST_CHECK;
/* Adds to t; flags as trial.h's. few > 0: of a file that many matrices at most, evenly chosen. The
 * first shape is also that of singular values whose file does not say it. */
int gather_trials(const struct gather *g, int flags, int few, struct trials *t) MUST_CHECK;

#endif
