/* grad_gemm.cu - a^T b, a (T,M), b (T,N) bf16, f32 sums over T, for gradients of weights.
 *
 * M and N are the sides of a weight, T is many times as long: of tiles of 256 x 256, which two blocks of a
 * cluster make, there are 27 for 2304 x 768 and 9 for 768 x 768, where 66 clusters want work. So tokens are
 * divided as well (grad_gemm.h), such that clusters read the same tokens at the same time, from the L2: 54 have
 * half of a tile's each and leave 18% of it to the 12 others; or 63 have a seventh, and 3 have nothing. A
 * cluster writes what it has summed of a tile as a piece of its own; the pass that finishes the gradient
 * (linear.cu) adds a tile's pieces up, always in the same order.
 *
 * A block makes 128 x 256 of a tile: a thread feeds a ring of 4 stages, 48 KB each, and two warpgroups sum 64
 * x 256 each, 128 numbers a thread. Tokens are the rows of both operands in shared memory, which tensor cores
 * read either way. The blocks of a cluster share b: each loads half of it for both.
 *
 * 2 T M N FLOP; 32 KB a block and stage from the L2. 2304 x 768, T = 16384: 58 GFLOP, 75 us at 770 TFLOP/s,
 * 0.44 GB from the L2, 0.1 GB from memory; 31 MB of pieces, written and read once in the L2.
 */
#include "sm90/grad_gemm.h"

#include "sm90/sm90.h"
#include "sm90/tensor_map.h"
#include "sm90/wgmma.h"

using namespace sm90;

namespace
{

enum { CLUSTER = 2, M = GRAD_SIDE / CLUSTER, N = GRAD_SIDE, K = 64, PANEL = 64 };
enum { PANEL_BYTES = K * 128, A_BYTES = M / PANEL * PANEL_BYTES, B_BYTES = N / PANEL * PANEL_BYTES };
enum { WORKER = 128, WORKERS = M / 64, THREADS = (1 + WORKERS) * WORKER };
enum { WRITING = 4 }; /* stages that a piece takes to be written; a helper has several */
enum { STAGES = 4, STAGE_BYTES = A_BYTES + B_BYTES };
enum { SHARED_BYTES = 1024 + STAGES * STAGE_BYTES + 16 * STAGES };

struct maps {
    CUtensorMap a, b;
};

struct layout {
    uint32_t ring, full, empty; /* stages, barriers */
    __device__ explicit layout(const void *memory)
    {
        ring = (address(memory) + 1023) & ~1023u;
        full = ring + STAGES * STAGE_BYTES;
        empty = full + 8 * STAGES;
    }
    __device__ uint32_t a(uint32_t it) const { return ring + it % STAGES * STAGE_BYTES; }
    __device__ uint32_t b(uint32_t it) const { return a(it) + A_BYTES; }
    __device__ uint32_t filled(uint32_t it) const { return full + it % STAGES * 8; }
    __device__ uint32_t freed(uint32_t it) const { return empty + it % STAGES * 8; }
};

/* The work of a cluster, tile by tile. */
struct segment {
    int tile, from, n, piece; /* stages from `from` on; none: n is 0 */
    int at, end; /* a helper's place among what is left */
    __device__ segment(const grad_pieces &p, int cluster)
    {
        if (cluster < p.jobs()) {
            int share = cluster / p.tiles;
            tile = cluster % p.tiles, piece = cluster;
            from = p.first(share);
            n = min(p.most, p.first(share + 1) - from);
            at = end = 0;
        } else {
            int helper = cluster - p.jobs();
            at = p.first_left(helper), end = p.first_left(helper + 1);
            next(p, cluster);
        }
    }
    __device__ void next(const grad_pieces &p, int cluster)
    {
        int share = 0, stage = at;
        n = 0;
        if (at >= end)
            return;
        for (; stage >= p.tiles * p.left_of(share); share++)
            stage -= p.tiles * p.left_of(share);
        int left = p.left_of(share);
        tile = stage / left;
        from = p.first(share) + p.most + stage % left;
        n = min(left - stage % left, end - at);
        piece = cluster + share * p.tiles + tile;
        at += n;
    }
};

__device__ void feed(const layout &l, const maps &m, const grad_pieces &p)
{
    int c = blockIdx.x / CLUSTER, rank = cluster_rank();
    uint32_t it = 0;

    for (segment s(p, c); s.n; s.next(p, c)) {
        int column_a = (s.tile / p.columns * CLUSTER + rank) * M, column_b = s.tile % p.columns * N;
        for (int kb = s.from; kb < s.from + s.n; kb++, it++) {
            barrier_wait(l.freed(it), (it / STAGES & 1) ^ 1);
            barrier_expect(l.filled(it), STAGE_BYTES);
            for (int i = 0; i < M / PANEL; i++)
                load_box(l.a(it) + i * PANEL_BYTES, &m.a, column_a + i * PANEL, kb * K,
                         l.filled(it));
            for (int i = rank * 2; i < rank * 2 + 2; i++)
                load_box_to(3, l.b(it) + i * PANEL_BYTES, &m.b, column_b + i * PANEL, kb * K,
                            l.filled(it));
        }
    }
}

/* Both blocks' feeders may overwrite the stage when all sixteen warps have finished reading it. */
__device__ __forceinline__ void let_go(uint32_t empty)
{
    if (threadIdx.x % 32 < CLUSTER)
        barrier_arrive_at(empty, threadIdx.x % 32);
}

/* This warpgroup's 64 rows of a piece. */
__device__ __forceinline__ void write_piece(const float (&d)[N / 2], float *piece, int worker)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    float *to = piece + (cluster_rank() * M + 64 * worker + 16 * warp + lane / 4) * N + lane % 4 * 2;

#pragma unroll
    for (int q = 0; q < N / 8; q++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            *(float2 *)(to + 8 * h * N + 8 * q) = make_float2(d[4 * q + 2 * h], d[4 * q + 2 * h + 1]);
}

__device__ void do_work(const layout &l, const grad_pieces &p, int worker)
{
    int c = blockIdx.x / CLUSTER;
    uint32_t it = 0;
    float d[N / 2];

    for (segment s(p, c); s.n; s.next(p, c)) {
#pragma unroll 1
        for (int kb = 0; kb < s.n; kb++, it++) {
            uint32_t a = l.a(it) + worker * PANEL_BYTES, b = l.b(it);
            barrier_wait(l.filled(it), it / STAGES & 1);
            wgmma_begin();
#pragma unroll
            for (int i = 0; i < K / 16; i++)
                wgmma<true, true>(d, operand<true>(a + i * 16 * 128, PANEL_BYTES),
                                  operand<true>(b + i * 16 * 128, PANEL_BYTES), kb || i);
            wgmma_commit();
            wgmma_wait<1>();
            if (kb)
                let_go(l.freed(it - 1));
        }
        wgmma_wait<0>();
        keep(d);
        let_go(l.freed(it - 1));
        write_piece(d, p.at + (int64_t)s.piece * GRAD_SIDE * GRAD_SIDE, worker);
    }
}

__global__ void SM90_CLUSTER(CLUSTER) __launch_bounds__(THREADS, 1)
    grad_product(const __grid_constant__ maps m, const grad_pieces p)
{
#ifdef SM90_CODE
    extern __shared__ uint8_t memory[];
    layout l(memory);

    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            barrier_init(l.full + 8 * s, 1);
            barrier_init(l.empty + 8 * s, CLUSTER * WORKERS * WORKER / 32);
        }
        barrier_init_done();
    }
    cluster_sync();
    if (threadIdx.x < WORKER) {
        fewer_registers<40>();
        if (threadIdx.x == 0)
            feed(l, m, p);
        __syncwarp();
    } else {
        more_registers<232>();
        do_work(l, p, threadIdx.x / WORKER - 1);
    }
    cluster_sync(); /* a block must not exit while the other may write into its shared memory */
#endif
}

} /* namespace */

/* -- host -------------------------------------------------------------------------------- */

static int clusters_of(const struct grad_pieces &p) { return p.jobs() + p.helpers; }

size_t grad_pieces_bytes(const struct grad_pieces &p)
{
    int pieces = p.helpers ? clusters_of(p) + p.jobs() : p.jobs();

    return (size_t)pieces * GRAD_SIDE * GRAD_SIDE * sizeof(float);
}

bool grad_gemm_plan(const struct cuda_ops *c, struct grad_pieces *p, struct tensor a, struct tensor b)
{
    int clusters = c->sms / CLUSTER, columns = div_up(b.cols, GRAD_SIDE);
    int tiles = columns * div_up(a.cols, GRAD_SIDE), kblocks = div_up(a.rows, K);

    *p = {};
    if (a.dtype != DT_BF16 || b.dtype != DT_BF16 || a.cols % 8 || b.cols % 8 || tiles > clusters ||
        2 * clusters > GRAD_PIECES || !kblocks)
        return false;
    p->kblocks = kblocks, p->columns = columns, p->tiles = tiles;
    p->shares = min(clusters / tiles, kblocks);
    p->most = div_up(kblocks, p->shares);
    if (p->jobs() * 12 < clusters * 11) { /* else helpers' pieces cost more */
        p->helpers = clusters - p->jobs();
        p->most = div_up((int64_t)tiles * kblocks + p->jobs() * WRITING, clusters);
        for (int s = 0; s < p->shares; s++)
            p->left += tiles * p->left_of(s);
    }
    p->helpers = min(p->helpers, p->left);
    return true;
}

void grad_gemm(struct cuda_ops *c, const struct grad_pieces &p, struct tensor a, struct tensor b)
{
    maps m = {};

    assert(a.rows == b.rows);
    if (c->failed)
        return;
    if (!map_boxes(&m.a, a, K) || !map_boxes(&m.b, b, K)) {
        cuda_fail(c, GPT_DEVICE, "the operands of a gradient cannot be described to the copy engine");
        return;
    }
    if (!CUDA_TRY(c, cudaFuncSetAttribute(grad_product, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          SHARED_BYTES)))
        return;
    grad_product<<<CLUSTER * clusters_of(p), THREADS, SHARED_BYTES, c->stream>>>(m, p);
    CUDA_LAUNCHED(c);
}
