/* tensor.h - a matrix somewhere: pointer, element type, shape.
 *
 * Everything in the model is a row-major matrix: activations are (tokens,
 * channels), a bank is (all rows of all matrices, columns), a vector is one
 * row. `data` may point to device memory; only ops look through it. A tensor
 * owns nothing and is passed by value.
 *
 *     struct tensor w = tensor_rows(bank, 5 * 3072, 2304);     // QKV of layer 5
 */
#ifndef TYPES_TENSOR_H
#define TYPES_TENSOR_H

#include <stdint.h>
#include "types/dtype.h"

struct tensor {
    void *data;
    enum dtype dtype;
    int64_t rows, cols;
};

/* Rows (or other units) first .. first + count - 1. */
struct span {
    int64_t first, count;
};

#define NO_TENSOR ((struct tensor){ 0 })

static inline struct tensor tensor_of(void *data, enum dtype t, int64_t rows, int64_t cols)
{
    return (struct tensor){ data, t, rows, cols };
}
static inline int64_t tensor_count(struct tensor t) { return t.rows * t.cols; }
static inline size_t tensor_bytes(struct tensor t)
{
    return (size_t)tensor_count(t) * dtype_size(t.dtype);
}
/* Rows first .. first + n - 1. */
static inline struct tensor tensor_rows(struct tensor t, int64_t first, int64_t n)
{
    t.data = t.data ? (char *)t.data + (size_t)(first * t.cols) * dtype_size(t.dtype) : NULL;
    t.rows = n;
    return t;
}
/* Returns the elements of t under another shape of equal count. */
static inline struct tensor tensor_shape(struct tensor t, int64_t rows, int64_t cols)
{
    t.rows = rows;
    t.cols = cols;
    return t;
}

#endif
