/* qkv_gemm.cu - q, k, v from a layer's input: the projections of op qkv, finished where they are made.
 *
 * A tile (product_tiles.cuh) is one head of q, k or v, 128 features, for 160 tokens. Its sums times the scale are
 * turned into bf16 in shared memory; eight threads then take a token's row: the norm is three shuffles, a rotation
 * stays in a thread, which stores its 16 channels of q, k (offset channels a row further) or v itself. Meanwhile the
 * other worker's products run, 7,700 cycles at K = 768.
 *
 * 6 T D² FLOP: 174 GFLOP at T = 49152, D = 768, 0.23 ms at 770 TFLOP/s. Reads x and w, writes q, k, v: 4 T D
 * numbers (0.30 GB, 0.07 ms, behind the products) and the table's rows where v takes them. A product and a pass
 * over it moved 10 T D.
 */
#include "sm90/qkv_gemm.h"

#include "qkv.h"
#include "sm90/product_tiles.cuh"

namespace
{

static_assert(QKV_GEMM_HEAD == (int)FEATURES, "a tile is a head");

struct maps {
    CUtensorMap w, x;
};

struct work : tile_work {
    struct qkv_args a;
    const float *scale;
};

enum { AHEAD = 3 }; /* steps whose loads are under way */

__device__ __forceinline__ void store_row(bf16 *to, const uint4 (&x)[2])
{
    store16(to, x[0]);
    store16(to + 8, x[1]);
}

/* Does a thread that has these channels of a key move them to the next token? */
__device__ __forceinline__ bool moves(enum key_offset which, int first)
{
    int quarter = first / (FEATURES / 4);
    return which == KEY_OFFSET_QUARTERS ? quarter % 2 : which == KEY_OFFSET_HALF && quarter >= 2;
}

/* Of a head of q or k: norm, rotation, and the rows of q or k. */
__device__ __forceinline__ void finish_head(const layout &l, const qkv_args &a, int head, bool key,
                                            int token)
{
    const tile_row row;
    const int d = a.heads * FEATURES, first = row.first();
    const bool rotates = first < FEATURES / 2, moved = key && moves(a.key_offset, first);
    bf16 *const out = (key ? a.k : a.q) + head * FEATURES + first;
    float *const factor = a.factor + (int64_t)(key * a.heads + head) * a.tokens;

    uint4 cosine[row.ROWS], sine[row.ROWS]; /* of the lower half; the upper loads what is there */
    auto load = [&](int i) {
        int t = min(token + row.token(i), a.tokens - 1), p = a.paired ? 2 * t + (head & 1) : t;
        const bf16 *turn = a.rope + (int64_t)p * (FEATURES / 2) + first % (FEATURES / 2) / 2;
        cosine[i] = *(const uint4 *)turn;
        sine[i] = *(const uint4 *)(turn + FEATURES / 4);
    };

#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        load(i);
#pragma unroll
    for (int i = 0; i < row.ROWS; i++) {
        const int t = token + row.token(i);
        uint4 packed[2];
        float x[2][8], c[8], s[8];
        if (i + AHEAD < row.ROWS)
            load(i + AHEAD);
        row.load(packed, l.tile, i);
        unpack8(x[0], packed[0]);
        unpack8(x[1], packed[1]);
        float sum = dot8(x[0], x[0]) + dot8(x[1], x[1]);
#pragma unroll
        for (int m = 1; m < 8; m *= 2)
            sum += __shfl_xor_sync(~0u, sum, m);
        const float r = norm_factor(sum, FEATURES);
        unpack8(c, cosine[i]);
        unpack8(s, sine[i]);
#pragma unroll
        for (int m = 0; m < 8; m++) {
            float *pair = &x[m / 4][m % 4 * 2], even = r * pair[0], odd = r * pair[1];
            pair[0] = rotates ? c[m] * even + s[m] * odd : even;
            pair[1] = rotates ? c[m] * odd - s[m] * even : odd;
        }
        packed[0] = pack8(x[0]);
        packed[1] = pack8(x[1]);
        if (t < a.tokens && (!moved || t == 0))
            store_row(out + (int64_t)t * d, packed);
        if (t < a.tokens && moved && t + 1 < a.key_rows)
            store_row(out + (int64_t)(t + 1) * d, packed);
        if (t < a.tokens && a.factor && first == 0)
            factor[t] = r;
    }
}

/* Of a head of v without a table. */
__device__ __forceinline__ void finish_values(const layout &l, const qkv_args &a, int head,
                                              int token)
{
    const tile_row row;
    bf16 *const out = a.v + head * FEATURES + row.first();

#pragma unroll
    for (int i = 0; i < row.ROWS; i++) {
        const int t = token + row.token(i);
        uint4 packed[2];
        row.load(packed, l.tile, i);
        if (t < a.tokens)
            store_row(out + (int64_t)t * a.heads * FEATURES, packed);
    }
}

/* With a table: its row's part, times the gate. */
__device__ __forceinline__ void finish_gated_values(const layout &l, const qkv_args &a, int head,
                                                    int token)
{
    const tile_row row;
    const int d = a.heads * FEATURES, at = head * FEATURES + row.first();
    int32_t tok[row.ROWS];
    uint4 e[row.ROWS][2], first[row.ROWS]; /* the table's channels, and the gate's input */
    uint2 last[row.ROWS];
    float w[GATE];

    load_gate(w, a.gate, head);
#pragma unroll
    for (int i = 0; i < row.ROWS; i++)
        tok[i] = a.tok[min(token + row.token(i), a.tokens - 1)];
    auto load = [&](int i) {
        const bf16 *of = a.table + (int64_t)tok[i] * d;
        const bf16 *y = a.y + (int64_t)min(token + row.token(i), a.tokens - 1) * a.y_width;
        e[i][0] = *(const uint4 *)(of + at);
        e[i][1] = *(const uint4 *)(of + at + 8);
        first[i] = *(const uint4 *)y;
        last[i] = *(const uint2 *)(y + 8);
        if (a.split_gate) { /* channels 6 .. 11 are the table row's first six */
            uint4 z = *(const uint4 *)of;
            first[i].w = z.x, last[i] = make_uint2(z.y, z.z);
        }
    };
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        load(i);
#pragma unroll
    for (int i = 0; i < row.ROWS; i++) {
        const int t = token + row.token(i);
        uint4 packed[2];
        if (i + AHEAD < row.ROWS)
            load(i + AHEAD);
        const uint32_t u[GATE / 2] = { first[i].x, first[i].y, first[i].z,
                                       first[i].w, last[i].x,  last[i].y };
        float z = 0;
#pragma unroll
        for (int m = 0; m < GATE / 2; m++)
            z = fmaf(w[2 * m + 1], bf16_hi(u[m]), fmaf(w[2 * m], bf16_lo(u[m]), z));
        const float g = 2 * sigmoid(z);
        row.load(packed, l.tile, i);
#pragma unroll
        for (int n = 0; n < 2; n++) {
            float x[8], more[8];
            unpack8(x, packed[n]);
            unpack8(more, e[i][n]);
#pragma unroll
            for (int m = 0; m < 8; m++)
                x[m] = fmaf(g, more[m], x[m]);
            packed[n] = pack8(x);
        }
        if (t < a.tokens)
            store_row(a.v + (int64_t)t * d + at, packed);
    }
}

__device__ void do_work(const layout &l, const work &k, int worker)
{
    const float scale = k.scale ? *k.scale : 1;

    for (int n = worker; out_tile(k, n).exists; n += 2) {
        const out_tile p(k, n);
        const int head = p.feature / FEATURES % k.a.heads, part = p.feature / FEATURES / k.a.heads;
        float d[2][80] = {}; /* from the tile before nothing need stay in registers */
        auto pack = [&](uint32_t, const float *two) {
            return bf16_pack(scale * two[0], scale * two[1]);
        };
        tile_products<BF16_BF16>(d, l, k, n, worker);
        named_wait(STAGING + worker, 2 * WORKER);
        turn_panel<false>(l.tile, d[0], pack);
        turn_panel<false>(l.tile + PANEL_BYTES, d[1], pack);
        named_wait(WRITTEN + worker, WORKER);
        if (part < 2)
            finish_head(l, k.a, head, part == 1, p.token);
        else if (part == 2 && k.a.table) /* the last pair's second tile may be none */
            finish_gated_values(l, k.a, head, p.token);
        else if (part == 2)
            finish_values(l, k.a, head, p.token);
        named_arrive(STAGING + 1 - worker, 2 * WORKER);
    }
}

__global__ void SM90_CLUSTER(CLUSTER) __launch_bounds__(THREADS, 1)
    qkv_tiles(const __grid_constant__ maps m, const __grid_constant__ work k)
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
        __syncwarp();
    } else {
        more_registers<232>();
        do_work(l, k, group - 1);
    }
    cluster_sync(); /* a block must not exit while the other may write into its shared memory */
#endif
}

} /* namespace */

void qkv_gemm(struct cuda_ops *c, struct tensor x, struct tensor w, const float *scale,
              const struct qkv_args *a)
{
    work k = { work_of(x, w), *a, scale };
    maps m = {};

    assert(a->head_dim == QKV_GEMM_HEAD && !a->pos && !a->slot);
    assert(x.dtype == DT_BF16 && x.rows == a->tokens && w.rows == 3 * a->heads * FEATURES);
    if (c->failed)
        return;
    if (!map_of(&m.w, w, FEATURES) || !map_of(&m.x, x, TOKENS / 2)) {
        cuda_fail(c, GPT_DEVICE, "attention's tensors cannot be described to the copy engine");
        return;
    }
    int blocks = tile_blocks(c, qkv_tiles, k);
    if (!blocks)
        return;
    qkv_tiles<<<blocks, THREADS, SHARED_BYTES, c->stream>>>(m, k);
    CUDA_LAUNCHED(c);
}
