/* adam_call.h - Adam of one parameter in the records' form: cautious decay, no master, no scales.
 *
 *     adam_call(o, w, g, m, v, 0.9, 0.99, &step, NULL);
 */
#ifndef TESTS_ADAM_CALL_H
#define TESTS_ADAM_CALL_H

#include "ops/ops.h"

static inline void adam_call(struct ops *ops, struct tensor w, struct tensor g, struct tensor m,
                             struct tensor v, double beta1, double beta2,
                             const struct adam_step *step, const struct fp8_copy *copy)
{
    struct adam_param p = { 0 };
    p.w = w, p.g = g, p.m.t = m, p.v.t = v;
    p.beta1 = beta1, p.beta2 = beta2, p.step = step, p.copy = copy;
    ops->adam(ops, &p, 1);
}

#endif
