/* store.h - numbers as an optimizer keeps them (optimizers.md 3.2, 3.3): weights in all their forms, and
 * tensors of codes with scales. What ops adam and store share.
 *
 *     struct weight_scales s = weight_new_scales(p, largest_of(0, x, n));
 *     weight_write(p, r * cols, x, n, &s);               // n at most FP8_BLOCK (cpu.h)
 *     weight_put_scales(p, r, &s);
 *
 * Host memory. Threads: calls for different elements, but amax of a copy is one number.
 */
#ifndef OPS_STORE_H
#define OPS_STORE_H

#include "ops/ops.h"

/* Numbers at..at+n-1 of t; those in f16 and e4m3 are codes times scale. */
void scaled_read(real *x, struct tensor t, int64_t at, int n, real scale);
/* draw: words, the first number's bits at `from`; NULL: to nearest. A second moment that is not 0 does
 * not become 0. */
void scaled_write(struct tensor t, int64_t at, const real *x, int n, real scale,
                  const uint32_t *draw, uint64_t from, bool second);
/* The greatest of most and |x|; NaN if one is. */
real largest_of(real most, const real *x, int64_t n);
/* The scale of codes of type t that hold *top, or without a top `most`. */
real scale_of(enum dtype t, const real *top, real most);

/* Scales of a row: of a master in f16, of a weight in e4m3. */
struct weight_scales {
    real p, w;
};
/* True if the weight's codes have a scale a row. */
static inline bool weight_code_rows(const struct adam_param *q) { return q->copy && q->copy->rows; }
struct weight_scales weight_scales_of(const struct adam_param *q, int64_t row);
/* most: the row's largest new number. */
struct weight_scales weight_new_scales(const struct adam_param *q, real most);
void weight_put_scales(const struct adam_param *q, int64_t row, const struct weight_scales *s);
/* The exact value: of the master, without one of the weight. */
void weight_read(real *x, const struct adam_param *q, int64_t at, int n,
                 const struct weight_scales *s);
/* Master, weight, codes and what products read, of numbers x. */
void weight_write(const struct adam_param *q, int64_t at, const real *x, int n,
                  const struct weight_scales *s);
/* All of a weight on the host, as op store, without a gate. x: numbers of its shape. */
void weight_store(const struct adam_param *q, struct tensor x);

#endif
