/* step.h - one step of the optimizer, in the recipe's order of communication.
 *
 * Owns nothing: works on struct optim (state.h shows a use) and the banks. The
 * recipe gives each parameter's rule and communication, the scatter order and
 * the work order. Failures are kept by ops and comm: call their status().
 *
 * Threads: as struct optim.
 */
#ifndef OPTIM_STEP_H
#define OPTIM_STEP_H

#include "optim/state.h"

/* Runs the part of the plan (plan.h) that comes before the forward: marks the gradients that the backward writes,
 * starts the gathers that the previous step deferred (the recipe's `late`). optim_need waits for a
 * parameter's gather before its first use; without a pending gather it does nothing. Both may be captured
 * with the rest of the step. */
void optim_begin(struct optim *z);
void optim_need(struct optim *z, int i);
/* Between two steps: does now the gathers that are deferred to the next step. */
void optim_settle(struct optim *z);

/* For each micro-batch, on the host: the rows of the sparse parameter that it reads. */
void optim_touch(struct optim *z, const int32_t *row, int n);
/* True if this step reduces a sparse gradient. Then, after backward: optim_pause waits for all pending
 * collectives (a graph may end there), optim_exchange reduces the sparse parameter's gradient
 * (sparse.h; it cannot be captured), and optim_step (which may be a second graph) does the rest. */
bool optim_exchanges(const struct optim *z);
void optim_pause(struct optim *z);
int optim_exchange(struct optim *z) MUST_CHECK;

/* Reduces the gradients, updates the weights, gathers them, and clears the gradients of the updated
 * parameters (optimizers.md 2.3), as the plan lists it. Only queues work: no upload, no download, no
 * allocation, no host decision on device data, so it can be captured in a graph. Steps whose plans have
 * the same `queued` differ in the hyperparameters of optim_prepare alone. */
void optim_step(struct optim *z);

/* Called by the backward of the last micro-batch when n rows of parameter i's gradient from `first`
 * on are final. If the plan has the parameter among the early ones, starts the reduction of the shards that
 * have become complete; optim_step then starts only the rest. */
void optim_reduce_early(struct optim *z, int i, int64_t first, int64_t n);

/* After optim_step, on the host: counts the updates; at the untie step queues the copy of the
 * head's Adam state to the embedding. */
void optim_finish(struct optim *z, const struct step_schedule *at);
/* With z->gate, once a finished step, in their order, when its decision (z->gate->gate) has been read:
 * a skipped step's updates do not count. At most one finished step may be open at optim_prepare. */
void optim_outcome(struct optim *z, const struct step_schedule *at, bool skipped);

/* Reduces all gradients, in place, and gathers them: each rank has the means whole. Collective; no step may
 * follow. */
int optim_whole_gradients(struct optim *z) MUST_CHECK;
/* Reduces, in place, the gradients that wait to be applied after `steps` steps, and makes this
 * rank's part of each one of optim_tensors. Collective; no step may follow. */
int optim_set_aside(struct optim *z, int steps) MUST_CHECK;
/* Clears the gradient of parameter i before states are loaded; one that waits is among
 * optim_tensors up to optim_loaded. */
void optim_expects(struct optim *z, int i, bool waits);
/* Returns what a loaded mean is to be multiplied by, so that the next reduction finds it. */
double optim_share(const struct optim *z, int i);

#endif
