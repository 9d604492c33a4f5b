/* bias.cu - products with a bias, and back (track-3.md 2, 3):
 *   linear_bias      y = scale x w^T + b (+ residual), or max(scale x w^T + b, 0)^2
 *   bias_bwd         db += sum over rows of dy
 *   relu2_bias_bwd   dpre = 2 scale (dout w2) sqrt(post), db += sum over rows of dpre
 *
 * On Hopper the product's kernel does the rest as its epilogue (sm90/gemm.cu), but for a bias alone. Elsewhere
 * a pass of bandwidth follows cuBLASLt's product: 2 T O elements, 3 T O with a residual or post (at T = 65536:
 * 201 MB and 302 MB at O = 768, 47 and 71 us at 4.25 TB/s). bias_bwd reads T O. db: a block adds up 256 columns
 * of some rows, a lane eight of them; warps and blocks are added in a fixed order.
 */
#include "bias.h"
#include "gpu.h"
#include "row.h"
#include "sm90/gemm.h"

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

static void add_bias(struct cuda_ops *c, struct tensor y, struct tensor b, struct tensor residual,
                     bool relu2)
{
    int64_t n8 = tensor_count(y) / 8;

    cuda_launch_waiting(c);
    if (c->failed || !n8)
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

/* post: dy <- 2 dy sqrt(post) first. db may be none. */
static void sums_of(struct cuda_ops *c, struct tensor db, struct tensor dy, struct tensor post,
                    float *partial)
{
    dim3 grid = grid_of(c, dy.rows, dy.cols);

    column_sums<<<grid, THREADS, 0, c->stream>>>(partial, (bf16 *)dy.data, (const bf16 *)post.data,
                                                 (int)dy.rows, (int)dy.cols);
    CUDA_LAUNCHED(c);
    if (db.data)
        cuda_add_partials(c, db.data, db.dtype, partial, (int)grid.y, (int)dy.cols);
}

/* -- the two paths ----------------------------------------------------------------------------------- */

/* partial, sums_bytes(): for the sums over rows of dpre, where db is given. */
struct bias_path {
    void (*product)(struct cuda_ops *c, struct tensor y, struct tensor x, struct tensor w,
                    const float *scale, struct tensor b, struct tensor residual, bool relu2);
    void (*relu2_bwd)(struct cuda_ops *c, struct tensor dpre, struct tensor db, struct tensor dout,
                      struct tensor w2, const float *scale, struct tensor post, float *partial);
    size_t (*sums_bytes)(const struct cuda_ops *c, int64_t rows, int64_t cols);
};

static void product_portably(struct cuda_ops *c, struct tensor y, struct tensor x, struct tensor w,
                             const float *scale, struct tensor b, struct tensor residual,
                             bool relu2)
{
    bool in_place = residual.data == y.data;

    gpu_linear(&c->ops, y, x, w, scale, in_place ? residual : tensor{});
    add_bias(c, y, b, in_place ? tensor{} : residual, relu2);
}

static void product_natively(struct cuda_ops *c, struct tensor y, struct tensor x, struct tensor w,
                             const float *scale, struct tensor b, struct tensor residual,
                             bool relu2)
{
    if (!relu2 && !residual.data)
        product_portably(c, y, x, w, scale, b, residual, relu2);
    else
        gemm_bias(c, y, x, w, scale, b, residual);
}

static void relu2_bwd_portably(struct cuda_ops *c, struct tensor dpre, struct tensor db,
                               struct tensor dout, struct tensor w2, const float *scale,
                               struct tensor post, float *partial)
{
    gpu_linear_bwd_x(&c->ops, dpre, dout, w2, scale, false);
    sums_of(c, db, dpre, post, partial);
}

static void relu2_bwd_natively(struct cuda_ops *c, struct tensor dpre, struct tensor db,
                               struct tensor dout, struct tensor w2, const float *scale,
                               struct tensor post, float *partial)
{
    gemm_bias_relu2_bwd(c, dpre, partial, dout, w2, scale, post);
    if (db.data)
        cuda_add_partials(c, db.data, db.dtype, partial, (int)gemm_sums_rows(dpre.rows),
                          (int)dpre.cols);
}

static size_t tile_sums_bytes(const struct cuda_ops *, int64_t rows, int64_t cols)
{
    return gemm_sums_rows(rows) * cols * sizeof(float);
}

const struct bias_path bias_native = { product_natively, relu2_bwd_natively, tile_sums_bytes };
const struct bias_path bias_portable = { product_portably, relu2_bwd_portably, column_sums_bytes };

/* -- the ops ----------------------------------------------------------------------------------------- */

static bool can_do(struct cuda_ops *c, struct tensor w, int64_t in, int64_t out)
{
    return !c->failed && CUDA_NEED(c, w.dtype == DT_BF16, "weights of products are bf16") &&
           CUDA_NEED(c, in % 8 == 0 && out % 8 == 0,
                     "products with a bias have widths of multiples of 8");
}

void gpu_linear_bias(struct ops *o, struct tensor y, struct tensor x, struct tensor w,
                     const real *scale, struct tensor b, struct tensor residual, bool relu2)
{
    struct cuda_ops *c = cuda_of(o);

    assert(y.dtype == DT_BF16 && tensor_count(b) == y.cols);
    assert(!residual.data || (residual.dtype == DT_BF16 && residual.cols == y.cols && !relu2));
    if (!can_do(c, w, x.cols, y.cols) || !x.rows)
        return;
    cuda_launch_waiting(c);
    (o->rows_apart ? product_portably : c->path->bias->product)(c, y, x, w, scale, b, residual,
                                                                relu2);
}

void gpu_bias_bwd(struct ops *o, struct tensor db, struct tensor dy)
{
    struct cuda_ops *c = cuda_of(o);
    float *partial = (float *)cuda_workspace(c, column_sums_bytes(c, dy.rows, dy.cols));

    assert(dy.dtype == DT_BF16 && tensor_count(db) == dy.cols);
    if (!c->failed && !c->counting && dy.rows && partial &&
        CUDA_NEED(c, dy.cols % 8 == 0, "products with a bias have widths of multiples of 8"))
        sums_of(c, db, dy, {}, partial);
}

void gpu_relu2_bias_bwd(struct ops *o, struct tensor dpre, struct tensor db, struct tensor dout,
                        struct tensor w2, const real *scale, struct tensor post)
{
    struct cuda_ops *c = cuda_of(o);
    float *partial = NULL;

    assert(dpre.dtype == DT_BF16 && dout.dtype == DT_BF16 && post.dtype == DT_BF16);
    assert(dpre.cols == w2.cols && dout.cols == w2.rows && dpre.data != post.data);
    if (db.data)
        partial = (float *)cuda_workspace(c, c->path->bias->sums_bytes(c, dpre.rows, dpre.cols));
    if (can_do(c, w2, dout.cols, dpre.cols) && !c->counting && dout.rows && (!db.data || partial))
        c->path->bias->relu2_bwd(c, dpre, db, dout, w2, scale, post, partial);
}
