/* relu2_gemm.cu - x w^T with the MLP's squared ReLU, or its derivative, on the way out.
 *
 *   forward    pre = bf16(x w^T), post = max(pre,0)^2       reads x, w; writes post
 *   fp8        pre = bf16(f x8 w8^T), post as forward's     x8, w8 e4m3
 *   fp8 codes  the same, and post8 = e4m3(post / 4)         writes post, post8
 *   backward   dpre = 2 scale (x w^T) max(pre,0)            reads x, w, post; writes dpre
 *              max(pre,0) = sqrt(post), off by 2^-10 of it
 *   backward fp8   the same with f x8 w8^T, x8 e5m2, w8 e4m3; g8 = e5m2(u dpre)    writes g8 too
 *   sum        out = scale x w^T + in                       reads x, w, in
 *   product    out = f x8 w8^T (+ in), x8 e4m3 or e5m2: the MLP's other products in fp8
 *
 * x (T,K), w (F,K), the rest (T,F), bf16, f32 sums. 2 T F K FLOP: 232 GFLOP at T = 49152, K =
 * 768, F = 3072, 0.30 ms at 770 TFLOP/s, 0.19 at the 1198 of fp8. Bytes: 0.38 GB forward, 0.34 in
 * fp8, 0.49 with codes, 0.68 backward, 0.79 in fp8: 0.09, 0.08, 0.12, 0.16 and 0.19 ms, behind the
 * products.
 *
 * Tiles are product_tiles.cuh's. Another thread of the feeder loads the tile of post, or of in,
 * while the products run. A finished tile is turned into bf16 in shared memory, for TMA to store;
 * what has codes is read from there, 16 features a thread, which stores the codes itself.
 */
#include "fp8_copy.h"
#include "sm90/relu2_gemm.h"

#include "sm90/product_tiles.cuh"
#include "vec.h"

namespace
{

enum form { FORWARD, BACKWARD, BF16_SUM, FP8, FP8_CODES, BACKWARD_FP8, SUM, PRODUCT, PRODUCT_E5M2 };
constexpr bool backward(enum form f) { return f == BACKWARD || f == BACKWARD_FP8; }
constexpr bool adds(enum form f) { return f == SUM || f == BF16_SUM; }
constexpr bool reads_in(enum form f) { return backward(f) || adds(f); }
constexpr bool takes_codes(enum form f) { return f >= FP8; }
constexpr enum operands operands_of(enum form f)
{
    return f == BACKWARD_FP8 || f == PRODUCT_E5M2 ? E4M3_E5M2
           : takes_codes(f)                       ? E4M3_E4M3
                                                  : BF16_BF16;
}
constexpr bool gives_codes(enum form f) { return f == FP8_CODES || f == BACKWARD_FP8; }
/* `in` is post, which backward reads, or what a product is added to. */
struct maps {
    CUtensorMap w, x, in, out;
};

/* Where codes go, and their rows and columns. In device memory: what the sums are multiplied by,
 * NULL: 1, and u. */
enum { FACTORS = 3 };
struct work : tile_work {
    uint8_t *codes;
    int tokens, features;
    const float *factor[FACTORS], *u;
};

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

/* A register of an 8x8 matrix: what it holds of `in`, and the pair of sums d, become what is
 * stored. */
template <enum form FORM>
__device__ __forceinline__ uint32_t finish_pair(uint32_t in, const float *d, float factor)
{
    if (backward(FORM)) {
        float lo = sqrt_approx(bf16_lo(in)), hi = sqrt_approx(bf16_hi(in));
        return bf16_pack(factor * d[0] * lo, factor * d[1] * hi);
    }
    if (adds(FORM))
        return bf16_pack(factor * d[0] + bf16_lo(in), factor * d[1] + bf16_hi(in));
    if (FORM == PRODUCT || FORM == PRODUCT_E5M2)
        return bf16_pack(factor * d[0], factor * d[1]);
    uint32_t pre =
        takes_codes(FORM) ? bf16_pack(factor * d[0], factor * d[1]) : bf16_pack(d[0], d[1]);
    float lo = relu(bf16_lo(pre)), hi = relu(bf16_hi(pre));
    return bf16_pack(lo * lo, hi * hi);
}

template <enum form FORM>
__device__ __forceinline__ void finish(const layout &l, const float (&d)[2][80], float factor)
{
    auto pair = [&](uint32_t in, const float *two) { return finish_pair<FORM>(in, two, factor); };

    turn_panel<reads_in(FORM)>(l.tile, d[0], pair);
    turn_panel<reads_in(FORM)>(l.tile + PANEL_BYTES, d[1], pair);
}

__device__ __forceinline__ void store_begin(const layout &l, const maps &m, const out_tile &p)
{
    for (int i = 0; i < 2; i++)
        store_box(&m.out, p.feature + 64 * i, p.token, l.tile + i * PANEL_BYTES);
    stores_commit();
}

/* Codes of eight numbers of the tile. */
template <enum form FORM> __device__ __forceinline__ uint2 codes_at(uint32_t at, float unit)
{
    float x[8];

    unpack8(x, tile_vector(at));
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
        uint2 a = codes_at<FORM>(tile_at(row, t, chunk + panel), unit);
        uint2 b = codes_at<FORM>(tile_at(row, t, chunk + 1 - panel), unit);
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

    for (int n = worker; out_tile(k, n).exists; n += 2) {
        tile_products<operands_of(FORM)>(d, l, k, n, worker);
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

    tiles_begin(l);
    if (group == 0) {
        fewer_registers<40>();
        if (threadIdx.x == 0)
            feed(l, &m.w, &m.x, k);
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

/* What a launch works on; in, codes: where its form has them. */
struct tensors {
    struct tensor out, x, w, in, codes;
};

template <enum form FORM> void launch(struct cuda_ops *c, const maps &m, const work &k)
{
    int blocks = tile_blocks(c, relu2_gemm<FORM>, k);

    if (!blocks)
        return;
    relu2_gemm<FORM><<<blocks, THREADS, SHARED_BYTES, c->stream>>>(m, k);
    CUDA_LAUNCHED(c);
}

/* Describes the tensors and runs the kernel. */
template <enum form FORM>
void run(struct cuda_ops *c, const tensors &t, const float *f0 = NULL, const float *f1 = NULL,
         const float *f2 = NULL, const float *u = NULL)
{
    work k = { work_of(t.x, t.w), (uint8_t *)t.codes.data, (int)t.x.rows,
               (int)t.w.rows,     { f0, f1, f2 },          u };
    maps m = {};

    assert(t.out.rows == t.x.rows && t.out.cols == t.w.rows);
    if (c->failed)
        return;
    if (map_boxes(&m.w, t.w, FEATURES) && map_boxes(&m.x, t.x, TOKENS / 2) &&
        (!reads_in(FORM) || map_boxes(&m.in, t.in, TOKENS)) && map_boxes(&m.out, t.out, TOKENS))
        launch<FORM>(c, m, k);
    else
        cuda_fail(
            c, GPT_DEVICE,
            "tensors of a product x w^T, x %lld x %lld, w %lld x %lld, cannot be described to "
            "TMA",
            (long long)t.x.rows, (long long)t.x.cols, (long long)t.w.rows, (long long)t.w.cols);
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

void gemm_sum(struct cuda_ops *c, struct tensor out, struct tensor x, struct tensor w,
              const float *scale, struct tensor in)
{
    run<BF16_SUM>(c, { out, x, w, in }, scale);
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
