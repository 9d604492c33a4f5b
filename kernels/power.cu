/* power.cu - singular values to a power, by a series around 1.
 *
 * Contract: op_list.h, optimizers.md 4.7. Launches: 1 / s^2 and s of each matrix; E, E x, E E x by plain products;
 * the sum of them. Some matrices at a time, so that the workspace stays below 256 MiB.
 * FLOPs: 2 k^2 K for E and 2 k^2 K for each product by it, in f32.
 */
#include "f32_product.cuh"
#include "gpu.h"
#include "optim.h"

enum { THREADS = 256 };

/* inverse[i] = 1 / s^2, size[i] = s. */
static __global__ void __launch_bounds__(1024)
    sizes(float *inverse, float *size, const float *g, int64_t count)
{
    __shared__ double warps[32];
    double sum = 0;
    g += blockIdx.x * count;
    for (int64_t i = threadIdx.x; i < count; i += 1024)
        sum += (double)g[i] * g[i];
    double s = sqrt(block_sum(sum, warps)) + 1e-7;
    if (threadIdx.x == 0)
        inverse[blockIdx.x] = (float)(1 / (s * s)), size[blockIdx.x] = (float)s;
}

static __global__ void __launch_bounds__(THREADS)
    combine(float *x, const float *t, const float *u, int64_t count, const float *size,
            const float *number)
{
    double p = *number / 2.0, to = pow((double)size[blockIdx.y], (double)*number);
    int64_t base = blockIdx.y * count;

    if (!(fabs((double)*number) >= 1e-12))
        return;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * THREADS)
        x[base + i] = (float)((x[base + i] + p * t[base + i] + p * (p - 1) / 2 * u[base + i]) * to);
}

/* out = e x, or x e of tall ones. */
static void times_e(struct cuda_ops *c, float *out, const float *e, const float *x, int rows,
                    int cols, int n)
{
    bool tall = rows > cols;
    launch_products(c, { tall ? x : e, tall ? e : x, out, rows, cols, tall ? cols : rows }, n);
}

void gpu_power(struct ops *o, struct tensor x, struct tensor g, int n, const real *number)
{
    struct cuda_ops *c = cuda_of(o);
    int rows = (int)(x.rows / n), cols = (int)x.cols, k = rows < cols ? rows : cols;
    bool tall = rows > cols;
    int64_t count = (int64_t)rows * cols;
    assert((int64_t)rows * n == x.rows && tensor_count(g) == tensor_count(x));
    if (c->failed || x.rows == 0 ||
        !CUDA_NEED(c, x.dtype == DT_F32 && g.dtype == DT_F32, "x and g must be f32"))
        return;
    size_t square = sizeof(float) * (size_t)k * k, whole = sizeof(float) * (size_t)count;
    int many = f32_at_once(n, square + 2 * whole);
    size_t e_bytes = cuda_round(square * many), x_bytes = cuda_round(whole * many);
    char *at = (char *)cuda_workspace(c, e_bytes + 2 * x_bytes + 2 * cuda_round(4 * (size_t)n));
    if (!at)
        return;
    float *e = (float *)cuda_cut(&at, e_bytes), *t = (float *)cuda_cut(&at, x_bytes);
    float *u = (float *)cuda_cut(&at, x_bytes), *inverse = (float *)at;
    float *size = (float *)(at + cuda_round(4 * (size_t)n));

    sizes<<<n, 1024, 0, c->stream>>>(inverse, size, (const float *)g.data, count);
    CUDA_LAUNCHED(c);
    for (int first = 0; first < n; first += many) {
        int some = n - first < many ? n - first : many;
        const float *pg = (const float *)g.data + first * count;
        float *px = (float *)x.data + first * count;
        f32_product gram = { pg, pg, e, k, k, tall ? rows : cols, tall, !tall };
        gram.by = inverse + first, gram.diagonal = -1;
        launch_products(c, gram, some);
        times_e(c, t, e, px, rows, cols, some);
        times_e(c, u, e, t, rows, cols, some);
        dim3 grid = matrices_grid(c, count, THREADS, some);
        combine<<<grid, THREADS, 0, c->stream>>>(px, t, u, count, size + first, number);
        CUDA_LAUNCHED(c);
    }
}
