/* untie.h - the head's Adam state becomes the embedding's (optimizers.md 5).
 *
 * Between steps, on the rank's thread, all ranks alike. Failures are those of ops and comm.
 */
#ifndef OPTIM_UNTIE_H
#define OPTIM_UNTIE_H

#include "optim/state.h"

/* Moves master, and but for untie_state = zero moments and counter. Gradients of both are scratch memory: they
 * have been cleared. Waits where numbers have scales. */
void optim_untie(struct optim *z);
/* Makes the embedding's master the head's, of which its weight is a copy: while both are tied steps leave
 * it as it was. Gradients are scratch memory as above. */
void optim_tie_master(struct optim *z);

#endif
