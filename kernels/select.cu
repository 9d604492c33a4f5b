/* select.cu - the lines of a matrix that have most to move.
 *
 * Contract: op_list.h, optimizers.md 4.7. Launches: the sum of magnitudes of each line, a block
 * each; then a block a line counts how many are before it. Bytes an element: 4, then 16.
 */
#include "gpu.h"
#include "optim.h"

enum { THREADS = 256, MAX_MATRICES = 256 };

struct turns {
    uint32_t bit[MAX_MATRICES / 32];
};

__device__ __forceinline__ bool takes_columns(const struct turns &t, int i, int rows, int cols)
{
    return rows > cols || (rows == cols && (t.bit[i / 32] >> i % 32 & 1));
}

/* size: (k) of each matrix, k = min(rows, cols). A block a line. */
static __global__ void __launch_bounds__(THREADS)
    magnitudes(double *size, const float *mom, int rows, int cols,
               const __grid_constant__ struct turns turned)
{
    __shared__ double warps[32];
    bool columns = takes_columns(turned, blockIdx.y, rows, cols);
    int length = columns ? rows : cols, step = columns ? cols : 1;
    double sum = 0;

    mom += (int64_t)blockIdx.y * rows * cols + (int64_t)blockIdx.x * (columns ? 1 : cols);
    for (int i = threadIdx.x; i < length; i += THREADS)
        sum += fabs((double)mom[(int64_t)i * step]);
    sum = block_sum(sum, warps);
    if (threadIdx.x == 0)
        size[(int64_t)blockIdx.y * gridDim.x + blockIdx.x] = sum;
}

/* A block a line: it is kept if fewer than ceil(F k) are before it. */
static __global__ void __launch_bounds__(THREADS)
    keep(float *x, float *mom, const double *size, int rows, int cols, const float *number,
         const struct step_gate *gate, const __grid_constant__ struct turns turned)
{
    __shared__ int warps[32];
    bool columns = takes_columns(turned, blockIdx.y, rows, cols);
    int lines = gridDim.x, length = columns ? rows : cols, step = columns ? cols : 1, before = 0;
    int64_t at = (int64_t)blockIdx.y * rows * cols + (int64_t)blockIdx.x * (columns ? 1 : cols);

    if (gate && gate->skip)
        return;
    size += (int64_t)blockIdx.y * lines;
    for (int i = threadIdx.x; i < lines; i += THREADS)
        before += size[i] > size[blockIdx.x] || (size[i] == size[blockIdx.x] && i < blockIdx.x);
    before = block_sum(before, warps);
    bool kept = before < (int)ceil((double)number[0] * lines - 1e-6);
    for (int i = threadIdx.x; i < length; i += THREADS) {
        float *px = x + at + (int64_t)i * step, *pm = mom + at + (int64_t)i * step;
        *px = kept ? *px : 0;
        *pm = mul(*pm, kept ? number[1] : 1);
    }
}

void gpu_select(struct ops *o, struct tensor x, struct tensor mom, int n, const bool *turned,
                const real *number, const struct step_gate *gate)
{
    struct cuda_ops *c = cuda_of(o);
    int rows = (int)(x.rows / n), cols = (int)x.cols, k = rows < cols ? rows : cols;
    struct turns t = {};
    assert((int64_t)rows * n == x.rows && tensor_count(mom) == tensor_count(x));
    if (c->failed || x.rows == 0 ||
        !CUDA_NEED(c, x.dtype == DT_F32 && mom.dtype == DT_F32, "x and mom must be f32") ||
        !CUDA_NEED(c, n <= MAX_MATRICES, "a rank may hold 256 matrices of a bank at most"))
        return;
    for (int i = 0; i < n && turned; i++)
        t.bit[i / 32] |= (uint32_t)turned[i] << i % 32;
    double *size = (double *)cuda_workspace(c, sizeof *size * (size_t)k * n);
    if (!size)
        return;
    magnitudes<<<dim3(k, n), THREADS, 0, c->stream>>>(size, (const float *)mom.data, rows, cols, t);
    CUDA_LAUNCHED(c);
    keep<<<dim3(k, n), THREADS, 0, c->stream>>>((float *)x.data, (float *)mom.data, size, rows,
                                                cols, number, gate, t);
    CUDA_LAUNCHED(c);
}
