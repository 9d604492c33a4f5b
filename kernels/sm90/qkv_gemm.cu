/* qkv_gemm.cu - q, k, v from a layer's input: the projections of op qkv, finished where they are
 * made.
 *
 * A tile (gemm.cuh) is one head of q, k or v, 128 features, or two heads of q or k of 64, for 160 tokens. Its sums times
 * the scale are transposed into bf16 in shared memory; eight threads then take a token's row: the norm
 * is three shuffles, a rotation stays in a thread, and rows of q, k (offset channels a row further)
 * or v are stored from registers. Meanwhile the other consumer's products run, 7,700 cycles at K =
 * 768.
 *
 * 6 T D² FLOP: 174 GFLOP at T = 49152, D = 768, 0.23 ms at 770 TFLOP/s, 0.145 at the 1198 of codes in e4m3. Reads x and w, writes q, k,
 * v: 4 T D numbers (0.30 GB, 0.07 ms, behind the products) and the table's rows where v takes them.
 * A product and a pass over it moved 10 T D.
 */
#include "sm90/qkv_gemm.h"

#include "qkv.h"
#include "sm90/gemm.cuh"

namespace
{

static_assert(QKV_GEMM_HEAD == (int)FEATURES, "a tile is a head");

/* Steps over a tile, so many of them side by side: a consumer has one warp a scheduler, and a norm
 * alone is a chain of 300 cycles. */
enum { STEPS = TOKENS / 16, GROUP = 5 };

/* A thread's part of a tile: of a token a step 16 channels, eight of each half of the head, so that
 * the eight threads of a token load and store 128 bytes side by side. */
struct part {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;

    __device__ int first() const { return lane % 8 * 8; } /* channel; + 64: the other eight */
    __device__ int token(int step) const { return 16 * step + 4 * warp + lane / 8; }
    /* Loads the tokens of steps i .. + GROUP - 1. */
    __device__ __forceinline__ void load(uint4 (&x)[GROUP][2], uint32_t tile, int i) const
    {
#pragma unroll
        for (int j = 0; j < GROUP; j++) {
            uint32_t at = tile_at(tile, token(i + j), lane % 8);
            x[j][0] = tile_vector(at), x[j][1] = tile_vector(at + PANEL_BYTES);
        }
    }
};

/* The biases of a thread's channels, eight of each half of the head whose features begin at `from`; zeros
 * without. */
__device__ __forceinline__ void load_biases(float (&b)[2][8], const qkv_args &a, int from)
{
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int m = 0; m < 8; m++)
            b[n][m] = a.bias ? load_any(a.bias, a.bias_f32, from + n * (FEATURES / 2) + m) : 0;
}

/* Unpacks 16 numbers of the tile; OTHER: and adds the biases. */
template <bool OTHER>
__device__ __forceinline__ void unpack_row(float (&x)[2][8], const uint4 (&packed)[2],
                                           const float (&b)[2][8])
{
#pragma unroll
    for (int n = 0; n < 2; n++) {
        unpack8(x[n], packed[n]);
#pragma unroll
        for (int m = 0; OTHER && m < 8; m++)
            x[n][m] += b[n][m];
    }
}

/* Finishes a head of q or k: norm, rotation, and its rows of q or k. */
template <bool OTHER>
__device__ __forceinline__ void finish_head(const layout &l, const qkv_args &a, int head, bool key,
                                            int token)
{
    const part mine;
    const int d = a.heads * FEATURES, first = mine.first();
    const bool quarter = key && a.key_offset == KEY_OFFSET_QUARTERS && first >= FEATURES / 4;
    const bool moved[2] = { quarter, quarter || (key && a.key_offset == KEY_OFFSET_HALF) };
    bf16 *const out = (key ? a.k : a.q) + head * FEATURES + first;
    float *const factor = a.factor + (int64_t)(key * a.heads + head) * a.tokens;
    auto angles =
        [&](int step) { /* where the token's row of rope has the lower half's four pairs */
                        int t = min(token + mine.token(step), a.tokens - 1),
                            p = a.paired ? 2 * t + (head & 1) : t;
                        return (int64_t)p * (FEATURES / 2) + first;
        };
    uint4 turn[STEPS]; /* cosine and sine of four pairs of the lower half */
    float b[2][8];

    if (OTHER)
        load_biases(b, a, key * d + head * FEATURES + first);
    else
#pragma unroll
        for (int i = 0; i < STEPS; i++)
            turn[i] = *(const uint4 *)((const bf16 *)a.rope + angles(i));
#pragma unroll
    for (int i = 0; i < STEPS; i += GROUP) {
        uint4 packed[GROUP][2];
        float r[GROUP];
        mine.load(packed, l.tile, i);
#pragma unroll
        for (int j = 0; j < GROUP; j++) {
            float x[2][8];
            unpack_row<OTHER>(x, packed[j], b);
            r[j] = dot8(x[0], x[0]) + dot8(x[1], x[1]);
        }
#pragma unroll
        for (int m = 1; m < 8; m *= 2)
#pragma unroll
            for (int j = 0; j < GROUP; j++)
                r[j] += __shfl_xor_sync(~0u, r[j], m);
#pragma unroll
        for (int j = 0; j < GROUP; j++)
            r[j] = norm_factor(r[j], FEATURES);
#pragma unroll
        for (int j = 0; j < GROUP; j++) {
            const int t = token + mine.token(i + j);
            const uint32_t by[4] = { turn[i + j].x, turn[i + j].y, turn[i + j].z, turn[i + j].w };
            float x[2][8], exact[8];
            unpack_row<OTHER>(x, packed[j], b);
            if (OTHER && a.rope_f32)
                load8(exact, (const float *)a.rope + angles(i + j));
            else if (OTHER)
                load8(exact, (const bf16 *)a.rope + angles(i + j));
#pragma unroll
            for (int m = 0; m < 4; m++) {
                float c = r[j] * (OTHER ? exact[2 * m] : bf16_lo(by[m]));
                float s = r[j] * (OTHER ? exact[2 * m + 1] : bf16_hi(by[m]));
                float even = x[0][2 * m], odd = x[0][2 * m + 1];
                x[0][2 * m] = c * even + s * odd;
                x[0][2 * m + 1] = c * odd - s * even;
            }
#pragma unroll
            for (int m = 0; m < 8; m++)
                x[1][m] *= r[j];
#pragma unroll
            for (int n = 0; n < 2; n++) {
                bf16 *to = out + (int64_t)t * d + n * (FEATURES / 2);
                if (t < a.tokens && (!moved[n] || t == 0))
                    store8(to, x[n]);
                if (t < a.tokens && moved[n] && t + 1 < a.key_rows)
                    store8(to + d, x[n]);
            }
            if (t < a.tokens && a.factor && first == 0)
                factor[t] = r[j];
        }
    }
}

/* Finishes two neighbouring heads of q or k of 64 channels each, all of which turn: those of the first and of the second
 * half of the tile. */
__device__ __forceinline__ void finish_narrow(const layout &l, const qkv_args &a, int head,
                                              bool key, int token)
{
    enum { SIZE = FEATURES / 2 };
    const part mine;
    const int d = a.heads * SIZE, first = mine.first();
    const bool moved = key && key_moves(a.key_offset, first / (SIZE / 4));
    bf16 *const out = (key ? a.k : a.q) + head * SIZE + first;
    float *const factor = a.factor + (int64_t)(key * a.heads + head) * a.tokens;

#pragma unroll
    for (int i = 0; i < STEPS; i += GROUP) {
        uint4 packed[GROUP][2];
        float r[GROUP][2];
        mine.load(packed, l.tile, i);
#pragma unroll
        for (int j = 0; j < GROUP; j++)
#pragma unroll
            for (int n = 0; n < 2; n++) {
                float x[8];
                unpack8(x, packed[j][n]);
                r[j][n] = dot8(x, x);
            }
#pragma unroll
        for (int m = 1; m < 8; m *= 2)
#pragma unroll
            for (int j = 0; j < 2 * GROUP; j++)
                r[j / 2][j % 2] += __shfl_xor_sync(~0u, r[j / 2][j % 2], m);
#pragma unroll
        for (int j = 0; j < GROUP; j++) {
            const int t = token + mine.token(i + j), here = min(t, a.tokens - 1);
#pragma unroll
            for (int n = 0; n < 2; n++) { /* the first head's number is even */
                const int64_t p = a.paired ? 2 * here + n : here;
                const uint4 u = *(const uint4 *)((const bf16 *)a.rope + p * SIZE + first);
                const float f = norm_factor(r[j][n], SIZE);
                bf16 *to = out + (int64_t)t * d + n * SIZE;
                float x[8];
                unpack8(x, packed[j][n]);
#pragma unroll
                for (int m = 0; m < 8; m++)
                    x[m] *= f;
                rotate(x,
                       turn{ { bf16_lo(u.x), bf16_lo(u.y), bf16_lo(u.z), bf16_lo(u.w) },
                             { bf16_hi(u.x), bf16_hi(u.y), bf16_hi(u.z), bf16_hi(u.w) } },
                       1);
                if (t < a.tokens && (!moved || t == 0))
                    store8(to, x);
                if (t < a.tokens && moved && t + 1 < a.key_rows)
                    store8(to + d, x);
                if (t < a.tokens && a.factor && first == 0)
                    factor[(int64_t)n * a.tokens + t] = f;
            }
        }
    }
}

/* Finishes a head of v without a table. */
template <bool OTHER>
__device__ __forceinline__ void finish_values(const layout &l, const qkv_args &a, int head,
                                              int token)
{
    const part mine;
    bf16 *const out = a.v + head * FEATURES + mine.first();
    float b[2][8];

    if (OTHER)
        load_biases(b, a, (2 * a.heads + head) * FEATURES + mine.first());
#pragma unroll
    for (int i = 0; i < STEPS; i += GROUP) {
        uint4 packed[GROUP][2];
        mine.load(packed, l.tile, i);
#pragma unroll
        for (int j = 0; j < GROUP; j++) {
            const int t = token + mine.token(i + j);
            bf16 *to = out + (int64_t)t * a.heads * FEATURES;
            if (OTHER) {
                float x[2][8];
                unpack_row<OTHER>(x, packed[j], b);
                packed[j][0] = pack8(x[0]), packed[j][1] = pack8(x[1]);
            }
            if (t < a.tokens)
                store16(to, packed[j][0]), store16(to + FEATURES / 2, packed[j][1]);
        }
    }
}

/* Finishes a head of v with a table: adds its row's part, times the gate. */
__device__ __forceinline__ void finish_gated_values(const layout &l, const qkv_args &a, int head,
                                                    int token)
{
    const part mine;
    const int d = a.heads * FEATURES, at = head * FEATURES + mine.first();
    int32_t tok[STEPS];
    float w[GATE];

    load_gate(w, a.gate, head);
#pragma unroll
    for (int i = 0; i < STEPS; i++)
        tok[i] = a.tok[min(token + mine.token(i), a.tokens - 1)];
#pragma unroll
    for (int i = 0; i < STEPS; i += GROUP) {
        uint4 e[GROUP][2], packed[GROUP][2];
        float g[GROUP];
#pragma unroll
        for (int j = 0; j < GROUP; j++) {
            const bf16 *of = a.table + (int64_t)tok[i + j] * d;
            const bf16 *y = a.y + (int64_t)min(token + mine.token(i + j), a.tokens - 1) * a.y_width;
            uint4 first = *(const uint4 *)y;
            uint2 last = *(const uint2 *)(y + 8);
            e[j][0] = *(const uint4 *)(of + at);
            e[j][1] = *(const uint4 *)(of + at + FEATURES / 2);
            if (a.split_gate) { /* channels 6 .. 11 are the table row's first six */
                uint4 z = *(const uint4 *)of;
                first.w = z.x, last = make_uint2(z.y, z.z);
            }
            const uint32_t u[GATE / 2] = { first.x, first.y, first.z, first.w, last.x, last.y };
            float z = 0;
#pragma unroll
            for (int m = 0; m < GATE / 2; m++)
                z = fmaf(w[2 * m + 1], bf16_hi(u[m]), fmaf(w[2 * m], bf16_lo(u[m]), z));
            g[j] = 2 * sigmoid(z);
        }
        mine.load(packed, l.tile, i);
#pragma unroll
        for (int j = 0; j < GROUP; j++) {
            const int t = token + mine.token(i + j);
#pragma unroll
            for (int n = 0; n < 2; n++) {
                float x[8], more[8];
                unpack8(x, packed[j][n]);
                unpack8(more, e[j][n]);
#pragma unroll
                for (int m = 0; m < 8; m++)
                    x[m] = fmaf(g[j], more[m], x[m]);
                if (t < a.tokens)
                    store8(a.v + (int64_t)t * d + at + n * (FEATURES / 2), x);
            }
        }
    }
}

/* Asks for the table's rows of a tile of v, which lie in memory: they are in the L2 when the tile's
 * products are done. */
__device__ __forceinline__ void ask_for_rows(const qkv_args &a, int head, int token)
{
    for (int i = threadIdx.x % WARPGROUP; i < TOKENS; i += WARPGROUP)
        if (token + i < a.tokens) {
            const bf16 *row = a.table + ((int64_t)a.tok[token + i] * a.heads + head) * FEATURES;
            prefetch_line(row);
            prefetch_line(row + FEATURES / 2);
        }
}

/* OTHER: biases, if any, and angles of any type; no table. KIND: of the operands. NARROW: heads of q and k have 64
 * channels. */
template <bool OTHER, enum operands KIND = BF16_BF16, bool NARROW = false> struct epilogue {
    static constexpr enum operands OF = KIND;
    static constexpr bool W_IN_OUT = false;
    static constexpr bool READS = false;
    static constexpr bool CLEARS = true; /* else 1,272 bytes spill */

    struct qkv_args a;
    const float *scale; /* device memory; NULL: 1 */
    const float *w_scale; /* of codes, also in device memory, and of x */
    float x_scale;

    /* A tile's head of `which` of q, k, v; 3: none, the second tile of the last pair. */
    __device__ int head(const out_tile &p) const
    {
        const int tile = p.feature / FEATURES;
        return !NARROW ? tile % a.heads : tile < a.heads ? 2 * tile % a.heads : tile - a.heads;
    }
    __device__ int which(const out_tile &p) const
    {
        const int tile = p.feature / FEATURES;
        return !NARROW ? tile / a.heads : tile < a.heads ? 2 * tile / a.heads : 1 + tile / a.heads;
    }

    __device__ __forceinline__ float factor() const
    {
        float f = scale ? *scale : 1;
        return KIND == BF16_BF16 ? f : x_scale * *w_scale * f;
    }
    __device__ __forceinline__ void ahead(const out_tile &p) const
    {
        if (which(p) == 2 && a.table)
            ask_for_rows(a, head(p), p.token);
    }
    __device__ __forceinline__ void finish(const layout &l, const maps &, const float (&d)[2][80],
                                           float factor, int, const out_tile &p, int group) const
    {
        auto pack = [&](uint32_t, const float *two, int) {
            return bf16_pack(factor * two[0], factor * two[1]);
        };

        transpose_panel<false>(l.tile, d[0], pack);
        transpose_panel<false>(l.tile + PANEL_BYTES, d[1], pack);
        named_wait(WRITTEN + group, WARPGROUP);
        if (NARROW && which(p) < 2)
            finish_narrow(l, a, head(p), which(p) == 1, p.token);
        else if (which(p) < 2)
            finish_head<OTHER>(l, a, head(p), which(p) == 1, p.token);
        else if (!OTHER && which(p) == 2 && a.table)
            finish_gated_values(l, a, head(p), p.token);
        else if (which(p) == 2)
            finish_values<OTHER>(l, a, head(p), p.token);
    }
};

} /* namespace */

void qkv_gemm(struct cuda_ops *c, struct tensor x, struct tensor w, const float *scale,
              const struct fp8_operands *codes, const struct qkv_args *a)
{
    assert(a->head_dim == QKV_GEMM_HEAD && !a->pos && !a->slot);
    assert(x.dtype == DT_BF16 && x.rows == a->tokens &&
           w.rows == a->heads * (2 * a->qk_dim + FEATURES));
    if (a->qk_dim < FEATURES) {
        assert(a->qk_dim == FEATURES / 2 && a->turned == a->qk_dim && a->heads % 2 == 0);
        assert(!a->bias && !a->rope_f32);
        if (codes)
            gemm_launch(
                c, codes->x8, codes->w.codes, {}, {},
                epilogue<false, E4M3_E4M3, true>{ *a, scale, codes->w.scale, codes->x_scale });
        else
            gemm_launch(c, x, w, {}, {}, epilogue<false, BF16_BF16, true>{ *a, scale });
    } else if (codes) {
        assert(!a->bias && !a->rope_f32 && codes->x8.rows == x.rows &&
               codes->w.codes.rows == w.rows);
        gemm_launch(c, codes->x8, codes->w.codes, {}, {},
                    epilogue<false, E4M3_E4M3>{ *a, scale, codes->w.scale, codes->x_scale });
    } else if (a->bias || a->rope_f32) {
        assert(!a->table);
        gemm_launch(c, x, w, {}, {}, epilogue<true>{ *a, scale });
    } else {
        gemm_launch(c, x, w, {}, {}, epilogue<false>{ *a, scale });
    }
}
