/* polar_input.cu - the scaling by the norm that an orthogonal map starts from.
 *
 * Contract: op_list.h, optimizers.md 4.7. n matrices of `count` elements, in two launches because the
 * norm of a whole matrix is needed between them:
 *     squares   a block's sum of x^2, in double                                     x ->
 *     divide    the blocks' sums added in their order, y = x / (margin |x| + eps)   x -> y
 * raw: the second alone, y = x. Bytes an element, bf16 y: 4 + 6 = 10; 6 if x were read once.
 * y has the bits of the C reference where the norm has.
 */
#include "gpu.h"
#include "optim.h"

enum { THREADS = 256 };

template <int WIDTH>
static __global__ void __launch_bounds__(THREADS)
    squares(double *partial, const float *x, int64_t count)
{
    __shared__ double warps[32];
    int64_t stride = (int64_t)gridDim.x * THREADS * WIDTH, base = blockIdx.y * count;
    double sum = 0;

    for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * WIDTH; i < count;
         i += stride) {
        float v[WIDTH], part = 0;
        load<WIDTH>(v, x + base + i);
#pragma unroll
        for (int e = 0; e < WIDTH; e++)
            part = fmaf(v[e], v[e], part);
        sum += part;
    }
    sum = block_sum(sum, warps);
    if (threadIdx.x == 0)
        partial[(int64_t)blockIdx.y * gridDim.x + blockIdx.x] = sum;
}

/* partial: NULL where nothing is scaled. y may be x. */
template <int WIDTH, typename Y>
static __global__ void __launch_bounds__(THREADS)
    divide(Y *y, const float *x, int64_t count, const double *partial, float margin, float eps)
{
    __shared__ double warps[32];
    int64_t stride = (int64_t)gridDim.x * THREADS * WIDTH, base = blockIdx.y * count;
    double sum = 0;

    for (int i = threadIdx.x; partial && i < gridDim.x; i += THREADS)
        sum += partial[(int64_t)blockIdx.y * gridDim.x + i];
    float norm = (float)sqrt(block_sum(sum, warps)), divisor = add(mul(margin, norm), eps);
    for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * WIDTH; i < count;
         i += stride) {
        float v[WIDTH];
        load<WIDTH>(v, x + base + i);
#pragma unroll
        for (int e = 0; e < WIDTH && partial; e++)
            v[e] = isfinite(norm) ? quot(v[e], divisor) : 0;
        store<WIDTH>(y + base + i, v);
    }
}

void gpu_polar_input(struct ops *o, struct tensor y, struct tensor x, int n, bool raw,
                     double margin, double eps)
{
    struct cuda_ops *c = cuda_of(o);
    int64_t count = tensor_count(x) / n;
    assert(count * n == tensor_count(x) && tensor_count(y) == tensor_count(x));
    if (c->failed || count == 0 || !CUDA_NEED(c, x.dtype == DT_F32, "x must be f32") ||
        !CUDA_NEED(c, is_float(y), "y must be f32 or bf16"))
        return;
    bool by_8 = wide(x, count) && wide(y, count);
    dim3 grid = matrices_grid(c, count, THREADS * 8, n);
    double *partial = (double *)cuda_workspace(c, sizeof *partial * grid.x * grid.y);
    const float *px = (const float *)x.data;
    if (!partial)
        return;
    if (!raw) {
        auto *kernel = by_8 ? squares<8> : squares<1>;
        kernel<<<grid, THREADS, 0, c->stream>>>(partial, px, count);
        CUDA_LAUNCHED(c);
    }
    with_type(y, [&](auto *py) {
        auto *kernel = by_8 ? divide<8, std::remove_pointer_t<decltype(py)>>
                            : divide<1, std::remove_pointer_t<decltype(py)>>;
        kernel<<<grid, THREADS, 0, c->stream>>>(py, px, count, raw ? NULL : partial, (float)margin,
                                                (float)eps);
        CUDA_LAUNCHED(c);
    });
}
