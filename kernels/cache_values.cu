/* cache_values.cu - values of a call's rows into the cache (op_list.h): one warp a row, 4 T D
 * bytes. */
#include "behind.h"
#include "gpu.h"
#include "row.h"

__global__ static void __launch_bounds__(ROW_THREADS)
    put(bf16 *to, const bf16 *v, const int32_t *slot, const int32_t *pos, int capacity, int rows,
        int d)
{
    int t = blockIdx.x * ROW_WARPS + warp_id();

    begin_step();
    if (t >= rows)
        return;
    to += ((int64_t)slot[t] * capacity + pos[t] % capacity) * d;
    for (int i = 8 * lane_id(); i < d; i += 8 * 32)
        *(uint4 *)(to + i) = *(const uint4 *)(v + (int64_t)t * d + i);
}

void gpu_cache_values(struct ops *o, const struct kv_cache *k, struct tensor v)
{
    struct cuda_ops *c = cuda_of(o);

    assert(v.dtype == DT_BF16 && k->v.cols == v.cols);
    if (c->failed || !v.rows || !CUDA_NEED(c, v.cols % 8 == 0, "widths are multiples of 8"))
        return;
    launch_step(c, put, dim3(div_up(v.rows, ROW_WARPS)), ROW_THREADS, (bf16 *)k->v.data,
                (const bf16 *)v.data, k->slot, k->pos, k->capacity, (int)v.rows, (int)v.cols);
}
