/* step.h - one step of the optimizer, in the recipe's order of communication.
 *
 * Owns nothing: works on struct optim (state.h, where a use is shown) and the
 * banks. A parameter's row in the recipe says rule and communication; scatter
 * order and work order are the recipe's. Failures stick in ops and comm: ask
 * their status().
 *
 * Threads: as struct optim.
 */
#ifndef OPTIM_STEP_H
#define OPTIM_STEP_H

#include "optim/state.h"

/* At the start of a step: gathers what the step before left to this one (the recipe's `late`).
 * optim_need waits for a parameter's gather, before its first use; again or for others: nothing.
 * Both may be captured with the rest of the step. */
void optim_begin(struct optim *z, const struct point *at);
void optim_need(struct optim *z, int i);
/* Between two steps: every rank gets what the next step would gather late. */
void optim_settle(struct optim *z);

/* On the host, for each micro-batch: rows of the sparse parameter that it reads. */
void optim_touch(struct optim *z, const int32_t *row, int n);
/* Will optim_exchange be needed in this step? Then, after backward: optim_pause waits for all
 * that is under way (a graph may end there), optim_exchange reduces the sparse parameter's
 * gradient by counts that ranks tell each other (sparse.h; it cannot be captured), and optim_step
 * (which may be the next graph) does the rest. */
bool optim_exchanges(const struct optim *z, const struct point *at);
void optim_pause(struct optim *z);
int optim_exchange(struct optim *z) MUST_CHECK;

/* Reduces the gradients, updates, gathers the weights, clears the gradients of what was
 * updated (optimizers.md 2.3). Only launches: no upload, no download, no allocation, no host
 * decision on device data, so it can be captured in a graph; what changes from step to step
 * with the same at->adam and at->tied comes from optim_prepare. */
void optim_step(struct optim *z, const struct point *at);

/* From backward of the last micro-batch, when n rows of parameter i's gradient from `first` on are
 * final: if the recipe marks it `early`, starts the reduction of those ranks' places that have
 * become complete, each to its owner; optim_step then only starts the rest. A tied head has to
 * wait for the embedding's gradient and is left to optim_step. */
void optim_reduce_early(struct optim *z, const struct point *at, int i, int64_t first, int64_t n);

/* After optim_step, on the host: counts the updates; at the untie step launches the move of
 * the head's Adam state to the embedding. */
void optim_finish(struct optim *z, const struct point *at);

#endif
