/* compose.cu - dynamically composable attention over the last keys, forward and back (record-89.md 7).
 *
 * q, k, v, x, out (T,D) bf16, D = H E, E 32, 64 or 128; k may have a row more. w1, w2 f32 of each token and
 * head; window at most BACK keys. A block has 64 queries, a warp 16 of them and the 128 keys that end with
 * the last: rows of 112 + 64 keys of a head come into shared memory, one head after the other.
 *
 *   forward   S = q k' of each head, softmax, Z += a P in registers (16 x 128 a warp); then out = x +
 *             bf16(w2 Z) v head by head. 2 products of 16 x 128 x E a warp and head: 4 * 128 * D FLOP a token,
 *             0.39 M at D = 768 (0.34 M of the 112 keys): 19 GFLOP at T = 49152, 0.05 ms at 400 TFLOPS.
 *             Bytes: k and v of 176 rows for 64, q, x, out: 9 T D elements, 0.7 GB, 0.2 ms at 3.3 TB/s
 *             from the L2, 0.38 GB or 0.11 ms of them from memory.
 *   queries   Z again by lse; D = dout v', dZ += w2 D, dw2 = D Z; then P again, da = dZ P, dS, dq = dS k
 *   keys      the same by keys: a warp has 16 keys and the 128 queries that begin with the first; dv +=
 *             bf16(w2 Z)' dout, dk = dS' q. Nine products in all, and no sum of two blocks: the same bits in
 *             every run. 88 GFLOP at T = 49152, 0.22 ms at 400 TFLOPS.
 *
 * dq and dk then become gradients of raw q and k (cuda_raw_grads), which are added to.
 */
#include "attention_rows.cuh"
#include "behind.h"
#include "gpu.h"
#include "mma.h"
#include "qkv.h"

enum {
    WARPS = 4,
    THREADS = 32 * WARPS,
    OWN = 16 * WARPS,
    BACK = 112,
    ROWS = OWN + BACK,
    SPAN = 128
};
enum { TILES = SPAN / 8 }; /* of eight columns, that a warp's 16 rows meet */

struct compose_args {
    struct compose c;
    const bf16 *q, *k, *v;
    int tokens;
};

/* Index of the first token of t's document. */
__device__ static int start_of(const struct compose &c, int t)
{
    int lo = 0, hi = c.ncu;
    while (hi - lo > 1) {
        int mid = (lo + hi) / 2;
        if (c.cu[mid] <= t)
            lo = mid;
        else
            hi = mid;
    }
    return c.cu[lo];
}

/* Index of the first key that t sees. */
__device__ static int first_key(const struct compose &c, int t)
{
    return max(start_of(c, t), t - c.window + 1);
}

/* Returns the root of w1's mean square over the heads, and 1e-6. */
__device__ static float root_of(const struct compose &c, int t)
{
    float sum = 0;
    for (int h = 0; h < c.heads; h++)
        sum += token_number(c.w1, t, h) * token_number(c.w1, t, h);
    return sqrtf(sum / c.heads + 1e-6f);
}

/* -- products of a warp --------------------------------------------------------------------- */

/* Rows of a head in shared memory; a row's end keeps neighbours in other banks. */
template <int E> struct head_rows {
    enum { STRIDE = E + 8, BYTES = ROWS * STRIDE * 2 };

    /* Rows first .. first + ROWS - 1 of x (rows, width), zeros where there are none. */
    static __device__ void load(bf16 *to, const bf16 *x, int first, int rows, int width, int head)
    {
        for (int i = threadIdx.x; i < ROWS * (E / 8); i += THREADS) {
            int r = i / (E / 8), channel = i % (E / 8) * 8, from = first + r;
            bool here = from >= 0 && from < rows;
            copy_16(address(to + r * STRIDE + channel),
                    x + (int64_t)(here ? from : 0) * width + head * E + channel, here);
        }
        copies_commit();
        copies_wait<0>();
    }
};

/* d (16,SPAN) = a b', a being rows first .. first + 15 of x, b rows of the head from `at` on. */
template <int E>
__device__ static void rows_by_rows(float (&d)[TILES][4], const bf16 *x, int first, int rows,
                                    int width, int head, const bf16 *at)
{
    int lane = lane_id(), r = first + lane / 4;
    const bf16 *from = x + (int64_t)r * width + head * E + 2 * (lane % 4);
    bool here = r < rows, below = r + 8 < rows;

#pragma unroll
    for (int n = 0; n < TILES; n++)
        d[n][0] = d[n][1] = d[n][2] = d[n][3] = 0;
#pragma unroll
    for (int e = 0; e < E; e += 16) {
        uint32_t a[4] = { here ? *(const uint32_t *)(from + e) : 0,
                          below ? *(const uint32_t *)(from + 8 * width + e) : 0,
                          here ? *(const uint32_t *)(from + e + 8) : 0,
                          below ? *(const uint32_t *)(from + 8 * width + e + 8) : 0 };
#pragma unroll
        for (int n = 0; n < TILES; n += 2) {
            uint32_t b[4];
            load_matrices(b,
                          address(at + (8 * n + lane / 16 * 8 + lane % 8) * head_rows<E>::STRIDE +
                                  e + lane / 8 % 2 * 8));
            mma(d[n], a, b[0], b[1]);
            mma(d[n + 1], a, b[2], b[3]);
        }
    }
}

/* d (16,E) = m b, m (16,SPAN) rounded to bf16, b rows of the head from `at` on. */
template <int E>
__device__ static void mix_of_rows(float (&d)[E / 8][4], const float (&m)[TILES][4], const bf16 *at)
{
    int lane = lane_id();

#pragma unroll
    for (int n = 0; n < E / 8; n++)
        d[n][0] = d[n][1] = d[n][2] = d[n][3] = 0;
#pragma unroll
    for (int k = 0; k < TILES; k += 2) {
        uint32_t a[4] = { bf16_pack(m[k][0], m[k][1]), bf16_pack(m[k][2], m[k][3]),
                          bf16_pack(m[k + 1][0], m[k + 1][1]),
                          bf16_pack(m[k + 1][2], m[k + 1][3]) };
#pragma unroll
        for (int n = 0; n < E / 8; n += 2) {
            uint32_t b[4];
            load_transposed(
                b, address(at + (8 * k + lane / 8 % 2 * 8 + lane % 8) * head_rows<E>::STRIDE +
                           8 * n + lane / 16 * 8));
            mma(d[n], a, b[0], b[1]);
            mma(d[n + 1], a, b[2], b[3]);
        }
    }
}

/* -- by queries ----------------------------------------------------------------------------- */

/* A thread's two rows: token, first key, divisor of w1. */
struct queries {
    int t[2], first[2], base; /* base: the key of column 0 */
    float root[2];

    __device__ queries(const compose_args &g, int at)
    {
        base = at - BACK;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            t[r] = at + lane_id() / 4 + 8 * r;
            bool here = t[r] < g.tokens;
            first[r] = here ? first_key(g.c, t[r]) : t[r] + 1;
            root[r] = here ? root_of(g.c, t[r]) : 1;
        }
    }
    /* True if number i of column tile n is a key that its row sees. */
    __device__ bool sees(int n, int i) const
    {
        int j = base + 8 * n + 2 * (lane_id() % 4) + i % 2, r = i / 2;
        return j >= first[r] && j <= t[r];
    }
    __device__ float of(const compose_args &g, const struct token_numbers &n, int r, int h) const
    {
        return t[r] < g.tokens ? token_number(n, t[r], h) : 0;
    }
};

/* Scores become exp(scale s - lse) where the row sees the key, 0 elsewhere. */
__device__ static void probabilities(float (&s)[TILES][4], const queries &row, float scale,
                                     const float (&lse)[2])
{
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[n][i] = row.sees(n, i) ? __expf(scale * s[n][i] - lse[i / 2]) : 0;
}

/* z += s, each row times its factor. */
__device__ static void add_rows(float (&z)[TILES][4], const float (&by)[2],
                                const float (&s)[TILES][4])
{
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            z[n][i] = fmaf(by[i / 2], s[n][i], z[n][i]);
}

template <int E>
__global__ static void __launch_bounds__(THREADS)
    compose_forward(bf16 *out, float *lse, const bf16 *x, compose_args g)
{
    extern __shared__ __align__(16) bf16 memory[];
    int at = blockIdx.x * OWN, width = g.c.heads * E;
    const bf16 *mine = memory + warp_id() * 16 * head_rows<E>::STRIDE;
    float z[TILES][4] = {};
    queries row(g, at + 16 * warp_id());

    for (int h = 0; h < g.c.heads; h++) {
        float s[TILES][4], most[2] = { -INFINITY, -INFINITY }, sum[2] = {}, log_sum[2], a[2];
        __syncthreads();
        head_rows<E>::load(memory, g.k, at - BACK, g.tokens, width, h);
        __syncthreads();
        rows_by_rows<E>(s, g.q, at + 16 * warp_id(), g.tokens, width, h, mine);
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (row.sees(n, i))
                    most[i / 2] = fmaxf(most[i / 2], g.c.scale * s[n][i]);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float of_row = quad_max(most[r]);
            most[r] = row.t[r] < g.tokens ? of_row : 0;
        }
        probabilities(s, row, g.c.scale, most);
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                sum[i / 2] += s[n][i];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            sum[r] = quad_sum(sum[r]);
            log_sum[r] = most[r] + logf(sum[r]);
            a[r] = row.t[r] < g.tokens ? row.of(g, g.c.w1, r, h) / (row.root[r] * sum[r]) : 0;
            if (lse && row.t[r] < g.tokens && lane_id() % 4 == 0)
                lse[(int64_t)h * g.tokens + row.t[r]] = log_sum[r];
        }
        add_rows(z, a, s);
    }
    for (int h = 0; h < g.c.heads; h++) {
        float w[TILES][4], d[E / 8][4],
            w2[2] = { row.of(g, g.c.w2, 0, h), row.of(g, g.c.w2, 1, h) };
        __syncthreads();
        head_rows<E>::load(memory, g.v, at - BACK, g.tokens, width, h);
        __syncthreads();
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                w[n][i] = w2[i / 2] * z[n][i];
        mix_of_rows<E>(d, w, mine);
#pragma unroll
        for (int n = 0; n < E / 8; n++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                int64_t to = (int64_t)row.t[r] * width + h * E + 8 * n + 2 * (lane_id() % 4);
                if (row.t[r] >= g.tokens)
                    continue;
                uint32_t old = *(const uint32_t *)(x + to);
                *(uint32_t *)(out + to) =
                    bf16_pack(bf16_lo(old) + d[n][2 * r], bf16_hi(old) + d[n][2 * r + 1]);
            }
    }
}

/* da (H,T): of each a; dq (T,D); gradients of w1 and w2. */
template <int E>
__global__ static void __launch_bounds__(THREADS)
    compose_queries(bf16 *dq, float *da, const bf16 *dout, const float *lse, compose_args g)
{
    extern __shared__ __align__(16) bf16 memory[];
    int at = blockIdx.x * OWN, own = at + 16 * warp_id(), width = g.c.heads * E;
    const bf16 *mine = memory + warp_id() * 16 * head_rows<E>::STRIDE;
    float z[TILES][4] = {}, dz[TILES][4] = {}, s[TILES][4];
    queries row(g, own);
    auto load = [&](const bf16 *x, int h) {
        __syncthreads();
        head_rows<E>::load(memory, x, at - BACK, g.tokens, width, h);
        __syncthreads();
    };
    /* Makes probabilities of the head, into s. */
    auto scores = [&](int h) {
        float l[2];
        load(g.k, h);
        rows_by_rows<E>(s, g.q, own, g.tokens, width, h, mine);
#pragma unroll
        for (int r = 0; r < 2; r++)
            l[r] = row.t[r] < g.tokens ? lse[(int64_t)h * g.tokens + row.t[r]] : 0;
        probabilities(s, row, g.c.scale, l);
    };

    for (int h = 0; h < g.c.heads; h++) {
        scores(h);
        float a[2] = { row.of(g, g.c.w1, 0, h) / row.root[0],
                       row.of(g, g.c.w1, 1, h) / row.root[1] };
        add_rows(z, a, s);
    }
    for (int h = 0; h < g.c.heads; h++) {
        float w2[2] = { row.of(g, g.c.w2, 0, h), row.of(g, g.c.w2, 1, h) }, sum[2] = {};
        load(g.v, h);
        rows_by_rows<E>(s, dout, own, g.tokens, width, h, mine);
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                dz[n][i] = fmaf(w2[i / 2], s[n][i], dz[n][i]);
                sum[i / 2] = fmaf(s[n][i], z[n][i], sum[i / 2]);
            }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            sum[r] = quad_sum(sum[r]);
            if (row.t[r] < g.tokens && lane_id() % 4 == 0)
                g.c.w2.grad[(int64_t)row.t[r] * g.c.w2.stride + h] = sum[r];
        }
    }
    float all[2] = {}; /* sums of da w1 */
    for (int h = 0; h < g.c.heads; h++) {
        float sum[2] = {}, d[E / 8][4];
        scores(h);
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                sum[i / 2] = fmaf(dz[n][i], s[n][i], sum[i / 2]);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            sum[r] = quad_sum(sum[r]);
            all[r] = fmaf(sum[r], row.of(g, g.c.w1, r, h), all[r]);
            if (row.t[r] < g.tokens && lane_id() % 4 == 0)
                da[(int64_t)h * g.tokens + row.t[r]] = sum[r];
        }
        float a[2] = { row.of(g, g.c.w1, 0, h) / row.root[0],
                       row.of(g, g.c.w1, 1, h) / row.root[1] };
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                s[n][i] *= a[i / 2] * (dz[n][i] - sum[i / 2]);
        mix_of_rows<E>(d, s, mine);
#pragma unroll
        for (int n = 0; n < E / 8; n++)
#pragma unroll
            for (int r = 0; r < 2; r++)
                if (row.t[r] < g.tokens)
                    *(uint32_t *)(dq + (int64_t)row.t[r] * width + h * E + 8 * n +
                                  2 * (lane_id() % 4)) =
                        bf16_pack(g.c.scale * d[n][2 * r], g.c.scale * d[n][2 * r + 1]);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) /* the lane that has written da reads it */
        for (int h = 0; h < g.c.heads && row.t[r] < g.tokens && lane_id() % 4 == 0; h++) {
            float by = all[r] / (g.c.heads * row.root[r] * row.root[r]);
            g.c.w1.grad[(int64_t)row.t[r] * g.c.w1.stride + h] =
                (da[(int64_t)h * g.tokens + row.t[r]] - token_number(g.c.w1, row.t[r], h) * by) /
                row.root[r];
        }
}

/* -- by keys -------------------------------------------------------------------------------- */

/* Keeps, of each query of the block, the first key it sees and numbers of a head; in shared memory. */
struct query_numbers {
    int first[ROWS];
    float root[ROWS], lse[ROWS], a[ROWS], w2[ROWS], da[ROWS];

    __device__ void begin(const compose_args &g, int at)
    {
        for (int i = threadIdx.x; i < ROWS; i += THREADS) {
            bool here = at + i < g.tokens;
            first[i] = here ? first_key(g.c, at + i) : at + i + 1;
            root[i] = here ? root_of(g.c, at + i) : 1;
        }
    }
    __device__ void load(const compose_args &g, const float *all_lse, const float *all_da, int at,
                         int h)
    {
        for (int i = threadIdx.x; i < ROWS; i += THREADS) {
            int t = at + i;
            bool here = t < g.tokens;
            int64_t of = (int64_t)h * g.tokens + t;
            lse[i] = here ? all_lse[of] : 0;
            da[i] = here ? all_da[of] : 0;
            a[i] = here ? token_number(g.c.w1, t, h) / root[i] : 0;
            w2[i] = here ? token_number(g.c.w2, t, h) : 0;
        }
    }
};

/* dk (T,D) written, dv (T,D) added to. */
template <int E>
__global__ static void __launch_bounds__(THREADS)
    compose_keys(bf16 *dk, bf16 *dv, const bf16 *dout, const float *lse, const float *da,
                 compose_args g)
{
    extern __shared__ __align__(16) bf16 memory[];
    query_numbers &of = *(query_numbers *)((char *)memory + head_rows<E>::BYTES);
    int at = blockIdx.x * OWN, own = at + 16 * warp_id(), width = g.c.heads * E;
    const bf16 *mine = memory + warp_id() * 16 * head_rows<E>::STRIDE;
    float z[TILES][4] = {}, dz[TILES][4] = {}, s[TILES][4], d[E / 8][4];
    /* Returns which of the block's queries a number is of. */
    auto column = [&](int n, int i) {
        return 16 * warp_id() + 8 * n + 2 * (lane_id() % 4) + i % 2;
    };
    auto load = [&](const bf16 *x, int h) {
        __syncthreads();
        head_rows<E>::load(memory, x, at, g.tokens, width, h);
        of.load(g, lse, da, at, h);
        __syncthreads();
    };
    /* Makes probabilities of the head, into s, keys by queries. */
    auto scores = [&](int h) {
        load(g.q, h);
        rows_by_rows<E>(s, g.k, own, g.tokens, width, h, mine);
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int c = column(n, i), j = own + lane_id() / 4 + i / 2 * 8;
                bool seen = j >= of.first[c] && j <= at + c;
                s[n][i] = seen ? __expf(g.c.scale * s[n][i] - of.lse[c]) : 0;
            }
    };
    auto store = [&](bf16 *to, int h, float by, bool add) {
#pragma unroll
        for (int n = 0; n < E / 8; n++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                int j = own + lane_id() / 4 + 8 * r;
                if (j >= g.tokens)
                    continue;
                uint32_t *p =
                    (uint32_t *)(to + (int64_t)j * width + h * E + 8 * n + 2 * (lane_id() % 4));
                uint32_t old = add ? *p : 0;
                *p = bf16_pack(fmaf(by, d[n][2 * r], bf16_lo(old)),
                               fmaf(by, d[n][2 * r + 1], bf16_hi(old)));
            }
    };

    of.begin(g, at);
    for (int h = 0; h < g.c.heads; h++) {
        scores(h);
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                z[n][i] = fmaf(of.a[column(n, i)], s[n][i], z[n][i]);
    }
    for (int h = 0; h < g.c.heads; h++) {
        load(dout, h);
        rows_by_rows<E>(s, g.v, own, g.tokens, width, h, mine);
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float w2 = of.w2[column(n, i)];
                dz[n][i] = fmaf(w2, s[n][i], dz[n][i]);
                s[n][i] = w2 * z[n][i];
            }
        mix_of_rows<E>(d, s, mine);
        store(dv, h, 1, true);
    }
    for (int h = 0; h < g.c.heads; h++) {
        scores(h);
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int c = column(n, i);
                s[n][i] *= of.a[c] * (dz[n][i] - of.da[c]);
            }
        mix_of_rows<E>(d, s, mine);
        store(dk, h, g.c.scale, false);
    }
}

/* -- over a cache --------------------------------------------------------------------------- */

enum { MOST_WIDE = 2048 };

/* A block is a row: a thread is a key, then channels. scores (H, BACK), z (BACK) in shared memory. */
__global__ static void __launch_bounds__(THREADS)
    compose_row(bf16 *out, compose_args g, struct kv_cache cache)
{
    extern __shared__ float shared[];
    __shared__ float q[MOST_WIDE], a[MAX_HEADS];
    float *scores = shared, *z = shared + g.c.heads * BACK;
    int t = blockIdx.x, width = g.c.heads * g.c.head_dim, e = g.c.head_dim;

    begin_step();
    int p = cache.pos[t], first = max(0, p - g.c.window + 1), n = p + 1 - first;
    const bf16 *k = (const bf16 *)cache.k.data, *v = (const bf16 *)cache.v.data;
    int64_t base = (int64_t)cache.slot[t] * cache.capacity;
    for (int i = threadIdx.x; i < width; i += THREADS)
        q[i] = __bfloat162float(g.q[(int64_t)t * width + i]);
    __syncthreads();
    for (int i = threadIdx.x; i < n * g.c.heads; i += THREADS) {
        int h = i / n, j = first + i % n;
        const bf16 *own = k + (base + j % cache.capacity) * width + h * e;
        const bf16 *before = k + (base + max(j - 1, 0) % cache.capacity) * width + h * e;
        float dot = 0;
        for (int c = 0; c < e; c++) {
            bool moved = key_moves(cache.key_offset, c / (e / 4));
            dot = fmaf(q[h * e + c], __bfloat162float((moved ? before : own)[c]), dot);
        }
        scores[h * BACK + i % n] = g.c.scale * dot;
    }
    __syncthreads();
    float root = root_of(g.c, t);
    for (int h = warp_id(); h < g.c.heads; h += WARPS) {
        float most = -INFINITY, sum = 0;
        for (int j = lane_id(); j < n; j += 32)
            most = fmaxf(most, scores[h * BACK + j]);
        most = warp_max(most);
        for (int j = lane_id(); j < n; j += 32)
            sum += scores[h * BACK + j] = __expf(scores[h * BACK + j] - most);
        sum = warp_sum(sum);
        if (lane_id() == 0)
            a[h] = token_number(g.c.w1, t, h) / (root * sum);
    }
    __syncthreads();
    for (int j = threadIdx.x; j < n; j += THREADS) {
        float sum = 0;
        for (int h = 0; h < g.c.heads; h++)
            sum = fmaf(a[h], scores[h * BACK + j], sum);
        z[j] = sum;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < width; i += THREADS) {
        float sum = 0, w2 = token_number(g.c.w2, t, i / e);
        for (int j = 0; j < n; j++) {
            float w = __bfloat162float(__float2bfloat16(w2 * z[j]));
            sum = fmaf(w, __bfloat162float(v[(base + (first + j) % cache.capacity) * width + i]),
                       sum);
        }
        bf16 *to = out + (int64_t)t * width + i;
        *to = __float2bfloat16(__bfloat162float(*to) + sum);
    }
}

/* -- host ----------------------------------------------------------------------------------- */

static compose_args args_of(const struct compose *c, struct tensor q, struct tensor k,
                            struct tensor v)
{
    return compose_args{ *c, (const bf16 *)q.data, (const bf16 *)k.data, (const bf16 *)v.data,
                         (int)q.rows };
}

static bool can_do(struct cuda_ops *c, struct tensor q, const struct compose *m)
{
    int e = m->head_dim;

    assert(q.dtype == DT_BF16 && q.cols == (int64_t)m->heads * e);
    return !c->failed && q.rows > 0 &&
           CUDA_NEED(c, m->heads <= MAX_HEADS && (e == 32 || e == 64 || e == 128), HEAD_NEED) &&
           CUDA_NEED(c, m->window <= BACK && q.cols <= MOST_WIDE,
                     "heads are mixed over at most 112 keys, of at most 2048 channels");
}

template <typename... P, typename... A>
static void launch(struct cuda_ops *c, void (*kernel)(P...), int bytes, int tokens, A... args)
{
    if (!CUDA_TRY(c,
                  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes)))
        return;
    kernel<<<div_up(tokens, OWN), THREADS, bytes, c->stream>>>(P(args)...);
    CUDA_LAUNCHED(c);
}

void gpu_compose(struct ops *o, struct tensor out, struct tensor lse, struct tensor x,
                 struct tensor q, struct tensor k, struct tensor v, const struct compose *m)
{
    struct cuda_ops *c = cuda_of(o);

    if (!can_do(c, q, m))
        return;
    with_head_size(m->head_dim, [&](auto w) {
        constexpr int E = 8 * decltype(w)::value;
        launch(c, compose_forward<E>, head_rows<E>::BYTES, (int)q.rows, (bf16 *)out.data,
               (float *)lse.data, (const bf16 *)x.data, args_of(m, q, k, v));
    });
}

void gpu_compose_bwd(struct ops *o, struct tensor dqkv, struct tensor dq, struct tensor dk,
                     struct tensor dv, struct tensor dout, struct tensor q, struct tensor k,
                     struct tensor v, struct tensor lse, const struct compose *m,
                     const struct qk_made *made)
{
    struct cuda_ops *c = cuda_of(o);
    int T = (int)q.rows;

    if (!can_do(c, q, m))
        return;
    float *da = (float *)cuda_workspace(c, (size_t)m->heads * T * sizeof *da);
    if (!da)
        return;
    with_head_size(m->head_dim, [&](auto w) {
        constexpr int E = 8 * decltype(w)::value;
        launch(c, compose_queries<E>, head_rows<E>::BYTES, T, (bf16 *)dq.data, da,
               (const bf16 *)dout.data, (const float *)lse.data, args_of(m, q, k, v));
        launch(c, compose_keys<E>, head_rows<E>::BYTES + (int)sizeof(query_numbers), T,
               (bf16 *)dk.data, (bf16 *)dv.data, (const bf16 *)dout.data, (const float *)lse.data,
               (const float *)da, args_of(m, q, k, v));
    });
    cuda_raw_grads(c, dqkv, true, dq.data, dk.data, NULL, q, k, made);
}

void gpu_compose_cached(struct ops *o, struct tensor out, struct tensor q, const struct compose *m,
                        const struct kv_cache *cache)
{
    struct cuda_ops *c = cuda_of(o);
    size_t bytes = (size_t)(m->heads + 1) * BACK * sizeof(float);

    if (!can_do(c, q, m))
        return;
    launch_behind_with(c, (int)bytes, compose_row, dim3((int)q.rows), THREADS, (bf16 *)out.data,
                       args_of(m, q, NO_TENSOR, NO_TENSOR), *cache);
}
