/* sources.h - trials from files of singular values and from random matrices, as a user names them.
 *
 *     struct trial_sources g = { .spectrum = { files, 2 }, .matrices = 2, .seed = 1 };
 *     if (!(rc = trial_sources_check(&g))) rc = trial_sources_read(&g, TRIAL_AOL, 0, &t);
 *
 * Thread-safe.
 */
#ifndef COEFFS_SOURCES_H
#define COEFFS_SOURCES_H

#include "base/opt.h"
#include "coeffs/trial.h"

struct trial_sources {
    struct opt_list spectrum, shape, kind; /* kind: words of MATRIX_CHOICES */
    int matrices; /* of each shape and kind */
    uint64_t seed;
};
/* GPT_USAGE: a shape that cannot be read. */
int trial_sources_check(const struct trial_sources *g) MUST_CHECK;
/* Adds to t; flags as trial.h's. few > 0: of a file that many matrices at most, evenly chosen. The
 * first shape is also that of singular values whose file does not say it. */
int trial_sources_read(const struct trial_sources *g, int flags, int few,
                       struct trials *t) MUST_CHECK;

#endif
