/* spectral_norm.cu - a matrix's largest singular value by five power iterations.
 *
 * Contract: op_list.h, optimizers.md 4.7. A block a matrix; its two vectors lie in the workspace. Of y times a
 * vector a warp takes a row, of y' a thread a column. Reads y eleven times: 44 bytes an element, most from L2.
 */
#include "gpu.h"
#include "optim.h"

enum { THREADS = 1024, ITERATIONS = 5, MAX_MATRICES = 256 };

struct turns {
    uint32_t bit[MAX_MATRICES / 32];
};

/* to = y from, or y' from; then to length 1. Returns the length that it had. */
__device__ double times(double *to, const float *y, int rows, int cols, const double *from,
                        bool of_columns, double *warps)
{
    int lane = threadIdx.x % 32, n = of_columns ? cols : rows;
    double squares = 0;

    if (of_columns)
        for (int c = threadIdx.x; c < cols; c += THREADS) {
            double sum = 0;
#pragma unroll 8
            for (int r = 0; r < rows; r++)
                sum += y[(int64_t)r * cols + c] * from[r];
            to[c] = sum;
        }
    else
        for (int r = threadIdx.x / 32; r < rows; r += THREADS / 32) {
            double sum = 0;
            for (int c = lane; c < cols; c += 32)
                sum += y[(int64_t)r * cols + c] * from[c];
            sum = warp_sum(sum);
            if (lane == 0)
                to[r] = sum;
        }
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += THREADS)
        squares += to[i] * to[i];
    double length = sqrt(block_sum(squares, warps));
    double divisor = length > 1e-10 ? length : 1e-10;
    for (int i = threadIdx.x; i < n; i += THREADS)
        to[i] /= divisor;
    __syncthreads();
    return length;
}

static __global__ void __launch_bounds__(THREADS)
    iterate(float *out, const float *y, int rows, int cols, double *vectors,
            const __grid_constant__ struct turns turned)
{
    __shared__ double warps[2][32];
    bool turn = turned.bit[blockIdx.x / 32] >> blockIdx.x % 32 & 1;
    double *row = vectors + (int64_t)blockIdx.x * (rows + cols), *col = row + rows;
    double *w = turn ? row : col, *z = turn ? col : row;
    int n = turn ? rows : cols;

    y += (int64_t)blockIdx.x * rows * cols;
    for (int i = threadIdx.x; i < n; i += THREADS)
        w[i] = 1 / sqrt((double)n);
    __syncthreads();
    for (int k = 0; k < ITERATIONS; k++) {
        times(z, y, rows, cols, w, turn, warps[0]);
        times(w, y, rows, cols, z, !turn, warps[1]);
    }
    double length = times(z, y, rows, cols, w, turn, warps[0]);
    if (threadIdx.x == 0)
        out[blockIdx.x] = (float)length;
}

void gpu_spectral_norm(struct ops *o, real *out, struct tensor y, int n, const bool *turned)
{
    struct cuda_ops *c = cuda_of(o);
    int rows = (int)(y.rows / n), cols = (int)y.cols;
    struct turns t = {};
    if (c->failed || y.rows == 0 || !CUDA_NEED(c, y.dtype == DT_F32, "y must be f32") ||
        !CUDA_NEED(c, n <= MAX_MATRICES, "a rank may hold 256 matrices of a bank at most"))
        return;
    for (int i = 0; i < n && turned; i++)
        t.bit[i / 32] |= (uint32_t)turned[i] << i % 32;
    double *vectors = (double *)cuda_workspace(c, sizeof *vectors * (size_t)(rows + cols) * n);
    if (!vectors)
        return;
    iterate<<<n, THREADS, 0, c->stream>>>(out, (const float *)y.data, rows, cols, vectors, t);
    CUDA_LAUNCHED(c);
}
