/* choose.cu - the next token of each row from its logits (op_list.h): a block a row.
 *
 * Greatest logit, and bounds of top_k and top_p bit by bit: each pass reads the row's V numbers in
 * f32, which the L2 holds. The token that a draw falls on: each warp has a part of the row, side by
 * side; the warps' sums say which part, and that warp goes through it 32 numbers at a time.
 * Greedy: 4 V bytes a row, 0.2 MB.
 */
#include "gpu.h"
#include "behind.h"
#include "cluster.h"
#include "philox.h"
#include "row.h"
extern "C" {
#include "types/bigram.h"
}

enum { THREADS = 1024, WARPS = THREADS / 32 }; /* WARPS = 32: greatest() needs a value a lane */
enum { BLOCKS = 8 }; /* of a cluster, which has a row on a Hopper GPU */

struct args {
    struct next_rows next;
    struct choice c;
    const float *logits;
    int64_t stride;
};

/* A row as a block sees it: its numbers, the greatest one, shared memory for sums. */
struct row_of_logits {
    const float *z;
    int n;
    float most, temperature;
    double (*sums)[32];
    int calls;

    __device__ __forceinline__ uint32_t order(int v) const
    {
        uint32_t bits = __float_as_uint(z[v]);
        return bits >> 31 ? ~bits : bits | 1u << 31;
    }
    __device__ __forceinline__ double weight(int v) const
    {
        return (double)__expf((z[v] - most) / temperature);
    }
    /* Returns, in every thread, how many there are from `least` on, or the sum of their weights. */
    __device__ __forceinline__ double from(uint32_t least, bool count)
    {
        double sum = 0;
        for (int v = threadIdx.x; v < n; v += THREADS)
            if (order(v) >= least)
                sum += count ? 1 : weight(v);
        return block_sum(sum, sums[calls++ % 2]);
    }
    __device__ __forceinline__ uint32_t highest(bool count, double enough)
    {
        uint32_t bound = 0;
        for (int bit = 31; bit >= 0; bit--)
            if (from(bound | 1u << bit, count) >= enough)
                bound |= 1u << bit;
        return bound;
    }
};

/* The greatest number of a part of a row, of equal ones the first; n: none. */
struct found {
    float value;
    int at;

    __device__ __forceinline__ void join(const found &b)
    {
        if (b.value > value || (b.value == value && b.at < at))
            *this = b;
    }
    __device__ __forceinline__ void join_warp()
    {
        for (int m = 16; m > 0; m /= 2)
            join({ __shfl_xor_sync(~0u, value, m), __shfl_xor_sync(~0u, at, m) });
    }
};

/* Finds the greatest of the numbers from..end-1, both multiples of 4 or end = n; z is aligned to 16
 * bytes. Every thread gets the result. Up to AT_ONCE pieces a thread are asked for at once. */
template <int AT_ONCE> __device__ static found greatest(const float *z, int from, int end, int n)
{
    const float4 none = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
    __shared__ found of_warp[WARPS];
    found best = { -INFINITY, n };
    int whole = end / 4 * 4;

    for (int v = from + 4 * threadIdx.x; v < whole; v += AT_ONCE * 4 * THREADS) {
        float four[AT_ONCE][4];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            int at = v + k * 4 * THREADS;
            float4 f = at < whole ? *(const float4 *)(z + at) : none;
            four[k][0] = f.x, four[k][1] = f.y, four[k][2] = f.z, four[k][3] = f.w;
        }
#pragma unroll
        for (int i = 0; i < 4 * AT_ONCE; i++)
            if (four[i / 4][i % 4] > best.value)
                best = { four[i / 4][i % 4], v + i / 4 * 4 * THREADS + i % 4 };
    }
    if (threadIdx.x < end % 4 && z[whole + threadIdx.x] > best.value)
        best = { z[whole + threadIdx.x], whole + (int)threadIdx.x };
    best.join_warp();
    if (lane_id() == 0)
        of_warp[warp_id()] = best;
    __syncthreads();
    best = of_warp[lane_id()];
    best.join_warp();
    return best;
}

__device__ static int drawn(row_of_logits &r, const struct choice &c, uint64_t stream, int pos)
{
    __shared__ double part[WARPS];
    __shared__ int found[WARPS];
    int each = (r.n + WARPS - 1) / WARPS, first = warp_id() * each, end = min(first + each, r.n);
    uint32_t least = 0, word[4];
    double mine = 0, total = 0, before = 0;

    if (c.top_k > 0 && c.top_k < r.n)
        least = r.highest(true, c.top_k);
    if (c.top_p < 1)
        least = max(least, r.highest(false, (double)c.top_p * r.from(least, false)));
    for (int v = first + lane_id(); v < end; v += 32)
        mine += r.order(v) >= least ? r.weight(v) : 0;
    mine = warp_sum(mine);
    if (lane_id() == 0)
        part[warp_id()] = mine;
    __syncthreads();
    for (int w = 0; w < WARPS; w++) {
        before = w == warp_id() ? total : before;
        total += part[w];
    }
    philox(c.seed, stream, (uint64_t)pos, word);
    double target = (double)((uint64_t)word[0] << 21 | word[1] >> 11) * 0x1p-53 * total;
    /* The last kept one up to which the sum does not exceed the target, plus one: each warp says
     * the first of its part that is beyond, or its last kept one, or -1. */
    int beyond = -1, last = -1;
    for (int v = first; v < end && beyond < 0; v += 32) {
        bool kept = v + lane_id() < end && r.order(v + lane_id()) >= least;
        double sum = kept ? r.weight(v + lane_id()) : 0;
        for (int m = 1; m < 32; m *= 2) {
            double other = __shfl_up_sync(~0u, sum, m);
            sum += lane_id() >= m ? other : 0;
        }
        unsigned over = __ballot_sync(~0u, kept && before + sum > target);
        unsigned all = __ballot_sync(~0u, kept);
        if (over)
            beyond = v + __ffs(over) - 1;
        last = all ? v + 31 - __clz(all) : last;
        before += __shfl_sync(~0u, sum, 31);
    }
    if (lane_id() == 0)
        found[warp_id()] = beyond >= 0 ? beyond : -2 - last;
    __syncthreads();
    int token = 0;
    for (int w = 0; w < WARPS; w++) {
        if (found[w] >= 0)
            return found[w];
        if (found[w] < -1)
            token = -2 - found[w];
    }
    return token;
}

/* S blocks, a cluster, have a row: each looks for the greatest number in a part of it, the first
 * one does the rest. */
template <int S> __global__ static void __launch_bounds__(THREADS) choose(args a)
{
    __shared__ double sums[2][32];
    __shared__ __align__(16) float inbox[S][4];
    int t = blockIdx.x / S, rank = blockIdx.x % S, classes = a.c.classes, token;
    int each = (classes + 4 * S - 1) / (4 * S) * 4, from = min(rank * each, classes);
    const float *z = a.logits + t * a.stride;

    start_kernel_behind();
    if (S > 1) /* a block is written to when it has begun */
        all_of_cluster();
    wait_for_kernel_before();
    const struct next_rows &n = a.next;
    int pos = n.pos[t], before = n.token[t];
    found best = greatest < S == 1 ? 7 : 2 > (z, from, min(from + each, classes), classes);
    if (S > 1) {
        if (threadIdx.x == 0)
            send4(inbox[rank], 0, make_float4(best.value, __uint_as_float(best.at), 0, 0));
        all_of_cluster();
        if (rank)
            return;
        for (int r = 0; r < S; r++)
            best.join({ inbox[r][0], (int)__float_as_uint(inbox[r][1]) });
    }
    token = best.at < classes ? best.at : 0;
    if (a.c.temperature > 0) {
        row_of_logits r = { z, a.c.classes, z[token], a.c.temperature, sums, 0 };
        token = drawn(r, a.c, a.c.stream[t], pos);
    }
    if (threadIdx.x)
        return;
    n.before[t] = before;
    n.token[t] = token;
    n.pos[t] = pos + 1;
    if (n.bigram)
        n.bigram[t] = bigram_row(token, pos ? before : n.bigram_rows - 1, n.bigram_rows);
}

void gpu_choose(struct ops *o, const struct next_rows *n, struct tensor logits,
                const struct choice *c)
{
    struct cuda_ops *u = cuda_of(o);
    args a = { *n, *c, (const float *)logits.data, logits.cols };

    assert(logits.dtype == DT_F32 && c->classes > 0 && c->classes <= logits.cols);
    if (u->failed || !logits.rows ||
        !CUDA_NEED(u, logits.cols % 4 == 0, "a vocabulary is a multiple of 4"))
        return;
    if (u->portable)
        launch_behind(u, choose<1>, dim3((int)logits.rows), THREADS, a);
    else
        launch_behind_clusters(u, BLOCKS, 0, choose<BLOCKS>, dim3((int)logits.rows * BLOCKS),
                               THREADS, a);
}
