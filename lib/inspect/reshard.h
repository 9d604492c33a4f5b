/* reshard.h - the same state for another number of ranks.
 *
 * Writes ROOT/step-N through checkpoint.h: complete or absent. Data is streamed: a
 * checkpoint larger than memory is fine. The same state makes the same bytes
 * whichever way it came there: 8 -> 4 -> 8 ranks ends with the first files.
 */
#ifndef INSPECT_RESHARD_H
#define INSPECT_RESHARD_H

#include "checkpoint/tensors.h"

/* Is the tensor cut by rank (else rank 0 keeps it whole)? */
typedef bool sharded_fn(void *arg, const char *param);

/* GPT_INPUT: `ranks` does not divide the units of a tensor that is cut; the message has the numbers
 * that do. level as for ckpt_write_rank. */
int reshard(struct tensors *from, const char *root, int ranks, int level, sharded_fn *sharded,
            void *arg) MUST_CHECK;

#endif
