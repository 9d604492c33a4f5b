/* hand_tensors.h - the plain C ops, and tensors of numbers written by hand.
 *
 *     struct ops *o = cpu();
 *     struct tensor x = floats(o, 1, 3, (float[]){ 1, 2, 3 }), y = floats(o, 1, 3, NULL);
 *     ... f32_at(y, 2) ...
 *     o->free(o);
 */
#ifndef HAND_TENSORS_H
#define HAND_TENSORS_H

#include <stdlib.h>
#include "check.h"
#include "ops/ops.h"

static inline struct ops *cpu(void)
{
    struct ops *o = NULL;
    if (!CHECK_OK(ops_cpu_new(&o)))
        exit(check_done());
    return o;
}

/* NaN everywhere where v is NULL: alloc poisons. */
static inline struct tensor floats(struct ops *o, int64_t rows, int64_t cols, const float *v)
{
    struct tensor t = tensor_of(o->alloc(o, (size_t)(rows * cols) * 4, "test"), DT_F32, rows, cols);
    if (v)
        o->upload(o, t.data, v, tensor_bytes(t));
    return t;
}

static inline struct tensor bf16s(struct ops *o, int64_t n, const float *v)
{
    struct tensor t = tensor_of(o->alloc(o, (size_t)n * 2, "test"), DT_BF16, 1, n);
    o->copy(o, t, floats(o, 1, n, v));
    return t;
}

static inline float f32_at(struct tensor t, int64_t i) { return ((float *)t.data)[i]; }

#endif
