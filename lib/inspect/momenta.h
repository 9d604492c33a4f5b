/* momenta.h - a checkpoint's momenta as matrices on which coefficient tables are tried.
 *
 *     struct trials t = { 0, NULL };
 *     if ((rc = momenta_trials("run", "mlp", TRIAL_AOL, 0, &t))) return rc;
 *     trials_release(&t);
 */
#ifndef INSPECT_MOMENTA_H
#define INSPECT_MOMENTA_H

#include "coeffs/trial.h"

/* Adds to t the momentum matrices of the checkpoint at path, of one parameter unless bank is NULL,
 * except zero ones (no gradient yet). few > 0: that many at most, evenly spread.
 * flags as of trial_of_matrix. GPT_INPUT: there is none. */
int momenta_trials(const char *path, const char *bank, int flags, int few,
                   struct trials *t) MUST_CHECK;

#endif
