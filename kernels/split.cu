/* split.cu - see split.h.
 *
 * pack: a block packs 32 rows of one chunk, through shared memory, so that it reads x along its rows or columns as
 * they lie; scale_rows reads 32 rows so, too. Bytes an element: 4, and 12 an order, 6 of PAIR, 2 of PAIR_ONE.
 */
#include "split.h"
#include "vec.h"

enum { THREADS = 256, ROWS = 32, SUM_PARTS = 48 };

static __global__ void __launch_bounds__(THREADS)
    pack_chunk(struct packed to, struct packed also, int row0, int chunk0, struct unpacked from)
{
    __shared__ float tile[ROWS][CHUNK + 1];
    int first_row = blockIdx.y * ROWS, first_col = blockIdx.x * CHUNK;
    const float *x = from.x + (int64_t)blockIdx.z * from.stride;
    const float *by_row = from.by_row + (int64_t)blockIdx.z * from.by_stride;
    const float *by_col = from.by_col + (int64_t)blockIdx.z * from.by_stride;
    const int *order = from.order + (int64_t)blockIdx.z * from.by_stride;

#pragma unroll
    for (int e = 0; e < ROWS * CHUNK / THREADS; e++) {
        int i = e * THREADS + threadIdx.x;
        int r = from.turned ? i % ROWS : i / CHUNK, k = from.turned ? i / ROWS : i % CHUNK;
        int row = first_row + r, col = first_col + k;
        bool inside = row < from.rows && col < from.cols;
        if (from.lower)
            inside = inside && (from.turned ? row <= col : col <= row);
        int source = from.order && inside ? order[col] : col;
        float at = inside ? x[from.turned ? col * from.ld + row : row * from.ld + source] : 0;
        if (from.excess && inside && row == col)
            at = (at - 1) / 2;
        if (from.by_row && inside)
            at *= by_row[row];
        if (from.by_col && inside)
            at *= by_col[col];
        tile[r][k] = at;
    }
    __syncthreads();
#pragma unroll
    for (int e = 0; e < ROWS * CHUNK / 2 / THREADS; e++) {
        int i = e * THREADS + threadIdx.x;
        int r = i / (CHUNK / 2), k = i % (CHUNK / 2) * 2;
        if (first_row + r >= from.rows)
            continue;
        float a = tile[r][k], b = tile[r][k + 1];
        int64_t row = (int64_t)blockIdx.z * to.rows + row0 + first_row + r;
        int64_t at = row * to.row() + (int64_t)(chunk0 + blockIdx.x) * CHUNK * to.parts() + k;
        put_parts(to.data + at, to.order, a, b);
        if (also.data)
            put_parts(also.data + at, also.order, a, b);
    }
}

/* A block has 32 rows of a matrix, and reads them as they lie. */
static __global__ void __launch_bounds__(THREADS)
    scale_rows_kernel(struct scales to, struct unpacked from)
{
    enum { WARPS = THREADS / 32 };
    __shared__ float sums[ROWS][WARPS + 1], tops[ROWS][WARPS + 1];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = blockIdx.x * ROWS;
    const float *x = from.x + (int64_t)blockIdx.y * from.stride;
    const float *by_col = from.by_col + (int64_t)blockIdx.y * from.by_stride;

    for (int r = from.turned ? lane : warp; r < ROWS; r += from.turned ? ROWS : WARPS) {
        float sum = 0, top = 0;
        int row = first + r, begin = from.lower && from.turned ? first : 0;
#pragma unroll 8
        for (int col = begin + (from.turned ? warp : lane); col < from.cols;
             col += from.turned ? WARPS : 32) {
            bool inside =
                row < from.rows && (!from.lower || (from.turned ? row <= col : col <= row));
            float at = inside ? x[from.turned ? col * from.ld + row : row * from.ld + col] : 0;
            if (from.by_col)
                at *= by_col[col];
            sum = fmaf(at, at, sum), top = fmaxf(top, fabsf(at));
        }
        if (!from.turned)
            sum = warp_sum(sum), top = warp_max(top);
        if (from.turned || lane == 0)
            sums[r][from.turned ? warp : 0] = sum, tops[r][from.turned ? warp : 0] = top;
    }
    __syncthreads();
    int row = first + threadIdx.x;
    if (threadIdx.x >= ROWS || row >= from.rows)
        return;
    float sum = 0, top = 0;
    for (int i = 0; i < (from.turned ? WARPS : 1); i++)
        sum += sums[threadIdx.x][i], top = fmaxf(top, tops[threadIdx.x][i]);
    float by = scale_of(sum);
    if (!(sum > 1e-30f && sum < 1e30f)) { /* squares may be none */
        int e = 1;
        if (top > 0 && top < INFINITY)
            frexpf(top, &e);
        by = ldexpf(1, max(-126, min(126, 1 - e)));
    }
    int64_t at = (int64_t)blockIdx.y * from.rows + row;
    to.by[at] = by, to.over[at] = 1 / by;
}

void scale_rows(struct cuda_ops *c, const struct scales &to, const struct unpacked &from, int n)
{
    if (c->failed || from.rows == 0 || n == 0)
        return;
    scale_rows_kernel<<<dim3(div_up(from.rows, ROWS), n), THREADS, 0, c->stream>>>(to, from);
    CUDA_LAUNCHED(c);
}

void pack_both(struct cuda_ops *c, const struct packed &a, const struct packed &b, int row0,
               int chunk0, const struct unpacked &from, int n)
{
    assert(!b.data || (b.rows == a.rows && b.chunks == a.chunks && b.parts() == a.parts()));
    if (c->failed || from.rows == 0 || n == 0)
        return;
    dim3 grid(div_up(from.cols, CHUNK), div_up(from.rows, ROWS), n);
    pack_chunk<<<grid, THREADS, 0, c->stream>>>(a, b, row0, chunk0, from);
    CUDA_LAUNCHED(c);
}

void pack(struct cuda_ops *c, const struct packed &to, int row0, int chunk0,
          const struct unpacked &from, int n)
{
    pack_both(c, to, {}, row0, chunk0, from, n);
}

void packed_product(struct cuda_ops *c, float *out, int64_t ld, int64_t stride,
                    const struct packed &a, int row_a, int rows_a, const struct packed &b,
                    int row_b, int rows_b, int first, int last, float alpha, bool add, int n)
{
    if (c->failed || rows_a == 0 || rows_b == 0 || n == 0)
        return;
    int64_t wide = (int64_t)CHUNK * a.parts();
    int chunks = SUM_PARTS / a.parts();
    enum dtype type = a.pair() ? DT_F16 : DT_BF16;
    for (int k = first; k < last; k += chunks) {
        int some = last - k < chunks ? last - k : chunks;
        float factors[2] = { a.pair() ? ldexpf(alpha, -2 * PAIR_LOG) : alpha, 1 };
        struct gemm g = {
            .out = tensor_of(out, DT_F32, rows_a, rows_b),
            .a = tensor_of(a.data + row_a * a.row() + k * wide, type, rows_a, some * wide),
            .b = tensor_of(b.data + row_b * b.row() + k * wide, type, rows_b, some * wide),
            .tb = true
        };
        if (add || k > first)
            g.add = g.out;
        g.factors = factors, g.alone = true;
        g.lda = a.row(), g.ldb = b.row(), g.ldo = ld;
        g.batch = n;
        g.stride_a = a.row() * a.rows, g.stride_b = b.row() * b.rows, g.stride_out = stride;
        cuda_gemm(c, &g);
    }
}
