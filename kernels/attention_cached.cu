/* attention_cached.cu - rows of growing sequences against their cached keys (op_list.h).
 *
 * attend: a block has one head of a row of scores and KEYS keys, those from a multiple of KEYS on; a
 * head of W = E/8 lanes takes a key, so a warp 32 / W of them. It writes greatest score, sum and
 * weighted values of its keys; merge adds those of a row's blocks in order, takes away what exclusive
 * attention does, and multiplies them by the head's gate. Which keys a block has depends on the position alone, so a row's bits do not
 * depend on the other rows. Keys and values that were in the cache before this call are asked for
 * before the wait for the kernel before (behind.h): embed and gather, a step's first kernels, let
 * later ones start only when all of the step before is done.
 *
 * Bytes of a decoding step: 2 (window + 1) D of 2 bytes a row of T (paired: half): record 61 at the
 * end, 4 plain short layers of 768 keys, 4 paired of 384, 2 long of 2560: 30 MB a sequence, 6 us at
 * 4.8 TB/s.
 */
#include "behind.h"
#include "gpu.h"
#include "heads.h"

enum { KEYS = 64, THREADS = 128 };

struct shape {
    const bf16 *q, *cache_k, *cache_v, *y;
    bf16 *out;
    gates gate;
    const float *alpha; /* NULL: attention is not exclusive */
    float *partial; /* (T H, splits, E + 2) */
    const int32_t *slot, *pos;
    int heads, pair, d, y_width, window, capacity, splits; /* heads of a row of scores */
    float scale;
    enum key_offset key_offset;
};

/* A head of a row of scores: head `a` of row 2 t + g or t. */
struct query {
    int t, p; /* row of the call, row of its sequence */
    int64_t at; /* of its head in q and out */
    int head, low; /* the first key it sees */
};
__device__ __forceinline__ static query query_of(const shape &s, int index, int e)
{
    int all = s.heads * s.pair, t = index / all, h = index % all;
    query r = { t, __ldcg(s.pos + t) * s.pair + h / s.heads, (int64_t)t * s.d + h * e, h % s.heads,
                0 };
    r.low = max(0, r.p - s.window);
    return r;
}

/* The first token of the query's sequence that this call has put into the cache, or 0: some. */
__device__ __forceinline__ static int own_from(const shape &s, const query &r)
{
    bool follows = r.t > 0 && __ldcg(s.slot + r.t - 1) == __ldcg(s.slot + r.t);
    return follows ? 0 : r.p / s.pair;
}

template <int W> __global__ static void __launch_bounds__(THREADS) attend(shape s)
{
    enum { E = 8 * W, GROUPS = THREADS / W, EACH = KEYS / GROUPS };
    __shared__ float score[KEYS], part[GROUPS][E];
    int group = threadIdx.x / W, channel = 8 * (threadIdx.x % W), quarter = channel / (E / 4);
    bool offset = s.key_offset == KEY_OFFSET_HALF
                      ? quarter >= 2
                      : s.key_offset == KEY_OFFSET_QUARTERS && quarter % 2;

    start_kernel_behind();
    query r = query_of(s, blockIdx.x, E);
    int first = (r.low / KEYS + blockIdx.y) * KEYS;
    if (first > r.p) /* others of the grid wait */
        return;
    /* Rows of the ring from that of the first token seen here: they are less than once around. */
    int64_t slot = (int64_t)__ldcg(s.slot + r.t) * s.capacity;
    int own = own_from(s, r), begin = max(first, r.low) >> s.pair / 2, ring = begin % s.capacity;
    auto row = [&](int token) {
        int i = ring + token - begin;
        return (slot + (i < 0 ? i + s.capacity : i < s.capacity ? i : i - s.capacity)) * s.d;
    };
    uint4 k[EACH], v[EACH];
    unsigned late = 0; /* keys of this call, a bit each */
    auto load = [&](int i) {
        int j = first + group + GROUPS * i, token = j >> s.pair / 2;
        int64_t head = (int64_t)((s.pair == 2 ? j & 1 : 0) * s.heads + r.head) * E + channel;
        k[i] = __ldcg((const uint4 *)(s.cache_k + row(token - (offset && token > 0)) + head));
        v[i] = __ldcg((const uint4 *)(s.cache_v + row(token) + head));
    };
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int j = first + group + GROUPS * i;
        bool seen = j >= r.low && j <= r.p, ours = j >> s.pair / 2 >= own;
        late |= (unsigned)(seen && ours) << i;
        k[i] = v[i] = make_uint4(0, 0, 0, 0);
        if (seen && !ours)
            load(i);
    }
    wait_for_kernel_before();
    float q[8], x[8], sum = 0;
    load8(q, s.q + r.at + channel);
    if (late)
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (late >> i & 1)
                load(i);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int j = first + group + GROUPS * i;
        unpack8(x, k[i]);
        float dot = warp_sum(dot8(q, x), W);
        if (channel == 0)
            score[group + GROUPS * i] = j >= r.low && j <= r.p ? s.scale * dot : -INFINITY;
    }
    __syncthreads();
    float one = score[threadIdx.x % 32], two = score[threadIdx.x % 32 + 32];
    float most = warp_max(fmaxf(one, two));
    sum = warp_sum(__expf(one - most) + __expf(two - most));
    float acc[8] = {};
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        float p = __expf(score[group + GROUPS * i] - most);
        unpack8(x, v[i]);
#pragma unroll
        for (int j = 0; j < 8; j++)
            acc[j] = fmaf(p, x[j], acc[j]);
    }
    store8(&part[group][channel], acc);
    __syncthreads();
    float *out = s.partial + ((int64_t)blockIdx.x * s.splits + blockIdx.y) * (E + 2);
    for (int e = threadIdx.x; e < E; e += THREADS) {
        float total = 0;
#pragma unroll
        for (int i = 0; i < GROUPS; i++)
            total += part[i][e];
        out[e] = total;
    }
    if (threadIdx.x == 0)
        out[E] = most, out[E + 1] = sum;
}

/* x less its part along v (struct xsa), a thread a channel. */
__device__ static float exclusive(float x, float v, float alpha)
{
    __shared__ float sums[2][32];
    float xv = block_sum(x * v, sums[0]), inverse = inverse_length(block_sum(v * v, sums[1]));
    return fmaf(-tanhf(alpha) * xv * inverse * inverse, v, x);
}

/* A block a head of a row of scores, a thread a channel. The first parts are all asked for at once. */
__global__ static void merge(shape s, int e)
{
    enum { AT_ONCE = 16 };
    start_kernel_behind();
    query r = query_of(s, blockIdx.x, e);
    int n = r.p / KEYS - r.low / KEYS + 1, h = blockIdx.x % (s.heads * s.pair);
    const float *in = s.partial + (int64_t)blockIdx.x * s.splits * (e + 2);
    float w[GATE], y12[GATE], most = -INFINITY, sum = 0, total = 0, value[AT_ONCE];
    load_gate(w, s.gate, h);
    int64_t own = (int64_t)__ldcg(s.slot + r.t) * s.capacity + __ldcg(s.pos + r.t) % s.capacity;
    float alpha = s.alpha ? s.alpha[h] : 0, v = 0;
    wait_for_kernel_before();
    if (s.alpha)
        v = __bfloat162float(s.cache_v[own * s.d + h * e + threadIdx.x]);
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++)
        value[i] = i < n ? in[i * (e + 2) + threadIdx.x] : 0;
    load_y12(y12, s.y + (int64_t)r.t * s.y_width);
    for (int i = lane_id(); i < n; i += 32)
        most = fmaxf(most, in[i * (e + 2) + e]);
    most = warp_max(most);
    for (int i = lane_id(); i < n; i += 32)
        sum = fmaf(__expf(in[i * (e + 2) + e] - most), in[i * (e + 2) + e + 1], sum);
    sum = warp_sum(sum);
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++)
        if (i < n)
            total = fmaf(__expf(in[i * (e + 2) + e] - most), value[i], total);
#pragma unroll 8
    for (int i = AT_ONCE; i < n; i++)
        total = fmaf(__expf(in[i * (e + 2) + e] - most), in[i * (e + 2) + threadIdx.x], total);
    float x = total / sum;
    if (s.alpha)
        x = exclusive(x, v, alpha);
    s.out[r.at + threadIdx.x] = __float2bfloat16(sigmoid(gate_dot(w, y12)) * x);
}

void gpu_attention_cached(struct ops *o, struct tensor out, struct tensor q, struct tensor y,
                          struct tensor gate, struct tensor alpha, const struct kv_cache *cache,
                          const struct attn_shape *a)
{
    struct cuda_ops *c = cuda_of(o);
    int e = a->head_dim, splits = a->window / KEYS + 2, heads = a->heads * a->cu_mul;
    int rows = (int)q.rows;
    shape s = { (const bf16 *)q.data,
                (const bf16 *)cache->k.data,
                (const bf16 *)cache->v.data,
                (const bf16 *)y.data,
                (bf16 *)out.data,
                { gate.data, gate.dtype == DT_F32 },
                (const float *)alpha.data,
                NULL,
                cache->slot,
                cache->pos,
                a->heads,
                a->cu_mul,
                (int)q.cols,
                (int)y.cols,
                a->window,
                cache->capacity,
                splits,
                a->scale,
                cache->key_offset };

    assert(q.cols == (int64_t)heads * e && out.rows == q.rows && cache->k.cols == q.cols);
    assert(!alpha.data || (alpha.dtype == DT_F32 && alpha.cols == heads));
    if (c->failed || !rows || !CUDA_NEED(c, e == 32 || e == 64 || e == 128, HEAD_NEED))
        return;
    s.partial = (float *)cuda_workspace(c, (size_t)rows * heads * splits * (e + 2) * sizeof(float));
    if (!s.partial)
        return;
    with_head_size(e, [&](auto w) {
        launch_behind(c, attend<decltype(w)::value>, dim3(rows * heads, splits), THREADS, s);
    });
    launch_behind(c, merge, dim3(rows * heads), e, s, e);
}
