/* transposed_gemm.cu - out (N,M) = alpha b a (+ out), b (N,K) e4m3, a (K,M) e5m2, both as they lie.
 *
 * Tensor cores take 8-bit operands from shared memory along k only, and k runs along the rows of a.
 * So a comes from registers: `ldmatrix.trans` gives a lane 2 rows of 2 neighbouring columns, and
 * two such registers are sorted by bytes into one of each column with four of k. The product's row
 * r + 8 h of sixteen is a's column 2 r + h, which is undone where sums are stored. b is small and
 * lies along k.
 *
 * The sums of the tensor cores keep about 13 bits beside their greatest term. So they end after 128
 * of k, and are added up in f32, as cuBLASLt does without its fast accumulation.
 *
 * A tile is 128 columns of a by 192 rows of b: two consumers with 64 columns each, 96 sums and 96
 * numbers under way a thread, behind a pipeline of 5 stages, 128 of k (16 KB of a, 24 KB of b). One
 * consumer adds up while the tensor cores work for the other. Two CTAs of a cluster have the same
 * rows of b and neighbouring columns of a: each loads half of b's stage for both. CTAs are
 * persistent.
 *
 * transposed_gemm_turned writes its transpose, out (M,N), and takes either type for a and e4m3 for b, or e4m3 and
 * e5m2: weight gradients of the layers. They have fewer tiles than fill the SMs (N = 768: 72 of qkv's M = 2304, 96 of
 * the MLP's 3072), so k is cut into parts, each with sums of its own, which the pass behind adds up. Tiles of one part
 * run at a time, so that a and b still come from memory once. K = 49152, 132 SMs at 1.75 GHz: qkv's 0.18 ms in one
 * part, 0.11 in 5; the MLP's 0.18 and, in 4, 0.14. A part costs 8 M N bytes, written and read: 3 to 4 us.
 *
 * 2 M N K FLOP; a stage moves 104 KB through shared memory, 832 cycles at 128 bytes a cycle, where
 * its products take 768. The head's gradient (M = 50304, N = 768, K = 49152): 3.80 TFLOP, 3.17 ms
 * at 1198 TFLOP/s; a is read once from memory (2.47 GB, 0.58 ms), four times from the L2, b 197
 * times.
 */
#include "sm90/transposed_gemm.h"

#include "host/launch.h"
#include "sm90/pipeline.h"
#include "sm90/tensor_map.h"
#include "sm90/wgmma.h"
#include "vec.h"

using namespace sm90;

namespace
{

enum { M = 128, N = 192, K = 128, CLUSTER = 2 };
enum { A_BYTES = K * M, B_BYTES = N * K, HALF_B = B_BYTES / 2, STAGE_BYTES = A_BYTES + B_BYTES };
enum { CONSUMERS = 2 }; /* warpgroups */
enum { STEPS = K / 32, SUMS = N / 2 }; /* products a stage; numbers a thread */
enum { STAGES = 5 };
enum { PARTS_MAX = 8 };
typedef pipeline<STAGES, STAGE_BYTES, CLUSTER> ring;
enum { SHARED_BYTES = STAGES_ALIGN + STAGES * STAGE_BYTES + ring::BARRIER_BYTES };

struct maps {
    CUtensorMap a, b;
};

struct work {
    int columns, tiles, kblocks; /* tiles of b's rows, pairs of tiles, stages of k */
    int parts, each; /* of k; stages of one, but the last */
    int m, n;
    void *out; /* of the parts, one behind the other */
    float alpha;
};

/* The i-th tile of this CTA, and the stages of k that are added up there. */
struct out_tile {
    int m, n, part, first, stages;
    bool exists;
    __device__ out_tile(const work &k, int i)
    {
        int t = blockIdx.x / CLUSTER + i * (gridDim.x / CLUSTER), at = t % k.tiles;
        part = t / k.tiles;
        exists = part < k.parts;
        m = (at / k.columns * CLUSTER + cluster_rank()) * M;
        n = at % k.columns * N;
        first = part * k.each;
        stages = min(k.each, k.kblocks - first);
    }
};

__device__ void produce(const ring &r, const maps &m, const work &k)
{
    uint32_t n = 0;
    int rank = cluster_rank();

    for (int i = 0; out_tile(k, i).exists; i++) {
        out_tile p(k, i);
        for (int kb = p.first; kb < p.first + p.stages; kb++, n++) {
            const place at = r.at(n);
            const uint32_t a = r.slot(at), b = a + A_BYTES;
            r.acquire(at);
            load_box(a, &m.a, p.m, kb * K, r.full(at));
            load_box_to(3, b + rank * HALF_B, &m.b, kb * K, p.n + rank * N / 2, r.full(at));
        }
    }
}

/* Returns where a lane's row of sixteen bytes begins in a stage of a. Of 16 rows, matrices 0 and 1
 * are 0 1 4 5 10 11 14 15 and 2 3 6 7 8 9 12 13: so each has every swizzle once, and a lane's rows
 * are neighbours. */
__device__ __forceinline__ uint32_t row_of_lane(int group)
{
    int lane = threadIdx.x % 32, chunk = 4 * group + threadIdx.x / 32 % 4;
    int matrix = lane / 8, r = lane % 8;
    int row = matrix / 2 * 16 + r / 2 * 4 + r % 2 + 2 * (matrix % 2 ^ r / 4);

    static_assert(M == 128, "a row of a stage is one of the swizzle's");
    return swizzle128(row, chunk);
}

/* A half of a stage: steps H, H + 1. */
template <int H> __device__ __forceinline__ void load_half(uint32_t (&a)[STEPS][4], uint32_t from)
{
#pragma unroll
    for (int i = H; i < H + STEPS / 2; i++)
        load_transposed(a[i], from + i * 32 * M);
}

/* Two columns of four rows each, from two registers with two rows of both; the upper lanes' rows
 * lie the other way around. */
__device__ __forceinline__ void sort_bytes(uint32_t (&a)[4], bool upper)
{
    uint32_t even = upper ? 0x2064 : 0x6420, odd = upper ? 0x3175 : 0x7531;
    uint32_t r[4] = { __byte_perm(a[0], a[1], even), __byte_perm(a[0], a[1], odd),
                      __byte_perm(a[2], a[3], even), __byte_perm(a[2], a[3], odd) };
#pragma unroll
    for (int i = 0; i < 4; i++)
        a[i] = r[i];
}

enum operands { E5M2_E4M3, E4M3_E5M2, E4M3_E4M3 }; /* of a and b */

template <int H, enum operands OF>
__device__ __forceinline__ void multiply_half(float (&part)[SUMS], uint32_t (&a)[STEPS][4],
                                              uint64_t b, bool upper)
{
#pragma unroll
    for (int i = H; i < H + STEPS / 2; i++)
        sort_bytes(a[i], upper);
    wgmma_begin();
#pragma unroll
    for (int i = H; i < H + STEPS / 2; i++)
        if (OF == E4M3_E4M3)
            wgmma_rows_e4m3_e4m3(part, a[i], b + 2 * i, i);
        else if (OF == E4M3_E5M2)
            wgmma_rows_e4m3_e5m2(part, a[i], b + 2 * i, i);
        else
            wgmma_rows_e5m2_e4m3(part, a[i], b + 2 * i, i);
    wgmma_commit();
}

/* Half of a's registers are loaded while the products of the other half run; between the last of a
 * stage and the first of the next the tensor cores work for the other warpgroup. */
template <enum operands OF>
__device__ __forceinline__ void sum_products(float (&sum)[SUMS], const ring &r, uint32_t n,
                                             int stages, int group)
{
    enum { LOWER = 0, UPPER = STEPS / 2 };
    uint32_t row = row_of_lane(group), a[STEPS][4];
    bool upper = threadIdx.x % 4 >= 2;
    float part[SUMS];

#pragma unroll
    for (int i = 0; i < SUMS; i++)
        sum[i] = 0;
    r.wait(r.at(n));
    load_half<LOWER>(a, r.slot(r.at(n)) + row);
#pragma unroll 1
    for (int left = stages; left; left--, n++) {
        const place at = r.at(n);
        uint64_t b = operand<false>(r.slot(at) + A_BYTES);
        multiply_half<LOWER, OF>(part, a, b, upper);
        load_half<UPPER>(a, r.slot(at) + row);
        multiply_half<UPPER, OF>(part, a, b, upper);
        if (left > 1)
            r.wait(r.at(n + 1));
        wgmma_wait<1>();
        if (left > 1)
            load_half<LOWER>(a, r.slot(r.at(n + 1)) + row);
        wgmma_wait<0>();
        keep(part);
        r.release(at);
#pragma unroll
        for (int i = 0; i < SUMS; i++)
            sum[i] += part[i];
    }
}

__device__ __forceinline__ float2 read_pair(const float *p) { return *(const float2 *)p; }
__device__ __forceinline__ float2 read_pair(const bf16 *p)
{
    uint32_t u = *(const uint32_t *)p;
    return make_float2(bf16_lo(u), bf16_hi(u));
}
__device__ __forceinline__ void write_pair(float *p, float2 x) { *(float2 *)p = x; }
__device__ __forceinline__ void write_pair(bf16 *p, float2 x)
{
    *(uint32_t *)p = bf16_pack(x.x, x.y);
}

/* Columns of out and its first row, of a lane; the part of k. */
struct lane_part {
    int m, n, part;
    __device__ lane_part(const out_tile &p, int group)
    {
        int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
        m = p.m + 64 * group + 16 * warp + lane / 4 * 2;
        n = p.n + lane % 4 * 2;
        part = p.part;
    }
};

/* Sums of 8 rows of out a step: a lane has two neighbours of two of them. */
template <typename OUT, bool ADD>
__device__ __forceinline__ void write_tile(const float (&sum)[SUMS], const work &k,
                                           const lane_part &p)
{
    enum { FLIGHT = 8 };
    OUT *to = (OUT *)k.out + p.m;

    if (p.m >= k.m)
        return;
#pragma unroll
    for (int j = 0; j < N / 8; j += FLIGHT) {
        float2 old[2 * FLIGHT];
#pragma unroll
        for (int i = 0; i < 2 * FLIGHT; i++) {
            int row = p.n + 8 * (j + i / 2) + i % 2;
            old[i] = make_float2(0, 0);
            if (ADD && row < k.n)
                old[i] = read_pair(to + (int64_t)row * k.m);
        }
#pragma unroll
        for (int i = 0; i < 2 * FLIGHT; i++) {
            int row = p.n + 8 * (j + i / 2) + i % 2;
            const float *s = sum + 4 * (j + i / 2) + i % 2;
            if (row < k.n)
                write_pair(to + (int64_t)row * k.m, make_float2(fmaf(k.alpha, s[0], old[i].x),
                                                                fmaf(k.alpha, s[2], old[i].y)));
        }
    }
}

/* The transposed tile: a lane has two neighbours of each of its two rows of out, 8 columns a step. */
__device__ __forceinline__ void write_turned(const float (&sum)[SUMS], const work &k,
                                             const lane_part &p)
{
    float *to = (float *)k.out + ((int64_t)p.part * k.m + p.m) * k.n + p.n;

    if (p.m >= k.m)
        return;
#pragma unroll
    for (int j = 0; j < N / 8; j++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            if (p.n + 8 * j < k.n)
                write_pair(
                    to + (int64_t)h * k.n + 8 * j,
                    make_float2(k.alpha * sum[4 * j + 2 * h], k.alpha * sum[4 * j + 2 * h + 1]));
}

template <typename OUT, bool ADD, bool TURNED, enum operands OF>
__device__ void consume(const ring &r, const work &k, int group)
{
    float sum[SUMS];
    uint32_t n = 0;

    for (int i = 0; out_tile(k, i).exists; i++) {
        const int stages = out_tile(k, i).stages;
        sum_products<OF>(sum, r, n, stages, group);
        n += stages;
        if constexpr (TURNED)
            write_turned(sum, k, lane_part(out_tile(k, i), group));
        else
            write_tile<OUT, ADD>(sum, k, lane_part(out_tile(k, i), group));
    }
}

template <typename OUT, bool ADD, bool TURNED, enum operands OF>
__global__ void __launch_bounds__(ROLE_THREADS, 1)
    transposed_product(const __grid_constant__ maps m, work k)
{
#ifdef SM90_CODE
    extern __shared__ uint8_t memory[];
    const uint32_t stages = stages_from(memory);
    const ring r = { stages, stages + STAGES * STAGE_BYTES };

    if (threadIdx.x == 0)
        r.init(CONSUMERS * WARPGROUP / 32);
    cluster_sync();
    with_roles<40, 232>(
        [&] {
            if (threadIdx.x == 0)
                produce(r, m, k);
        },
        [&](int group) { consume<OUT, ADD, TURNED, OF>(r, k, group); });
    cluster_sync(); /* no CTA leaves while the other one may write into its shared memory */
#endif
}

/* -- host -------------------------------------------------------------------------------- */

template <typename OUT, bool ADD, bool TURNED = false, enum operands OF = E5M2_E4M3>
void launch(struct cuda_ops *c, const maps &m, const work &k)
{
    dim3 grid(min(CLUSTER * k.tiles * k.parts, c->sms / CLUSTER * CLUSTER));

    CUDA_TRY(c, launch_kernel({ grid, ROLE_THREADS, c->stream, SHARED_BYTES, CLUSTER },
                              transposed_product<OUT, ADD, TURNED, OF>, m, k));
}

/* Describes the product and its operands; false after a failure. */
bool describe(struct cuda_ops *c, maps *m, work *k, struct tensor out, int parts, struct tensor b,
              struct tensor a, float alpha)
{
    int columns = div_up(b.rows, N), kblocks = div_up(a.rows, K);
    *k = { .columns = columns,
           .tiles = columns * div_up(a.cols, CLUSTER * M),
           .kblocks = kblocks,
           .parts = parts,
           .each = div_up(kblocks, parts),
           .m = (int)a.cols,
           .n = (int)b.rows,
           .out = out.data,
           .alpha = alpha };
    *m = {};
    assert(b.cols >= a.rows);
    assert((a.dtype != DT_E5M2 || b.dtype != DT_E5M2) && a.cols % 16 == 0 && b.cols % 16 == 0);
    if (c->failed)
        return false;
    if (map_boxes(&m->a, a, K) && map_boxes(&m->b, b, N / 2))
        return true;
    cuda_fail(c, GPT_DEVICE, "operands in fp8 cannot be described to TMA");
    return false;
}

} /* namespace */

void transposed_gemm(struct cuda_ops *c, struct tensor out, struct tensor b, struct tensor a,
                     float alpha, bool add)
{
    maps m;
    work k;

    assert(out.rows == b.rows && out.cols == a.cols && a.dtype == DT_E5M2);
    if (!describe(c, &m, &k, out, 1, b, a, alpha))
        return;
    if (out.dtype == DT_F32)
        (add ? launch<float, true> : launch<float, false>)(c, m, k);
    else
        (add ? launch<bf16, true> : launch<bf16, false>)(c, m, k);
}

int transposed_gemm_parts(const struct cuda_ops *c, int64_t m, int64_t n, int64_t k)
{
    int tiles = div_up(n, N) * div_up(m, CLUSTER * M), kblocks = div_up(k, K), best = 1;
    auto stages = [&](int parts) { /* of the cluster with most, and of writing and reading sums */
                                   return div_up(tiles * parts, max(c->sms / CLUSTER, 1)) *
                                              div_up(kblocks, parts) +
                                          tiles * parts / 6;
    };

    for (int parts = 2; parts <= PARTS_MAX; parts++)
        if ((parts - 1) * div_up(kblocks, parts) < kblocks && stages(parts) < stages(best))
            best = parts;
    return best;
}

void transposed_gemm_turned(struct cuda_ops *c, struct tensor out, struct tensor b, struct tensor a,
                            float alpha)
{
    maps m;
    work k;

    assert(out.rows % a.cols == 0 && out.cols == b.rows && out.dtype == DT_F32 && b.rows % 16 == 0);
    if (!describe(c, &m, &k, out, (int)(out.rows / a.cols), b, a, alpha))
        return;
    (a.dtype == DT_E5M2   ? launch<float, false, true, E5M2_E4M3>
     : b.dtype == DT_E5M2 ? launch<float, false, true, E4M3_E5M2>
                          : launch<float, false, true, E4M3_E4M3>)(c, m, k);
}
