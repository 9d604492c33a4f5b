/* attention_cached.cu - rows of growing sequences against their cached keys (op_list.h).
 *
 * Hopper: a cluster has one head of a row of scores, each of its blocks a part of the keys, side by
 * side; a head of W = E/8 lanes takes a key, and copies what it reads of the cache into shared
 * memory. The sums of a block's warps, then of the cluster's blocks, are merged in order. Where no
 * two rows of the call are of one sequence, each block makes q, and k and v of the row, from their
 * projection itself: qkv is not launched (device.h).
 *
 * Elsewhere, attend: a block has one head of a row of scores and KEYS keys, those from a multiple
 * of KEYS on. It writes greatest score, sum and weighted values of its keys; merge adds those of a
 * row's blocks in order.
 *
 * Then what exclusive attention does is taken away, and the head's gate multiplied. Which keys a
 * block has depends on the position alone, so a row's bits do not depend on the other rows. Keys
 * and values that were in the cache before this call are asked for before the wait for the kernel
 * before (behind.h): embed and gather, a step's first kernels, let later ones start only when all
 * of the step before is done.
 *
 * Bytes of a decoding step: 2 (window + 1) D of 2 bytes a row of T (paired: half): record 61 at the
 * end, 4 plain short layers of 768 keys, 4 paired of 384, 2 long of 2560: 30 MB a sequence, 6 us at
 * 4.8 TB/s.
 */
#include "behind.h"
#include "cluster.h"
#include "gpu.h"
#include "mma.h"
#include "qkv.h"

enum { KEYS = 64, THREADS = 128 };

struct shape {
    const bf16 *q, *cache_k, *cache_v, *y;
    bf16 *out;
    gates gate;
    const float *alpha; /* NULL: attention is not exclusive */
    float *partial; /* (T H, splits, E + 2) */
    const int32_t *slot, *pos;
    int heads, pair, d, qd, y_width, window, capacity, splits; /* heads of a row of scores */
    int parts, blocks; /* of a row's keys; of a cluster, which divides parts */
    float scale;
    enum key_offset key_offset;
};

/* A head of a row of scores: head `a` of row 2 t + g or t. */
struct query {
    int t, p; /* row of the call, row of its sequence */
    int64_t at; /* of its head in out */
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
    int group = threadIdx.x / W, channel = 8 * (threadIdx.x % W), size = s.qd / (s.heads * s.pair);
    bool offset = key_moves(s.key_offset, channel / (size / 4)), of_key = channel < size;

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
        return slot + (i < 0 ? i + s.capacity : i < s.capacity ? i : i - s.capacity);
    };
    uint4 k[EACH], v[EACH];
    unsigned late = 0; /* keys of this call, a bit each */
    auto load = [&](int i) {
        int j = first + group + GROUPS * i, token = j >> s.pair / 2;
        int64_t head = (s.pair == 2 ? j & 1 : 0) * s.heads + r.head;
        if (of_key)
            k[i] = __ldcg((const uint4 *)(s.cache_k + row(token - (offset && token > 0)) * s.qd +
                                          head * size + channel));
        v[i] = __ldcg((const uint4 *)(s.cache_v + row(token) * s.d + head * E + channel));
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
    float q[8] = {}, x[8], sum = 0;
    if (of_key)
        load8(q, s.q + r.at / E * size + channel);
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
    if (s.gate.w)
        load_gate(w, s.gate, h);
    int64_t own = (int64_t)__ldcg(s.slot + r.t) * s.capacity + __ldcg(s.pos + r.t) % s.capacity;
    float alpha = s.alpha ? s.alpha[h] : 0, v = 0;
    wait_for_kernel_before();
    if (s.alpha)
        v = __bfloat162float(s.cache_v[own * s.d + h * e + threadIdx.x]);
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++)
        value[i] = i < n ? in[i * (e + 2) + threadIdx.x] : 0;
    if (s.gate.w)
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
    s.out[r.at + threadIdx.x] = __float2bfloat16(s.gate.w ? sigmoid(gate_dot(w, y12)) * x : x);
}

/* -- Hopper: a cluster a head of a row of scores -------------------------------------- */

/* The keys are cut into parts by their number alone, and the cluster's blocks have one or several
 * parts each. Every thread copies the 16 bytes that it reads itself into its own places of shared
 * memory, STAGE keys at a time, STAGES ahead. */
enum { PARTS = 8, MANY = 256, WARPS = MANY / 32, STAGE = 64, STAGES = 2, RESIDENT = 3 };

struct softmax_part { /* of a thread's channels: greatest score, sum, weighted values */
    float most, sum, acc[8];

    __device__ __forceinline__ void scale_to(float to)
    {
        float by = __expf(most - (to == -INFINITY ? 0 : to));
        most = to, sum *= by;
#pragma unroll
        for (int j = 0; j < 8; j++)
            acc[j] *= by;
    }
    /* Joins this lane's part with that of the lane `m` away. */
    __device__ __forceinline__ void join(int m)
    {
        scale_to(fmaxf(most, __shfl_xor_sync(~0u, most, m)));
        sum += __shfl_xor_sync(~0u, sum, m);
#pragma unroll
        for (int j = 0; j < 8; j++)
            acc[j] += __shfl_xor_sync(~0u, acc[j], m);
    }
};

/* e numbers and behind them greatest score and sum, of n parts, at most MOST: the sum of the
 * thread's channel. All that is read is asked for at once. */
template <int MOST, typename T>
__device__ __forceinline__ static float merged(const T *part, int n, int e, int channel,
                                               float *most, float *sum)
{
    float score[MOST], weight[MOST], value[MOST], x = 0;
    *most = -INFINITY, *sum = 0;
#pragma unroll
    for (int i = 0; i < MOST; i++) {
        score[i] = i < n ? part[i][e] : -INFINITY;
        weight[i] = i < n ? part[i][e + 1] : 0;
        value[i] = i < n ? part[i][channel] : 0;
    }
#pragma unroll
    for (int i = 0; i < MOST; i++)
        *most = fmaxf(*most, score[i]);
    float base = *most == -INFINITY ? 0 : *most;
#pragma unroll
    for (int i = 0; i < MOST; i++) {
        float w = __expf(score[i] - base);
        *sum = fmaf(w, weight[i], *sum);
        x = fmaf(w, value[i], x);
    }
    return x;
}

enum when { BEFORE, LATE, ALL };

/* The keys that a query sees, as a block reads them: parts, of which it has every s.blocks-th, in
 * stages. RAW: what this call has put into the cache is not read from there. */
template <int W, bool RAW> struct seen_keys {
    enum { E = 8 * W, GROUPS = MANY / W, EACH = STAGE / GROUPS };
    const shape &s;
    const query &r;
    uint4 *memory; /* (STAGES, K and V, EACH, MANY) */
    int group, channel, each, stages; /* keys and stages of a part */
    bool offset;
    int64_t slot; /* row of the cache that the sequence's ring begins at */
    int own, first,
        ring; /* tokens: the call's first, the first one seen; row of that in the ring */
    int ahead, ahead_n = 0; /* part and stage that is loaded next */
    uint64_t policy = read_once();

    __device__ __forceinline__ seen_keys(const shape &s, const query &r, uint4 *memory, int rank)
        : s(s), r(r), memory(memory), group(threadIdx.x / W), channel(8 * (threadIdx.x % W)),
          offset(head_lane<W>::offset(s.key_offset)), ahead(rank)
    {
        int step = s.parts * GROUPS;
        each = (r.p - r.low + step) / step * GROUPS;
        stages = (each + STAGE - 1) / STAGE;
        slot = (int64_t)__ldcg(s.slot + r.t) * s.capacity;
        own = RAW ? r.p / s.pair : own_from(s, r);
        first = r.low / s.pair, ring = first % s.capacity;
    }
    /* Rows of the ring from `first` on: they are less than once around. */
    __device__ __forceinline__ int64_t row(int token) const
    {
        int i = ring + token - first;
        return (slot + (i < 0 ? i + s.capacity : i < s.capacity ? i : i - s.capacity)) * s.d;
    }
    /* The i-th key of a thread in stage n of a part, and where the part ends; its place, K or V, in
     * the stage that is the block's m-th. */
    __device__ __forceinline__ int key_of(int p, int n, int i) const
    {
        return r.low + p * each + n * STAGE + group + GROUPS * i;
    }
    __device__ __forceinline__ int end_of(int p) const
    {
        return min(r.low + (p + 1) * each, r.p + 1);
    }
    __device__ __forceinline__ uint4 *place(int m, int v, int i) const
    {
        return &memory[((m % STAGES * 2 + v) * EACH + i) * MANY + threadIdx.x];
    }
    __device__ __forceinline__ int lane_of_pair(int j) const { return s.pair == 2 ? j & 1 : 0; }
    __device__ __forceinline__ int token_of(int j, int v) const
    {
        int token = s.pair == 2 ? j >> 1 : j;
        return token - (!v && offset && token > 0);
    }
    __device__ __forceinline__ void load(int m, int p, int n, when which) const
    {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int j = key_of(p, n, i);
            bool seen = j < end_of(p);
            int64_t head = (int64_t)(lane_of_pair(j) * s.heads + r.head) * E + channel;
#pragma unroll
            for (int v = 0; v < 2; v++) {
                int token = token_of(j, v);
                bool late = seen && token >= own;
                if (which == ALL ? !RAW || !late : late == (which == LATE))
                    copy_16(address(place(m, v, i)),
                            (v ? s.cache_v : s.cache_k) + row(token) + head, seen, policy);
            }
        }
    }
    __device__ __forceinline__ void load_next(int m, when which)
    {
        if (ahead < s.parts)
            load(m, ahead, ahead_n, which);
        copies_commit();
        if (++ahead_n == stages)
            ahead_n = 0, ahead += s.blocks;
    }
    /* The i-th key or value of stage n, the block's m-th; own_kv: the row's own, by head of a pair. */
    __device__ __forceinline__ void read(float (&x)[8], int p, int n, int m, int i, int v,
                                         const uint4 (&own_kv)[2][2][W]) const
    {
        int j = key_of(p, n, i);
        unpack8(x, RAW && token_of(j, v) >= own ? own_kv[v][lane_of_pair(j)][threadIdx.x % W]
                                                : *place(m, v, i));
    }
};

/* q of a head of a row, and k or v of it and (paired) of the other one, from the row's projection:
 * a group of W lanes each. */
template <int W> struct projected {
    enum { E = 8 * W };
    int head, own_head, is_v;
    turn q_turn, k_turn;
    uint4 value, narrow; /* of the token's row of the table */

    /* Loads what does not depend on the kernel before, so it is called before the wait for that. */
    __device__ __forceinline__ void load(const shape &s, const qkv_args &f, const query &r, int h,
                                         int group, int channel)
    {
        head = h, own_head = (s.pair == 2 ? group & 1 : 0) * s.heads + r.head;
        is_v = group >> 1 & 1;
        q_turn = turn_of<W>(f, r.t, h), k_turn = turn_of<W>(f, r.t, own_head);
        value = narrow = make_uint4(0, 0, 0, 0);
        if (f.table) {
            const bf16 *at = f.table + (int64_t)__ldcg(f.tok + r.t) * s.d;
            value = *(const uint4 *)(at + own_head * E + channel);
            narrow = *(const uint4 *)at;
        }
    }
    /* Adds to v the table's row times its gate, of which u is the input. */
    __device__ __forceinline__ void add_value(float (&x)[8], float (&u)[GATE],
                                              const qkv_args &f) const
    {
        float t[8];
        if (f.split_gate) {
            unpack8(t, narrow);
#pragma unroll
            for (int j = 0; j < GATE / 2; j++)
                u[GATE / 2 + j] = t[j];
        }
        unpack8(t, value);
        float by = 2 * sigmoid(gate_dot(f.gate, own_head, u));
#pragma unroll
        for (int j = 0; j < 8; j++)
            x[j] = fmaf(by, t[j], x[j]);
    }
    /* q, rounded as a kernel of its own would leave it; k or v is returned. */
    __device__ __forceinline__ uint4 make(float (&q)[8], float (&y12)[GATE], const shape &s,
                                          const qkv_args &f, int t, int channel) const
    {
        const bf16 *raw = f.qkv + 3 * (int64_t)t * s.d + channel;
        uint4 raw_q = *(const uint4 *)(raw + head * E);
        uint4 raw_kv = *(const uint4 *)(raw + (1 + is_v) * s.d + own_head * E);
        float x[8], k[8], u[GATE];
        if (s.gate.w)
            load_y12(y12, s.y + (int64_t)t * s.y_width);
        if (f.table)
            load_y12(u, f.y + (int64_t)t * f.y_width);
        unpack8(q, raw_q);
        norm_head<W>(q);
        rotate(q, q_turn, 1);
        unpack8(q, pack8(q));
        unpack8(x, raw_kv);
        unpack8(k, raw_kv);
        norm_head<W>(k);
        rotate(k, k_turn, 1);
        if (is_v && f.table)
            add_value(x, u, f);
        return is_v ? pack8(x) : pack8(k);
    }
};

/* RAW: q, k and v of the row are made from the product f.qkv (qkv.h), and k, v put into the cache;
 * the row has a sequence of its own. ALONE: a cluster is one block. */
template <int W, bool RAW, bool ALONE>
__global__ static void __launch_bounds__(MANY, RESIDENT) attend_in_cluster(shape s, qkv_args f)
{
#ifdef SM90_CODE
    enum { E = 8 * W, EACH = seen_keys<W, RAW>::EACH };
    extern __shared__ __align__(16) uint4 memory[];
    __shared__ __align__(16) float part[WARPS][E + 4], inbox[PARTS][E + 4];
    __shared__ uint4 own_kv[2][2][W];
    __shared__ uint64_t joined; /* all parts are in the first block's inbox */
    int rank = blockIdx.x % s.blocks, index = blockIdx.x / s.blocks, lane = threadIdx.x % W;
    int channel = 8 * lane, h = index % (s.heads * s.pair);
    start_kernel_behind();
    query r = query_of(s, index, E);
    seen_keys<W, RAW> keys(s, r, memory, rank);
#pragma unroll
    for (int m = 0; m < STAGES; m++)
        keys.load_next(m, BEFORE);
    projected<W> own;
    float w[GATE], y12[GATE], q[8], alpha = s.alpha ? s.alpha[h] : 0;
    if (s.gate.w)
        load_gate(w, s.gate, h);
    if (RAW)
        own.load(s, f, r, h, keys.group, channel);
    if (!ALONE && threadIdx.x == 0 && rank == 0) {
        sm90::barrier_init(address(&joined), 1);
        sm90::barrier_init_done();
        sm90::barrier_expect(address(&joined), s.parts * (E + 2) * 4);
    }
    if (!ALONE) /* a block is written to when it has begun */
        all_of_cluster();
    wait_for_kernel_before();
    auto own_row = [&] { return (keys.slot + (r.p / s.pair) % s.capacity) * s.d + h * E; };
    if (RAW) {
        uint4 mine = own.make(q, y12, s, f, r.t, channel);
        if (keys.group < 4) {
            own_kv[own.is_v][keys.group & 1][lane] = mine;
            if (rank == 0 && own.own_head == h && (s.pair == 2 || !(keys.group & 1)))
                *(uint4 *)((own.is_v ? f.v : f.k) + own_row() + channel) = mine;
        }
        __syncthreads();
    } else {
        load8(q, s.q + r.at + channel);
        if (s.gate.w)
            load_y12(y12, s.y + (int64_t)r.t * s.y_width);
        keys.ahead = rank, keys.ahead_n = 0;
        for (int m = 0; m < STAGES; m++)
            keys.load_next(m, LATE);
        copies_wait<0>();
    }
    for (int p = rank, m = 0; p < s.parts; p += s.blocks) {
        softmax_part a = { -INFINITY, 0, {} };
        for (int n = 0; n < keys.stages; n++, m++) {
            float score[EACH], x[8], most = a.most;
            copies_wait<STAGES - 1>();
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                keys.read(x, p, n, m, i, 0, own_kv);
                float dot = head_sum<W>(dot8(q, x));
                score[i] = keys.key_of(p, n, i) < keys.end_of(p) ? s.scale * dot : -INFINITY;
                most = fmaxf(most, score[i]);
            }
            a.scale_to(most);
            float base = most == -INFINITY ? 0 : most;
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                float w = __expf(score[i] - base);
                keys.read(x, p, n, m, i, 1, own_kv);
                a.sum += w;
#pragma unroll
                for (int c = 0; c < 8; c++)
                    a.acc[c] = fmaf(w, x[c], a.acc[c]);
            }
            keys.load_next(m, ALL);
        }
#pragma unroll
        for (int w = W; w < 32; w *= 2)
            a.join(w);
        if (p != rank) /* the part before has been read */
            __syncthreads();
        if (lane_id() < W) {
            float *to = part[warp_id()];
            store8(to + channel, a.acc);
            if (lane == 0)
                to[E] = a.most, to[E + 1] = a.sum;
        }
        __syncthreads();
        if (threadIdx.x < E + 2) {
            int i = threadIdx.x;
            float most, sum, x = merged<WARPS>(part, WARPS, E, min(i, E - 1), &most, &sum);
            float y = i < E ? x : i == E ? most : sum;
            if (ALONE)
                inbox[p][i] = y;
            else
                send1(&inbox[p][i], 0, y, address(&joined));
        }
    }
    float gated = s.gate.w ? sigmoid(gate_dot(w, y12)) : 1;
    copies_wait<0>();
    if (rank)
        return;
    if (ALONE)
        __syncthreads();
    else
        sm90::barrier_wait(address(&joined), 0);
    int c = threadIdx.x % E;
    float most, sum, x = merged<PARTS>(inbox, s.parts, E, c, &most, &sum) / sum;
    if (s.alpha) { /* all threads take part, those from E on with zeros */
        float v = __bfloat162float(RAW ? ((const bf16 *)own_kv[1][h / s.heads])[c]
                                       : s.cache_v[own_row() + c]);
        bool here = threadIdx.x < E;
        x = exclusive(here ? x : 0, here ? v : 0, alpha);
    }
    if (threadIdx.x < E)
        s.out[r.at + c] = __float2bfloat16(gated * x);
#endif
}

/* -- launch ---------------------------------------------------------------------------- */

void gpu_attention_cached(struct ops *o, struct tensor out, struct tensor q, struct tensor y,
                          struct tensor gate, struct tensor alpha, const struct kv_cache *cache,
                          const struct attn_shape *a)
{
    struct cuda_ops *c = cuda_of(o);
    int e = a->head_dim, splits = a->window / KEYS + 2, heads = a->heads * a->cu_mul;
    int rows = (int)q.rows, parts = 1;
    while (parts < PARTS && parts * STAGE < a->window)
        parts *= 2;
    int blocks = parts;
    while (blocks > 1 && (int64_t)rows * heads * blocks > RESIDENT * c->sms)
        blocks /= 2;
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
                (int)out.cols,
                (int)q.cols,
                (int)y.cols,
                a->window,
                cache->capacity,
                splits,
                parts,
                blocks,
                a->scale,
                cache->key_offset };

    int size = attn_qk_dim(a);

    assert(q.cols == (int64_t)heads * size && out.rows == q.rows && cache->k.cols == q.cols);
    assert(out.cols == (int64_t)heads * e && cache->v.cols == out.cols);
    assert(!alpha.data || (alpha.dtype == DT_F32 && alpha.cols == heads));
    if (c->failed || !rows || !CUDA_NEED(c, e == 32 || e == 64 || e == 128, HEAD_NEED))
        return;
    if (!c->portable && size == e) { /* narrower heads of q and k: on the portable path */
        qkv_args f = c->qkv;
        bool raw = f.tokens && f.q == s.q && f.slot == s.slot && f.k == s.cache_k;
        if (raw)
            c->qkv.tokens = 0;
        with_head_size(e, [&](auto w) {
            constexpr int W = decltype(w)::value;
            auto *kernel =
                blocks == 1
                    ? (raw ? attend_in_cluster<W, true, true> : attend_in_cluster<W, false, true>)
                    : (raw ? attend_in_cluster<W, true, false>
                           : attend_in_cluster<W, false, false>);
            launch_behind_clusters(c, blocks, STAGES * 2 * STAGE * W * 16, kernel,
                                   dim3(rows * heads * blocks), MANY, s, f);
        });
        return;
    }
    s.partial = (float *)cuda_workspace(c, (size_t)rows * heads * splits * (e + 2) * sizeof(float));
    if (!s.partial)
        return;
    with_head_size(e, [&](auto w) {
        launch_behind(c, attend<decltype(w)::value>, dim3(rows * heads, splits), THREADS, s);
    });
    launch_behind(c, merge, dim3(rows * heads), e, s, e);
}
