/* relu2_gemm.cu - x w^T with the MLP's squared ReLU, or its derivative, on the way out.
 *
 *   forward    pre = bf16(x w^T), post = max(pre,0)^2       reads x, w; writes post
 *   fp8        pre = bf16(f x8 w8^T), post as forward's     x8, w8 e4m3
 *   fp8 codes  the same, and post8 = e4m3(post / 4)         writes post, post8
 *   backward   dpre = 2 scale (x w^T) max(pre,0)            reads x, w, post; writes dpre
 *              max(pre,0) = sqrt(post), off by 2^-10 of it
 *   backward fp8   the same with f x8 w8^T, x8 e5m2, w8 e4m3; g8 = e5m2(u dpre)    writes g8 too
 *   product    out = f x8 w8^T (+ in), x8 e4m3 or e5m2: the MLP's other products in fp8
 *
 * x (T,K), w (F,K), the rest (T,F), bf16, f32 sums. 2 T F K FLOP: 232 GFLOP at T = 49152, K =
 * 768, F = 3072, 0.30 ms at 770 TFLOP/s, 0.19 at the 1198 of fp8. Bytes: 0.38 GB forward, 0.34 in
 * fp8, 0.49 with codes, 0.68 backward, 0.79 in fp8: 0.09, 0.08, 0.12, 0.16 and 0.19 ms, behind the
 * products.
 *
 * A tile is 128 features x 160 tokens: the product's rows are features, so that its 160
 * columns (tokens) divide T with little waste, and it is turned when it is stored. Blocks are
 * persistent, with three warpgroups:
 *
 *   feeder     one thread loads 128 bytes of each row a stage, 64 of K or in fp8 128 (16 KB of w,
 *              20 KB of x), through a ring of 5;
 *              another loads the tile of post, while the products run
 *   2 workers  alternate: one uses the tensor cores (160 sums a thread), the other converts its
 *              finished tile into bf16 in shared memory, for the copy engine to store; it reads
 *              what has codes from there, 16 features a thread, and stores the codes itself
 *
 * Two blocks of a cluster have the same tokens and neighbouring features: each loads half of
 * the tokens' stage for both. Edges are the copy engine's: it reads zeros and clips writes.
 */
#include "fp8_copy.h"
#include "sm90/relu2_gemm.h"

#include "sm90/sm90.h"
#include "sm90/tensor_map.h"
#include "vec.h"
#include "sm90/wgmma.h"

using namespace sm90;

namespace
{

enum form { FORWARD, BACKWARD, FP8, FP8_CODES, BACKWARD_FP8, SUM, PRODUCT, PRODUCT_E5M2 };
constexpr bool backward(enum form f) { return f == BACKWARD || f == BACKWARD_FP8; }
constexpr bool reads_in(enum form f) { return backward(f) || f == SUM; }
constexpr bool takes_codes(enum form f) { return f >= FP8; }
constexpr bool takes_e5m2(enum form f) { return f == BACKWARD_FP8 || f == PRODUCT_E5M2; }
constexpr bool gives_codes(enum form f) { return f == FP8_CODES || f == BACKWARD_FP8; }
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

/* `in` is post, which backward reads, or what a product is added to. */
struct maps {
    CUtensorMap w, x, in, out;
};

/* Pairs of feature tiles, all pairs; numbers of K in a stage; where codes go, and their rows and columns. In
 * device memory: what the sums are multiplied by, NULL: 1, and u. */
enum { FACTORS = 3 };
struct work {
    int pairs, tiles, kblocks, depth;
    uint8_t *codes;
    int tokens, features;
    const float *factor[FACTORS], *u;
};

struct layout {
    uint32_t ring, tile; /* stages; in, and then out */
    uint32_t full, empty, in_full, in_free; /* barriers */
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
    __device__ out_tile(const work &k, int n)
    {
        int i = blockIdx.x / CLUSTER + n * (gridDim.x / CLUSTER);
        exists = i < k.tiles;
        feature = (i % k.pairs * CLUSTER + cluster_rank()) * FEATURES;
        token = i / k.pairs * TOKENS;
    }
};

__device__ void feed(const layout &l, const maps &m, const work &k)
{
    uint32_t it = 0;
    int rank = cluster_rank();

    for (int n = 0; out_tile(k, n).exists; n++) {
        out_tile p(k, n);
        for (int kb = 0; kb < k.kblocks; kb++, it++) {
            int s = it % STAGES;
            barrier_wait(l.empty + 8 * s, (it / STAGES & 1) ^ 1);
            barrier_expect(l.full + 8 * s, STAGE_BYTES);
            load_box(l.w(s), &m.w, kb * k.depth, p.feature, l.full + 8 * s);
            load_box_to(3, l.x(s) + rank * HALF_X, &m.x, kb * k.depth, p.token + rank * TOKENS / 2,
                        l.full + 8 * s);
        }
    }
}

__device__ void feed_in(const layout &l, const maps &m, const work &k)
{
    for (int n = 0; out_tile(k, n).exists; n++) {
        out_tile p(k, n);
        barrier_wait(l.in_free, (n & 1) ^ 1);
        barrier_expect(l.in_full, TILE_BYTES);
        for (int i = 0; i < 2; i++)
            load_box(l.tile + i * PANEL_BYTES, &m.in, p.feature + 64 * i, p.token, l.in_full);
    }
}

/* Both blocks' feeders may overwrite the stage when all eight warps have finished reading it. */
__device__ __forceinline__ void let_go(uint32_t empty)
{
    if (threadIdx.x % 32 < CLUSTER)
        barrier_arrive_at(empty, threadIdx.x % 32);
}

/* 32 bytes of K. */
template <enum form FORM>
__device__ __forceinline__ void product(float (&d)[80], uint64_t w, uint64_t x, int add)
{
    if (takes_e5m2(FORM))
        wgmma_e4m3_e5m2(d, w, x, add);
    else if (takes_codes(FORM))
        wgmma_e4m3(d, w, x, add);
    else
        wgmma<false, false>(d, w, x, add);
}

template <enum form FORM>
__device__ __forceinline__ void products(float (&d)[2][80], const layout &l, uint32_t it,
                                         int kblocks)
{
#pragma unroll 4 /* 2 to 4% over none */
    for (int kb = 0; kb < kblocks; kb++, it++) {
        int s = it % STAGES;
        uint64_t w = operand<false>(l.w(s)), x = operand<false>(l.x(s));
        barrier_wait(l.full + 8 * s, it / STAGES & 1);
        wgmma_begin();
#pragma unroll
        for (int i = 0; i < DEPTH_BYTES / 32; i++) {
            product<FORM>(d[0], w + 2 * i, x + 2 * i, kb || i);
            product<FORM>(d[1], w + (64 * 128 >> 4) + 2 * i, x + 2 * i, kb || i);
        }
        wgmma_commit();
        wgmma_wait<1>();
        if (kb)
            let_go(l.empty + 8 * ((it - 1) % STAGES));
    }
}

/* A register of an 8x8 matrix: what it holds of `in`, and the pair of sums d, become what is
 * stored. */
template <enum form FORM>
__device__ __forceinline__ uint32_t finish_pair(uint32_t in, const float *d, float factor)
{
    if (backward(FORM)) {
        float lo = sqrt_approx(bf16_lo(in)), hi = sqrt_approx(bf16_hi(in));
        return bf16_pack(factor * d[0] * lo, factor * d[1] * hi);
    }
    if (FORM == SUM)
        return bf16_pack(factor * d[0] + bf16_lo(in), factor * d[1] + bf16_hi(in));
    if (FORM == PRODUCT || FORM == PRODUCT_E5M2)
        return bf16_pack(factor * d[0], factor * d[1]);
    uint32_t pre =
        takes_codes(FORM) ? bf16_pack(factor * d[0], factor * d[1]) : bf16_pack(d[0], d[1]);
    float lo = relu(bf16_lo(pre)), hi = relu(bf16_hi(pre));
    return bf16_pack(lo * lo, hi * hi);
}

/* The sums of 64 features into the tile: 16 features and 16 tokens a warp and step, five steps'
 * loads in flight. */
template <enum form FORM>
__device__ __forceinline__ void finish_panel(uint32_t tile, const float (&d)[80], float factor)
{
    enum { FLIGHT = 5, STEP = 16 * 128 };

#pragma unroll
    for (int j = 0; j < TOKENS / 16; j += FLIGHT) {
        uint32_t x[FLIGHT][4];
        if (reads_in(FORM))
#pragma unroll
            for (int i = 0; i < FLIGHT; i++)
                load_turned(x[i], tile + (j + i) * STEP);
#pragma unroll
        for (int i = 0; i < FLIGHT; i++) {
#pragma unroll
            for (int m = 0; m < 4; m++)
                x[i][m] = finish_pair<FORM>(x[i][m], d + 8 * (j + i) + 2 * m, factor);
            store_turned(tile + (j + i) * STEP, x[i]);
        }
    }
}

template <enum form FORM>
__device__ __forceinline__ void finish(const layout &l, const float (&d)[2][80], float factor)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, matrix = lane / 8;
    uint32_t chunk = 2 * warp + matrix % 2, token = 8 * (matrix / 2) + lane % 8;
    uint32_t at = token * 128 + ((chunk ^ token % 8) << 4);

    finish_panel<FORM>(l.tile + at, d[0], factor);
    finish_panel<FORM>(l.tile + PANEL_BYTES + at, d[1], factor);
}

__device__ __forceinline__ void store_begin(const layout &l, const maps &m, const out_tile &p)
{
    for (int i = 0; i < 2; i++)
        store_box(&m.out, p.feature + 64 * i, p.token, l.tile + i * PANEL_BYTES);
    stores_commit();
}

/* Codes of eight numbers of the tile, at an address that its panel's swizzle gives. */
template <enum form FORM> __device__ __forceinline__ uint2 codes_at(uint32_t at, float unit)
{
    uint4 u;
    float x[8];

    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(u.x), "=r"(u.y), "=r"(u.z), "=r"(u.w)
                 : "r"(at)
                 : "memory");
    unpack8(x, u);
#pragma unroll
    for (int i = 0; i < 8; i++)
        x[i] *= unit;
    return FORM == BACKWARD_FP8 ? pack_e5m2(x) : pack_e4m3(x);
}

/* Eight threads take a token's 128 features, four of each panel; those of the second read their two
 * chunks in the other order, so that the eight read all banks. */
template <enum form FORM>
__device__ __forceinline__ void write_codes(const layout &l, const work &k, const out_tile &p)
{
    float unit = FORM == BACKWARD_FP8 ? *k.u : 1.0f / FP8_POST_UNIT;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, panel = lane / 4 % 2;
    int chunk = lane % 4 * 2, feature = p.feature + 64 * panel + 8 * chunk;
    uint32_t row = l.tile + panel * PANEL_BYTES;

#pragma unroll 5
    for (int i = 0; i < TOKENS / 16; i++) {
        int t = 16 * i + 4 * warp + lane / 8;
        uint2 a = codes_at<FORM>(row + t * 128 + (((chunk + panel) ^ t % 8) << 4), unit);
        uint2 b = codes_at<FORM>(row + t * 128 + (((chunk + 1 - panel) ^ t % 8) << 4), unit);
        if (p.token + t < k.tokens && feature < k.features)
            store16(k.codes + (int64_t)(p.token + t) * k.features + feature,
                    panel ? make_uint4(b.x, b.y, a.x, a.y) : make_uint4(a.x, a.y, b.x, b.y));
    }
}

template <enum form FORM>
__device__ void do_work(const layout &l, const maps &m, const work &k, int worker)
{
    float d[2][80];
    float factor = backward(FORM) ? 2 : 1;
    for (int i = 0; i < FACTORS; i++)
        factor *= k.factor[i] ? *k.factor[i] : 1;
    int other = 1 - worker;

    if (worker == 1) { /* the first turns are worker 0's */
        named_arrive(TURN, 2 * WORKER);
        named_arrive(STAGING, 2 * WORKER);
    }
    for (int n = worker; out_tile(k, n).exists; n += 2) {
        uint32_t it = n * k.kblocks;
        named_wait(TURN + worker, 2 * WORKER);
        products<FORM>(d, l, it, k.kblocks);
        named_arrive(TURN + other, 2 * WORKER);
        wgmma_wait<0>();
        let_go(l.empty + 8 * ((it + k.kblocks - 1) % STAGES));

        named_wait(STAGING + worker, 2 * WORKER);
        if (reads_in(FORM))
            barrier_wait(l.in_full, n & 1);
        finish<FORM>(l, d, factor);
        shared_written();
        named_wait(WRITTEN + worker, WORKER);
        if (threadIdx.x % WORKER == 0)
            store_begin(l, m, out_tile(k, n));
        __syncwarp();
        if (gives_codes(FORM)) {
            write_codes<FORM>(l, k, out_tile(k, n));
            if (reads_in(FORM)) /* the next tile of `in` is loaded over this one */
                named_wait(WRITTEN + worker, WORKER);
        }
        if (threadIdx.x % WORKER == 0) {
            stores_read();
            if (reads_in(FORM))
                barrier_arrive(l.in_free);
        }
        __syncwarp();
        named_arrive(STAGING + other, 2 * WORKER);
    }
}

template <enum form FORM>
__global__ void SM90_CLUSTER(CLUSTER) __launch_bounds__(THREADS, 1)
    relu2_gemm(const __grid_constant__ maps m, work k)
{
#ifdef SM90_CODE
    extern __shared__ uint8_t memory[];
    layout l(memory);
    int group = threadIdx.x / WORKER;

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
    if (group == 0) {
        fewer_registers<40>();
        if (threadIdx.x == 0)
            feed(l, m, k);
        if (reads_in(FORM) && threadIdx.x == 32)
            feed_in(l, m, k);
        __syncwarp();
    } else {
        more_registers<232>();
        do_work<FORM>(l, m, k, group - 1);
    }
    cluster_sync(); /* a block must not exit while the other may write into its shared memory */
#endif
}

/* -- host -------------------------------------------------------------------------------- */

/* Numbers of t in 128 bytes. */
int depth_of(struct tensor t) { return t.dtype == DT_BF16 ? 64 : 128; }

/* Boxes of 128 bytes of columns, swizzled, and `rows` rows. */
bool map_of(CUtensorMap *map, struct tensor t, int rows)
{
    const cuuint64_t size[2] = { (cuuint64_t)t.cols, (cuuint64_t)t.rows };
    const cuuint64_t stride[1] = { (cuuint64_t)tensor_bytes(tensor_rows(t, 0, 1)) };
    const cuuint32_t box[2] = { (cuuint32_t)depth_of(t), (cuuint32_t)rows }, step[2] = { 1, 1 };
    encode_fn encode = tensor_map_encoder();

    return encode && encode(map,
                            t.dtype == DT_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                               : CU_TENSOR_MAP_DATA_TYPE_UINT8,
                            2, t.data, size, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                            CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                            CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <enum form FORM> void launch(struct cuda_ops *c, const maps &m, const work &k)
{
    int blocks = min(CLUSTER * k.tiles, c->sms / CLUSTER * CLUSTER);

    if (!CUDA_TRY(c,
                  cudaFuncSetAttribute(relu2_gemm<FORM>,
                                       cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES)))
        return;
    relu2_gemm<FORM><<<blocks, THREADS, SHARED_BYTES, c->stream>>>(m, k);
    CUDA_LAUNCHED(c);
}

/* What a launch works on; in, codes: where its form has them. */
struct tensors {
    struct tensor out, x, w, in, codes;
};

/* Describes the tensors and runs the kernel. */
template <enum form FORM>
void run(struct cuda_ops *c, const tensors &t, const float *f0 = NULL, const float *f1 = NULL,
         const float *f2 = NULL, const float *u = NULL)
{
    int pairs = div_up(t.w.rows, CLUSTER * FEATURES), depth = depth_of(t.x);
    work k = { .pairs = pairs,
               .tiles = pairs * div_up(t.x.rows, TOKENS),
               .kblocks = div_up(t.x.cols, depth),
               .depth = depth,
               .codes = (uint8_t *)t.codes.data,
               .tokens = (int)t.x.rows,
               .features = (int)t.w.rows,
               .factor = { f0, f1, f2 },
               .u = u };
    maps m = {};

    assert(t.x.cols == t.w.cols && t.x.cols % 8 == 0 && t.w.rows % 8 == 0);
    assert(depth == depth_of(t.w) && t.out.rows == t.x.rows && t.out.cols == t.w.rows);
    if (c->failed)
        return;
    if (map_of(&m.w, t.w, FEATURES) && map_of(&m.x, t.x, TOKENS / 2) &&
        (!reads_in(FORM) || map_of(&m.in, t.in, TOKENS)) && map_of(&m.out, t.out, TOKENS))
        launch<FORM>(c, m, k);
    else
        cuda_fail(c, GPT_DEVICE, "the MLP's tensors cannot be described to the copy engine");
}

} /* namespace */

void relu2_gemm_forward(struct cuda_ops *c, struct tensor post, struct tensor x, struct tensor w)
{
    run<FORWARD>(c, { post, x, w });
}

void relu2_gemm_fp8(struct cuda_ops *c, struct tensor post, struct tensor post8, struct tensor x8,
                    struct tensor w8, const float *f)
{
    if (post8.data)
        run<FP8_CODES>(c, { post, x8, w8, {}, post8 }, f);
    else
        run<FP8>(c, { post, x8, w8 }, f);
}

void relu2_gemm_backward(struct cuda_ops *c, struct tensor dpre, struct tensor x, struct tensor w,
                         const float *scale, struct tensor post)
{
    run<BACKWARD>(c, { dpre, x, w, post }, scale);
}

void relu2_gemm_backward_fp8(struct cuda_ops *c, struct tensor dpre, struct tensor g8,
                             struct tensor x8, struct tensor w8, const float *scale, const float *f,
                             const float *u, struct tensor post)
{
    run<BACKWARD_FP8>(c, { dpre, x8, w8, post, g8 }, scale, f, NULL, u);
}

void gemm_fp8(struct cuda_ops *c, struct tensor out, struct tensor x8, struct tensor w8,
              const float *x_scale, const float *w_scale, const float *scale, struct tensor in)
{
    assert(x8.dtype == DT_E4M3 || !in.data);
    if (in.data)
        run<SUM>(c, { out, x8, w8, in }, x_scale, w_scale, scale);
    else if (x8.dtype == DT_E4M3)
        run<PRODUCT>(c, { out, x8, w8 }, x_scale, w_scale, scale);
    else
        run<PRODUCT_E5M2>(c, { out, x8, w8 }, x_scale, w_scale, scale);
}
