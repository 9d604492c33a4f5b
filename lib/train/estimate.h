/* estimate.h - a run's time, and that on another number of ranks, from times of its stages (gpt-train --bench
 * --estimate N).
 *
 *     struct stage_time t = { .stage = 0, .steps = 575, .ranks = 1, .step = 169.2, .model = 166, .optim = 3 };
 *     struct estimate_rates at = { .products = 772e12, .copy = 4.25e12, .send = 300e9 };
 *     struct stage_estimate e = estimate_stage(recipe, &t, 8, &at);
 *     ... e.least, e.most                                // ms of a step
 *
 * Forward and backward go with the micro-batches of the rank that has most of them. The optimizer goes with the least
 * time that its products and bytes take on the rank that has most of it: a replicated parameter is not cut.
 * Exposed communication goes with the bytes that a rank sends; at most all that it sends is exposed.
 * Ranks are equally fast, and each has a device, or as many processors, as the measured ones. Pure functions; any
 * thread.
 */
#ifndef TRAIN_ESTIMATE_H
#define TRAIN_ESTIMATE_H

#include "recipe/recipe.h"

struct stage_time {
    int stage, steps; /* of the run: the last one's have those of the extension, too */
    int ranks; /* that were measured */
    double step, model, optim,
        exposed; /* ms: a step, forward and backward, the rest that is computed, communication */
};
struct estimate_rates {
    double products, copy, send; /* of a rank: FLOP/s, bytes/s of memory, bytes/s that it sends */
};
struct stage_estimate {
    int micros;
    double model, optim; /* ms */
    double sent; /* bytes a step */
    double least,
        most; /* ms of a step: with as much communication exposed as was measured, and with all of it */
};
struct stage_estimate estimate_stage(const struct recipe *r, const struct stage_time *t, int ranks,
                                     const struct estimate_rates *at);

/* Steps of each stage but the extension, whose steps count as those of the stage before: steps (n_stages - 1). */
void estimate_steps(const struct recipe *r, int *steps);
/* Bytes that a rank sends in a step of the stage, the mean over steps with and without Adam, in rings, dense. */
double estimate_sent(const struct recipe *r, int stage, int ranks);
/* Least seconds of a step's update on the rank with most of it, and in *cut what is cut by rank of that. */
double estimate_update(const struct recipe *r, int ranks, const struct estimate_rates *at,
                       double *cut);

#endif
