/* split.h - products of f32 matrices by tensor cores: each number is three of bf16, and six products of these are
 * added, the smallest first (bf16x6: 24 bits).
 *
 * An operand is packed: its columns in chunks of 128, of a chunk its six parts after each other, so that one product
 * in bf16 along all of them is the sum, and a packed matrix may grow by chunks. Rows behind the last column are 0.
 *
 *     struct packed a = packed_cut(&at, n, rows, k, SPLIT_A), b = packed_cut(&at, n, cols, k, SPLIT_B);
 *     pack(c, a, 0, 0, x, ldx, stride, rows, k, false, n);      // x (rows,k), row by row
 *     pack(c, b, 0, 0, y, ldy, stride, cols, k, true, n);       // y' of y (k,cols)
 *     packed_product(c, out, ldo, stride, a, 0, rows, b, 0, cols, 0, a.chunks, 1, false, n);
 *
 * By cuBLASLt, so in the trunk alone; sums of more than 1024 columns are added up in f32 outside of the tensor cores.
 */
#ifndef KERNELS_SPLIT_H
#define KERNELS_SPLIT_H

#include "host/device.h"

enum { CHUNK = 128, SPLIT_PARTS = 6 };
enum split_order { SPLIT_A, SPLIT_B, SPLIT_ONE }; /* of the parts; ONE: rounded to bf16 alone */

struct packed {
    __nv_bfloat16 *data;
    int rows, chunks; /* of one matrix */
    enum split_order order;
    __host__ __device__ int parts() const { return order == SPLIT_ONE ? 1 : SPLIT_PARTS; }
    __host__ __device__ int64_t row() const { return (int64_t)chunks * CHUNK * parts(); }
};

static inline size_t packed_bytes(int n, int rows, int cols, enum split_order order)
{
    struct packed p = { NULL, rows, div_up(cols, CHUNK), order };
    return cuda_round(2 * (size_t)p.row() * rows * n);
}
static inline struct packed packed_cut(char **at, int n, int rows, int cols, enum split_order order)
{
    struct packed p = { NULL, rows, div_up(cols, CHUNK), order };
    p.data = (__nv_bfloat16 *)cuda_cut(at, packed_bytes(n, rows, cols, order));
    return p;
}

/* How many of n matrices that take so many bytes of workspace are taken at a time. */
static inline int split_at_once(int n, size_t bytes)
{
    size_t many = ((size_t)9 << 29) / bytes;
    return many >= (size_t)n ? n : many > 0 ? (int)many : 1;
}

/* Packs op(x) (rows,cols) of n matrices into the rows from row0 on and the chunks from chunk0 on. turned: x is stored
 * (cols,rows). */
void pack(struct cuda_ops *c, const struct packed &to, int row0, int chunk0, const float *x,
          int64_t ld, int64_t stride, int rows, int cols, bool turned, int n);
/* out (rows a,rows b) = alpha a b' over the chunks from first to before last, and what out holds with add. */
void packed_product(struct cuda_ops *c, float *out, int64_t ld, int64_t stride,
                    const struct packed &a, int row_a, int rows_a, const struct packed &b,
                    int row_b, int rows_b, int first, int last, float alpha, bool add, int n);

#endif
