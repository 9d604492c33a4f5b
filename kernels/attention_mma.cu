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
 *   backward   by key dk and dv, by query dq, as sm90/attention_bwd.cu has it: the same sums in the
 *              same form, S and dP computed in both, nothing accumulated in memory, no atomics:
 *              the same bits in every run. 32 rows at a time, so that tile and stages fit in 97 KB
 *              at 128 channels (the least that a GPU has is 99 KB).
 *
 * FLOP a pair of query and key: 4 E forward, 14 E backward. Bytes: each tensor once, and what
 * streams again from the L2 for each tile that meets it.
 * Source: FlashAttention-2, arXiv 2307.08691; PTX ISA 9.0, fragments of mma.m16n8k16.
 */
#include "attention_plan.cuh"
#include "attention_rows.cuh"
#include "mma.h"

namespace
{

enum { THREADS = 256, KEYS = 64, STREAMED = 32 }; /* rows of a streamed block: forward, backward */

/* -- rows in shared memory ------------------------------------------------------------------ */

/* Byte offset of chunk c (8 channels) of row r. */
template <int E> __device__ __forceinline__ uint32_t chunk_at(int r, int c)
{
    return r * (2 * E) + ((c ^ (E < 64 ? r >> 1 & 3 : r & 7)) << 4);
}

/* Of x (rows, heads E): rows row .. row + ROWS - 1 of one head; those past the end are zeros. */
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
            load_turned(f, b + chunk_at<E>(16 * k + lane % 16, 2 * n + lane / 16));
            mma(d + 8 * n, p + 4 * k, f[0], f[1]);
            mma(d + 8 * n + 4, p + 4 * k, f[2], f[3]);
        }
}

/* A warp's 16 rows of results, packed, to rows `row` .. of out, through shared memory that no other
 * warp touches: 16 E numbers at `staging`. */
template <int E>
__device__ __forceinline__ void leave(bf16 *out, uint32_t staging, const uint32_t (&p)[E / 4],
                                      const struct attn_shape &s, int head, int row)
{
    const int lane = threadIdx.x % 32;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < E / 4; i++) /* register i: columns 8 (i / 2) .., rows + 8 (i % 2) */
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(
                         staging + chunk_at<E>(lane / 4 + i % 2 * 8, i / 2) + lane % 4 * 4),
                     "r"(p[i])
                     : "memory");
    __syncwarp();
#pragma unroll
    for (int i = lane; i < 16 * (E / 8); i += 32) {
        const int r = i / (E / 8), c = i % (E / 8);
        uint4 x;
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                     : "r"(staging + chunk_at<E>(r, c))
                     : "memory");
        if (row + r < s.rows)
            *(uint4 *)(out + ((int64_t)(row + r) * s.heads + head) * E + 8 * c) = x;
    }
}

/* -- forward ---------------------------------------------------------------------------------- */

struct forward_args {
    bf16 *out;
    const bf16 *q, *k, *v;
};

template <int E> constexpr int forward_bytes() { return 2 * 2 * KEYS * E * 2; }

template <int E>
__global__ void __launch_bounds__(THREADS, 1)
    forward_kernel(const struct attention_call c, const struct forward_args t)
{
    extern __shared__ __align__(128) char raw[];
    const struct reach reach = c.p.by_query[blockIdx.x];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, far = 1 - warp / 4;
    const int tile_row = reach.tile * TILE, first = tile_row + 16 * warp, row = first + lane / 4;
    const int blocks = reach_part(reach.blocks, far), whole = reach_part(reach.whole, far);
    const int all = reach_blocks(reach.blocks), stage = 2 * KEYS * E * 2;
    const uint32_t memory = address(raw);
    const int lo[2] = { c.p.start[row], c.p.start[row + 8] };
    const int len[2] = { row - lo[0], row + 8 - lo[1] };
    uint32_t q[E / 16][4], packed[16], result[E / 4];
    float s[32], p[32], out[E / 2];
    struct online o;

    auto copy_keys = [&](int i) {
        const uint32_t to = memory + i % 2 * stage;
        const int key = tile_row + BLOCK - i * BLOCK;
        copy_rows<E, KEYS>(to, t.k, c.s, reach.head, key);
        copy_rows<E, KEYS>(to + stage / 2, t.v, c.s, reach.head, key);
        copies_commit();
    };
    copy_rows<E, TILE>(memory + stage, t.q, c.s, reach.head, tile_row); /* where block 1 goes */
    copies_commit();
    copy_keys(0);
    copies_wait<1>();
    __syncthreads();
    load_steps<E>(q, memory + stage, 16 * warp);
    set_zero(out);
    for (int i = 0; i < all; i++) {
        const uint32_t k = memory + i % 2 * stage, v = k + stage / 2;
        const int mine = i - far;
        copies_wait<0>();
        __syncthreads(); /* block i is there, and nobody reads the one before */
        if (i + 1 < all)
            copy_keys(i + 1);
        if (mine < 0 || mine >= blocks)
            continue;
        dot_rows<E, KEYS>(s, q, k);
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
    leave<E>(t.out, memory + 16 * warp * E * 2, result, c.s, reach.head, first);
}

/* -- backward --------------------------------------------------------------------------------- */

/* By key x = k, v, y = q, dout, d = dk, dv; by query x = q, dout, y = k, v, d1 = dq. */
struct backward_args {
    bf16 *d1, *d2;
    const bf16 *x1, *x2, *y1, *y2;
};

/* The tile's x1, x2, and two stages of y1, y2 and of lse / ln 2 and delta of their rows. */
template <int E> struct backward_smem {
    char x[2][TILE * E * 2];
    char y[2][2][STREAMED * E * 2];
    float stat[2][2][STREAMED];
};

template <int E, bool BY_KEY>
__device__ __forceinline__ void copy_streamed(const struct attention_call &c,
                                              const struct backward_args &t, backward_smem<E> *sm,
                                              int to, int head, int row)
{
    copy_rows<E, STREAMED>(address(sm->y[to][0]), t.y1, c.s, head, row);
    copy_rows<E, STREAMED>(address(sm->y[to][1]), t.y2, c.s, head, row);
    if (BY_KEY && threadIdx.x < 2 * STREAMED / 4) {
        const int which = threadIdx.x / (STREAMED / 4), at = threadIdx.x % (STREAMED / 4) * 4;
        const float *from = (which ? c.p.delta : c.p.lse2) + (int64_t)head * c.p.padded + row + at;
        copy_16(address(&sm->stat[to][which][at]), from, true);
    }
    copies_commit();
}

/* lse / ln 2 and delta that belong to sum j of s: by key of its column, by query of its row. */
template <bool BY_KEY>
__device__ __forceinline__ float stat_of(const float *columns, const float (&rows)[2], int j)
{
    return BY_KEY ? columns[j / 4 * 8 + threadIdx.x % 4 * 2 + j % 2] : rows[j / 2 % 2];
}

template <int E, bool BY_KEY>
__global__ void __launch_bounds__(THREADS, 1)
    backward_kernel(const struct attention_call c, const struct backward_args t)
{
    extern __shared__ __align__(128) char raw[];
    backward_smem<E> *const sm = (backward_smem<E> *)raw;
    const struct reach reach = (BY_KEY ? c.p.by_key : c.p.by_query)[blockIdx.x];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int far = BY_KEY ? warp / 4 : 1 - warp / 4;
    const int tile_row = reach.tile * TILE, first = tile_row + 16 * warp, row = first + lane / 4;
    const int blocks = reach_part(reach.blocks, far), whole = reach_part(reach.whole, far);
    const int steps = reach_blocks(reach.blocks) * (BLOCK / STREAMED);
    const uint32_t x1 = address(sm->x[0]), x2 = address(sm->x[1]);
    /* By query there are registers for x; by key they hold dv. */
    uint32_t x1_rows[BY_KEY ? 1 : E / 16][4], x2_rows[BY_KEY ? 1 : E / 16][4];
    uint32_t packed[STREAMED / 4], result[E / 4];
    float s[STREAMED / 2], dp[STREAMED / 2], d1[E / 2], d2[BY_KEY ? E / 2 : 1];
    float lse2[2] = {}, delta[2] = {};
    int lo[2], len[2];

    /* First row of what streams past in step j. */
    auto row_of = [&](int j) {
        const int i = j / (BLOCK / STREAMED) * BLOCK;
        return (BY_KEY ? tile_row + i : tile_row + BLOCK - i) + j % (BLOCK / STREAMED) * STREAMED;
    };
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int r = row + 8 * h;
        const int64_t at = (int64_t)reach.head * c.p.padded + r;
        lo[h] = BY_KEY ? r : c.p.start[r];
        len[h] = BY_KEY ? c.p.end[r] - r : r - lo[h];
        if (!BY_KEY)
            lse2[h] = c.p.lse2[at], delta[h] = c.p.delta[at];
    }
    copy_rows<E, TILE>(x1, t.x1, c.s, reach.head, tile_row);
    copy_rows<E, TILE>(x2, t.x2, c.s, reach.head, tile_row);
    copy_streamed<E, BY_KEY>(c, t, sm, 0, reach.head, row_of(0));
    set_zero(d1);
    set_zero(d2);
    for (int j = 0; j < steps; j++) {
        const int mine = j / (BLOCK / STREAMED) - far, at = row_of(j);
        copies_wait<0>();
        __syncthreads(); /* step j is there, and nobody reads the one before */
        if (j + 1 < steps)
            copy_streamed<E, BY_KEY>(c, t, sm, (j + 1) % 2, reach.head, row_of(j + 1));
        if constexpr (!BY_KEY)
            if (j == 0) {
                load_steps<E>(x1_rows, x1, 16 * warp);
                load_steps<E>(x2_rows, x2, 16 * warp);
            }
        if (mine < 0 || mine >= blocks)
            continue;
        if (mine == 0 && (BY_KEY ? at + STREAMED - 1 < first : at > first + 15))
            continue; /* beside the diagonal */
        const uint32_t y1 = address(sm->y[j % 2][0]), y2 = address(sm->y[j % 2][1]);
        if constexpr (BY_KEY) {
            dot_rows<E, STREAMED>(s, x1, 16 * warp, y1);
            dot_rows<E, STREAMED>(dp, x2, 16 * warp, y2);
        } else {
            dot_rows<E, STREAMED>(s, x1_rows, y1);
            dot_rows<E, STREAMED>(dp, x2_rows, y2);
        }
        if (mine == 0 || mine >= whole)
            mask_block(s, at + lane % 4 * 2, lo, len);
#pragma unroll
        for (int i = 0; i < STREAMED / 2; i++) {
            const float shift = stat_of<BY_KEY>(sm->stat[j % 2][0], lse2, i);
            s[i] = exp2_approx(fmaf(s[i], c.unit, -shift));
            dp[i] = s[i] * (dp[i] - stat_of<BY_KEY>(sm->stat[j % 2][1], delta, i));
        }
        if constexpr (BY_KEY) {
            pack_rows(packed, s);
            add_rows<E, STREAMED>(d2, packed, y2);
        }
        pack_rows(packed, dp);
        add_rows<E, STREAMED>(d1, packed, y1);
    }
    /* Only this warp reads its rows of x. */
    round_rows<E>(result, d1, c.s.scale, c.s.scale);
    leave<E>(t.d1, x1 + 16 * warp * E * 2, result, c.s, reach.head, first);
    if constexpr (BY_KEY) {
        round_rows<E>(result, d2, 1, 1);
        leave<E>(t.d2, x2 + 16 * warp * E * 2, result, c.s, reach.head, first);
    }
}

/* -- host -------------------------------------------------------------------------------------- */

template <typename A>
cudaError_t launch(void (*kernel)(struct attention_call, A), int bytes, cudaStream_t stream,
                   const struct attention_call *c, const A &args)
{
    cudaError_t e =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (e != cudaSuccess)
        return e;
    kernel<<<c->p.items, THREADS, bytes, stream>>>(*c, args);
    return cudaGetLastError();
}

template <int E>
cudaError_t backward(cudaStream_t stream, const struct attention_call *c, void *dq, void *dk,
                     void *dv, const bf16 *dout, const bf16 *q, const bf16 *k, const bf16 *v)
{
    const int bytes = (int)sizeof(backward_smem<E>);
    const struct backward_args by_key = { (bf16 *)dk, (bf16 *)dv, k, v, q, dout };
    const struct backward_args by_query = { (bf16 *)dq, NULL, q, dout, k, v };
    cudaError_t e = launch(backward_kernel<E, true>, bytes, stream, c, by_key);
    return e ? e : launch(backward_kernel<E, false>, bytes, stream, c, by_query);
}

} /* namespace */

cudaError_t attention_mma_forward(cudaStream_t stream, const struct attention_call *c, void *out,
                                  const void *q, const void *k, const void *v)
{
    const struct forward_args t = { (bf16 *)out, (const bf16 *)q, (const bf16 *)k,
                                    (const bf16 *)v };
    switch (c->s.head_dim) {
    case 32: return launch(forward_kernel<32>, forward_bytes<32>(), stream, c, t);
    case 64: return launch(forward_kernel<64>, forward_bytes<64>(), stream, c, t);
    default: return launch(forward_kernel<128>, forward_bytes<128>(), stream, c, t);
    }
}

cudaError_t attention_mma_backward(cudaStream_t stream, const struct attention_call *c, void *dq,
                                   void *dk, void *dv, const void *dout, const void *q,
                                   const void *k, const void *v)
{
    auto run = [&](auto by_head_size) {
        return by_head_size(stream, c, dq, dk, dv, (const bf16 *)dout, (const bf16 *)q,
                            (const bf16 *)k, (const bf16 *)v);
    };
    switch (c->s.head_dim) {
    case 32: return run(backward<32>);
    case 64: return run(backward<64>);
    default: return run(backward<128>);
    }
}
