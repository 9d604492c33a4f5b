/* bias.cu - what follows a product, and back (track-3.md 2, 3):
 *   bias       y = y + b (+ residual), or max(y + b, 0)^2
 *   bias_bwd   dy <- 2 dy sqrt(post) where there is a post; db += sum over rows of dy
 *
 * y, residual, dy, post (T,O) bf16, b and db (1,O) bf16 or f32; one rounding. Bandwidth-bound: forward
 * 2 T O elements, 3 T O with a residual (at T = 65536: 201 MB and 302 MB at O = 768, 47 and 71 us at
 * 4.25 TB/s), backward T O, with post 3 T O. db: a block adds up 256 columns of some rows, a lane eight
 * of them; warps and blocks are added in a fixed order.
 */
#include "bias.h"
#include "gpu.h"
#include "row.h"

enum { THREADS = 256, WARPS = THREADS / 32, TILE = 256 }; /* TILE: columns of a block's sums */

__global__ static void __launch_bounds__(THREADS)
    bias_forward(bf16 *y, const void *b, bool b_f32, const bf16 *residual, bool relu2, int64_t n8,
                 int cols8)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    float x[8], add[8] = {}, r[8] = {};

    if (i >= n8)
        return;
    int at = 8 * (int)(i % cols8);
    load8(x, y + 8 * i);
    if (b && b_f32)
        load8(add, (const float *)b + at);
    else if (b)
        load8(add, (const bf16 *)b + at);
    if (residual)
        load8(r, residual + 8 * i);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        x[j] += add[j];
        x[j] = relu2 ? relu(x[j]) * relu(x[j]) : r[j] + x[j];
    }
    store8(y + 8 * i, x);
}

void gpu_bias(struct ops *o, struct tensor y, struct tensor b, struct tensor residual, bool relu2)
{
    struct cuda_ops *c = cuda_of(o);
    int64_t n8 = tensor_count(y) / 8;

    cuda_launch_waiting(c);
    assert(y.dtype == DT_BF16 && (!b.data || tensor_count(b) == y.cols));
    assert(!residual.data || (residual.dtype == DT_BF16 && residual.cols == y.cols));
    if (c->failed || !n8 ||
        !CUDA_NEED(c, y.cols % 8 == 0, "outputs of a product with a bias are a multiple of 8"))
        return;
    bias_forward<<<(unsigned)((n8 - 1) / THREADS + 1), THREADS, 0, c->stream>>>(
        (bf16 *)y.data, b.data, b.dtype == DT_F32, (const bf16 *)residual.data, relu2, n8,
        (int)(y.cols / 8));
    CUDA_LAUNCHED(c);
}

/* partial (gridDim.y, cols), or NULL. */
__global__ static void __launch_bounds__(THREADS)
    column_sums(float *partial, bf16 *dy, const bf16 *post, int rows, int cols)
{
    __shared__ float shared[WARPS][TILE];
    int at = blockIdx.x * TILE + 8 * lane_id();
    float sum[8] = {}, d[8], p[8];

    for (int t = blockIdx.y * WARPS + warp_id(); t < rows && at < cols; t += gridDim.y * WARPS) {
        load8(d, dy + (int64_t)t * cols + at);
        if (post) {
            load8(p, post + (int64_t)t * cols + at);
#pragma unroll
            for (int j = 0; j < 8; j++)
                d[j] = 2 * d[j] * sqrtf(p[j]);
            uint4 u = pack8(d);
            *(uint4 *)(dy + (int64_t)t * cols + at) = u;
            unpack8(d, u);
        }
#pragma unroll
        for (int j = 0; j < 8; j++)
            sum[j] += d[j];
    }
    if (!partial)
        return;
    store8(shared[warp_id()] + 8 * lane_id(), sum);
    __syncthreads();
    int c = blockIdx.x * TILE + threadIdx.x;
    float s = 0;
    for (int w = 0; w < WARPS; w++)
        s += shared[w][threadIdx.x];
    if (c < cols)
        partial[(int64_t)blockIdx.y * cols + c] = s;
}

static dim3 grid_of(const struct cuda_ops *c, int64_t rows, int64_t cols)
{
    int wide = div_up(cols, TILE), most = div_up(8 * c->sms, wide), high = div_up(rows, 4 * WARPS);

    return dim3(wide, high < 1 ? 1 : high < most ? high : most);
}

size_t column_sums_bytes(const struct cuda_ops *c, int64_t rows, int64_t cols)
{
    return (size_t)grid_of(c, rows, cols).y * cols * sizeof(float);
}

void column_sums_add(struct cuda_ops *c, struct tensor sum, struct tensor x, float *partial)
{
    dim3 grid = grid_of(c, x.rows, x.cols);

    if (c->failed || !x.rows)
        return;
    column_sums<<<grid, THREADS, 0, c->stream>>>(partial, (bf16 *)x.data, (const bf16 *)NULL,
                                                 (int)x.rows, (int)x.cols);
    CUDA_LAUNCHED(c);
    cuda_add_partials(c, sum.data, sum.dtype, partial, (int)grid.y, (int)x.cols);
}

void gpu_bias_bwd(struct ops *o, struct tensor db, struct tensor dy, struct tensor post)
{
    struct cuda_ops *c = cuda_of(o);
    dim3 grid = grid_of(c, dy.rows, dy.cols);
    float *partial = NULL;

    assert(dy.dtype == DT_BF16 && (!db.data || tensor_count(db) == dy.cols));
    assert(!post.data || (post.dtype == DT_BF16 && post.cols == dy.cols));
    if (db.data)
        partial = (float *)cuda_workspace(c, column_sums_bytes(c, dy.rows, dy.cols));
    if (c->failed || c->counting || !dy.rows || (db.data && !partial) ||
        !CUDA_NEED(c, dy.cols % 8 == 0, "outputs of a product with a bias are a multiple of 8"))
        return;
    column_sums<<<grid, THREADS, 0, c->stream>>>(partial, (bf16 *)dy.data, (const bf16 *)post.data,
                                                 (int)dy.rows, (int)dy.cols);
    CUDA_LAUNCHED(c);
    if (db.data)
        cuda_add_partials(c, db.data, db.dtype, partial, (int)grid.y, (int)dy.cols);
}
