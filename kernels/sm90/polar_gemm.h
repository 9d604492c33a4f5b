/* polar_gemm.h - batched products for polar.cu: wgmma on tiles that TMA loads.
 *
 *     D = alpha C + beta A B + diagonal I      for each of n matrices; f32 sums
 *
 * Numbers are bf16, or f16 in the small matrices of the Gram form, as `numbers` says.
 *
 * A CTA takes tiles of 128 x BN, one after the other. Two consumers hold 64 rows of a tile each in
 * registers (BN / 2 numbers a thread); the producer runs ahead into the next tile, 64 of k a stage
 * (pipeline.h). Every tensor is a 3-D
 * tensor map (columns, rows, matrices) of boxes 64 x 64 with 128-byte swizzle, so ragged edges are
 * TMA's: it reads zeros and clips writes. An operand whose k runs along rows (X^T X, B X) is read
 * as it lies and the tensor cores transpose.
 *
 * After the k of a tile come EXTRA stages without operands: there C arrives, is
 * replaced by the result in place, and TMA stores it.
 *
 * B may have fewer matrices than A: it begins again with the first. The diagonal is added where SYM
 * has a C.
 *
 * SYM: A B is symmetric (then BN is 128): only tiles on and below the diagonal are computed; each
 * is also written transposed.
 * SPLIT (only SYM, one tile a CTA): two CTAs, a cluster, share a tile. Each sums half of k,
 * they exchange halves of the tile through distributed shared memory and write 64 columns each.
 * For few tiles.
 *
 * What bounds it: a stage of 128 x 128 moves 80 KiB through shared memory, 640 cycles at 128 bytes
 * a cycle, where its products take 512; 128 x 256: 128 KiB, 1024, 1024. Measured on an H200: 0.33
 * us a stage of 128 x 128, and 3 us a launch besides.
 *
 * Blocks of the next product start when the operands of all last tiles are asked for (programmatic
 * launch) and wait for this one's end before they touch memory.
 *
 * Source of the layouts: PTX ISA, wgmma matrix descriptors and tensor swizzling modes.
 */
#ifndef KERNELS_SM90_POLAR_GEMM_H
#define KERNELS_SM90_POLAR_GEMM_H

#include <cuda.h>
#include <cuda_runtime.h>
#include <stdint.h>
#include "sm90/pipeline.h"
#include "sm90/wgmma.h"
#include "vec.h"

using namespace sm90;

enum { TILE = 128, BOX = 64, BOX_BYTES = BOX * BOX * 2 };
/* Types of A, B and C, and of D. F16_TO_BF16: D rounds to f16, then to bf16, where it is used next. */
enum numbers { IN_BF16, BF16_TO_F16, IN_F16, F16_TO_BF16 };
enum { CONSUMERS = 256, CONSUMER_WARPS = CONSUMERS / 32 }; /* threads; warps */
enum { HALF_WRITTEN = 1 }; /* named barriers, one a consumer warpgroup */

struct gemm_shape {
    int kblocks; /* k in units of 64, of the whole product */
    int tiles_m, tiles_n, n; /* n matrices */
    float alpha, beta;
    bool round_product; /* A B rounds to bf16 before alpha C is added */
    float diagonal;
    int n_b; /* matrices of B: n, or half as many */
    bool backwards; /* last matrix first: what the product before left in the L2 is read first */
};

__host__ __device__ constexpr int stages_of(int bn) { return bn == 128 ? 6 : bn == 192 ? 5 : 4; }
__host__ __device__ constexpr int boxes_of(int bn) { return 2 + bn / BOX; } /* a stage */
__host__ __device__ constexpr int ring_bytes(int bn)
{
    return stages_of(bn) * boxes_of(bn) * BOX_BYTES;
}
/* Tiles of one matrix. */
__host__ __device__ constexpr int tiles_of(bool sym, const gemm_shape &s)
{
    return sym ? s.tiles_m * (s.tiles_m + 1) / 2 : s.tiles_m * s.tiles_n;
}
/* Columns that a CTA writes, and boxes of a result of so many. */
__host__ __device__ constexpr int cols_of(bool split, int bn) { return split ? BOX : bn; }
__host__ __device__ constexpr int result_boxes(int cols) { return 2 * cols / BOX; }
/* Stages without operands: the result, for SYM its mirror, for SPLIT another's sums. */
__host__ __device__ constexpr int extra_of(bool sym, bool split, int bn)
{
    int boxes = (sym ? 2 : 1) * result_boxes(cols_of(split, bn));
    return (boxes + boxes_of(bn) - 1) / boxes_of(bn) + split;
}

/* -- stages -------------------------------------------------------------------------------- */

template <int BN> using ring = pipeline<stages_of(BN), boxes_of(BN) * BOX_BYTES>;

/* Returns box b of those that begin in use n of the pipeline and go on in the next. */
template <int BN> __device__ __forceinline__ uint32_t box_of(const ring<BN> &r, uint32_t n, int b)
{
    return r.slot(r.at(n + b / boxes_of(BN))) + b % boxes_of(BN) * BOX_BYTES;
}

/* Where a CTA works: tile (i,j) of matrix z, k blocks [k0, k1); B's matrix is zb. */
struct tile_part {
    int i, j, z, k0, k1, zb;
};

/* Largest r with r (r + 1) <= x. */
__device__ __forceinline__ int pronic_root(int x)
{
    int r = (int)((sqrtf(4.0f * (float)x + 1.0f) - 1.0f) * 0.5f);
    r -= r * (r + 1) > x;
    return r + ((r + 1) * (r + 2) <= x);
}

template <bool SYM, bool SPLIT>
__device__ __forceinline__ tile_part locate_tile(const gemm_shape &s, int tile, int rank)
{
    int each = tiles_of(SYM, s), t = tile % each, z = tile / each;
    tile_part p = { t / s.tiles_n, t % s.tiles_n, s.backwards ? s.n - 1 - z : z, 0, s.kblocks, 0 };
    p.zb = p.z < s.n_b ? p.z : p.z - s.n_b;
    if (SYM) {
        p.i = pronic_root(2 * t); /* i (i + 1) / 2 <= t */
        p.j = t - p.i * (p.i + 1) / 2;
    }
    if (SPLIT) {
        p.k0 = rank * (s.kblocks / 2);
        p.k1 = rank ? s.kblocks : s.kblocks / 2;
    }
    return p;
}

/* -- the producer -------------------------------------------------------------------------- */

template <bool TA, bool TB, int BN>
__device__ __forceinline__ void load_operands(const ring<BN> &r, place at, const CUtensorMap *ma,
                                              const CUtensorMap *mb, const tile_part &p, int kb)
{
    const uint32_t to = r.slot(at);
    const int k = kb * BOX;
    r.acquire(at);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int m = p.i * TILE + h * BOX;
        load_box(to + h * BOX_BYTES, ma, TA ? m : k, TA ? k : m, p.z, r.full(at));
    }
#pragma unroll
    for (int h = 0; h < BN / BOX; h++) {
        int n = p.j * BN + h * BOX;
        load_box(to + (2 + h) * BOX_BYTES, mb, TB ? n : k, TB ? k : n, p.zb, r.full(at));
    }
}

/* The EXTRA stages from `first` on: C, as far as there is one. Box q holds 64 columns q / 2 of
 * what the CTA writes and rows of consumer q % 2. */
template <bool HAS_C, int BN, int EXTRA, int RESULT_BOXES>
__device__ __forceinline__ void load_extra(const ring<BN> &r, uint32_t first, const CUtensorMap *mc,
                                           const tile_part &p, int col0)
{
#pragma unroll
    for (int e = 0; e < EXTRA; e++) {
        const place at = r.at(first + e);
        int left = HAS_C ? RESULT_BOXES - e * boxes_of(BN) : 0;
        int boxes = left < 0 ? 0 : left < boxes_of(BN) ? left : boxes_of(BN);
        r.acquire(at, boxes * BOX_BYTES);
        for (int b = 0; b < boxes; b++) {
            int q = e * boxes_of(BN) + b;
            load_box(box_of<BN>(r, first, q), mc, col0 + q / 2 * BOX, p.i * TILE + q % 2 * BOX, p.z,
                     r.full(at));
        }
    }
}

/* -- the consumers ------------------------------------------------------------------------- */

/* Adds the partial sums of all 128 columns that both CTAs hold: afterwards acc[0..31] has this
 * CTA's 64 columns in full. The sum of two numbers does not depend on who adds. `mine`: 32 KiB. */
__device__ __forceinline__ void exchange_halves(float (&acc)[64], uint32_t mine, int rank)
{
    const int thread = threadIdx.x - WARPGROUP;
    uint32_t there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(mine), "r"(rank ^ 1));
#pragma unroll
    for (int q = 0; q < 8; q++) {
        float v[4];
#pragma unroll
        for (int e = 0; e < 4; e++)
            v[e] = rank ? acc[4 * q + e] : acc[32 + 4 * q + e];
        asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(
                         there + (q * CONSUMERS + thread) * 16),
                     "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3])
                     : "memory");
    }
    cluster_sync();
#pragma unroll
    for (int q = 0; q < 8; q++) {
        float v[4];
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
                     : "r"(mine + (q * CONSUMERS + thread) * 16)
                     : "memory");
#pragma unroll
        for (int e = 0; e < 4; e++)
            acc[4 * q + e] = (rank ? acc[32 + 4 * q + e] : acc[4 * q + e]) + v[e];
    }
}

template <numbers N> __device__ __forceinline__ uint32_t packed_as(float lo, float hi)
{
    if (N == IN_BF16)
        return bf16_pack(lo, hi);
    uint32_t u = f16_pack(lo, hi);
    if (N != F16_TO_BF16)
        return u;
    float2 f = f16_pair(u);
    return bf16_pack(f.x, f.y);
}

/* Two numbers of the tile: alpha C + beta acc + (plus_lo, plus_hi), packed. Without a C beta counts
 * from bf16 to f16 alone. */
template <bool HAS_C, numbers N>
__device__ __forceinline__ uint32_t finish_two(float lo, float hi, uint32_t c, const gemm_shape &s,
                                               float plus_lo, float plus_hi)
{
    if (HAS_C) {
        if (s.round_product) {
            uint32_t r = bf16_pack(lo, hi);
            lo = bf16_lo(r), hi = bf16_hi(r);
        }
        float2 f = N == IN_BF16 ? make_float2(bf16_lo(c), bf16_hi(c)) : f16_pair(c);
        lo = fmaf(s.alpha, f.x, s.beta * lo) + plus_lo;
        hi = fmaf(s.alpha, f.y, s.beta * hi) + plus_hi;
    } else if (N == BF16_TO_F16) {
        lo *= s.beta, hi *= s.beta;
    }
    return packed_as<N>(lo, hi);
}

/* 64 columns of this warpgroup's 64 rows, in place of C in the box: acc is 8 groups of 8 columns.
 * mirror: a box for the transpose, 0: none. on_diagonal: s.diagonal is added along the box's.
 * Four 8x8 matrices a time: rows 0-7 and 8-15 of this warp, columns 8q and 8q + 8. A lane names 16
 * bytes of one of them: of a row, or of a column, which is a row of the mirror. */
template <bool HAS_C, bool SYM, numbers N>
__device__ __forceinline__ void finish_box(const float *acc, uint32_t box, uint32_t mirror,
                                           const gemm_shape &s, bool on_diagonal)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, m = lane / 8;
    int row = warp * 16 + m % 2 * 8 + lane % 8;
    uint32_t at[4], c[4][4] = {}, packed[4][4];
#pragma unroll
    for (int q = 0; q < 4; q++) {
        at[q] = box + swizzle128(row, 2 * q + m / 2);
        if (HAS_C)
            load_matrices(c[q], at[q]);
    }
#pragma unroll
    for (int q = 0; q < 4; q++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float *two = acc + 8 * q + 4 * (e / 2) + 2 * (e % 2);
            int ahead = warp * 16 + lane / 4 + e % 2 * 8 - (16 * q + e / 2 * 8 + lane % 4 * 2);
            packed[q][e] = finish_two<HAS_C, N>(two[0], two[1], c[q][e], s,
                                                SYM && on_diagonal && ahead == 0 ? s.diagonal : 0,
                                                SYM && on_diagonal && ahead == 1 ? s.diagonal : 0);
        }
        store_matrices(at[q], packed[q]);
    }
#pragma unroll
    for (int q = 0; q < (SYM && mirror ? 4 : 0); q++) {
        int column = 16 * q + m / 2 * 8 + lane % 8;
        store_transposed(mirror + swizzle128(column, 2 * warp + m % 2), packed[q]);
    }
}

/* This warpgroup's rows of the tile: finished in its boxes of the stages from `extra` on, and
 * stored 64 columns at a time. Stages may not be released before stores_read(). */
template <bool SYM, bool HAS_C, int BN, int COLS, numbers N>
__device__ __forceinline__ void write_tile(const float *acc, const ring<BN> &r, uint32_t extra,
                                           const CUtensorMap *md, const tile_part &p, int col0,
                                           const gemm_shape &s, int w)
{
    const int row = p.i * TILE + w * BOX;
    const bool mirrored = SYM && p.j < p.i;
#pragma unroll
    for (int c = 0; c < COLS / BOX; c++) {
        int col = col0 + c * BOX;
        uint32_t box = box_of<BN>(r, extra, 2 * c + w);
        uint32_t mirror = mirrored ? box_of<BN>(r, extra, result_boxes(COLS) + 2 * c + w) : 0;
        finish_box<HAS_C, SYM, N>(acc + 32 * c, box, mirror, s, col == row);
        shared_written();
        named_wait(HALF_WRITTEN + w, WARPGROUP);
        if (threadIdx.x % WARPGROUP == 0) {
            store_box(md, col, row, p.z, box);
            if (mirrored)
                store_box(md, row, col, p.z, mirror);
            stores_commit();
        }
    }
}

/* Releases the stages [first, first + count), whose boxes were stored. */
template <typename R>
__device__ __forceinline__ void release_stored(const R &r, uint32_t first, int count)
{
    if (threadIdx.x % WARPGROUP == 0)
        stores_read();
    __syncwarp();
    for (int e = 0; e < count; e++)
        r.release(r.at(first + e));
}

/* The k of one tile, stages [first, first + count). When the first product is under way, the
 * `stored` stages before are released. */
template <bool TA, bool TB, int BN, numbers N>
__device__ __forceinline__ void sum_products(float (&acc)[BN / 2], const ring<BN> &r,
                                             uint32_t first, int count, int w, int stored)
{
#pragma unroll 4
    for (int b = 0; b < count; b++) {
        const place at = r.at(first + b);
        uint32_t a = r.slot(at) + w * BOX_BYTES, bb = r.slot(at) + 2 * BOX_BYTES;
        r.wait(at);
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < 4; k++) {
            uint64_t left = operand<TA>(a + k * (TA ? 2048 : 32));
            uint64_t right = operand<TB>(bb + k * (TB ? 2048 : 32));
            if constexpr (N == IN_F16 || N == F16_TO_BF16)
                wgmma_f16<TA, TB>(acc, left, right, b + k);
            else
                wgmma<TA, TB>(acc, left, right, b + k);
        }
        wgmma_commit();
        if (b == 0) {
            release_stored(r, first - stored, stored);
            continue;
        }
        wgmma_wait<1>();
        r.release(r.at(first + b - 1)); /* the stage before is used up */
    }
    wgmma_wait<0>();
    keep(acc);
    r.release(r.at(first + count - 1));
}

/* -- the kernel ---------------------------------------------------------------------------- */

template <bool TA, bool TB, bool SYM, bool HAS_C, bool SPLIT, int BN>
__device__ __forceinline__ void produce(const ring<BN> &r, const CUtensorMap *ma,
                                        const CUtensorMap *mb, const CUtensorMap *mc,
                                        const gemm_shape &s, int first, int step, int rank)
{
    constexpr int EXTRA = extra_of(SYM, SPLIT, BN), RESULT = result_boxes(cols_of(SPLIT, BN));
    const int tiles = s.n * tiles_of(SYM, s);
    uint32_t stage = 0;
    tile_part p = locate_tile<SYM, SPLIT>(s, first, rank);

    wait_for_kernel_before();
    for (int t = first; t < tiles; t += step, p = locate_tile<SYM, SPLIT>(s, t, rank)) {
        if (threadIdx.x == 0) {
            for (int kb = p.k0; kb < p.k1; kb++, stage++)
                load_operands<TA, TB, BN>(r, r.at(stage), ma, mb, p, kb);
            if (t + step >= tiles) /* not sooner: its blocks would take SMs, and wait */
                start_kernel_behind();
            load_extra<HAS_C, BN, EXTRA, RESULT>(r, stage, mc, p, p.j * BN + rank * BOX);
        }
        stage += EXTRA;
        if (SPLIT) { /* the consumers' two */
            __syncwarp();
            cluster_sync();
            cluster_sync();
        }
    }
}

template <bool TA, bool TB, bool SYM, bool HAS_C, bool SPLIT, int BN, numbers N>
__device__ __forceinline__ void consume(const ring<BN> &r, const CUtensorMap *md,
                                        const gemm_shape &s, int first, int step, int rank, int w)
{
    constexpr int EXTRA = extra_of(SYM, SPLIT, BN);
    const int tiles = s.n * tiles_of(SYM, s);
    uint32_t stage = 0;
    int stored = 0;

    wait_for_kernel_before();
    for (int t = first; t < tiles; t += step) {
        tile_part p = locate_tile<SYM, SPLIT>(s, t, rank);
        const int count = p.k1 - p.k0;
        const uint32_t extra = stage + count;
        float acc[BN / 2];
        sum_products<TA, TB, BN, N>(acc, r, stage, count, w, stored);
        for (int e = 0; e < EXTRA; e++)
            r.wait(r.at(extra + e));
        __syncwarp();
        if constexpr (SPLIT) {
            cluster_sync(); /* the other's last stage is free */
            exchange_halves(acc, r.slot(r.at(extra + EXTRA - 1)), rank);
        }
        write_tile<SYM, HAS_C, BN, cols_of(SPLIT, BN), N>(acc, r, extra, md, p,
                                                          p.j * BN + rank * BOX, s, w);
        stored = EXTRA;
        stage = extra + EXTRA;
    }
    release_stored(r, stage - stored, stored);
}

/* TA, TB: k runs along the rows of that operand. C is read through mc, D written through md. */
template <bool TA, bool TB, bool SYM, bool HAS_C, bool SPLIT, int BN, numbers N>
__global__ void __launch_bounds__(ROLE_THREADS, 1)
    polar_gemm(const __grid_constant__ CUtensorMap ma, const __grid_constant__ CUtensorMap mb,
               const __grid_constant__ CUtensorMap mc, const __grid_constant__ CUtensorMap md,
               const gemm_shape s)
{
#ifdef SM90_CODE
    static_assert(!SPLIT || SYM, "only symmetric tiles are shared");
    static_assert(!SYM || BN == TILE, "symmetric tiles are square");
    extern __shared__ char raw[];
    __shared__ uint64_t barriers[ring<BN>::BARRIER_BYTES / 8];
    const ring<BN> r = { stages_from(raw), address(barriers) };
    const int two = SPLIT ? 2 : 1, rank = blockIdx.x % two;
    const int first = blockIdx.x / two, step = gridDim.x / two;

    if (threadIdx.x == 0) {
        r.init(CONSUMER_WARPS);
        prefetch_map(&ma);
        prefetch_map(&mb);
        prefetch_map(&md);
    }
    if (SPLIT)
        cluster_sync();
    else
        __syncthreads();
    with_roles<40, 232>(
        [&] { produce<TA, TB, SYM, HAS_C, SPLIT, BN>(r, &ma, &mb, &mc, s, first, step, rank); },
        [&](int w) { consume<TA, TB, SYM, HAS_C, SPLIT, BN, N>(r, &md, s, first, step, rank, w); });
#endif
}

#endif
