/* floor.h - the least time a step can take on one GPU of a run, from counted work.
 *
 * FLOPs and bytes are counted from the recipe's shapes; the ceilings are those
 * measured on an H200 with its own libraries (share/doc/measured/README.md). Pure.
 */
#ifndef TRAIN_FLOOR_H
#define TRAIN_FLOOR_H

#include "model/schedule.h"

struct step_floor {
    double flops; /* of a step on one rank, forward and backward */
    double ms; /* sum of what follows */
    double products_ms, head_ms, attention_ms, elementwise_ms, logits_ms;
};

/* attn_flops: scores and values of the documents at hand, forward and backward. */
struct step_floor step_floor(const struct recipe *r, const struct step_schedule *p, int ranks,
                             double attn_flops);

#endif
