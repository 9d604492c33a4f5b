/* cpu_tensors.h - tensors of the plain C device for tests: NaN before they are written, or drawn.
 *
 *     rng = rng_make(seed, 0);
 *     if (!CHECK_OK(ops_cpu_new(&o))) ...
 *     struct tensor w = drawn(DT_BF16, rows, cols, 0.1), y = blank(DT_F32, rows, cols);
 */
#ifndef CPU_TENSORS_H
#define CPU_TENSORS_H

#include <stdlib.h>
#include "base/rng.h"
#include "check.h"
#include "element.h"
#include "ops/ops.h"

static struct ops *o;
static struct rng rng;
static uint64_t draws;

static inline double normal(void) { return rng_normal(&rng, draws++); }

/* NaN everywhere: alloc poisons. */
static inline struct tensor blank(enum dtype t, int64_t rows, int64_t cols)
{
    struct tensor x = tensor_of(NULL, t, rows, cols);
    x.data = o->alloc(o, tensor_bytes(x), "test");
    return x;
}

static inline struct tensor drawn(enum dtype t, int64_t rows, int64_t cols, double scale)
{
    struct tensor x = blank(t, rows, cols);
    for (int64_t i = 0; i < rows * cols; i++)
        set(x, i, scale * normal());
    return x;
}

#endif
