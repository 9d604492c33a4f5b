/* attention_mma.cu - attention on any GPU from compute capability 8.0 on, by mma.sync.
 *
 * Grid: a block of 256 threads for each item of the plan (a tile of 128 rows, a head), in the
 * plan's order. A warp owns 16 rows of the tile and keeps all sums of them in registers; blocks of
 * rows that the tile meets stream past in shared memory, two stages deep, the next one copied
 * (cp.async) while this one is multiplied. Rows lie in shared memory as in memory, their 16-byte
 * chunks permuted so that eight rows at one chunk are free of bank conflicts. Blocks that a half
 * tile does not meet are skipped by its warps, whole ones are not masked.
 *
 *   forward    q in registers; for each 64 keys S = q k^T, online softmax, out += P v
 *   backward   a tile of keys and values, 64 queries and dout at a time: S^T = k q^T and
 *              dP^T = v dout^T, dv += P^T dout, dk += dS^T q in registers; dS through shared memory
 *              for dq = dS k. The tiles that a query sees add to its dq one after the other, the
 *              nearest first: each takes the f32 sum of the one before from memory when that has
 *              counted itself in, the last one rounds it. The order is fixed: the same bits in
 *              every run. 32 queries at a time where 64 do not fit (128 channels: 129 KB; a GPU
 *              has at least 99 KB): the same sums in the same order.
 *
 * E: channels of a head of v and out, Q of q and k, at most E. FLOP a pair of query and key: 2 (Q + E) forward,
 * 6 Q + 4 E backward. Bytes: each tensor once, what streams
 * again from the L2 for each tile that meets it, and 8 Q for dq of a query and a tile of keys.
 * Source: FlashAttention-2, arXiv 2307.08691; PTX ISA 9.0, fragments of mma.m16n8k16.
 */
#include <type_traits>
#include "attention_plan.cuh"
#include "attention_rows.cuh"
#include "host/launch.h"
#include "mma.h"
#include "vec.h"

namespace
{

enum { THREADS = 256, KEYS = 64 /* of a block that streams past in forward */ };

/* -- rows in shared memory ------------------------------------------------------------------ */

/* Byte offset of chunk c (8 channels) of row r. */
template <int E> __device__ __forceinline__ uint32_t chunk_at(int r, int c)
{
    return r * (2 * E) + ((c ^ (E % 64 ? r >> 1 & 3 : r & 7)) << 4);
}

/* Copies rows row .. row + ROWS - 1 of one head of x (rows, heads E); those past the end are zeros. */
template <int E, int ROWS>
__device__ __forceinline__ void copy_rows(uint32_t to, const bf16 *x, const struct attn_shape &s,
                                          int head, int row)
{
#pragma unroll
    for (int i = threadIdx.x; i < ROWS * (E / 8); i += THREADS) {
        const int r = i / (E / 8), c = i % (E / 8);
        const bool exists = row + r < s.rows;
        const int64_t from = (int64_t)(exists ? row + r : 0) * s.heads + head;
        copy_16(to + chunk_at<E>(r, c), x + from * E + 8 * c, exists);
    }
}

/* Step k (16 channels) of 16 rows from `row` on, as operand a. */
template <int E>
__device__ __forceinline__ void load_step(uint32_t (&a)[4], uint32_t rows, int row, int k)
{
    const int lane = threadIdx.x % 32;
    load_matrices(a, rows + chunk_at<E>(row + lane % 16, 2 * k + lane / 16));
}
template <int E>
__device__ __forceinline__ void load_steps(uint32_t (&a)[E / 16][4], uint32_t rows, int row)
{
#pragma unroll
    for (int k = 0; k < E / 16; k++)
        load_step<E>(a[k], rows, row, k);
}

/* s (16, N) += step k of a b^T, b: N rows. */
template <int E, int N>
__device__ __forceinline__ void dot_step(float (&s)[N / 2], const uint32_t (&a)[4], uint32_t b,
                                         int k)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < N / 16; n++) {
        uint32_t f[4];
        load_matrices(f, b + chunk_at<E>(16 * n + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
        mma(s + 8 * n, a, f[0], f[1]);
        mma(s + 8 * n + 4, a, f[2], f[3]);
    }
}
/* s (16, N) = a b^T over E channels; a in registers, or 16 rows from `row` on. */
template <int E, int N>
__device__ __forceinline__ void dot_rows(float (&s)[N / 2], const uint32_t (&a)[E / 16][4],
                                         uint32_t b)
{
    set_zero(s);
#pragma unroll
    for (int k = 0; k < E / 16; k++)
        dot_step<E, N>(s, a[k], b, k);
}
template <int E, int N>
__device__ __forceinline__ void dot_rows(float (&s)[N / 2], uint32_t a, int row, uint32_t b)
{
    set_zero(s);
#pragma unroll
    for (int k = 0; k < E / 16; k++) {
        uint32_t step[4];
        load_step<E>(step, a, row, k);
        dot_step<E, N>(s, step, b, k);
    }
}
/* d (16, E) += p (16, K) b, b: K rows. */
template <int E, int K>
__device__ __forceinline__ void add_rows(float (&d)[E / 2], const uint32_t (&p)[K / 4], uint32_t b)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < K / 16; k++)
#pragma unroll
        for (int n = 0; n < E / 16; n++) {
            uint32_t f[4];
            load_transposed(f, b + chunk_at<E>(16 * k + lane % 16, 2 * n + lane / 16));
            mma(d + 8 * n, p + 4 * k, f[0], f[1]);
            mma(d + 8 * n + 4, p + 4 * k, f[2], f[3]);
        }
}

/* Sums of eight pairs of bf16. */
__device__ __forceinline__ uint4 add8(uint4 a, uint4 b)
{
    float x[8], y[8];
    unpack8(x, a), unpack8(y, b);
#pragma unroll
    for (int i = 0; i < 8; i++)
        x[i] += y[i];
    return pack8(x);
}
/* A warp's 16 rows of N packed numbers into shared memory. */
template <int N> __device__ __forceinline__ void put_rows(uint32_t to, const uint32_t (&p)[N / 4])
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < N / 4; i++) /* register i: columns 8 (i / 2) .., rows + 8 (i % 2) */
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(to + chunk_at<N>(lane / 4 + i % 2 * 8, i / 2) +
                                                     lane % 4 * 4),
                     "r"(p[i])
                     : "memory");
}

/* A warp's 16 rows of results, packed, to rows `row` .. of out, through shared memory that no other
 * warp touches: 16 E numbers at `staging`. */
template <int E>
__device__ __forceinline__ void leave(bf16 *out, uint32_t staging, const uint32_t (&p)[E / 4],
                                      const struct attn_shape &s, int head, int row, bool add)
{
    const int lane = threadIdx.x % 32;
    __syncwarp();
    put_rows<E>(staging, p);
    __syncwarp();
#pragma unroll
    for (int i = lane; i < 16 * (E / 8); i += 32) {
        const int r = i / (E / 8), c = i % (E / 8);
        uint4 x;
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                     : "r"(staging + chunk_at<E>(r, c))
                     : "memory");
        bf16 *to = out + ((int64_t)(row + r) * s.heads + head) * E + 8 * c;
        if (row + r < s.rows)
            *(uint4 *)to = add ? add8(x, *(const uint4 *)to) : x;
    }
}

/* -- forward ---------------------------------------------------------------------------------- */

struct forward_args {
    bf16 *out;
    const bf16 *q, *k, *v;
};

/* Bytes of keys and values of a block; a stage has N blocks. */
template <int Q, int E> constexpr int block_bytes() { return 2 * KEYS * (Q + E); }

template <int Q, int E, int N>
__global__ void __launch_bounds__(THREADS, 1)
    forward_kernel(const struct attention_call c, const struct forward_args t)
{
    extern __shared__ __align__(128) char raw[];
    const struct reach reach = c.p.by_query[blockIdx.x];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, far = 1 - warp / 4;
    const int tile_row = reach.tile * TILE, first = tile_row + 16 * warp, row = first + lane / 4;
    const int blocks = reach_part(reach.blocks, far), whole = reach_part(reach.whole, far);
    const int all = reach_blocks(reach.blocks), bytes = block_bytes<Q, E>();
    const uint32_t memory = address(raw);
    const int lo[2] = { c.p.start[row], c.p.start[row + 8] };
    const int len[2] = { row - lo[0], row + 8 - lo[1] };
    uint32_t q[Q / 16][4], packed[16], result[E / 4];
    float s[32], p[32], out[E / 2];
    struct online o;

    auto copy_stage = [&](int i) { /* blocks i .. i + N - 1 */
                                   for (int end = min(i + N, all); i < end; i++) {
                                       const uint32_t to = memory + i % (2 * N) * bytes;
                                       const int key = tile_row + BLOCK - i * BLOCK;
                                       copy_rows<Q, KEYS>(to, t.k, c.s, reach.head, key);
                                       copy_rows<E, KEYS>(to + 2 * KEYS * Q, t.v, c.s, reach.head,
                                                          key);
                                   }
                                   copies_commit();
    };
    copy_rows<Q, TILE>(memory + N * bytes, t.q, c.s, reach.head, tile_row); /* where block N goes */
    copies_commit();
    copy_stage(0);
    copies_wait<1>();
    __syncthreads();
    load_steps<Q>(q, memory + N * bytes, 16 * warp);
    set_zero(out);
    for (int i = 0; i < all; i++) {
        const uint32_t k = memory + i % (2 * N) * bytes, v = k + 2 * KEYS * Q;
        const int mine = i - far;
        if (i % N == 0) {
            copies_wait<0>();
            __syncthreads(); /* the stage is there, and nobody reads the one before */
            copy_stage(i + N);
        }
        if (mine < 0 || mine >= blocks)
            continue;
        dot_rows<Q, KEYS>(s, q, k);
        if (mine == 0 || mine >= whole)
            mask_block(s, tile_row + BLOCK - i * BLOCK + lane % 4 * 2, lo, len);
        if (mine == 0) {
            o.begin(p, s, c.unit);
        } else {
            o.go_on(p, s, c.unit);
            if (o.rescale)
#pragma unroll
                for (int j = 0; j < E / 2; j++)
                    out[j] *= o.alpha[j / 2 % 2];
        }
        pack_rows(packed, p);
        add_rows<E, KEYS>(out, packed, v);
    }
    o.sum[0] = quad_sum(o.sum[0]);
    o.sum[1] = quad_sum(o.sum[1]);
    if (lane % 4 == 0)
#pragma unroll
        for (int h = 0; h < 2; h++)
            if (row + 8 * h < c.s.rows)
                c.lse[(int64_t)reach.head * c.s.rows + row + 8 * h] =
                    o.max[h] * c.s.scale + logf(o.sum[h]);
    round_rows<E>(result, out, 1.0f / o.sum[0], 1.0f / o.sum[1]);
    __syncthreads(); /* nobody reads keys and values */
    leave<E>(t.out, memory + 16 * warp * E * 2, result, c.s, reach.head, first, false);
}

/* -- backward --------------------------------------------------------------------------------- */

struct backward_args {
    bf16 *dq, *dk, *dv;
    const bf16 *dout, *q, *k, *v;
};

/* The tile's keys and values, queries of two steps, dout and dS^T of one, and lse / ln 2 and delta
 * of two. */
template <int Q, int E, int N> struct backward_smem {
    char k[TILE * Q * 2], v[TILE * E * 2];
    char q[2][N * Q * 2], dout[N * E * 2];
    char ds[TILE * N * 2];
    float stat[2][2][N];
};

/* dq of N queries, dealt to the warps: each has M times 16 rows and C times 16 channels, of which those from
 * Q on (a fourth warp's, of 96 channels) are left out. */
template <int Q, int N> struct dq_part {
    enum {
        ACROSS = Q < 64 ? 2 : 4,
        M = N * ACROSS / 128,
        C = (Q + 16 * ACROSS - 1) / (16 * ACROSS),
        SUMS = 8 * M * C,
        STEP = SUMS * THREADS / 4 /* float4 of N queries in memory */
    };
    int row, chunk; /* first row, first 8 channels */
    __device__ __forceinline__ bool has(int n) const
    {
        return Q % (16 * ACROSS) == 0 || 8 * (chunk + 2 * n) < Q;
    }
    __device__ __forceinline__ dq_part()
        : row(threadIdx.x / 32 / ACROSS * 16 * M), chunk(threadIdx.x / 32 % ACROSS * 2 * C)
    {
    }
};

/* d += dS k over keys `from` .. to - 1 of the tile. */
template <int Q, int N>
__device__ __forceinline__ void add_dq(float (&d)[dq_part<Q, N>::SUMS], const dq_part<Q, N> &part,
                                       uint32_t ds, uint32_t k, int from, int to)
{
    typedef dq_part<Q, N> own;
    const int lane = threadIdx.x % 32;
    for (int key = from; key < to; key += 16) {
        uint32_t a[own::M][4], b[4];
#pragma unroll
        for (int m = 0; m < own::M; m++)
            load_transposed(a[m], ds + chunk_at<N>(key + lane % 8 + lane / 16 * 8,
                                                   part.row / 8 + 2 * m + lane / 8 % 2));
#pragma unroll
        for (int n = 0; n < own::C; n++) {
            if (!part.has(n))
                continue;
            load_transposed(b, k + chunk_at<Q>(key + lane % 16, part.chunk + 2 * n + lane / 16));
#pragma unroll
            for (int m = 0; m < own::M; m++) {
                mma(d + 8 * (m * own::C + n), a[m], b[0], b[1]);
                mma(d + 8 * (m * own::C + n) + 4, a[m], b[2], b[3]);
            }
        }
    }
}

/* Load and store this thread's sums of N queries as the tiles of keys hand them on. */
template <int SUMS> __device__ __forceinline__ void load_sums(float (&d)[SUMS], const float4 *from)
{
#pragma unroll
    for (int i = 0; i < SUMS / 4; i++) {
        const float4 x = __ldcg(from + i * THREADS + threadIdx.x);
        d[4 * i] = x.x, d[4 * i + 1] = x.y, d[4 * i + 2] = x.z, d[4 * i + 3] = x.w;
    }
}
template <int SUMS> __device__ __forceinline__ void save_sums(float4 *to, const float (&d)[SUMS])
{
#pragma unroll
    for (int i = 0; i < SUMS / 4; i++)
        to[i * THREADS + threadIdx.x] =
            make_float4(d[4 * i], d[4 * i + 1], d[4 * i + 2], d[4 * i + 3]);
}

/* Finished sums times scale to rows `row` .. of dq. */
template <int Q, int N>
__device__ __forceinline__ void leave_dq(bf16 *dq, const dq_part<Q, N> &part,
                                         const float (&d)[dq_part<Q, N>::SUMS],
                                         const struct attn_shape &s, int head, int row)
{
    typedef dq_part<Q, N> own;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < own::SUMS; i += 2) {
        const int r = row + part.row + i / (8 * own::C) * 16 + lane / 4 + i / 2 % 2 * 8;
        const int channel = 8 * part.chunk + i / 4 % (2 * own::C) * 8 + lane % 4 * 2;
        if (r < s.rows && part.has(i / 8 % own::C))
            *(uint32_t *)(dq + ((int64_t)r * s.heads + head) * Q + channel) =
                bf16_pack(d[i] * s.scale, d[i + 1] * s.scale);
    }
}

template <int Q, int E, int N>
__device__ __forceinline__ void copy_queries(const struct attention_call &c, const bf16 *q,
                                             backward_smem<Q, E, N> *sm, int to, int head, int row)
{
    copy_rows<Q, N>(address(sm->q[to]), q, c.s, head, row);
    if (threadIdx.x < 2 * N / 4) {
        const int which = threadIdx.x / (N / 4), at = threadIdx.x % (N / 4) * 4;
        const float *from = (which ? c.p.delta : c.p.lse2) + (int64_t)head * c.p.padded + row + at;
        copy_16(address(&sm->stat[to][which][at]), from, true);
    }
}

/* One block a tile of keys and head. Tiles are taken from the last one down: the dq of N queries
 * goes from their own tile of keys to the one before it, down to the first that they see, and a
 * tile that is waited for has been taken earlier. N queries a step. */
template <int Q, int E, int N>
__global__ void __launch_bounds__(THREADS, 1)
    backward_kernel(const struct attention_call c, const struct backward_args t)
{
    extern __shared__ __align__(128) char raw[];
    __shared__ int taken;
    backward_smem<Q, E, N> *const sm = (backward_smem<Q, E, N> *)raw;
    if (threadIdx.x == 0)
        taken = take_item(&c.p.next[1], c.p.items - 1);
    __syncthreads();
    const int tile = c.p.tiles - 1 - taken / c.s.heads, head = taken % c.s.heads;
    const struct reach reach = c.p.found[1][tile];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, far = warp / 4;
    const int tile_row = tile * TILE, first = tile_row + 16 * warp, row = first + lane / 4;
    const int blocks = reach_part(reach.blocks, far), whole = reach_part(reach.whole, far);
    const int steps = reach_blocks(reach.blocks) * (BLOCK / N);
    const uint32_t k = address(sm->k), v = address(sm->v), dout = address(sm->dout);
    const uint32_t ds = address(sm->ds);
    const int lo[2] = { row, row + 8 };
    const int len[2] = { c.p.end[row] - row, c.p.end[row + 8] - row - 8 };
    const dq_part<Q, N> part;
    /* For each N queries of this head: how many tiles of keys have added to dq, and their sum. */
    const int64_t parts = (int64_t)head * (c.p.padded / N);
    int *const added = c.p.added + parts;
    float4 *const sums = (float4 *)c.p.dq_sums + parts * dq_part<Q, N>::STEP;
    float dk[Q / 2], dv[E / 2];

    copy_rows<Q, TILE>(k, t.k, c.s, head, tile_row);
    copy_rows<E, TILE>(v, t.v, c.s, head, tile_row);
    copy_queries<Q, E, N>(c, t.q, sm, 0, head, tile_row);
    copy_rows<E, N>(dout, t.dout, c.s, head, tile_row);
    copies_commit();
    set_zero(dk);
    set_zero(dv);
    for (int j = 0; j < steps; j++) {
        const int block = j / (BLOCK / N), mine = block - far, at = tile_row + j * N;
        const int before = j / (TILE / N); /* tiles of keys between these queries' own and this */
        const bool last = c.p.start[at / BLOCK * BLOCK] / TILE == tile;
        const uint32_t q = address(sm->q[j % 2]);
        const float *const stat = sm->stat[j % 2][0];
        float s[N / 2], dp[N / 2];
        uint32_t packed[N / 4];

        copies_wait<0>();
        if (threadIdx.x == 0 && before > 0) {
            while (*(volatile int *)&added[at / N] < before)
                ;
            __threadfence();
        }
        __syncthreads(); /* step j and the sum so far are there, nobody is in step j - 1 */
        if (threadIdx.x == 0 && j > 0) {
            __threadfence();
            *(volatile int *)&added[at / N - 1] = (j - 1) / (TILE / N) + 1;
        }
        if (j + 1 < steps)
            copy_queries<Q, E, N>(c, t.q, sm, (j + 1) % 2, head, at + N);
        const bool works = mine >= 0 && mine < blocks;
        if (works) {
            dot_rows<Q, N>(s, k, 16 * warp, q);
            dot_rows<E, N>(dp, v, 16 * warp, dout);
            if (mine == 0 || mine >= whole)
                mask_block(s, at + lane % 4 * 2, lo, len);
#pragma unroll
            for (int i = 0; i < N / 2; i++) {
                const int column = i / 4 * 8 + lane % 4 * 2 + i % 2;
                s[i] = exp2_approx(fmaf(s[i], c.unit, -stat[column]));
                dp[i] = s[i] * (dp[i] - stat[N + column]);
            }
            pack_rows(packed, s);
            add_rows<E, N>(dv, packed, dout);
            pack_rows(packed, dp);
            put_rows<N>(ds + 16 * warp * N * 2, packed);
        }
        float dq[dq_part<Q, N>::SUMS];
        if (before > 0)
            load_sums(dq, sums + (int64_t)(at / N) * dq_part<Q, N>::STEP);
        else
            set_zero(dq);
        if (works)
            add_rows<Q, N>(dk, packed, q);
        __syncthreads(); /* dS of all warps is there, and nobody reads dout */
        if (j + 1 < steps)
            copy_rows<E, N>(dout, t.dout, c.s, head, at + N);
        copies_commit();
        /* The halves of the tile that meet these queries. */
        const int from = block < reach_part(reach.blocks, 0) ? 0 : BLOCK;
        const int to = block > 0 && block <= reach_part(reach.blocks, 1) ? TILE : BLOCK;
        add_dq<Q, N>(dq, part, ds, k, from, to);
        if (last)
            leave_dq<Q, N>(t.dq, part, dq, c.s, head, at);
        else
            save_sums(sums + (int64_t)(at / N) * dq_part<Q, N>::STEP, dq);
    }
    __syncthreads(); /* nobody reads k */
    if (threadIdx.x == 0) {
        __threadfence();
        *(volatile int *)&added[(tile_row + (steps - 1) * N) / N] = (steps - 1) / (TILE / N) + 1;
    }
    uint32_t keys[Q / 4], result[E / 4];
    round_rows<Q>(keys, dk, c.s.scale, c.s.scale);
    leave<Q>(t.dk, k + 16 * warp * Q * 2, keys, c.s, head, first, false);
    round_rows<E>(result, dv, 1, 1);
    leave<E>(t.dv, v + 16 * warp * E * 2, result, c.s, head, first, c.grads.add_dv);
}

/* -- host -------------------------------------------------------------------------------------- */

template <int Q, int E, int N>
cudaError_t forward_of(cudaStream_t stream, const struct attention_call *c,
                       const struct forward_args &t)
{
    return launch_kernel({ dim3(c->p.items), THREADS, stream, 2 * N * block_bytes<Q, E>() },
                         forward_kernel<Q, E, N>, *c, t);
}

/* Takes as many blocks a stage, or queries a step, as fit into shared memory. */
template <int Q, int E>
cudaError_t forward(cudaStream_t stream, const struct attention_call *c,
                    const struct forward_args &t)
{
    return E == 128 && c->shared_bytes < 4 * block_bytes<Q, E>()
               ? forward_of<Q, E, 1>(stream, c, t)
               : forward_of<Q, E, 2>(stream, c, t);
}

template <int Q, int E, int N>
cudaError_t backward_of(cudaStream_t stream, const struct attention_call *c,
                        const struct backward_args &t)
{
    return launch_kernel({ dim3(c->p.items), THREADS, stream, (int)sizeof(backward_smem<Q, E, N>) },
                         backward_kernel<Q, E, N>, *c, t);
}

template <int Q, int E>
cudaError_t backward(cudaStream_t stream, const struct attention_call *c,
                     const struct backward_args &t)
{
    if constexpr (E == 128)
        if (c->shared_bytes < (int)sizeof(backward_smem<Q, E, 64>))
            return backward_of<Q, E, 32>(stream, c, t);
    return backward_of<Q, E, 64>(stream, c, t);
}

template <int N> using channels = std::integral_constant<int, N>;
/* Calls f with the widths of a head of q and of v, of which there are kernels. */
template <typename F> cudaError_t with_widths(const struct attn_shape &s, F f)
{
    const int q = attn_qk_dim(&s), e = s.head_dim;
    if (q == 32 && e == 32)
        return f(channels<32>(), channels<32>());
    if (q == 32 && e == 64)
        return f(channels<32>(), channels<64>());
    if (q == 64 && e == 64)
        return f(channels<64>(), channels<64>());
    if (q == 64 && e == 128)
        return f(channels<64>(), channels<128>());
    if (q == 96 && e == 128)
        return f(channels<96>(), channels<128>());
    if (q == 128 && e == 128)
        return f(channels<128>(), channels<128>());
    return cudaErrorInvalidValue;
}

} /* namespace */

cudaError_t attention_mma_forward(cudaStream_t stream, const struct attention_call *c, void *out,
                                  const void *q, const void *k, const void *v)
{
    const struct forward_args t = { (bf16 *)out, (const bf16 *)q, (const bf16 *)k,
                                    (const bf16 *)v };
    return with_widths(c->s, [&](auto qk, auto e) {
        return forward<decltype(qk)::value, decltype(e)::value>(stream, c, t);
    });
}

cudaError_t attention_mma_backward(cudaStream_t stream, const struct attention_call *c,
                                   const void *dout, const void *q, const void *k, const void *v)
{
    const struct backward_args t = { (bf16 *)c->grads.dq, (bf16 *)c->grads.dk, (bf16 *)c->grads.dv,
                                     (const bf16 *)dout,  (const bf16 *)q,     (const bf16 *)k,
                                     (const bf16 *)v };
    return with_widths(c->s, [&](auto qk, auto e) {
        return backward<decltype(qk)::value, decltype(e)::value>(stream, c, t);
    });
}
