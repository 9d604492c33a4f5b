/* split.h - products of f32 matrices by tensor cores, as sums of products of their parts in 16 bits, the smallest first.
 *
 * bf16x6 (SPLIT): each number is three of bf16, and six products of these are added: 24 bits, any numbers.
 * f16x3 (PAIR): each is two of f16, and three products are added: 22 bits, half the FLOPs. For numbers of at most
 * 15: each is kept to 2^-22 of itself and 2^-37, and greater ones become 15.
 *
 * An operand is packed: its columns in chunks of 128, of a chunk its parts after each other, so that one product
 * in 16 bits along all of them is the sum, and a packed matrix may grow by chunks. Rows behind the last column are 0.
 *
 *     struct packed a = packed_cut(&at, n, rows, k, SPLIT_A), b = packed_cut(&at, n, cols, k, SPLIT_B);
 *     pack(c, a, 0, 0, { x, ldx, stride, rows, k }, n);          // x (rows,k), row by row
 *     pack(c, b, 0, 0, { y, ldy, stride, cols, k, true }, n);    // y' of y (k,cols)
 *     packed_product(c, out, ldo, stride, a, 0, rows, b, 0, cols, 0, a.chunks, 1, false, n);
 *
 * By cuBLASLt without workspace, so in branches too; sums of more than 384 additions of tensor cores, 16 columns each,
 * are added up in f32 outside of them.
 */
#ifndef KERNELS_SPLIT_H
#define KERNELS_SPLIT_H

#include "host/device.h"

enum { CHUNK = 128, SPLIT_PARTS = 6, PAIR_PARTS = 3, PAIR_LOG = 12 /* f16 hold 2^PAIR_LOG x */ };
/* Says in which order an operand's parts lie; ONE: the greater part of a PAIR alone, 11 bits, on both sides. */
enum split_order { SPLIT_A, SPLIT_B, PAIR_A, PAIR_B, PAIR_ONE };

struct packed {
    uint16_t *data;
    int rows, chunks; /* of one matrix */
    enum split_order order;
    __host__ __device__ bool pair() const { return order >= PAIR_A; }
    __host__ __device__ int parts() const
    {
        return order == PAIR_ONE ? 1 : pair() ? PAIR_PARTS : SPLIT_PARTS;
    }
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
    p.data = (uint16_t *)cuda_cut(at, packed_bytes(n, rows, cols, order));
    return p;
}

/* How many of n matrices that take so many bytes of workspace are taken at a time. */
static inline int split_at_once(int n, size_t bytes)
{
    size_t many = ((size_t)9 << 29) / bytes;
    return many >= (size_t)n ? n : many > 0 ? (int)many : 1;
}

/* Names what is packed: op(x) (rows,cols) of each matrix, in places that are `stride` apart. */
struct unpacked {
    const float *x;
    int64_t ld, stride;
    int rows, cols;
    bool turned; /* x is stored (cols,rows) */
    bool lower; /* what is stored above x's diagonal counts as 0 */
    const float *by_row,
        *by_col; /* NULL, or numbers that op(x)'s rows and columns are multiplied by */
    int64_t by_stride; /* from one matrix's numbers, and order, to the next one's */
    const int *order; /* NULL, or which of x's columns each is; not turned */
    bool excess; /* of the diagonal half of what it has above 1 counts */
};

/* Powers of two that lines are multiplied by, and their reciprocals: a number a line. */
struct scales {
    float *by, *over;
};

/* Makes the scales with which op(x)'s rows, without by_row, have norms from 1 to 2; of a row of zeros 1. */
void scale_rows(struct cuda_ops *c, const struct scales &to, const struct unpacked &from, int n);
/* Packs n matrices into the rows from row0 on and the chunks from chunk0 on. */
void pack(struct cuda_ops *c, const struct packed &to, int row0, int chunk0,
          const struct unpacked &from, int n);
/* Packs n matrices in both orders, into a and into b. */
void pack_both(struct cuda_ops *c, const struct packed &a, const struct packed &b, int row0,
               int chunk0, const struct unpacked &from, int n);
/* out (rows a,rows b) = alpha a b' over the chunks from first to before last, and what out holds with add. */
void packed_product(struct cuda_ops *c, float *out, int64_t ld, int64_t stride,
                    const struct packed &a, int row_a, int rows_a, const struct packed &b,
                    int row_b, int rows_b, int first, int last, float alpha, bool add, int n);

/* Returns the power of two whose square takes x into [1,4), or 1. */
__device__ __forceinline__ float scale_of(float x)
{
    int e = 2;
    if (x > 0 && x < INFINITY)
        frexpf(x, &e);
    return ldexpf(1, -((e - 1) >> 1));
}

/* Writes the parts of two neighbouring numbers, which begin at `out` in a chunk's first part, in a packed operand's order. */
__device__ __forceinline__ void put_parts(uint16_t *out, enum split_order order, float a, float b)
{
    bool pair = order >= PAIR_A, second = order == SPLIT_B || order == PAIR_B;
    uint32_t part[3];

    if (pair) {
        a = a < -15 ? -15 : a > 15 ? 15 : a, b = b < -15 ? -15 : b > 15 ? 15 : b; /* NaN stays */
        a *= 1 << PAIR_LOG, b *= 1 << PAIR_LOG;
    }
#pragma unroll
    for (int p = 0; p < 3; p++)
        if (pair) {
            __half x = __float2half_rn(a), y = __float2half_rn(b);
            a -= __half2float(x), b -= __half2float(y);
            part[p] = __half_as_ushort(x) | (uint32_t)__half_as_ushort(y) << 16;
        } else {
            __nv_bfloat16 x = __float2bfloat16_rn(a), y = __float2bfloat16_rn(b);
            a -= __bfloat162float(x), b -= __bfloat162float(y);
            part[p] = __bfloat16_as_ushort(x) | (uint32_t)__bfloat16_as_ushort(y) << 16;
        }
    uint32_t most = part[0], mid = part[1], least = part[2], *to = (uint32_t *)out;
    const int next = CHUNK / 2; /* words */
    if (order == PAIR_ONE) {
        to[0] = most;
    } else if (pair) {
        to[0] = second ? most : mid, to[next] = second ? mid : most, to[2 * next] = most;
    } else {
        to[0] = second ? most : least, to[next] = mid, to[2 * next] = second ? least : most;
        to[3 * next] = second ? most : mid, to[4 * next] = second ? mid : most, to[5 * next] = most;
    }
}

#endif
