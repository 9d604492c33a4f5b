/* schatten4.cu - the fourth root of the sum of a matrix's singular values to the fourth.
 *
 * Contract: op_list.h, optimizers.md 4.7. Tiles of the Gram matrix on the short side are made and squared, and
 * none is kept; then a block a matrix adds their sums. FLOPs: 2 k^2 K a matrix in f32.
 */
#include "f32_product.cuh"
#include "gpu.h"

enum { THREADS = 256 };

static __global__ void __launch_bounds__(THREADS)
    fourth_root(float *out, const double *partial, int tiles)
{
    __shared__ double warps[32];
    double sum = 0;
    for (int i = threadIdx.x; i < tiles; i += THREADS)
        sum += partial[(int64_t)blockIdx.x * tiles + i];
    sum = block_sum(sum, warps);
    if (threadIdx.x == 0)
        out[blockIdx.x] = (float)sqrt(sqrt(sum));
}

void gpu_schatten4(struct ops *o, real *out, struct tensor x, int n)
{
    struct cuda_ops *c = cuda_of(o);
    int rows = (int)(x.rows / n), cols = (int)x.cols, k = rows < cols ? rows : cols;
    const float *px = (const float *)x.data;
    bool tall = rows > cols;
    if (c->failed || x.rows == 0 || !CUDA_NEED(c, x.dtype == DT_F32, "x must be f32"))
        return;
    f32_product p = { px, px, NULL, k, k, tall ? rows : cols, tall, !tall };
    dim3 grid = f32_tiles(p, n);
    int tiles = (int)(grid.x * grid.y);
    p.c = (float *)cuda_workspace(c, sizeof(double) * (size_t)tiles * n);
    if (!p.c)
        return;
    f32_make_tiles<true><<<grid, F32_THREADS, 0, c->stream>>>(p);
    CUDA_LAUNCHED(c);
    fourth_root<<<n, THREADS, 0, c->stream>>>(out, (const double *)p.c, tiles);
    CUDA_LAUNCHED(c);
}
