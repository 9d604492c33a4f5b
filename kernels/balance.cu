/* balance.cu - lines of a matrix's long side, scaled to norms that its polar factor makes equal.
 *
 * Contract: op_list.h, optimizers.md 4.7. Of tall matrices a warp takes a row; of wide ones a block 32 columns,
 * a thread one of them in every eighth row. Bytes an element: 4 for the norm, then 8.
 */
#include "gpu.h"
#include "optim.h"

enum { WARPS = 8 };

__device__ __forceinline__ float scale_of(double squares, float before, bool first, double share,
                                          double by)
{
    if (first) {
        double norm = sqrt(squares);
        return (float)(1 / (norm > 1e-7 ? norm : 1e-7));
    }
    return before * (float)pow(share / (squares > 1e-14 ? squares : 1e-14), by);
}

static __global__ void __launch_bounds__(WARPS * 32)
    of_rows(float *x, const float *g, float *d, int rows, int cols, bool first, double by)
{
    int row = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    int64_t at = (int64_t)blockIdx.y * rows + row;
    double squares = 0;

    if (row >= rows)
        return;
    for (int c = lane; c < cols; c += 32) {
        double v = (first ? g : x)[at * cols + c];
        squares += v * v;
    }
    float scale = scale_of(warp_sum(squares), d[at], first, (double)cols / rows, by);
    __syncwarp();
    if (lane == 0)
        d[at] = scale;
    for (int c = lane; c < cols; c += 32)
        x[at * cols + c] = mul(scale, g[at * cols + c]);
}

static __global__ void __launch_bounds__(WARPS * 32)
    of_columns(float *x, const float *g, float *d, int rows, int cols, bool first, double by)
{
    __shared__ double part[WARPS][32];
    __shared__ float scale[32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, col = blockIdx.x * 32 + lane;
    int64_t base = (int64_t)blockIdx.y * rows * cols;
    double squares = 0;

    for (int r = warp; r < rows && col < cols; r += WARPS) {
        double v = (first ? g : x)[base + (int64_t)r * cols + col];
        squares += v * v;
    }
    part[warp][lane] = squares;
    __syncthreads();
    if (warp == 0 && col < cols) {
        for (int i = 1; i < WARPS; i++)
            squares += part[i][lane];
        float *place = d + (int64_t)blockIdx.y * cols + col;
        *place = scale[lane] = scale_of(squares, *place, first, (double)rows / cols, by);
    }
    __syncthreads();
    for (int r = warp; r < rows && col < cols; r += WARPS)
        x[base + (int64_t)r * cols + col] = mul(scale[lane], g[base + (int64_t)r * cols + col]);
}

void gpu_balance(struct ops *o, struct tensor x, struct tensor g, struct tensor d, int n,
                 bool first, double by)
{
    struct cuda_ops *c = cuda_of(o);
    int rows = (int)(x.rows / n), cols = (int)x.cols;
    assert((int64_t)rows * n == x.rows && tensor_count(g) == tensor_count(x));
    if (c->failed || x.rows == 0 ||
        !CUDA_NEED(c, x.dtype == DT_F32 && g.dtype == DT_F32, "x and g must be f32"))
        return;
    dim3 grid(rows > cols ? div_up(rows, WARPS) : div_up(cols, 32), n);
    auto *kernel = rows > cols ? of_rows : of_columns;
    kernel<<<grid, WARPS * 32, 0, c->stream>>>((float *)x.data, (const float *)g.data,
                                               (float *)d.data, rows, cols, first, by);
    CUDA_LAUNCHED(c);
}
