/* floats.h - tensors of a device as host floats.
 *
 *     float *x = floats_of(o, t);      // free(x); bf16 and f32 exactly, 16-bit integers by value
 *     floats_to(o, t, x);                      // rounded to t's type
 */
#ifndef TESTS_FLOATS_H
#define TESTS_FLOATS_H

#include "ops/ops.h"

float *floats_of(struct ops *o, struct tensor t);
void floats_to(struct ops *o, struct tensor t, const float *x);
/* |got - want| / |want|, Euclidean. NaN when something is not finite. */
double relative_error(const float *got, const float *want, int64_t n);

#endif
