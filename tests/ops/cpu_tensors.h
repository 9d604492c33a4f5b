/* cpu_tensors.h - tensors of the plain C device for tests: NaN before they are written, or drawn.
 *
 *     cpu_begin();
 *     struct tensor w = drawn(DT_BF16, rows, cols, 0.1), y = blank(DT_F32, rows, cols);
 *     o->...
 *     cpu_end();
 */
#ifndef CPU_TENSORS_H
#define CPU_TENSORS_H

#include <stdlib.h>
#include "base/rng.h"
#include "check.h"
#include "element.h"
#include "op_test.h"
#include "ops/ops.h"

static struct ops *o;
static struct rng rng;
static uint64_t draws;

/* Shapes of ops of the optimizer: the smallest, long, wide and square ones. */
enum { N_RAGGED = 7 };
static const int64_t ragged[N_RAGGED][2] = { { 1, 1 },   { 1, 13 },  { 17, 1 }, { 31, 31 },
                                             { 24, 96 }, { 96, 24 }, { 61, 67 } };

/* Calls f for each shape, of each two types, with and without what `flag` says. */
static inline void each_ragged(void (*f)(enum dtype, enum dtype, int64_t rows, int64_t cols,
                                         bool flag))
{
    for (int s = 0; s < N_RAGGED; s++)
        for (int k = 0; k < 8; k++)
            f(k & 4 ? DT_BF16 : DT_F32, k & 2 ? DT_BF16 : DT_F32, ragged[s][0], ragged[s][1],
              k & 1);
}

static inline void cpu_begin(void)
{
    rng = rng_make(op_test_seed(), 0);
    draws = 0;
    if (!CHECK_OK(ops_cpu_new(&o)))
        exit(check_done());
}
static inline void cpu_end(void)
{
    CHECK_OK(o->status(o));
    o->free(o);
}

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

static inline double *as_double(struct tensor t)
{
    double *x = malloc((size_t)tensor_count(t) * sizeof *x + 1);
    for (int64_t i = 0; i < tensor_count(t); i++)
        x[i] = get(t, i);
    return x;
}

/* |t - want| / |want|; NaN when t has one. */
static inline double distance(struct tensor t, const double *want)
{
    double d = 0, w = 0;
    for (int64_t i = 0; i < tensor_count(t); i++) {
        d += (get(t, i) - want[i]) * (get(t, i) - want[i]);
        w += want[i] * want[i];
    }
    return sqrt(w > 0 ? d / w : d);
}

#endif
