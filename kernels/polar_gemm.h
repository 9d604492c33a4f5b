/* polar_gemm.h - batched bf16 products for polar.cu: wgmma on tiles that the copy engine brings.
 *
 *     D = alpha C + beta A B        for each of n matrices; bf16 in and out, f32 sums
 *
 * One block computes one 128x128 tile of one matrix; 2 warpgroups hold 64 rows of it each in
 * registers (64 numbers a thread), a ninth warp feeds them: k advances 64 columns a stage of
 * 32 KiB, through a ring of stages in shared memory. Every tensor is a 3-D tensor map (columns,
 * rows, matrices) of boxes 64x64 with 128-byte swizzle, so ragged edges are the copy engine's:
 * it reads zeros and clips writes. An operand whose k runs along rows (X^T X, B X) is read as it
 * lies and the tensor core transposes.
 *
 * symmetric: A B is symmetric, so only tiles on and below the diagonal are computed; each is also
 * written transposed. The C tile travels through the same ring as one more stage, is replaced in
 * place by the result, and the copy engine stores it.
 *
 * A pair of blocks (a cluster) can share work in two ways:
 *     SHARED_B  two tiles, one above the other: each block loads half of their common B operand
 *               and multicasts it. A third less traffic from L2.
 *     SPLIT_K   one tile: each block sums half of k, they exchange halves of the tile through
 *               distributed shared memory and write 64 columns each. For few tiles with long k.
 *
 * Blocks of the next product start while this one's last are running (programmatic launch) and
 * wait for its end only before they touch memory.
 *
 * Source of the layouts: PTX ISA, wgmma matrix descriptors and tensor swizzling modes.
 */
#ifndef KERNELS_POLAR_GEMM_H
#define KERNELS_POLAR_GEMM_H

#include <cuda.h>
#include <cuda_runtime.h>
#include <stdint.h>
#include "polar.h"
#include "vec.h"

enum { TILE = 128, BOX = 64, BOX_BYTES = BOX * BOX * 2, STAGE_BYTES = 4 * BOX_BYTES };
enum { CONSUMERS = 256, GEMM_THREADS = CONSUMERS + 32 };

struct gemm_shape {
    int kblocks;                        /* k in units of 64, of the whole product */
    int tiles_m, tiles_n;
    float alpha, beta;
    bool round_product;                 /* A B rounds to bf16 before alpha C is added */
};

/* -- one instruction each ------------------------------------------------------------------ */

__device__ __forceinline__ uint32_t smem_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

__device__ __forceinline__ void barrier_init(uint32_t bar, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals));
}

__device__ __forceinline__ void barrier_expect(uint32_t bar, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void barrier_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

/* The same barrier in block `rank` of the cluster. */
__device__ __forceinline__ void barrier_arrive_at(uint32_t bar, int rank)
{
    asm volatile("{\n"
                 ".reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there];\n"
                 "}\n" ::"r"(bar), "r"(rank)
                 : "memory");
}

template <bool CLUSTER>
__device__ __forceinline__ void barrier_wait(uint32_t bar, int parity)
{
    if constexpr (CLUSTER)
        asm volatile("{\n"
                     ".reg .pred done;\n"
                     "again:\n"
                     "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
                     "@!done bra again;\n"
                     "}\n" ::"r"(bar), "r"(parity)
                     : "memory");
    else
        asm volatile("{\n"
                     ".reg .pred done;\n"
                     "again:\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                     "@!done bra again;\n"
                     "}\n" ::"r"(bar), "r"(parity)
                     : "memory");
}

/* Box at (col, row) of a matrix into shared memory; its bytes count on `bar`. */
__device__ __forceinline__ void load_box(uint32_t to, const CUtensorMap *map, int col, int row,
                                         int matrix, uint32_t bar)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to), "l"(map), "r"(col), "r"(row),
                 "r"(matrix), "r"(bar)
                 : "memory");
}

/* The same into both blocks of the pair, at the same place, counting on each one's barrier. */
__device__ __forceinline__ void load_box_both(uint32_t to, const CUtensorMap *map, int col,
                                              int row, int matrix, uint32_t bar)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to), "l"(map),
                 "r"(col), "r"(row), "r"(matrix), "r"(bar), "h"((uint16_t)3)
                 : "memory");
}

__device__ __forceinline__ void store_box(const CUtensorMap *map, int col, int row, int matrix,
                                          uint32_t from)
{
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group"
                 " [%0, {%1, %2, %3}], [%4];" ::"l"(map), "r"(col), "r"(row), "r"(matrix),
                 "r"(from)
                 : "memory");
}

__device__ __forceinline__ void cluster_arrive()
{
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait()
{
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* What wgmma needs to find a 64-row operand box (or two of them, for N = 128).
 * k along columns: 8-row groups lie 1024 bytes apart, in and across boxes.
 * k along rows: 8 of k lie 1024 bytes apart; the next 64 of N are the next box. */
template <bool ROWS_ARE_K>
__device__ __forceinline__ uint64_t operand(uint32_t address)
{
    const uint64_t next_64 = ROWS_ARE_K ? BOX_BYTES / 16 : 1;
    return (uint64_t)((address & 0x3ffff) >> 4) | next_64 << 16 | (uint64_t)(1024 / 16) << 32
           | (uint64_t)1 << 62;
}

/* acc (64,128) += a (64,16) b (16,128); first: acc = a b. */
template <bool TA, bool TB>
__device__ __forceinline__ void mma(float (&d)[64], uint64_t a, uint64_t b, int add)
{
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, p, 1, 1, %67, %68;\n"
        "}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
          "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
          "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]),
          "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]),
          "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]),
          "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]),
          "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]),
          "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]),
          "+f"(d[62]), "+f"(d[63])
        : "l"(a), "l"(b), "r"(add), "n"(TA), "n"(TB));
}

/* -- the kernel ----------------------------------------------------------------------------- */

/* Where this block works: tile (i,j) of matrix z, k blocks [k0, k1). */
struct place { int i, j, z, k0, k1, rank; };

/* Largest r with r (r + 1) <= x. */
__device__ __forceinline__ int pronic_root(int x)
{
    int r = (int)((sqrtf(4.0f * (float)x + 1.0f) - 1.0f) * 0.5f);
    r -= r * (r + 1) > x;
    return r + ((r + 1) * (r + 2) <= x);
}

template <bool SYM, pairing PAIR>
__device__ __forceinline__ place find_place(const gemm_shape &s)
{
    int t = blockIdx.x, rank = 0;
    if (PAIR != ALONE) {
        rank = t & 1;
        t >>= 1;
    }
    place p = { 0, 0, (int)blockIdx.z, 0, s.kblocks, rank };
    if (SYM && PAIR == SHARED_B) {
        int r = pronic_root(t);             /* rows 2r and 2r + 1; columns 0 .. 2r + 1 */
        p.i = 2 * r + rank;
        p.j = t - r * (r + 1);
    } else if (SYM) {
        p.i = pronic_root(2 * t);           /* i (i + 1) / 2 <= t */
        p.j = t - p.i * (p.i + 1) / 2;
    } else {
        p.j = t % s.tiles_n;
        p.i = t / s.tiles_n;
        if (PAIR == SHARED_B)
            p.i = 2 * p.i + rank;
    }
    if (PAIR == SPLIT_K) {
        p.k0 = rank * (s.kblocks / 2);
        p.k1 = rank ? s.kblocks : s.kblocks / 2;
    }
    return p;
}

/* Boxes of stage b: A rows (or columns) of tile i, B of tile j, k block kb. */
template <bool TA, bool TB, pairing PAIR>
__device__ __forceinline__ void load_stage(uint32_t to, uint32_t bar, const CUtensorMap *ma,
                                           const CUtensorMap *mb, const place &p, int kb)
{
    barrier_expect(bar, STAGE_BYTES);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int mn = p.i * TILE + h * BOX;
        load_box(to + h * BOX_BYTES, ma, TA ? mn : kb * BOX, TA ? kb * BOX : mn, p.z, bar);
    }
    to += 2 * BOX_BYTES;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (PAIR == SHARED_B && h != p.rank)
            continue;
        int mn = p.j * TILE + h * BOX, col = TB ? mn : kb * BOX, row = TB ? kb * BOX : mn;
        if (PAIR == SHARED_B)
            load_box_both(to + h * BOX_BYTES, mb, col, row, p.z, bar);
        else
            load_box(to + h * BOX_BYTES, mb, col, row, p.z, bar);
    }
}

/* Both blocks hold partial sums of all 128 columns: afterwards acc[0..31] holds this block's 64
 * columns in full. The sum of two numbers does not depend on who adds. */
__device__ __forceinline__ void exchange_halves(float (&acc)[64], char *mine, int rank)
{
    uint32_t there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(smem_address(mine)),
        "r"(rank ^ 1));
#pragma unroll
    for (int q = 0; q < 8; q++) {
        float v[4];
#pragma unroll
        for (int e = 0; e < 4; e++)
            v[e] = rank ? acc[4 * q + e] : acc[32 + 4 * q + e];
        asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(
                         there + (q * CONSUMERS + threadIdx.x) * 16),
                     "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3])
                     : "memory");
    }
    cluster_arrive();
    cluster_wait();
#pragma unroll
    for (int q = 0; q < 8; q++) {
        float4 other = ((const float4 *)mine)[q * CONSUMERS + threadIdx.x];
        const float v[4] = { other.x, other.y, other.z, other.w };
#pragma unroll
        for (int e = 0; e < 4; e++)
            acc[4 * q + e] = (rank ? acc[32 + 4 * q + e] : acc[4 * q + e]) + v[e];
    }
}

/* One warp's 16 rows of `COLS` columns: acc becomes alpha C + beta acc, C in `tile` is replaced
 * by it, and `mirror` gets it transposed. Both are boxes of 64x64: box (64 columns c, rows of
 * warpgroup w) is tile + (2 c + w) boxes; mirror likewise. */
template <int COLS, bool HAS_C, bool SYM>
__device__ __forceinline__ void finish_tile(float (&acc)[64], char *tile, uint32_t mirror,
                                            const gemm_shape &s, bool mirrored)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, w = threadIdx.x / 128;
    uint32_t packed[2][COLS / 8];
#pragma unroll
    for (int q = 0; q < COLS / 8; q++) {
        char *box = tile + (2 * (q / 8) + w) * BOX_BYTES;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int row = warp * 16 + lane / 4 + 8 * h;
            uint32_t *at = (uint32_t *)(box + row * 128 + ((q % 8 ^ row % 8) << 4) + lane % 4 * 4);
            float lo = acc[4 * q + 2 * h], hi = acc[4 * q + 2 * h + 1];
            if (HAS_C) {
                uint32_t c = *at;
                if (s.round_product) {
                    uint32_t r = bf16_pack(lo, hi);
                    lo = bf16_lo(r), hi = bf16_hi(r);
                }
                lo = fmaf(s.alpha, bf16_lo(c), s.beta * lo);
                hi = fmaf(s.alpha, bf16_hi(c), s.beta * hi);
            }
            packed[h][q] = bf16_pack(lo, hi);
            *at = packed[h][q];
        }
    }
    if (!SYM || !mirrored)
        return;
    /* Four 8x8 matrices a time: rows 0-7 and 8-15 of this warp, columns 8q and 8q + 8. A lane
     * names the row (a column of the tile) where one of them puts 16 bytes. */
    int m = lane / 8, chunk = 2 * warp + (m & 1);
#pragma unroll
    for (int q = 0; q < COLS / 8; q += 2) {
        int row = (q + (m >> 1)) * 8 % 64 + lane % 8;
        uint32_t at = mirror + (2 * (q / 8) + w) * BOX_BYTES + row * 128
                      + ((chunk ^ row % 8) << 4);
        asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::
                         "r"(at), "r"(packed[0][q]), "r"(packed[1][q]), "r"(packed[0][q + 1]),
                     "r"(packed[1][q + 1])
                     : "memory");
    }
}

/* TA, TB: k runs along the rows of that operand. md is where D goes; its C is read through mc. */
template <bool TA, bool TB, bool SYM, bool HAS_C, pairing PAIR, int STAGES>
__global__ void __launch_bounds__(GEMM_THREADS, STAGES <= 3 ? 2 : 1)
polar_gemm(const __grid_constant__ CUtensorMap ma, const __grid_constant__ CUtensorMap mb,
           const __grid_constant__ CUtensorMap mc, const __grid_constant__ CUtensorMap md,
           const gemm_shape s)
{
    extern __shared__ char raw[];
    __shared__ uint64_t full_bar[STAGES], empty_bar[STAGES];
    constexpr bool CLUSTER = PAIR != ALONE;
    constexpr int COLS = PAIR == SPLIT_K ? BOX : TILE;      /* columns that this block writes */
    char *ring = (char *)(((uintptr_t)raw + 1023) & ~(uintptr_t)1023);
    uint32_t stage0 = smem_address(ring), full = smem_address(full_bar);
    uint32_t empty = smem_address(empty_bar);
    int warp = threadIdx.x / 32;

    if (threadIdx.x == CONSUMERS) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(full + 8 * i, 1);
            barrier_init(empty + 8 * i, PAIR == SHARED_B ? 16 : 8);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("prefetch.tensormap [%0];" ::"l"(&ma) : "memory");
        asm volatile("prefetch.tensormap [%0];" ::"l"(&mb) : "memory");
        asm volatile("prefetch.tensormap [%0];" ::"l"(&md) : "memory");
    }
    place p = find_place<SYM, PAIR>(s);
    int blocks = p.k1 - p.k0;
    if (CLUSTER) {
        cluster_arrive();
        cluster_wait();
    } else {
        __syncthreads();
    }
    asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;" ::: "memory");

    if (warp == CONSUMERS / 32) {                           /* the warp that feeds */
        if (threadIdx.x % 32 == 0) {
            for (int b = 0; b < blocks; b++) {
                int at = b % STAGES;
                barrier_wait<CLUSTER>(empty + 8 * at, (b / STAGES & 1) ^ 1);
                load_stage<TA, TB, PAIR>(stage0 + at * STAGE_BYTES, full + 8 * at, &ma, &mb, p,
                                         p.k0 + b);
            }
            if (HAS_C) {
                int at = blocks % STAGES;
                barrier_wait<CLUSTER>(empty + 8 * at, (blocks / STAGES & 1) ^ 1);
                barrier_expect(full + 8 * at, 2 * (COLS / BOX) * BOX_BYTES);
#pragma unroll
                for (int q = 0; q < 2 * (COLS / BOX); q++)
                    load_box(stage0 + at * STAGE_BYTES + q * BOX_BYTES, &mc,
                             p.j * TILE + (PAIR == SPLIT_K ? p.rank : q / 2) * BOX,
                             p.i * TILE + (q & 1) * BOX, p.z, full + 8 * at);
            }
        }
        __syncwarp();
        if (CLUSTER) {
            cluster_arrive();
            cluster_wait();
        }
        if (PAIR == SPLIT_K) {
            cluster_arrive();
            cluster_wait();
        }
        return;
    }

    float acc[64];
    int w = warp / 4;
    for (int b = 0; b < blocks; b++) {
        int at = b % STAGES;
        uint32_t a = stage0 + at * STAGE_BYTES + w * BOX_BYTES;
        uint32_t bb = stage0 + at * STAGE_BYTES + 2 * BOX_BYTES;
        barrier_wait<CLUSTER>(full + 8 * at, b / STAGES & 1);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int k = 0; k < 4; k++)
            mma<TA, TB>(acc, operand<TA>(a + k * (TA ? 2048 : 32)),
                        operand<TB>(bb + k * (TB ? 2048 : 32)), b + k);
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
        if (b > 0 && threadIdx.x % 32 == 0) {               /* the block before is used up */
            int before = empty + 8 * ((b - 1) % STAGES);
            if (PAIR == SHARED_B) {
                barrier_arrive_at(before, 0);
                barrier_arrive_at(before, 1);
            } else {
                barrier_arrive(before);
            }
        }
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int i = 0; i < 64; i++)
        asm volatile("" : "+f"(acc[i])::"memory");          /* not read before the wait */
    __syncwarp();
    if (CLUSTER)
        cluster_arrive();                                   /* reads of both blocks are done */

    int at = blocks % STAGES, next = (blocks + 1) % STAGES, after = (blocks + 2) % STAGES;
    if (PAIR == SPLIT_K) {
        cluster_wait();
        exchange_halves(acc, ring + next * STAGE_BYTES, p.rank);
    }
    char *tile = ring + at * STAGE_BYTES;
    uint32_t mirror = stage0 + (PAIR == SPLIT_K ? after : next) * STAGE_BYTES;
    bool mine = p.i < s.tiles_m && (!SYM || p.j <= p.i), mirrored = SYM && p.j < p.i;
    if (HAS_C)
        barrier_wait<CLUSTER>(full + 8 * at, blocks / STAGES & 1);
    else if (PAIR != SPLIT_K)
        barrier_wait<CLUSTER>(empty + 8 * at, (blocks / STAGES & 1) ^ 1);
    if (SYM && PAIR != SPLIT_K)
        barrier_wait<CLUSTER>(empty + 8 * next, ((blocks + 1) / STAGES & 1) ^ 1);
    finish_tile<COLS, HAS_C, SYM>(acc, tile, mirror, s, mirrored);

    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    if (w == 0)                             /* constants: a block with all 16 barriers may not pair */
        asm volatile("bar.sync 1, 128;" ::: "memory");
    else
        asm volatile("bar.sync 2, 128;" ::: "memory");
    if (threadIdx.x % 128 == 0 && mine) {
#pragma unroll
        for (int q = 0; q < COLS / BOX; q++) {
            int col = p.j * TILE + (PAIR == SPLIT_K ? p.rank : q) * BOX, row = p.i * TILE + w * BOX;
            store_box(&md, col, row, p.z, smem_address(tile) + (2 * q + w) * BOX_BYTES);
            if (mirrored)
                store_box(&md, row, col, p.z, mirror + (2 * q + w) * BOX_BYTES);
        }
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    }
    __syncwarp();
    if (PAIR == SHARED_B)
        cluster_wait();                 /* the other block still signals to barriers of this one */
}

#endif
