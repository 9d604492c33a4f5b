/* polar.h - how gpu_polar cuts its products, for the benchmark that compares ways.
 *
 *     struct polar_plan plan = polar_plan_for(sms, n, rows, cols);
 *     plan.update.pair = ALONE;
 *     gpu_polar_planned(o, x, n, coef, iters, false, &plan);
 */
#ifndef KERNELS_POLAR_H
#define KERNELS_POLAR_H

#ifdef __cplusplus
extern "C" {
#endif
#include "ops/ops.h"

/* What two neighbouring blocks share: nothing, an operand, or one tile (polar_gemm.h). */
enum pairing { ALONE, SHARED_B, SPLIT_K };

/* stages: 3 (two blocks a multiprocessor) or 6 (one, with more in flight). */
struct product_plan { enum pairing pair; int stages; };

struct polar_plan {
    struct product_plan gram, square, update;   /* update: not SPLIT_K */
    bool overlap;               /* the next product's blocks may start before this one has ended */
};

struct polar_plan polar_plan_for(int sms, int n, int64_t rows, int64_t cols);
void gpu_polar_planned(struct ops *o, struct tensor x, int n, const double (*coef)[3], int iters,
                       bool aol, const struct polar_plan *plan);

#ifdef __cplusplus
}
#endif
#endif
