/* amax_history.cu - the largest numbers of past updates, which a delayed scale is formed of
 * (op_list.h).
 *
 * One block; numbers >= 0 and NaN are compared as bits. The history is moved in registers, THREADS
 * rows at a time from its end.
 */
#include "fp8_copy.h"
#include "gpu.h"

enum { THREADS = 256 };

/* The greatest of n numbers, k apart, less a NaN's sign; in every thread. */
__device__ __forceinline__ static uint32_t greatest(const float *x, int64_t n, int64_t k)
{
    uint32_t most = 0;
    for (int64_t i = threadIdx.x; i < n; i += THREADS)
        most = max(most, __float_as_uint(x[i * k]) & 0x7fffffff);
    __syncthreads(); /* block_max's memory is free */
    return block_max(most);
}

__global__ static void __launch_bounds__(THREADS)
    amax_history(float *top, float *history, int64_t n, int64_t k, const float *each, int64_t ranks,
                 const struct step_gate *gate)
{
    if (gate && gate->skip)
        return;
    for (int64_t to = (n - 1) * k; to > 0;
         to -= THREADS) { /* [to - THREADS + 1, to] are row 1 on */
        int64_t at = to + k - 1 - threadIdx.x;
        float x = at >= k ? history[at - k] : 0;
        __syncthreads();
        if (at >= k)
            history[at] = x;
        __syncthreads();
    }
    for (int64_t c = 0; c < k; c++) {
        uint32_t now = greatest(each + c, ranks, k), old = greatest(history + c + k, n - 1, k);
        if (threadIdx.x == 0) {
            history[c] = __uint_as_float(now);
            top[c] = __uint_as_float(max(now, old));
        }
    }
}

void gpu_amax_history(struct ops *o, real *top, struct tensor history, struct tensor each,
                      const struct step_gate *gate)
{
    struct cuda_ops *c = cuda_of(o);
    assert(history.rows > 0 && each.cols == history.cols);
    if (c->failed)
        return;
    amax_history<<<1, THREADS, 0, c->stream>>>((float *)top, (float *)history.data, history.rows,
                                               history.cols, (const float *)each.data, each.rows,
                                               gate);
    CUDA_LAUNCHED(c);
}
