/* sign.cu - signs of a tensor's elements, in place. Contract: op_list.h. Bytes an element: 8. */
#include "gpu.h"
#include "stages.h"

enum { THREADS = 256 };

static __global__ void __launch_bounds__(THREADS) signs(float *x, int64_t n)
{
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += gridDim.x * THREADS)
        x[i] = sign_of(x[i]);
}

void gpu_sign(struct ops *o, struct tensor x)
{
    struct cuda_ops *c = cuda_of(o);
    int64_t n = tensor_count(x);
    if (c->failed || n == 0 || !CUDA_NEED(c, x.dtype == DT_F32, "x must be f32"))
        return;
    signs<<<(int)min((int64_t)8 * c->sms, (n - 1) / THREADS + 1), THREADS, 0, c->stream>>>(
        (float *)x.data, n);
    CUDA_LAUNCHED(c);
}
