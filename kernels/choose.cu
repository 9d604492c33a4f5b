/* choose.cu - the next token of each row from its logits (op_list.h): a block a row.
 *
 * Greatest logit, and bounds of top_k and top_p bit by bit: each pass reads the row's V numbers in
 * f32, which the L2 holds. The token that a draw falls on: each warp has a part of the row, side by
 * side; the warps' sums say which part, and that warp goes through it 32 numbers at a time.
 * Greedy: 4 V bytes a row, 0.2 MB.
 */
#include "gpu.h"
#include "behind.h"
#include "philox.h"
#include "row.h"
extern "C" {
#include "base/bigram.h"
}

enum { THREADS = 1024, WARPS = THREADS / 32 }; /* WARPS = 32: greatest() needs a value a lane */

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
    /* How many there are from `least` on, or the sum of their weights; every thread gets it. */
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

/* The greatest number, of equal ones the first; z is aligned to 16 bytes. Two reads of AT_ONCE
 * pieces a thread are all of 50,304. */
__device__ static int greatest(const float *z, int n)
{
    enum { AT_ONCE = 7 };
    const float4 none = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
    __shared__ float value[WARPS];
    __shared__ int index[WARPS];
    float best = -INFINITY;
    int at = n;

    for (int v = 4 * threadIdx.x; v < n / 4 * 4; v += AT_ONCE * 4 * THREADS) {
        float four[AT_ONCE][4];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            int from = v + k * 4 * THREADS;
            float4 f = from < n / 4 * 4 ? *(const float4 *)(z + from) : none;
            four[k][0] = f.x, four[k][1] = f.y, four[k][2] = f.z, four[k][3] = f.w;
        }
#pragma unroll
        for (int i = 0; i < 4 * AT_ONCE; i++)
            if (four[i / 4][i % 4] > best)
                best = four[i / 4][i % 4], at = v + i / 4 * 4 * THREADS + i % 4;
    }
    if (threadIdx.x < n % 4 && z[n / 4 * 4 + threadIdx.x] > best)
        at = n / 4 * 4 + threadIdx.x, best = z[at];
    for (int round = 0; round < 2; round++) {
        for (int m = 16; m > 0; m /= 2) {
            float other = __shfl_xor_sync(~0u, best, m);
            int there = __shfl_xor_sync(~0u, at, m);
            if (other > best || (other == best && there < at))
                best = other, at = there;
        }
        if (round)
            break;
        if (lane_id() == 0)
            value[warp_id()] = best, index[warp_id()] = at;
        __syncthreads();
        best = value[lane_id()], at = index[lane_id()];
    }
    return at < n ? at : 0;
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

__global__ static void __launch_bounds__(THREADS) choose(args a)
{
    __shared__ double sums[2][32];
    int t = blockIdx.x, token;
    const float *z = a.logits + t * a.stride;

    start_kernel_behind();
    wait_for_kernel_before();
    const struct next_rows &n = a.next;
    int pos = n.pos[t];
    token = greatest(z, a.c.classes);
    if (a.c.temperature > 0) {
        row_of_logits r = { z, a.c.classes, z[token], a.c.temperature, sums, 0 };
        token = drawn(r, a.c, a.c.stream[t], pos);
    }
    if (threadIdx.x)
        return;
    int before = n.token[t];
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
    launch_behind(u, choose, dim3((int)logits.rows), THREADS, a);
}
