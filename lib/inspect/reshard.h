/* reshard.h - the same state for another number of ranks.
 *
 * Writes ROOT/step-N, complete or absent (checkpoint/checkpoint_write.h). Data is streamed: a
 * checkpoint larger than memory is fine. The same state makes the same bytes
 * whichever way it came there: 8 -> 4 -> 8 ranks ends with the first files.
 */
#ifndef INSPECT_RESHARD_H
#define INSPECT_RESHARD_H

#include "checkpoint/tensors.h"
#include "recipe/recipe.h"

/* r says which parameters are cut by rank (else rank 0 keeps them whole); NULL, or one that r does
 * not know: those of which a tensor is in several pieces, and their units are cut so that ranks'
 * counts differ by one at most. level as for ckpt_write_rank. */
int reshard(struct tensors *from, const char *root, int ranks, int level,
            const struct recipe *r) MUST_CHECK;

#endif
