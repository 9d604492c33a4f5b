/* table_grad.cu - rows of a table, and its gradient from theirs:
 *   gather      out_t = table[row_t]
 *   table_grad  dtable[v] (+)= sum over positions t of row v of dx_t (+ dx2_t)
 *
 * gather: table (V,D) bf16, out (T,D) bf16, one warp a row, 4 T D bytes.
 *
 * dtable (V,D) bf16 or f32, dx, dx2 (T,D) bf16; order (T) lists positions by row and start
 * (V+1) says where a row's run of it begins. Gathers, so each row has one writer and one
 * order of summation. record-61.md 3.4.
 *
 * The work is the positions', not the table's, for record 74's 251520 rows have few readers: a
 * warp looks at 32 sorted positions and adds up the rows whose runs begin at STARTS of them, as
 * one stream with flight() loads under way across their borders. Rows that no position reads cost
 * nothing with add; else warps of their own write zeros, 32 rows each.
 *
 * A row with more than CHUNK positions would keep its warp busy for too long: first each chunk of
 * CHUNK sorted positions adds up the part of such a row, then the chunks' sums are added, 256
 * channels a warp. Those warps come first in the grid, for they take longest: two tenths of all
 * positions may be one row's. A chunk meets at most two long rows: that of its first position
 * (slot 0) and that of its last (slot 1, when another); at most one starts in it.
 *
 * Bytes, D = 768, T = 49152: T D 2 = 75.5 MB (151 with dx2) read, V D 2 written: 77.3 MB for V =
 * 50304, 386 MB for 251520; with add, only rows that are read by a position, once each way. Partial
 * sums: at most 2 T D / CHUNK f32.
 */
#include "behind.h"
#include "gpu.h"
#include "row.h"

/* A warp's 32 positions: the one before, those where its rows start, room for the last to end. */
enum { STARTS = 7, CHUNK = 31 - STARTS };
/* Returns how many rows (or pairs) a warp loads at once: as many as registers hold. */
__host__ __device__ constexpr int flight(int vectors, bool two)
{
    return vectors > 4 ? 1 : two ? 2 : 4;
}
enum { WARPS = 2, THREADS = 32 * WARPS }; /* small blocks: warps take very different times */

template <int V>
__global__ static void __launch_bounds__(ROW_THREADS)
    gather_rows(bf16 *out, const bf16 *table, const int32_t *row, int tokens, int d)
{
    int t = blockIdx.x * ROW_WARPS + warp_id();
    packed_row<V> x;

    begin_step();
    if (t >= tokens)
        return;
    x.load(table + (int64_t)row[t] * d, d);
    x.store(out + (int64_t)t * d, d);
}

void gpu_gather(struct ops *o, struct tensor out, struct tensor table, const struct lookup *l)
{
    struct cuda_ops *c = cuda_of(o);

    assert(out.rows == l->tokens && out.cols == table.cols && out.dtype == DT_BF16);
    if (c->failed || !l->tokens || !ROW_FITS(c, table.cols) ||
        !CUDA_NEED(c, table.dtype == DT_BF16, "tables are bf16"))
        return;
    with_vectors(table.cols, [&](auto v) {
        launch_step(c, gather_rows<decltype(v)::value>, dim3(div_up(l->tokens, ROW_WARPS)),
                    ROW_THREADS, (bf16 *)out.data, (const bf16 *)table.data, l->row, l->tokens,
                    (int)table.cols);
    });
}

struct source {
    const bf16 *dx, *dx2;
    const int32_t *order, *start, *tok;
    int tokens, d;
};

/* sum += rows at sorted positions first .. end - 1, at most CHUNK of them, in order. */
template <int V, bool TWO>
__device__ __forceinline__ static void add_rows(row<V> &sum, const source &s, int first, int end)
{
    constexpr int AT_ONCE = flight(V, TWO);
    int n = end - first, mine = lane_id() < n ? s.order[first + lane_id()] : 0;
    packed_row<V> x[AT_ONCE], x2[TWO ? AT_ONCE : 1];
    row<V> r;

    for (int i = 0; i < n; i += AT_ONCE) {
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            int64_t at = (int64_t)__shfl_sync(~0u, mine, (i + j) % 32) * s.d;
            if (i + j < n) {
                x[j].load(s.dx + at, s.d);
                if (TWO)
                    x2[TWO ? j : 0].load(s.dx2 + at, s.d);
            }
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++)
            if (i + j < n) {
                r.unpack(x[j]);
                sum.add(1, r);
                if (TWO) {
                    r.unpack(x2[TWO ? j : 0]);
                    sum.add(1, r);
                }
            }
    }
}

/* T: float or bf16. */
template <int V, typename T>
__device__ __forceinline__ static void add_stored(row<V> &sum, const T *p, int d)
{
    row<V> x;

    x.load(p, d);
    sum.add(1, x);
}

struct target {
    void *dtable;
    bool is_f32;
    bool round; /* the sum, to bf16, before it is added */
    int vocab;
};

template <int V> __device__ __forceinline__ static void round_sum(const target &g, row<V> &sum)
{
#pragma unroll
    for (int i = 0; i < V; i++)
        if (g.round)
            unpack8(sum.x[i], pack8(sum.x[i]));
}

/* `width` channels of row v, from channel `first` on. */
template <int V>
__device__ __forceinline__ static void store_row(const target &g, const row<V> &sum, int v, int d,
                                                 int first, int width)
{
    int64_t at = (int64_t)v * d + first;

    if (g.is_f32)
        sum.store((float *)g.dtable + at, width);
    else
        sum.store((bf16 *)g.dtable + at, width);
}

template <int V>
__device__ __forceinline__ static void add_old(const target &g, row<V> &sum, int v, int d,
                                               int first, int width)
{
    int64_t at = (int64_t)v * d + first;

    if (g.is_f32)
        add_stored(sum, (const float *)g.dtable + at, width);
    else
        add_stored(sum, (const bf16 *)g.dtable + at, width);
}

/* partial (chunks, 2, D). One warp a chunk and slot. */
template <int V, bool TWO>
__global__ static void __launch_bounds__(THREADS) table_chunks(float *partial, source s)
{
    int w = blockIdx.x * WARPS + warp_id(), chunk = w / 2, slot = w % 2;
    int first = chunk * CHUNK, end = min(first + CHUNK, s.tokens), v;
    row<V> sum;

    if (first >= s.tokens)
        return;
    v = s.tok[s.order[slot ? end - 1 : first]];
    if (s.start[v + 1] - s.start[v] <= CHUNK || (slot && s.start[v] <= first))
        return;
    sum.zero();
    add_rows<V, TWO>(sum, s, max(first, s.start[v]), min(end, s.start[v + 1]));
    sum.store(partial + (int64_t)w * s.d, s.d);
}

/* The long row that starts in the chunk, if any: its channels 256 part .. */
template <bool ADD>
__device__ __forceinline__ static void long_row(const target &g, const float *partial,
                                                const source &s, int chunk, int part)
{
    int first = chunk * CHUNK, last = min(first + CHUNK, s.tokens) - 1;
    int v = s.tok[s.order[last]], start = s.start[v], end = s.start[v + 1];
    int from = 256 * part, width = min(256, s.d - from);
    row<1> sum;

    if (end - start <= CHUNK || start < first)
        return;
    partial += from;
    sum.zero();
    add_stored(sum, partial + (2 * (int64_t)chunk + (first < start)) * s.d, width);
#pragma unroll 8
    for (int c = chunk + 1; c <= (end - 1) / CHUNK; c++)
        add_stored(sum, partial + 2 * (int64_t)c * s.d, width);
    round_sum(g, sum);
    if (ADD)
        add_old(g, sum, v, s.d, from, width);
    store_row(g, sum, v, s.d, from, width);
}

/* The rows whose runs begin at sorted positions first .. first + STARTS - 1, but for a long one:
 * it is the last of them, for it ends beyond their window. */
template <int V, bool TWO, bool ADD>
__device__ __forceinline__ static void short_rows(const target &g, const source &s, int first)
{
    constexpr int AT_ONCE = flight(V, TWO);
    int i = first - 1 + lane_id();
    bool exists = i >= 0 && i < s.tokens;
    int position = exists ? s.order[i] : 0, v = exists ? s.tok[position] : -1;
    unsigned starts = __ballot_sync(~0u, v != __shfl_up_sync(~0u, v, 1)); /* never lane 0 */
    unsigned mine = starts & __ballot_sync(~0u, exists && lane_id() <= STARTS);
    packed_row<V> kept;
    row<V> sum, r;

    if (!mine)
        return;
    int last = 31 - __clz(mine), end = __ffs(starts >> last >> 1) + last; /* last: none later */
    if (end - last > CHUNK)
        end = last;
    for (int at = __ffs(mine) - 1; at < end; at += AT_ONCE) {
        packed_row<V> x[AT_ONCE], x2[TWO ? AT_ONCE : 1], old[ADD ? AT_ONCE : 1];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            int64_t from = (int64_t)__shfl_sync(~0u, position, (at + j) % 32) * s.d;
            int64_t to = (int64_t)__shfl_sync(~0u, v, (at + j) % 32) * s.d;
            if (at + j < end) {
                x[j].load(s.dx + from, s.d);
                if (TWO)
                    x2[TWO ? j : 0].load(s.dx2 + from, s.d);
                if (ADD && !g.is_f32 && (starts >> (at + j) & 1))
                    old[ADD ? j : 0].load((const bf16 *)g.dtable + to, s.d);
            }
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            int to = __shfl_sync(~0u, v, (at + j) % 32);
            if (at + j >= end)
                continue;
            if (starts >> (at + j) & 1) {
                sum.zero();
                if (ADD)
                    kept = old[ADD ? j : 0];
            }
            r.unpack(x[j]);
            sum.add(1, r);
            if (TWO) {
                r.unpack(x2[TWO ? j : 0]);
                sum.add(1, r);
            }
            if (starts >> (at + j) >> 1 & 1) {
                round_sum(g, sum);
                if (ADD && g.is_f32) {
                    add_old(g, sum, to, s.d, 0, s.d);
                } else if (ADD) {
                    r.unpack(kept);
                    sum.add(1, r);
                }
                store_row(g, sum, to, s.d, 0, s.d);
            }
        }
    }
}

/* Clears those of the rows first .. first + 31 that no position reads. */
template <int V>
__device__ __forceinline__ static void zero_rows(const target &g, const source &s, int first)
{
    int v = first + lane_id();
    unsigned empty = __ballot_sync(~0u, v < g.vocab && s.start[v] == s.start[v + 1]);
    row<V> zero;

    zero.zero();
    for (; empty; empty &= empty - 1)
        store_row(g, zero, first + __ffs(empty) - 1, s.d, 0, s.d);
}

/* Warps: chunks * V for the long rows, one for 32 rows of zeros (before those that wait for what
 * they read: stores run on by themselves), one for STARTS positions. */
template <int V, bool TWO, bool ADD>
__global__ static void __launch_bounds__(THREADS)
    table_rows(target g, const float *partial, int chunks, source s)
{
    int w = blockIdx.x * WARPS + warp_id(), of_zeros = w - chunks * V;
    int of_positions = of_zeros - (ADD ? 0 : (g.vocab + 31) / 32);

    if (of_zeros < 0) {
        if (w % V * 256 < s.d)
            long_row<ADD>(g, partial, s, w / V, w % V);
    } else if (of_positions < 0) {
        zero_rows<V>(g, s, of_zeros * 32);
    } else {
        short_rows<V, TWO, ADD>(g, s, of_positions * STARTS);
    }
}

template <int V, bool TWO, bool ADD>
static void launch(struct cuda_ops *c, const target &g, float *partial, int chunks, const source &s)
{
    int warps = chunks * V + div_up(s.tokens, STARTS) + (ADD ? 0 : div_up(g.vocab, 32));

    if (chunks)
        table_chunks<V, TWO><<<div_up(2 * chunks, WARPS), THREADS, 0, c->stream>>>(partial, s);
    if (warps)
        table_rows<V, TWO, ADD>
            <<<div_up(warps, WARPS), THREADS, 0, c->stream>>>(g, partial, chunks, s);
}

void gpu_table_grad(struct ops *o, struct tensor dtable, struct tensor dx, struct tensor dx2,
                    const struct lookup *l, bool add)
{
    struct cuda_ops *c = cuda_of(o);
    int chunks = div_up(l->tokens, CHUNK), vocab = (int)dtable.rows, d = (int)dtable.cols;
    source s = {
        (const bf16 *)dx.data, (const bf16 *)dx2.data, l->order, l->start, l->row, l->tokens, d
    };
    target g = { dtable.data, dtable.dtype == DT_F32, o->bf16_grads, vocab };
    float *partial;

    assert(dx.rows == l->tokens && dx.cols == d && dx.dtype == DT_BF16);
    assert(dtable.dtype == DT_BF16 || dtable.dtype == DT_F32);
    if (c->failed || !ROW_FITS(c, d))
        return;
    partial = (float *)cuda_workspace(c, (size_t)chunks * 2 * d * sizeof *partial);
    if (!partial)
        return;
    with_vectors(d, [&](auto v) {
        constexpr int V = decltype(v)::value;
        if (dx2.data)
            (add ? launch<V, true, true> : launch<V, true, false>)(c, g, partial, chunks, s);
        else
            (add ? launch<V, false, true> : launch<V, false, false>)(c, g, partial, chunks, s);
    });
    CUDA_LAUNCHED(c);
}
