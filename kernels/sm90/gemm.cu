/* gemm.cu - x w^T (gemm.cuh) with the MLP's squared ReLU or its derivative, a residual, or nothing
 * as epilogue.
 *
 *   RELU2           pre = bf16(x w^T), post = max(pre,0)^2       reads x, w; writes post
 *   RELU2_FP8       pre = bf16(f x8 w8^T), post as RELU2's       x8, w8 e4m3
 *   RELU2_CODES     the same, and post8 = e4m3(post / 4)         writes post, post8
 *   RELU2_BWD       dpre = 2 scale (x w^T) max(pre,0)            reads x, w, post; writes dpre
 *                   max(pre,0) = sqrt(post), off by 2^-10 of it
 *   RELU2_BWD_FP8   the same with f x8 w8^T, x8 e5m2, w8 e4m3; g8 = e5m2(u dpre)    writes g8 too
 *   BIAS_RELU2      post = max(scale x w^T + b,0)^2              reads x, w, b; writes post
 *   BIAS_SUM        out = scale x w^T + b + in                   reads x, w, b, in
 *   BIAS_RELU2_BWD  dpre as RELU2_BWD's, w (K,F), and of each tile the sums over its tokens, f32
 *   SUM, SUM_FP8    out = scale x w^T + in, of bf16 or of e4m3   reads x, w, in
 *   E4M3, E5M2      out = f x8 w8^T, x8 of that type: the MLP's other products in fp8
 *
 * x (T,K), w (F,K), the rest (T,F), bf16, f32 sums. 2 T F K FLOP: 232 GFLOP at T = 49152, K =
 * 768, F = 3072, 0.30 ms at 770 TFLOP/s, 0.19 at the 1198 of fp8. Bytes: 0.38 GB forward, 0.34 in
 * fp8, 0.49 with codes, 0.68 backward, 0.79 in fp8: 0.09, 0.08, 0.12, 0.16 and 0.19 ms, behind the
 * products.
 *
 * TMA stores the finished tile of bf16 from shared memory; codes are made of what lies there, 16
 * features a thread, which stores them itself.
 */
#include "sm90/gemm.h"

#include "fp8_copy.h"
#include "sm90/gemm.cuh"
#include "vec.h"

namespace
{

enum form {
    RELU2,
    RELU2_BWD,
    SUM,
    BIAS_RELU2,
    BIAS_SUM,
    BIAS_RELU2_BWD,
    RELU2_FP8,
    RELU2_CODES,
    RELU2_BWD_FP8,
    SUM_FP8,
    E4M3,
    E5M2
};
constexpr bool backward(enum form f)
{
    return f == RELU2_BWD || f == RELU2_BWD_FP8 || f == BIAS_RELU2_BWD;
}
constexpr bool adds(enum form f) { return f == SUM_FP8 || f == SUM || f == BIAS_SUM; }
constexpr bool has_bias(enum form f) { return f == BIAS_RELU2 || f == BIAS_SUM; }
constexpr bool reads_in(enum form f) { return backward(f) || adds(f); }
constexpr bool takes_codes(enum form f) { return f >= RELU2_FP8; }
constexpr enum operands operands_of(enum form f)
{
    return f == RELU2_BWD_FP8 || f == E5M2 ? E4M3_E5M2 : takes_codes(f) ? E4M3_E4M3 : BF16_BF16;
}
constexpr bool gives_codes(enum form f) { return f == RELU2_CODES || f == RELU2_BWD_FP8; }

/* Returns a register of an 8x8 matrix of the finished tile, from what it holds of `in`, its two
 * sums d and their feature's bias. */
template <enum form FORM>
__device__ __forceinline__ uint32_t finish_pair(uint32_t in, const float *d, float factor,
                                                float bias)
{
    if (FORM == BIAS_SUM)
        return bf16_pack(factor * d[0] + bias + bf16_lo(in), factor * d[1] + bias + bf16_hi(in));
    if (FORM == BIAS_RELU2) {
        float lo = relu(factor * d[0] + bias), hi = relu(factor * d[1] + bias);
        return bf16_pack(lo * lo, hi * hi);
    }
    if (backward(FORM)) {
        float lo = sqrt_approx(bf16_lo(in)), hi = sqrt_approx(bf16_hi(in));
        return bf16_pack(factor * d[0] * lo, factor * d[1] * hi);
    }
    if (adds(FORM))
        return bf16_pack(factor * d[0] + bf16_lo(in), factor * d[1] + bf16_hi(in));
    if (FORM == E4M3 || FORM == E5M2)
        return bf16_pack(factor * d[0], factor * d[1]);
    uint32_t pre =
        takes_codes(FORM) ? bf16_pack(factor * d[0], factor * d[1]) : bf16_pack(d[0], d[1]);
    float lo = relu(bf16_lo(pre)), hi = relu(bf16_hi(pre));
    return bf16_pack(lo * lo, hi * hi);
}

/* Returns the codes of eight numbers of the tile. */
template <bool E5M2_CODES> __device__ __forceinline__ uint2 codes_at(uint32_t at, float unit)
{
    float x[8];

    unpack8(x, tile_vector(at));
#pragma unroll
    for (int i = 0; i < 8; i++)
        x[i] *= unit;
    return E5M2_CODES ? pack_e5m2(x) : pack_e4m3(x);
}

enum { FACTORS = 3 };
template <enum form FORM> struct epilogue {
    static constexpr enum operands OF = operands_of(FORM);
    static constexpr bool W_IN_OUT = FORM == BIAS_RELU2_BWD;
    static constexpr bool READS = reads_in(FORM);
    static constexpr bool CLEARS = false;

    uint8_t *codes;
    int tokens, features;
    const float *factors[FACTORS], *u; /* in device memory; factors: NULL: 1 */
    const void *bias; /* (F) */
    bool bias_f32;
    float *sums; /* (tiles of tokens, F): of what BIAS_RELU2_BWD writes; or NULL */
    bool codes_alone; /* RELU2_BWD_FP8: the tile itself is not written */
    uint8_t *post8; /* RELU2_BWD_FP8: codes of `in`, or NULL */

    __device__ __forceinline__ float factor() const
    {
        float f = backward(FORM) ? 2 : 1;
        for (int i = 0; i < FACTORS; i++)
            f *= factors[i] ? *factors[i] : 1;
        return f;
    }

    /* Eight threads take a token's 128 features, four of each panel; those of the second read their
     * two chunks in the other order, so that the eight read all banks. */
    template <bool E5M2_CODES>
    __device__ __forceinline__ void write_codes(const layout &l, const out_tile &p, uint8_t *to,
                                                float unit) const
    {
        int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, panel = lane / 4 % 2;
        int chunk = lane % 4 * 2, feature = p.feature + 64 * panel + 8 * chunk;
        uint32_t row = l.tile + panel * PANEL_BYTES;

#pragma unroll(E5M2_CODES == (FORM == RELU2_BWD_FP8) ? 5 : 1) /* the sums are in registers */
        for (int i = 0; i < TOKENS / 16; i++) {
            int t = 16 * i + 4 * warp + lane / 8;
            uint2 a = codes_at<E5M2_CODES>(tile_at(row, t, chunk + panel), unit);
            uint2 b = codes_at<E5M2_CODES>(tile_at(row, t, chunk + 1 - panel), unit);
            if (p.token + t < tokens && feature < features)
                store16(to + (int64_t)(p.token + t) * features + feature,
                        panel ? make_uint4(b.x, b.y, a.x, a.y) : make_uint4(a.x, a.y, b.x, b.y));
        }
    }
    /* Returns the feature of a thread's sums in half i % 2 of panel i / 2. */
    static __device__ __forceinline__ int feature_of(const out_tile &p, int i)
    {
        int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
        return p.feature + 64 * (i / 2) + 16 * warp + 8 * (i % 2) + lane / 4;
    }
    /* The sums of a tile's tokens: a feature's lie in the four lanes of its row. */
    __device__ __forceinline__ void write_sums(float (&sum)[2][2], const out_tile &p) const
    {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int feature = feature_of(p, i);
            float s = sum[i / 2][i % 2];
            s += __shfl_xor_sync(~0u, s, 1);
            s += __shfl_xor_sync(~0u, s, 2);
            if (threadIdx.x % 4 == 0 && feature < features)
                sums[(int64_t)(p.token / TOKENS) * features + feature] = s;
        }
    }
    __device__ __forceinline__ void ahead(const out_tile &) const {}
    __device__ __forceinline__ void finish(const layout &l, const maps &m, const float (&d)[2][80],
                                           float factor, int n, const out_tile &p, int group) const
    {
        float b[2][2] = {}, sum[2][2] = {};

        if (has_bias(FORM))
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int feature = feature_of(p, i);
                b[i / 2][i % 2] = feature < features ? load_any(bias, bias_f32, feature) : 0;
            }
        if (READS)
            barrier_wait(l.in_full, n & 1);
        if (FORM == RELU2_BWD_FP8 && post8) { /* before the tile is overwritten */
            write_codes<false>(l, p, post8, 1.0f / FP8_POST_UNIT);
            named_wait(WRITTEN + group, WARPGROUP);
        }
#pragma unroll
        for (int i = 0; i < 2; i++)
            transpose_panel<READS>(
                l.tile + i * PANEL_BYTES, d[i], [&](uint32_t in, const float *two, int half) {
                    uint32_t out = finish_pair<FORM>(in, two, factor, b[i][half]);
                    if (FORM == BIAS_RELU2_BWD)
                        sum[i][half] += bf16_lo(out) + bf16_hi(out);
                    return out;
                });
        if (FORM == BIAS_RELU2_BWD && sums)
            write_sums(sum, p);
        shared_written();
        named_wait(WRITTEN + group, WARPGROUP);
        if (threadIdx.x % WARPGROUP == 0 && !(FORM == RELU2_BWD_FP8 && codes_alone)) {
            for (int i = 0; i < 2; i++)
                store_box(&m.out, p.feature + 64 * i, p.token, l.tile + i * PANEL_BYTES);
            stores_commit();
        }
        __syncwarp();
        if (gives_codes(FORM)) {
            if (FORM == RELU2_BWD_FP8)
                write_codes<true>(l, p, codes, *u);
            else
                write_codes<false>(l, p, codes, 1.0f / FP8_POST_UNIT);
            if (READS) /* the next tile of `in` is loaded over this one */
                named_wait(WRITTEN + group, WARPGROUP);
        }
        if (threadIdx.x % WARPGROUP == 0) {
            stores_read();
            if (READS)
                barrier_arrive(l.in_empty);
        }
        __syncwarp();
    }
};

/* -- host -------------------------------------------------------------------------------- */

/* The operands of a launch; in, codes: where its epilogue has them. */
struct tensors {
    struct tensor out, x, w, in, codes, bias;
    float *sums;
    bool codes_alone;
    struct tensor post8;
};

template <enum form FORM>
void run(struct cuda_ops *c, const tensors &t, const float *f0 = NULL, const float *f1 = NULL,
         const float *f2 = NULL, const float *u = NULL)
{
    assert(t.out.rows == t.x.rows && t.out.cols == (FORM == BIAS_RELU2_BWD ? t.w.cols : t.w.rows));
    gemm_launch(c, t.x, t.w, t.in, t.out,
                epilogue<FORM>{ (uint8_t *)t.codes.data,
                                (int)t.x.rows,
                                (int)t.out.cols,
                                { f0, f1, f2 },
                                u,
                                t.bias.data,
                                t.bias.dtype == DT_F32,
                                t.sums,
                                t.codes_alone,
                                (uint8_t *)t.post8.data });
}

} /* namespace */

void gemm_relu2(struct cuda_ops *c, struct tensor post, struct tensor post8, struct tensor x,
                struct tensor w, const float *f)
{
    if (x.dtype == DT_BF16)
        run<RELU2>(c, { post, x, w });
    else if (post8.data)
        run<RELU2_CODES>(c, { post, x, w, {}, post8 }, f);
    else
        run<RELU2_FP8>(c, { post, x, w }, f);
}

void gemm_relu2_bwd(struct cuda_ops *c, struct tensor dpre, struct tensor g8, struct tensor post8,
                    struct tensor x, struct tensor w, const float *scale, const float *f,
                    const float *u, struct tensor post, bool alone)
{
    if (x.dtype == DT_BF16)
        run<RELU2_BWD>(c, { dpre, x, w, post }, scale);
    else
        run<RELU2_BWD_FP8>(c, { dpre, x, w, post, g8, {}, NULL, alone, post8 }, scale, f, NULL, u);
}

void gemm_sum(struct cuda_ops *c, struct tensor out, struct tensor x, struct tensor w,
              const float *scale, struct tensor in)
{
    run<SUM>(c, { out, x, w, in }, scale);
}

void gemm_bias(struct cuda_ops *c, struct tensor out, struct tensor x, struct tensor w,
               const float *scale, struct tensor bias, struct tensor in)
{
    if (in.data)
        run<BIAS_SUM>(c, { out, x, w, in, {}, bias }, scale);
    else
        run<BIAS_RELU2>(c, { out, x, w, {}, {}, bias }, scale);
}

size_t gemm_sums_rows(int64_t tokens) { return (size_t)div_up(tokens, TOKENS); }

void gemm_bias_relu2_bwd(struct cuda_ops *c, struct tensor dpre, float *sums, struct tensor x,
                         struct tensor w, const float *scale, struct tensor post)
{
    run<BIAS_RELU2_BWD>(c, { dpre, x, w, post, {}, {}, sums }, scale);
}

void gemm_fp8(struct cuda_ops *c, struct tensor out, struct tensor x8, const float *x_scale,
              struct fp8_weight w8, const float *scale, struct tensor in)
{
    assert(x8.dtype == DT_E4M3 || !in.data);
    if (in.data)
        run<SUM_FP8>(c, { out, x8, w8.codes, in }, x_scale, w8.scale, scale);
    else if (x8.dtype == DT_E4M3)
        run<E4M3>(c, { out, x8, w8.codes }, x_scale, w8.scale, scale);
    else
        run<E5M2>(c, { out, x8, w8.codes }, x_scale, w8.scale, scale);
}
