/* split.cu - see split.h.
 *
 * pack: a block packs 32 rows of one chunk, through shared memory, so that it reads x along its rows or columns as
 * they lie. Bytes an element: 4 and 12, or 2 of SPLIT_ONE.
 */
#include "split.h"

enum { THREADS = 256, ROWS = 32, SUM_CHUNKS = 8 };

static __global__ void __launch_bounds__(THREADS)
    pack_chunk(struct packed to, int row0, int chunk0, const float *x, int64_t ld, int64_t stride,
               int rows, int cols, bool turned)
{
    static constexpr int order[2][SPLIT_PARTS] = { { 2, 1, 0, 1, 0, 0 }, { 0, 1, 2, 0, 1, 0 } };
    __shared__ float tile[ROWS][CHUNK + 1];
    int first_row = blockIdx.y * ROWS, first_col = blockIdx.x * CHUNK;

    x += (int64_t)blockIdx.z * stride;
    for (int i = threadIdx.x; i < ROWS * CHUNK; i += THREADS) {
        int r = turned ? i % ROWS : i / CHUNK, k = turned ? i / ROWS : i % CHUNK;
        int row = first_row + r, col = first_col + k;
        bool inside = row < rows && col < cols;
        tile[r][k] = inside ? x[turned ? col * ld + row : row * ld + col] : 0;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < ROWS * CHUNK / 2; i += THREADS) {
        int r = i / (CHUNK / 2), k = i % (CHUNK / 2) * 2;
        if (first_row + r >= rows)
            continue;
        float a = tile[r][k], b = tile[r][k + 1];
        __nv_bfloat162 part[3];
        for (int p = 0; p < 3; p++) {
            part[p] = __floats2bfloat162_rn(a, b);
            a -= __bfloat162float(part[p].x), b -= __bfloat162float(part[p].y);
        }
        __nv_bfloat16 *out = to.data +
                             ((int64_t)blockIdx.z * to.rows + row0 + first_row + r) * to.row() +
                             (int64_t)(chunk0 + blockIdx.x) * CHUNK * to.parts() + k;
        if (to.order == SPLIT_ONE)
            *(__nv_bfloat162 *)out = part[0];
        else
            for (int p = 0; p < SPLIT_PARTS; p++)
                *(__nv_bfloat162 *)(out + p * CHUNK) = part[order[to.order == SPLIT_B][p]];
    }
}

void pack(struct cuda_ops *c, const struct packed &to, int row0, int chunk0, const float *x,
          int64_t ld, int64_t stride, int rows, int cols, bool turned, int n)
{
    if (c->failed || rows == 0 || n == 0)
        return;
    dim3 grid(div_up(cols, CHUNK), div_up(rows, ROWS), n);
    pack_chunk<<<grid, THREADS, 0, c->stream>>>(to, row0, chunk0, x, ld, stride, rows, cols,
                                                turned);
    CUDA_LAUNCHED(c);
}

void packed_product(struct cuda_ops *c, float *out, int64_t ld, int64_t stride,
                    const struct packed &a, int row_a, int rows_a, const struct packed &b,
                    int row_b, int rows_b, int first, int last, float alpha, bool add, int n)
{
    if (c->failed || rows_a == 0 || rows_b == 0 || n == 0)
        return;
    int64_t wide = (int64_t)CHUNK * a.parts();
    for (int k = first; k < last; k += SUM_CHUNKS) {
        int some = last - k < SUM_CHUNKS ? last - k : SUM_CHUNKS;
        float factors[2] = { alpha, 1 };
        struct gemm g = {
            .out = tensor_of(out, DT_F32, rows_a, rows_b),
            .a = tensor_of(a.data + row_a * a.row() + k * wide, DT_BF16, rows_a, some * wide),
            .b = tensor_of(b.data + row_b * b.row() + k * wide, DT_BF16, rows_b, some * wide),
            .tb = true
        };
        if (add || k > first)
            g.add = g.out;
        g.factors = factors;
        g.lda = a.row(), g.ldb = b.row(), g.ldo = ld;
        g.batch = n;
        g.stride_a = a.row() * a.rows, g.stride_b = b.row() * b.rows, g.stride_out = stride;
        cuda_gemm(c, &g);
    }
}
