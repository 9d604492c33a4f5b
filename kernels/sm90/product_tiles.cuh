/* product_tiles.cuh - tiles of x w^T for kernels that finish them in their own way: relu2_gemm.cu,
 * qkv_gemm.cu.
 *
 * A tile is 128 features (rows of w) x 160 tokens (rows of x): the product's rows are features, so
 * that its 160 columns (tokens) divide T with little waste, and it is turned when it leaves. Blocks
 * are persistent, with three warpgroups:
 *
 *   feeder     one thread loads 128 bytes of each row a stage, 64 of K or in fp8 128 (16 KB of w,
 *              20 KB of x), through a ring of 5
 *   2 workers  alternate: one uses the tensor cores (160 sums a thread), the other turns its
 *              finished tile into bf16 in shared memory and does with it what the kernel is for
 *
 * Two blocks of a cluster have the same tokens and neighbouring features: each loads half of
 * the tokens' stage for both. Edges are TMA's: it reads zeros and clips writes.
 *
 *     tiles_begin(l);                                         // by all threads
 *     if (group == 0)
 *         feed(l, &m.w, &m.x, k);                             // one thread
 *     else
 *         for (int n = worker; out_tile(k, n).exists; n += 2) {
 *             tile_products<BF16_BF16>(d, l, k, n, worker);
 *             named_wait(STAGING + worker, 2 * WORKER);       // the tile's memory is this worker's
 *             ...
 *             named_arrive(STAGING + 1 - worker, 2 * WORKER);
 *         }
 *     cluster_sync();
 */
#ifndef KERNELS_SM90_PRODUCT_TILES_CUH
#define KERNELS_SM90_PRODUCT_TILES_CUH

#include "host/device.h"
#include "sm90/sm90.h"
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
enum { WORKER = 128, THREADS = 3 * WORKER };
enum { TURN = 1, STAGING = 3, WRITTEN = 5 }; /* numbered barriers, two of each */

enum { STAGES = 5, SHARED_BYTES = 1024 + STAGES * STAGE_BYTES + TILE_BYTES + 256 };

enum operands { BF16_BF16, E4M3_E4M3, E4M3_E5M2 }; /* of w and x */

/* Pairs of feature tiles, all pairs; stages of K, numbers of K in one. */
struct tile_work {
    int pairs, tiles, kblocks, depth;
};

struct layout {
    uint32_t ring, tile; /* stages; the tile being finished */
    uint32_t full, empty, in_full, in_free; /* barriers; the last two are the kernel's */
    __device__ explicit layout(const void *memory)
    {
        ring = (address(memory) + 1023) & ~1023u;
        tile = ring + STAGES * STAGE_BYTES;
        full = tile + TILE_BYTES;
        empty = full + 8 * STAGES;
        in_full = empty + 8 * STAGES;
        in_free = in_full + 8;
    }
    __device__ uint32_t w(int s) const { return ring + s * STAGE_BYTES; }
    __device__ uint32_t x(int s) const { return w(s) + W_BYTES; }
};

/* The n-th tile of this block. */
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

__device__ void tiles_begin(const layout &l)
{
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            barrier_init(l.full + 8 * s, 1);
            barrier_init(l.empty + 8 * s, 4 * CLUSTER);
        }
        barrier_init(l.in_full, 1);
        barrier_init(l.in_free, 1);
        barrier_init_done();
    }
    cluster_sync();
    if (threadIdx.x / WORKER == 2) { /* the first turns are worker 0's */
        named_arrive(TURN, 2 * WORKER);
        named_arrive(STAGING, 2 * WORKER);
    }
}

__device__ void feed(const layout &l, const CUtensorMap *w, const CUtensorMap *x,
                     const tile_work &k)
{
    uint32_t it = 0;
    int rank = cluster_rank();

    for (int n = 0; out_tile(k, n).exists; n++) {
        out_tile p(k, n);
        for (int kb = 0; kb < k.kblocks; kb++, it++) {
            int s = it % STAGES;
            barrier_wait(l.empty + 8 * s, (it / STAGES & 1) ^ 1);
            barrier_expect(l.full + 8 * s, STAGE_BYTES);
            load_box(l.w(s), w, kb * k.depth, p.feature, l.full + 8 * s);
            load_box_to(3, l.x(s) + rank * HALF_X, x, kb * k.depth, p.token + rank * TOKENS / 2,
                        l.full + 8 * s);
        }
    }
}

/* Releases a stage to the producers of both CTAs, which may overwrite it when all eight warps have. */
__device__ __forceinline__ void let_go(uint32_t empty)
{
    if (threadIdx.x % 32 < CLUSTER)
        barrier_arrive_at(empty, threadIdx.x % 32);
}

/* 32 bytes of K. */
template <enum operands OF>
__device__ __forceinline__ void product(float (&d)[80], uint64_t w, uint64_t x, int add)
{
    if (OF == E4M3_E5M2)
        wgmma_e4m3_e5m2(d, w, x, add);
    else if (OF == E4M3_E4M3)
        wgmma_e4m3(d, w, x, add);
    else
        wgmma<false, false>(d, w, x, add);
}

/* The sums of a worker's n-th tile, d[i] of its features 64 i .. + 63, in its turn. */
template <enum operands OF>
__device__ __forceinline__ void tile_products(float (&d)[2][80], const layout &l,
                                              const tile_work &k, int n, int worker)
{
    uint32_t it = n * k.kblocks;

    named_wait(TURN + worker, 2 * WORKER);
#pragma unroll 4 /* 2 to 4% over none */
    for (int kb = 0; kb < k.kblocks; kb++, it++) {
        int s = it % STAGES;
        uint64_t w = operand<false>(l.w(s)), x = operand<false>(l.x(s));
        barrier_wait(l.full + 8 * s, it / STAGES & 1);
        wgmma_begin();
#pragma unroll
        for (int i = 0; i < DEPTH_BYTES / 32; i++) {
            product<OF>(d[0], w + 2 * i, x + 2 * i, kb || i);
            product<OF>(d[1], w + (64 * 128 >> 4) + 2 * i, x + 2 * i, kb || i);
        }
        wgmma_commit();
        wgmma_wait<1>();
        if (kb)
            let_go(l.empty + 8 * ((it - 1) % STAGES));
    }
    named_arrive(TURN + 1 - worker, 2 * WORKER);
    wgmma_wait<0>();
    let_go(l.empty + 8 * ((it - 1) % STAGES));
}

/* Returns where the 16 bytes of features 8 chunk .. 8 chunk + 7 of a token lie in a panel. */
__device__ __forceinline__ uint32_t tile_at(uint32_t panel, uint32_t token, uint32_t chunk)
{
    return panel + token * 128 + ((chunk ^ token % 8) << 4);
}

/* The sums of 64 features into a panel of the tile, pairs of features packed by pack(in, two sums):
 * 16 features and 16 tokens a warp and step, five steps' loads in flight. READS: in is what the
 * tile holds there. */
template <bool READS, typename F>
__device__ __forceinline__ void turn_panel(uint32_t panel, const float (&d)[80], F pack)
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
                load_turned(x[i], at + (j + i) * STEP);
#pragma unroll
        for (int i = 0; i < FLIGHT; i++) {
#pragma unroll
            for (int m = 0; m < 4; m++)
                x[i][m] = pack(x[i][m], d + 8 * (j + i) + 2 * m);
            store_turned(at + (j + i) * STEP, x[i]);
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

/* -- host -------------------------------------------------------------------------------- */

tile_work work_of(struct tensor x, struct tensor w)
{
    int pairs = div_up(w.rows, CLUSTER * FEATURES), depth = depth_of(x);

    assert(x.cols == w.cols && x.cols % 8 == 0 && w.rows % 8 == 0 && depth == depth_of(w));
    return { pairs, pairs * div_up(x.rows, TOKENS), div_up(x.cols, depth), depth };
}

/* Returns as many blocks as there are SMs, in pairs; 0 where the kernel cannot be launched. */
template <typename K> int tile_blocks(struct cuda_ops *c, K *kernel, const tile_work &k)
{
    return CUDA_TRY(c, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            SHARED_BYTES))
               ? min(CLUSTER * k.tiles, c->sms / CLUSTER * CLUSTER)
               : 0;
}

} /* namespace */

#endif
