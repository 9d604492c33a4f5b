/* merge_rows.cu - a table's gradient from the rows that ranks sent (lib/optim/sparse.h).
 *
 *   g_i <- (sum over ranks r, ascending, of r's gradient of row first + i) / world
 *
 * g (R,D) bf16 or f32, this rank's rows and its own gradient of them; rows (n,D) of g's dtype,
 * index (n), start (world+1): the others' (struct row_merge). One warp a row of g: each lane looks
 * for the row in one rank's ascending list, by halving, then the warp adds what was found. No
 * two warps write the same row and the order of the sum is that of the ranks.
 *
 * Bytes: n D read, R D read and written, of 2 each for bf16. Record 74 on 8 ranks, 49,152 tokens a
 * rank: n about 44,000, R = 31,440: 67.6 + 96.6 MB, 39 us at 4.25 TB/s; the search reads
 * log2(n / world) numbers a rank and row, from the L2.
 */
#include "gpu.h"
#include "row.h"

/* Position of v in index[first .. end), or -1. */
__device__ __forceinline__ static int find(const int32_t *index, int first, int end, int v)
{
    int stop = end;

    while (first < end) {
        int middle = (first + end) / 2;
        if (index[middle] < v)
            first = middle + 1;
        else
            end = middle;
    }
    return first < stop && index[first] == v ? first : -1;
}

template <int V, typename T>
__global__ static void __launch_bounds__(ROW_THREADS)
    merge(T *g, const T *rows, row_merge m, int n, int d)
{
    int i = blockIdx.x * ROW_WARPS + warp_id();
    row<V> sum, x;

    if (i >= n)
        return;
    g += (int64_t)i * d;
    sum.zero();
    for (int first = 0; first < m.world; first += 32) {
        int r = first + lane_id();
        int at = r == m.rank    ? 0
                 : r >= m.world ? -1
                                : find(m.index, m.start[r], m.start[r + 1], (int)m.first + i);

        for (unsigned left = __ballot_sync(~0u, at >= 0); left; left &= left - 1) {
            int lane = __ffs(left) - 1;
            int64_t from = __shfl_sync(~0u, at, lane);
            x.load(first + lane == m.rank ? g : rows + from * d, d);
            sum.add(1, x);
        }
    }
#pragma unroll
    for (int k = 0; k < V; k++)
#pragma unroll
        for (int j = 0; j < 8; j++)
            sum.x[k][j] /= (float)m.world; /* as a communicator of threads does */
    sum.store(g, d);
}

void gpu_merge_rows(struct ops *o, struct tensor g, struct tensor rows, const struct row_merge *m)
{
    struct cuda_ops *c = cuda_of(o);
    int n = (int)g.rows, d = (int)g.cols;

    assert(rows.cols == g.cols && rows.dtype == g.dtype);
    assert(g.dtype == DT_BF16 || g.dtype == DT_F32);
    if (c->failed || !n || !ROW_FITS(c, d))
        return;
    with_vectors(d, [&](auto v) {
        constexpr int V = decltype(v)::value;
        int blocks = div_up(n, ROW_WARPS);
        if (g.dtype == DT_BF16)
            merge<V><<<blocks, ROW_THREADS, 0, c->stream>>>((bf16 *)g.data, (const bf16 *)rows.data,
                                                            *m, n, d);
        else
            merge<V><<<blocks, ROW_THREADS, 0, c->stream>>>((float *)g.data,
                                                            (const float *)rows.data, *m, n, d);
    });
    CUDA_LAUNCHED(c);
}
