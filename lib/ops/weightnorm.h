/* weightnorm.h - the arithmetic of one row of op weightnorm, for both devices.
 *
 *     struct row_numbers r = weightnorm_begin(s, at, fresh, row_norm);      // what the row is by now
 *     weightnorm_gain(s, at, t, lr, &target, steps, power);
 *
 * Formulas: gpt-rules(5), weightnorm. Pure but for the states of its row; any thread.
 */
#ifndef OPS_WEIGHTNORM_H
#define OPS_WEIGHTNORM_H

#include "ops/norm_fit.h"

/* Constants of the published rule. */
#define WEIGHTNORM_MU 0.95
#define WEIGHTNORM_SCALE 0.2

/* A row that has not moved yet takes its own norm. size: of the row. */
FIT_BOTH void weightnorm_begin(const struct weightnorm *s, int64_t at, bool fresh, double size)
{
    if (fresh)
        s->gain[at] = s->norm[at] = s->first[at] = (real)(size <= 1e-12 ? sqrt(0.33) : size);
}

/* The gain by Adam in update t, from 1; then the norm that the next update takes. */
FIT_BOTH void weightnorm_end(const struct weightnorm *s, int64_t at, double t, double lr,
                             double target, double steps, double power)
{
    double g = s->slope[at], way = t - 1 > 0 ? (t - 1) / (steps - 1) : 0;
    s->gain_mean[at] += (real)(0.1 * (g - s->gain_mean[at]));
    s->gain_second[at] += (real)(0.05 * (g * g - s->gain_second[at]));
    double mean = s->gain_mean[at] / (1 - pow(0.9, t));
    double second = s->gain_second[at] / (1 - pow(0.95, t));
    s->gain[at] -= (real)(lr * mean / (sqrt(second) + 1e-8));
    s->norm[at] = (real)(s->first[at] + (target - s->first[at]) * pow(way < 1 ? way : 1, power));
}

#endif
