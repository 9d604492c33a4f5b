/* qkv.cu - from projections to what attention reads, and back. Record-61.md 2.4 to 2.6, 3.3,
 * record-74.md 6, 7.
 *
 *   q, k   Norm over each head's E channels, rotated by -theta on the first E/2 channels
 *   k      channels [E/4,E/2) and [3E/4,E), or [E/2,E), move to the next token, by key_offset
 *   v      + 2 s(gate_h . u_t) table[tok_t], with a table; u_t = y_t[0:12], or with a split gate
 *          y_t[0:6], table[tok_t][0:6]
 *
 * qkv (T,3D), q, k, v (T,D), y (T,D') bf16; rope rows of E/4 cosines and E/4 sines in bf16.
 * One warp a token, all heads; a head is W = E/8 lanes (heads.h), so that a norm is a few
 * shuffles and a rotation stays inside a lane.
 *
 * Forward moves 6 T D elements (453 MB at T = 49152, D = 768: 107 us at 4.25 TB/s) and T D more
 * with a table (125 us). Backward reads dq, dk, dv and the raw q, k, and writes 3 T D: 8 T D
 * (604 MB, 142 us); with a table 2 T D more (178 us).
 */
#include "behind.h"
#include "gpu.h"
#include "qkv.h"

/* dy becomes r (dy - r^2 mean(dy x) x). */
template <int W>
__device__ __forceinline__ static void norm_head_bwd(float (&dy)[8], const float (&x)[8])
{
    float r = norm_factor(head_sum<W>(dot8(x, x)), 8 * W);
    float c = r * r * head_sum<W>(dot8(dy, x)) / (8 * W);
#pragma unroll
    for (int j = 0; j < 8; j++)
        dy[j] = r * (dy[j] - c * x[j]);
}

/* Writes a key to its own row, in offset channels to the next row (and for row 0 to row 0 as
 * well). */
template <int W>
__device__ __forceinline__ static void put_key(bf16 *k, const float (&x)[8], int t,
                                               const qkv_args &s, int d)
{
    bool offset = head_lane<W>::offset(s.key_offset);

    if (!offset || t == 0)
        store8(k, x);
    if (offset && t + 1 < s.tokens)
        store8(k + d, x);
}

/* Input of token t's value gates, in all lanes; e is its row of the table. */
template <int V>
__device__ __forceinline__ static void gate_input(float (&u)[GATE], const qkv_args &s, int t,
                                                  const packed_row<V> &e)
{
    const uint32_t first[GATE / 4] = { e.u[0].x, e.u[0].y, e.u[0].z };

    load_y12(u, s.y + (int64_t)t * s.y_width);
    if (s.split_gate)
#pragma unroll
        for (int j = 0; j < GATE / 4; j++) {
            uint32_t two = __shfl_sync(~0u, first[j], 0);
            u[GATE / 2 + 2 * j] = bf16_lo(two), u[GATE / 2 + 2 * j + 1] = bf16_hi(two);
        }
}

template <int V, int W>
__global__ static void __launch_bounds__(ROW_THREADS, V <= 3 ? 3 : 1) qkv_forward(qkv_args s)
{
    const bf16 *qkv = s.qkv;
    bf16 *q = s.q, *k = s.k, *v = s.v;
    int t = blockIdx.x * ROW_WARPS + warp_id(), d = s.heads * 8 * W;
    int64_t at = (int64_t)t * d;
    packed_row<V> rq, rk, rv, re;
    float u[GATE];

    start_step_behind();
    if (t >= s.tokens) /* warps of the last block; its others wait */
        return;
    turn r = turn_of<W>(s, t, head_lane<W>::head(0));
    int64_t to = at;
    if (s.slot)
        to = ((int64_t)__ldcg(s.slot + t) * s.capacity + __ldcg(s.pos + t) % s.capacity) * d;
    v += s.values_apart ? at : to;
    if (s.table)
        re.load(s.table + (int64_t)__ldcg(s.tok + t) * d, d);
    wait_for_kernel_before();
    rq.load(qkv + 3 * at, d);
    rk.load(qkv + 3 * at + d, d);
    rv.load(qkv + 3 * at + 2 * d, d);
    if (s.table)
        gate_input(u, s, t, re);
#pragma unroll
    for (int i = 0; i < V; i++) {
        int h = head_lane<W>::head(i);
        bool here = h < s.heads;
        float x[8];
        unpack8(x, rq.u[i]);
        norm_head<W>(x);
        rotate(x, r, 1);
        if (here)
            store8(q + at + row<V>::at(i), x);
        unpack8(x, rk.u[i]);
        norm_head<W>(x);
        rotate(x, r, 1);
        if (here)
            put_key<W>(k + to + row<V>::at(i), x, t, s, d);
        if (here && s.table) {
            float g = 2 * sigmoid(gate_dot(s.gate, h, u)), e[8];
            unpack8(x, rv.u[i]);
            unpack8(e, re.u[i]);
#pragma unroll
            for (int j = 0; j < 8; j++)
                x[j] = fmaf(g, e[j], x[j]);
            rv.u[i] = pack8(x);
        }
        if (here)
            store16(v + row<V>::at(i), rv.u[i]);
    }
}

static bool can_do(struct cuda_ops *c, struct tensor qkv, const struct qkv_shape *s)
{
    int e = s->head_dim;
    return !c->failed && CUDA_NEED(c, qkv.cols / 3 <= 2048, ROW_NEED) &&
           CUDA_NEED(c, s->heads <= MAX_HEADS && (e == 32 || e == 64 || e == 128), HEAD_NEED);
}

static qkv_args shape_of(const struct qkv_shape *s, struct rope r, struct tensor y,
                         struct tensor gate, struct tensor table, const struct batch *b)
{
    qkv_args k = { NULL,
                   NULL,
                   NULL,
                   NULL,
                   b->tokens,
                   s->heads,
                   s->head_dim,
                   s->paired,
                   s->split_gate,
                   s->key_offset,
                   b->pos,
                   s->cache ? s->cache->slot : NULL,
                   s->cache ? s->cache->capacity : 0,
                   s->cache && s->cache->values_apart,
                   (const bf16 *)r.table.data,
                   (const bf16 *)y.data,
                   (int)y.cols,
                   { gate.data, gate.dtype == DT_F32 },
                   (const bf16 *)table.data,
                   b->token.row };

    assert(r.table.dtype == DT_BF16 && r.table.cols == s->head_dim / 2);
    assert(b->pos || r.table.rows >= (int64_t)b->tokens * (s->paired ? 2 : 1));
    assert(!b->pos || s->key_offset == KEY_OFFSET_NONE);
    assert(!table.data || (table.dtype == DT_BF16 && y.dtype == DT_BF16 && gate.rows == s->heads &&
                           gate.cols == GATE_WIDTH));
    return k;
}

void gpu_qkv(struct ops *o, struct tensor q, struct tensor k, struct tensor v, struct tensor qkv,
             const struct qkv_shape *s, struct rope r, struct tensor y, struct tensor gate,
             struct tensor table, const struct batch *b)
{
    struct cuda_ops *c = cuda_of(o);
    qkv_args a = shape_of(s, r, y, gate, table, b);

    assert(qkv.rows == b->tokens && qkv.cols == 3 * s->heads * s->head_dim);
    if (!can_do(c, qkv, s) || !b->tokens)
        return;
    if (s->cache)
        k = s->cache->k, v = s->cache->values_apart ? v : s->cache->v;
    a.qkv = (const bf16 *)qkv.data;
    a.q = (bf16 *)q.data, a.k = (bf16 *)k.data, a.v = (bf16 *)v.data;
    cuda_launch_waiting(c);
    c->qkv = a;
    if (!s->cache || s->cache->values_apart || !b->apart || c->portable)
        cuda_launch_qkv(c);
}

void cuda_launch_qkv(struct cuda_ops *c)
{
    qkv_args a = c->qkv;
    c->qkv.tokens = 0;
    if (!a.tokens || c->failed)
        return;
    with_vectors(a.heads * a.head_dim, [&](auto vec) {
        with_head_size(a.head_dim, [&](auto w) {
            launch_step(c, qkv_forward<decltype(vec)::value, decltype(w)::value>,
                        dim3(div_up(a.tokens, ROW_WARPS)), ROW_THREADS, a);
        });
    });
}

/* -- backward ---------------------------------------------------------------------- */

/* The rows that hold the lane's vectors of a key of token t: its own row, the next, both or (offset
 * channels of the last token) none. */
template <int V, int W> struct key_grad {
    packed_row<V> own, next;

    __device__ __forceinline__ void load(const bf16 *dk, int t, const qkv_args &s, int d)
    {
        bool offset = head_lane<W>::offset(s.key_offset);
#pragma unroll
        for (int i = 0; i < V; i++) {
            bool here = row<V>::at(i) < d;
            own.u[i] = next.u[i] = make_uint4(0, 0, 0, 0);
            if (here && (!offset || t == 0))
                own.u[i] = *(const uint4 *)(dk + row<V>::at(i));
            if (here && offset && t + 1 < s.tokens)
                next.u[i] = *(const uint4 *)(dk + d + row<V>::at(i));
        }
    }
    __device__ __forceinline__ void get(float (&dx)[8], int i, const qkv_args &s) const
    {
        unpack8(dx, own.u[i]);
        if (s.key_offset) {
            float more[8];
            unpack8(more, next.u[i]);
#pragma unroll
            for (int j = 0; j < 8; j++)
                dx[j] += more[j];
        }
    }
};

/* dx (the gradient of a normed, rotated head) becomes that of the raw head. */
template <int W>
__device__ __forceinline__ static void raw_grad(float (&dx)[8], uint4 raw, const turn &r)
{
    float x[8];

    rotate(dx, r, -1);
    unpack8(x, raw);
    norm_head_bwd<W>(dx, x);
}

/* Channel j of the value gates' input, in memory. */
struct gate_channels {
    const bf16 *y, *e;
    int of_y; /* channels of y: GATE or half */

    __device__ __forceinline__ bf16 operator[](int j) const
    {
        return j < of_y ? y[j] : e[j - of_y];
    }
};

/* The upper half of the gate input's gradient, of which a lane holds `du`, in every lane. */
template <int W>
__device__ __forceinline__ static void upper_half(float (&half)[GATE / 2],
                                                  const float (&du)[(GATE + W - 1) / W])
{
#pragma unroll
    for (int j = 0; j < GATE / 2; j++)
        half[j] = __shfl_sync(~0u, du[(GATE / 2 + j) / W], (GATE / 2 + j) % W);
}

/* partial (blocks, H 12), with a table. Dynamic shared memory: (1 + ROW_WARPS) H 12 floats. */
template <int V, int W, bool TABLE>
__global__ static void __launch_bounds__(ROW_THREADS, V <= 3 ? 2 : 1)
    qkv_backward(bf16 *dqkv, bf16 *drows, float *partial, bf16 *dy12, const bf16 *dq,
                 const bf16 *dk, const bf16 *dv, const bf16 *qkv, qkv_args s)
{
    extern __shared__ float shared[];
    float *gate = shared + ROW_WARPS * s.heads * GATE;
    int d = s.heads * 8 * W;
    gate_grad<V, W> grad;

    if (TABLE) {
        heads_load_gate(gate, s.gate, s.heads);
        __syncthreads();
        grad.zero();
    }
    for (int t = blockIdx.x * ROW_WARPS + warp_id(); t < s.tokens; t += gridDim.x * ROW_WARPS) {
        int64_t at = (int64_t)t * d;
        packed_row<V> rq, rk, gq, gv, re;
        key_grad<V, W> gk;
        const bf16 *yt = s.y + (int64_t)t * s.y_width;
        float u[GATE], dz[V], dx[8], first_gate;

        rq.load(qkv + 3 * at, d);
        rk.load(qkv + 3 * at + d, d);
        gq.load(dq + at, d);
        gk.load(dk + at, t, s, d);
        gv.load(dv + at, d);
        turn r = turn_of<W>(s, t, head_lane<W>::head(0));
        if (TABLE) {
            re.load(s.table + (int64_t)s.tok[t] * d, d);
            gate_input(u, s, t, re);
        }
#pragma unroll
        for (int i = 0; i < V; i++) {
            int h = head_lane<W>::head(i);
            bf16 *out = dqkv + 3 * at + row<V>::at(i);
            bool here = h < s.heads;
            unpack8(dx, gq.u[i]);
            raw_grad<W>(dx, rq.u[i], r);
            if (here)
                store8_whole(out, dx);
            gk.get(dx, i, s);
            raw_grad<W>(dx, rk.u[i], r);
            if (here) {
                store8_whole(out + d, dx);
                store16(out + 2 * d, gv.u[i]);
            }
            if (TABLE) {
                float g = here ? 2 * sigmoid(gate_dot(gate + h * GATE, u)) : 0, e[8];
                if (i == 0)
                    first_gate = g;
                unpack8(dx, gv.u[i]);
                unpack8(e, re.u[i]);
                dz[i] = head_sum<W>(dot8(dx, e)) * g * (1 - g / 2);
#pragma unroll
                for (int j = 0; j < 8; j++)
                    dx[j] *= g;
                if (here)
                    store8_whole(drows + at + row<V>::at(i), dx);
            }
        }
        if (TABLE) {
            float du[gate_grad<V, W>::N];
            int of_y = s.split_gate ? GATE / 2 : GATE;
            gate_channels in = { yt, s.table + (int64_t)s.tok[t] * d, of_y };
            grad.row(du, dz, gate, in, s.heads);
#pragma unroll
            for (int n = 0; n < gate_grad<V, W>::N; n++) {
                int j = gate_grad<V, W>::channel(n);
                bf16 *p = dy12 + (int64_t)t * GATE + j;
                if (lane_id() < W && j < of_y)
                    *p = __float2bfloat16(__bfloat162float(*p) + du[n]);
            }
            if (s.split_gate) { /* the row's first channels again, with the gate's part */
                float half[GATE / 2];
                upper_half<W>(half, du);
                if (lane_id() == 0) {
                    unpack8(dx, gv.u[0]);
#pragma unroll
                    for (int j = 0; j < 8; j++)
                        dx[j] = first_gate * dx[j] + (j < GATE / 2 ? half[j] : 0);
                    store8_whole(drows + at, dx);
                }
            }
        }
    }
    if (TABLE)
        grad.store(partial + (int64_t)blockIdx.x * s.heads * GATE, shared, s.heads);
}

void gpu_qkv_bwd(struct ops *o, struct tensor dqkv, struct tensor dtable_rows, struct tensor dgate,
                 struct tensor dy12, struct tensor dq, struct tensor dk, struct tensor dv,
                 struct tensor qkv, const struct qkv_shape *s, struct rope r, struct tensor y,
                 struct tensor gate, struct tensor table, const struct batch *b)
{
    struct cuda_ops *c = cuda_of(o);
    qkv_args k = shape_of(s, r, y, gate, table, b);
    int blocks = div_up(b->tokens, ROW_WARPS), most = 2 * c->sms; /* as many as are resident */
    size_t shared = table.data ? (1 + ROW_WARPS) * s->heads * GATE * sizeof(float) : 0;
    float *partial;

    assert(!table.data || (dy12.cols == GATE_WIDTH && dy12.dtype == DT_BF16));
    if (!can_do(c, qkv, s) || !blocks)
        return;
    blocks = blocks < most ? blocks : most;
    partial = (float *)cuda_workspace(c, (size_t)blocks * s->heads * GATE * sizeof *partial);
    if (!partial)
        return;
    with_vectors(qkv.cols / 3, [&](auto vec) {
        with_head_size(s->head_dim, [&](auto w) {
            constexpr int V = decltype(vec)::value, W = decltype(w)::value;
            auto *kernel = table.data ? qkv_backward<V, W, true> : qkv_backward<V, W, false>;
            kernel<<<blocks, ROW_THREADS, shared, c->stream>>>(
                (bf16 *)dqkv.data, (bf16 *)dtable_rows.data, partial, (bf16 *)dy12.data,
                (const bf16 *)dq.data, (const bf16 *)dk.data, (const bf16 *)dv.data,
                (const bf16 *)qkv.data, k);
        });
    });
    CUDA_LAUNCHED(c);
    if (table.data)
        cuda_add_partials(c, dgate.data, dgate.dtype, partial, blocks, s->heads * GATE);
}
