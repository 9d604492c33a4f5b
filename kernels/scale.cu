/* scale.cu - matrices times a number each, and times one of the step.
 *
 * Contract: op_list.h. Blocks of one matrix each, blockIdx.y of it. Bytes an element: 8.
 * Bits equal the C reference's.
 */
#include "gpu.h"
#include "optim.h"

enum { THREADS = 256, MAX_MATRICES = 256 };

struct factors {
    float each[MAX_MATRICES];
};

template <int WIDTH>
static __global__ void __launch_bounds__(THREADS)
    multiply(float *x, int64_t count, const float *by, const __grid_constant__ struct factors f)
{
    float factor = mul(f.each[blockIdx.y], by ? *by : 1);
    int64_t stride = (int64_t)gridDim.x * THREADS * WIDTH, base = blockIdx.y * count;

    for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * WIDTH; i < count;
         i += stride) {
        float v[WIDTH];
        load<WIDTH>(v, x + base + i);
#pragma unroll
        for (int e = 0; e < WIDTH; e++)
            v[e] = mul(v[e], factor);
        store<WIDTH>(x + base + i, v);
    }
}

void gpu_scale(struct ops *o, struct tensor x, int n, const float *each, const real *by)
{
    struct cuda_ops *c = cuda_of(o);
    int64_t count = tensor_count(x) / n;
    struct factors f;
    if (c->failed || count == 0 || !CUDA_NEED(c, x.dtype == DT_F32, "x must be f32") ||
        !CUDA_NEED(c, n <= MAX_MATRICES, "a rank may hold 256 matrices of a bank at most"))
        return;
    for (int i = 0; i < n; i++)
        f.each[i] = each ? each[i] : 1;
    bool by_8 = wide(x, count);
    dim3 grid = matrices_grid(c, count, THREADS * 8, n);
    auto *kernel = by_8 ? multiply<8> : multiply<1>;
    kernel<<<grid, THREADS, 0, c->stream>>>((float *)x.data, count, by, f);
    CUDA_LAUNCHED(c);
}
