/* gemm.cuh - x w^T by tiles that an epilogue finishes: gemm.cu's, qkv_gemm.cu's.
 *
 * A tile is 128 features (rows of w) x 160 tokens (rows of x): the product's rows are features, so
 * that its 160 columns (tokens) divide T with little waste, and it is transposed when it leaves.
 * CTAs are persistent, with three warpgroups:
 *
 *   producer      one thread loads 128 bytes of each row a stage, 64 of K or in fp8 128 (16 KB of w,
 *                 20 KB of x), through 5 stages; another one the tile of a second operand, if any
 *   2 consumers   alternate: one uses the tensor cores (160 sums a thread), the other transposes its
 *                 finished tile into bf16 in shared memory and does with it what the epilogue is for
 *
 * Two CTAs of a cluster have the same tokens and neighbouring features: each loads half of the
 * tokens' stage for both. Edges are TMA's: it reads zeros and clips writes.
 *
 *     struct double_it {                                // an epilogue, passed to the kernel
 *         static constexpr operands OF = BF16_BF16;
 *         static constexpr bool W_IN_OUT = false;       // true: w is (K,F) in place of (F,K), bf16
 *         static constexpr bool READS = false;          // true: finish() finds maps.in in the tile
 *         static constexpr bool CLEARS = false;         // true: no sum of the tile before stays in
 *                                                       // a register while finish() runs
 *         __device__ float factor() const;               // of all sums, read once
 *         __device__ void ahead(const out_tile &p) const;        // before the tile's products
 *         __device__ void finish(const layout &l, const maps &m, float (&d)[2][80], float factor,
 *                                int n, const out_tile &p, int group) const;
 *     };
 *     gemm_launch(c, x, w, in, out, double_it());
 */
#ifndef KERNELS_SM90_GEMM_CUH
#define KERNELS_SM90_GEMM_CUH

#include "host/device.h"
#include "host/launch.h"
#include "sm90/pipeline.h"
#include "sm90/tensor_map.h"
#include "sm90/wgmma.h"

using namespace sm90;

namespace
{

enum { FEATURES = 128, TOKENS = 160, DEPTH_BYTES = 128, CLUSTER = 2 };
enum {
    W_BYTES = FEATURES * DEPTH_BYTES,
    X_BYTES = TOKENS * DEPTH_BYTES,
    HALF_X = X_BYTES / 2,
    STAGE_BYTES = W_BYTES + X_BYTES
};
/* An output tile: two panels of 64 features, 128 bytes a token, swizzled. */
enum { PANEL_BYTES = TOKENS * 128, TILE_BYTES = 2 * PANEL_BYTES };
/* Named barriers, two of each: a consumer's turn at the tensor cores, its turn at the tile's memory
 * (of both consumers), and its own tile written. */
enum { TURN = 1, STAGING = 3, WRITTEN = 5 };

enum { STAGES = 5, SHARED_BYTES = STAGES_ALIGN + STAGES * STAGE_BYTES + TILE_BYTES + 256 };
typedef pipeline<STAGES, STAGE_BYTES, CLUSTER> ring;

enum operands { BF16_BF16, E4M3_E4M3, E4M3_E5M2 }; /* of w and x */

/* Pairs of feature tiles, all pairs; stages of K, numbers of K in one. */
struct tile_work {
    int pairs, tiles, kblocks, depth;
};

struct maps {
    CUtensorMap w, x, in, out; /* in, out: where an epilogue has them */
};

struct layout {
    ring r;
    uint32_t tile; /* the tile being finished */
    uint32_t in_full, in_empty; /* mbarriers: of its second operand */
    __device__ explicit layout(const void *memory)
    {
        r.stages = stages_from(memory);
        tile = r.stages + STAGES * STAGE_BYTES;
        r.barriers = tile + TILE_BYTES;
        in_full = r.barriers + ring::BARRIER_BYTES;
        in_empty = in_full + 8;
    }
};

/* The n-th tile of this CTA. */
struct out_tile {
    int feature, token;
    bool exists;
    __device__ out_tile(const tile_work &k, int n)
    {
        int i = blockIdx.x / CLUSTER + n * (gridDim.x / CLUSTER);
        exists = i < k.tiles;
        feature = (i % k.pairs * CLUSTER + cluster_rank()) * FEATURES;
        token = i / k.pairs * TOKENS;
    }
};

template <bool W_IN_OUT> __device__ void produce(const layout &l, const maps &m, const tile_work &k)
{
    uint32_t it = 0;
    int rank = cluster_rank();

    for (int n = 0; out_tile(k, n).exists; n++) {
        out_tile p(k, n);
        for (int kb = 0; kb < k.kblocks; kb++, it++) {
            const place at = l.r.at(it);
            const uint32_t w = l.r.slot(at), x = w + W_BYTES + rank * HALF_X;
            l.r.acquire(at);
            if (W_IN_OUT)
                for (int i = 0; i < 2; i++)
                    load_box(w + i * (W_BYTES / 2), &m.w, p.feature + 64 * i, kb * k.depth,
                             l.r.full(at));
            else
                load_box(w, &m.w, kb * k.depth, p.feature, l.r.full(at));
            load_box_to(3, x, &m.x, kb * k.depth, p.token + rank * TOKENS / 2, l.r.full(at));
        }
    }
}

__device__ void produce_in(const layout &l, const maps &m, const tile_work &k)
{
    for (int n = 0; out_tile(k, n).exists; n++) {
        out_tile p(k, n);
        barrier_wait(l.in_empty, (n & 1) ^ 1);
        barrier_expect(l.in_full, TILE_BYTES);
        for (int i = 0; i < 2; i++)
            load_box(l.tile + i * PANEL_BYTES, &m.in, p.feature + 64 * i, p.token, l.in_full);
    }
}

/* 32 bytes of K. */
template <enum operands OF, bool W_IN_OUT>
__device__ __forceinline__ void product(float (&d)[80], uint64_t w, uint64_t x, int add)
{
    if (OF == E4M3_E5M2)
        wgmma_e4m3_e5m2(d, w, x, add);
    else if (OF == E4M3_E4M3)
        wgmma_e4m3_e4m3(d, w, x, add);
    else
        wgmma<W_IN_OUT, false>(d, w, x, add);
}

/* The sums of the CTA's n-th tile, d[i] of its features 64 i .. + 63, in the consumer's turn. */
template <enum operands OF, bool W_IN_OUT>
__device__ __forceinline__ void tile_products(float (&d)[2][80], const layout &l,
                                              const tile_work &k, int n, int group)
{
    uint32_t it = n * k.kblocks;

    named_wait(TURN + group, 2 * WARPGROUP);
#pragma unroll 4 /* 2 to 4% over none */
    for (int kb = 0; kb < k.kblocks; kb++, it++) {
        const place at = l.r.at(it);
        uint64_t w = operand<W_IN_OUT>(l.r.slot(at)), x = operand<false>(l.r.slot(at) + W_BYTES);
        const int w_step =
            W_IN_OUT ? 16 * 128 >> 4 : 2; /* 16 rows of K, or 16 numbers along a row */
        l.r.wait(at);
        wgmma_begin();
#pragma unroll
        for (int i = 0; i < DEPTH_BYTES / 32; i++) {
            product<OF, W_IN_OUT>(d[0], w + w_step * i, x + 2 * i, kb || i);
            product<OF, W_IN_OUT>(d[1], w + (64 * 128 >> 4) + w_step * i, x + 2 * i, kb || i);
        }
        wgmma_commit();
        wgmma_wait<1>();
        if (kb)
            l.r.release(l.r.at(it - 1));
    }
    named_arrive(TURN + 1 - group, 2 * WARPGROUP);
    wgmma_wait<0>();
    l.r.release(l.r.at(it - 1));
}

/* Returns where the 16 bytes of features 8 chunk .. 8 chunk + 7 of a token lie in a panel. */
__device__ __forceinline__ uint32_t tile_at(uint32_t panel, uint32_t token, uint32_t chunk)
{
    return panel + swizzle128(token, chunk);
}

/* The sums of 64 features into a panel of the tile, pairs of tokens packed by pack(in, two sums, half):
 * 16 features and 16 tokens a warp and step, five steps' loads in flight. The sums are of feature
 * lane / 4 of the warp's, + 8 half. READS: in is what the tile holds there. */
template <bool READS, typename F>
__device__ __forceinline__ void transpose_panel(uint32_t panel, const float (&d)[80], F pack)
{
    enum { FLIGHT = 5, STEP = 16 * 128 };
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, matrix = lane / 8;
    uint32_t chunk = 2 * warp + matrix % 2, token = 8 * (matrix / 2) + lane % 8;
    uint32_t at = tile_at(panel, token, chunk);

#pragma unroll
    for (int j = 0; j < TOKENS / 16; j += FLIGHT) {
        uint32_t x[FLIGHT][4];
        if (READS)
#pragma unroll
            for (int i = 0; i < FLIGHT; i++)
                load_transposed(x[i], at + (j + i) * STEP);
#pragma unroll
        for (int i = 0; i < FLIGHT; i++) {
#pragma unroll
            for (int m = 0; m < 4; m++)
                x[i][m] = pack(x[i][m], d + 8 * (j + i) + 2 * m, m % 2);
            store_transposed(at + (j + i) * STEP, x[i]);
        }
    }
}

/* Eight numbers of the tile, at tile_at(). */
__device__ __forceinline__ uint4 tile_vector(uint32_t at)
{
    uint4 u;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(u.x), "=r"(u.y), "=r"(u.z), "=r"(u.w)
                 : "r"(at)
                 : "memory");
    return u;
}

template <typename E>
__device__ void consume(const layout &l, const maps &m, const tile_work &k, const E &e, int group)
{
    const float factor = e.factor();

    for (int n = group; out_tile(k, n).exists; n += 2) {
        const out_tile p(k, n);
        float d[2][80];
        if (E::CLEARS)
#pragma unroll
            for (int i = 0; i < 80; i++)
                d[0][i] = d[1][i] = 0;
        e.ahead(p);
        tile_products<E::OF, E::W_IN_OUT>(d, l, k, n, group);
        named_wait(STAGING + group, 2 * WARPGROUP);
        e.finish(l, m, d, factor, n, p, group);
        named_arrive(STAGING + 1 - group, 2 * WARPGROUP);
    }
}

template <typename E>
__global__ void __launch_bounds__(ROLE_THREADS, 1)
    gemm_tiles(const __grid_constant__ maps m, const __grid_constant__ tile_work k,
               const __grid_constant__ E e)
{
#ifdef SM90_CODE
    extern __shared__ uint8_t memory[];
    const layout l(memory);

    if (threadIdx.x == 0) {
        l.r.init(WARPGROUP / 32); /* the warps of the consumer whose turn it is */
        barrier_init(l.in_full, 1);
        barrier_init(l.in_empty, 1);
        barrier_init_done();
    }
    cluster_sync();
    if (threadIdx.x / WARPGROUP == 2) { /* the first turns are consumer 0's */
        named_arrive(TURN, 2 * WARPGROUP);
        named_arrive(STAGING, 2 * WARPGROUP);
    }
    with_roles<40, 232>(
        [&] {
            if (threadIdx.x == 0)
                produce<E::W_IN_OUT>(l, m, k);
            if (E::READS && threadIdx.x == 32)
                produce_in(l, m, k);
        },
        [&](int group) { consume(l, m, k, e, group); });
    cluster_sync(); /* no CTA leaves while the other one may write into its shared memory */
#endif
}

/* -- host -------------------------------------------------------------------------------- */

tile_work work_of(struct tensor x, struct tensor w, bool w_in_out)
{
    int64_t features = w_in_out ? w.cols : w.rows, in = w_in_out ? w.rows : w.cols;
    int pairs = div_up(features, CLUSTER * FEATURES), depth = depth_of(x);

    assert(x.cols == in && in % 8 == 0 && features % 8 == 0 && depth == depth_of(w));
    return { pairs, pairs * div_up(x.rows, TOKENS), div_up(x.cols, depth), depth };
}

/* Describes x (T,K), w (F,K; W_IN_OUT: K,F) and, where the epilogue has them, in and out (T,F), and launches. */
template <typename E>
void gemm_launch(struct cuda_ops *c, struct tensor x, struct tensor w, struct tensor in,
                 struct tensor out, const E &e)
{
    const tile_work k = work_of(x, w, E::W_IN_OUT);
    dim3 grid(min(CLUSTER * k.tiles, c->sms / CLUSTER * CLUSTER));
    maps m = {};

    if (c->failed)
        return;
    if (map_boxes(&m.w, w, E::W_IN_OUT ? k.depth : FEATURES) && map_boxes(&m.x, x, TOKENS / 2) &&
        (!in.data || map_boxes(&m.in, in, TOKENS)) && (!out.data || map_boxes(&m.out, out, TOKENS)))
        CUDA_TRY(c, launch_kernel({ grid, ROLE_THREADS, c->stream, SHARED_BYTES, CLUSTER },
                                  gemm_tiles<E>, m, k, e));
    else
        cuda_fail(c, GPT_DEVICE, "a product x w^T, x %lld x %lld, w %lld x %lld: no tensor map",
                  (long long)x.rows, (long long)x.cols, (long long)w.rows, (long long)w.cols);
}

} /* namespace */

#endif
