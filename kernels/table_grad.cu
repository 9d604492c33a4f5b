/* table_grad.cu - rows of a table, and its gradient from theirs:
 *   gather      out_t = table[row_t]
 *   table_grad  dtable[v] (+)= sum over positions t of row v of dx_t (+ dx2_t)
 *
 * gather: table (V,D) bf16, out (T,D) bf16, one warp a row, 4 T D bytes.
 *
 * dtable (V,D) bf16 or f32, dx, dx2 (T,D) bf16; order (T) lists positions by token and start
 * (V+1) says where a token's run of it begins. Gathers, so each row has one writer and one
 * order of summation. Record-61.md 3.4.
 *
 * One warp a row of the table, all V of them (zero rows too). A token with more than CHUNK
 * positions would keep its warp busy for too long: first each chunk of CHUNK sorted positions
 * adds up what belongs to such a token, then the chunks' sums are added, 256 channels a warp.
 * Those warps come first in the grid, for they take longest: two tenths of all tokens may be
 * one. A chunk meets at most two long tokens: that of its first position (slot 0) and that of
 * its last (slot 1, when another); at most one starts in it.
 *
 * Bytes: T D 2 (4 with dx2) read, V D 2 written (read too with add); at T = 49152, D = 768,
 * V = 50304: 75.5 + 77.3 MB. Partial sums: at most 2 T D / CHUNK f32.
 */
#include "gpu.h"
#include "row.h"

enum { CHUNK = 32 };                    /* lanes: each knows one position */
enum { FLIGHT = 4 };                    /* rows a warp loads at once */
enum { WARPS = 2, THREADS = 32 * WARPS };   /* small blocks: warps take very different times */

__global__ static void __launch_bounds__(ROW_THREADS)
gather_rows(uint4 *out, const uint4 *table, const int32_t *row, int tokens, int vectors)
{
    int t = blockIdx.x * ROW_WARPS + warp_id();

    if (t < tokens)
        for (int i = lane_id(); i < vectors; i += 32)
            out[(int64_t)t * vectors + i] = table[(int64_t)row[t] * vectors + i];
}

void gpu_gather(struct ops *o, struct tensor out, struct tensor table, const struct lookup *l)
{
    struct cuda_ops *c = cuda_of(o);

    assert(out.rows == l->tokens && out.cols == table.cols && out.dtype == DT_BF16);
    if (c->failed || !l->tokens || !CUDA_NEED(c, table.cols % 8 == 0, ROW_NEED) ||
        !CUDA_NEED(c, table.dtype == DT_BF16, "tables are bf16"))
        return;
    gather_rows<<<div_up(l->tokens, ROW_WARPS), ROW_THREADS, 0, c->stream>>>(
        (uint4 *)out.data, (const uint4 *)table.data, l->row, l->tokens, (int)table.cols / 8);
    CUDA_LAUNCHED(c);
}

struct source { const bf16 *dx, *dx2; const int32_t *order, *start, *tok; int tokens, d; };

/* sum += rows at sorted positions first .. end - 1, at most CHUNK of them, in order. */
template <int V, bool TWO>
__device__ __forceinline__ static void add_rows(row<V> &sum, const source &s, int first, int end)
{
    int n = end - first, mine = lane_id() < n ? s.order[first + lane_id()] : 0;
    packed_row<V> x[FLIGHT], x2[TWO ? FLIGHT : 1];
    row<V> r;

    for (int i = 0; i < n; i += FLIGHT) {
#pragma unroll
        for (int j = 0; j < FLIGHT; j++) {
            int64_t at = (int64_t)__shfl_sync(~0u, mine, (i + j) % 32) * s.d;
            if (i + j < n) {
                x[j].load(s.dx + at, s.d);
                if (TWO)
                    x2[TWO ? j : 0].load(s.dx2 + at, s.d);
            }
        }
#pragma unroll
        for (int j = 0; j < FLIGHT; j++)
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

template <int V>
__device__ __forceinline__ static void store_f32(float *p, const row<V> &x, int d)
{
#pragma unroll
    for (int i = 0; i < V; i++)
        if (row<V>::at(i) < d) {
            float4 *q = (float4 *)(p + row<V>::at(i));
            q[0] = make_float4(x.x[i][0], x.x[i][1], x.x[i][2], x.x[i][3]);
            q[1] = make_float4(x.x[i][4], x.x[i][5], x.x[i][6], x.x[i][7]);
        }
}

template <int V>
__device__ __forceinline__ static void add_f32(row<V> &x, const float *p, int d)
{
#pragma unroll
    for (int i = 0; i < V; i++)
        if (row<V>::at(i) < d) {
            const float4 *q = (const float4 *)(p + row<V>::at(i));
            float4 a = q[0], b = q[1];
            x.x[i][0] += a.x, x.x[i][1] += a.y, x.x[i][2] += a.z, x.x[i][3] += a.w;
            x.x[i][4] += b.x, x.x[i][5] += b.y, x.x[i][6] += b.z, x.x[i][7] += b.w;
        }
}

struct target { void *dtable; bool is_f32, add; int vocab; };

/* `width` channels of row v, from channel `first` on. */
template <int V>
__device__ __forceinline__ static void write_row(const target &g, row<V> &sum, int v, int d,
                                                 int first, int width)
{
    int64_t at = (int64_t)v * d + first;

    if (g.is_f32) {
        if (g.add)
            add_f32(sum, (float *)g.dtable + at, width);
        store_f32((float *)g.dtable + at, sum, width);
    } else {
        if (g.add) {
            row<V> old;
            old.load((bf16 *)g.dtable + at, width);
            sum.add(1, old);
        }
        sum.store((bf16 *)g.dtable + at, width);
    }
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
    store_f32(partial + (int64_t)w * s.d, sum, s.d);
}

/* The long token that starts in the chunk, if any: its channels 256 part .. */
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
    add_f32(sum, partial + (2 * (int64_t)chunk + (first < start)) * s.d, width);
#pragma unroll 8
    for (int c = chunk + 1; c <= (end - 1) / CHUNK; c++)
        add_f32(sum, partial + 2 * (int64_t)c * s.d, width);
    write_row(g, sum, v, s.d, from, width);
}

/* Warps: chunks * V for the long tokens, then one a token. */
template <int V, bool TWO>
__global__ static void __launch_bounds__(THREADS)
table_rows(target g, const float *partial, int chunks, source s)
{
    int w = blockIdx.x * WARPS + warp_id(), v = w - chunks * V, first, end;
    row<V> sum;

    if (v < 0) {
        if (w % V * 256 < s.d)
            long_row(g, partial, s, w / V, w % V);
        return;
    }
    if (v >= g.vocab)
        return;
    first = s.start[v], end = s.start[v + 1];
    if ((g.add && first == end) || end - first > CHUNK)
        return;
    sum.zero();
    add_rows<V, TWO>(sum, s, first, end);
    write_row(g, sum, v, s.d, 0, s.d);
}

template <int V, bool TWO>
static void launch(struct cuda_ops *c, const target &g, float *partial, int chunks,
                   const source &s)
{
    if (chunks)
        table_chunks<V, TWO><<<div_up(2 * chunks, WARPS), THREADS, 0, c->stream>>>(partial, s);
    table_rows<V, TWO><<<div_up(g.vocab + chunks * V, WARPS), THREADS, 0, c->stream>>>(
        g, partial, chunks, s);
}

void gpu_table_grad(struct ops *o, struct tensor dtable, struct tensor dx, struct tensor dx2,
                    const struct lookup *l, bool add)
{
    struct cuda_ops *c = cuda_of(o);
    int chunks = div_up(l->tokens, CHUNK), vocab = (int)dtable.rows, d = (int)dtable.cols;
    source s = { (const bf16 *)dx.data, (const bf16 *)dx2.data, l->order, l->start, l->row,
                 l->tokens, d };
    target g = { dtable.data, dtable.dtype == DT_F32, add, vocab };
    float *partial;

    assert(dx.rows == l->tokens && dx.cols == d && dx.dtype == DT_BF16);
    assert(dtable.dtype == DT_BF16 || dtable.dtype == DT_F32);
    if (c->failed || !CUDA_NEED(c, d % 8 == 0 && d <= 2048, ROW_NEED))
        return;
    partial = (float *)cuda_workspace(c, (size_t)chunks * 2 * d * sizeof *partial);
    if (!partial)
        return;
    with_vectors(d, [&](auto v) {
        constexpr int V = decltype(v)::value;
        if (dx2.data)
            launch<V, true>(c, g, partial, chunks, s);
        else
            launch<V, false>(c, g, partial, chunks, s);
    });
    CUDA_LAUNCHED(c);
}
