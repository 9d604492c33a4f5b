/* polar.h - how gpu_polar cuts its products, for the test and the benchmark of each way.
 *
 *     struct polar_plan plan = polar_plan_for(sms, n, rows, cols);
 *     plan.update_columns = 256;
 *     gpu_polar_planned(o, x, n, coef, iters, false, &plan);
 */
#ifndef KERNELS_POLAR_H
#define KERNELS_POLAR_H

#ifdef __cplusplus
extern "C" {
#endif
#include "ops/ops.h"

struct polar_plan {
    bool split_gram, split_square; /* two blocks a tile (polar_gemm.h); only where k is even */
    int update_columns; /* of a tile: 128, 192 or 256 */
    bool overlap; /* a product's blocks may start before the last has ended */
};

struct polar_plan polar_plan_for(int sms, int n, int64_t rows, int64_t cols);
void gpu_polar_planned(struct ops *o, struct tensor x, int n, const double (*coef)[3], int iters,
                       unsigned how, const struct polar_plan *plan);

#ifdef __cplusplus
}
#endif
#endif
