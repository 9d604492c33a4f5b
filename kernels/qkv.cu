/* qkv.cu - from a layer's input to what attention reads, and back. record-61.md 2.4 to 2.6, 3.3,
 * record-74.md 6, 7.
 *
 *   raw    = scale x w^T
 *   q, k   Norm over each head's Eq channels, rotated by -theta on the first of them, by the table's width
 *   k      channels [Eq/4,Eq/2) and [3Eq/4,Eq), or [Eq/2,Eq), move to the next token, by key_offset
 *   v      + 2 s(gate_h . u_t) table[tok_t], with a table; u_t = y_t[0:12], or with a split gate
 *          y_t[0:6], table[tok_t][0:6]
 *
 * x (T,D), w (2Q+D,D), raw (T,2Q+D), q, k (T,Q), v (T,D), y (T,D') bf16; rope rows of pairs (cosine,
 * sine) in bf16, of E/4 where half of E channels turn. One warp a token, all heads; a head is W = E/8 lanes (heads.h),
 * so that a norm is a few shuffles and a rotation stays inside a lane.
 *
 * With s->fp8 raw is a product of codes in e4m3 (fp8.md 6).
 *
 * On Hopper, with heads of 128 channels, the forward is sm90/qkv_gemm.cu, and raw is not written.
 * Elsewhere it is a product of cuBLASLt and a pass, which moves 6 T D elements (453 MB at T =
 * 49152, D = 768: 107 us at 4.25 TB/s), with a table T D more (125 us). Backward is attention's on
 * Hopper (sm90/attention_bwd.cu); raw_backward, for other GPUs and for keys with an offset, reads
 * dq, dk, dv, q, k and writes 3 T D: 8 T D (604 MB, 142 us). value_backward, with a table, reads dv
 * and the table and writes its rows' gradients: 3 T D (53 us), and 2 T D more where dv comes apart. With
 * s->dqkv8 the gradients of raw are written as codes (fp8.md 7), half the bytes.
 */
#include "behind.h"
#include "fp8_copy.h"
#include "gpu.h"
#include "qkv.h"
#include "sm90/qkv_gemm.h"

/* Writes a key to its own row, in offset channels to the next row (and for row 0 to row 0 as
 * well). */
template <int W>
__device__ __forceinline__ static void put_key(bf16 *k, const float (&x)[8], int t,
                                               const qkv_args &s, int d, int size)
{
    bool offset = head_lane<W>::offset(s.key_offset, size);

    if (!offset || t == 0)
        store8(k, x);
    if (offset && t + 1 < s.key_rows)
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

/* Adds the bias of eight outputs from `at` on. */
__device__ __forceinline__ static void add_bias(float (&x)[8], const qkv_args &s, int at)
{
    float b[8];

    if (s.bias_f32)
        load8(b, (const float *)s.bias + at);
    else
        load8(b, (const bf16 *)s.bias + at);
#pragma unroll
    for (int j = 0; j < 8; j++)
        x[j] += b[j];
}

/* Rows of up to 768 channels fit 85 registers: 3 CTAs of 256 threads an SM. */
template <int V, int W, bool NARROW>
__global__ static void __launch_bounds__(ROW_THREADS, V <= 3 ? 3 : 1) qkv_forward(qkv_args s)
{
    typedef qk_row<V, W, NARROW> qk;
    const bf16 *qkv = s.qkv;
    bf16 *q = s.q, *k = s.k, *v = s.v;
    int t = blockIdx.x * ROW_WARPS + warp_id(), d = s.heads * 8 * W, qd = qk::width(s);
    packed_row<V> rq, rk, rv, re;
    float u[GATE];

    start_step_behind();
    if (t >= s.tokens) /* warps of the last block; its others wait */
        return;
    turn r = turn_of<W>(s, t, head_lane<W>::head(0));
    int64_t to = t;
    if (s.slot)
        to = (int64_t)__ldcg(s.slot + t) * s.capacity + __ldcg(s.pos + t) % s.capacity;
    q += (int64_t)t * qd, k += to * qd, v += (s.values_apart ? t : to) * d;
    qkv += (int64_t)t * (2 * qd + d);
    if (s.table)
        re.load(s.table + (int64_t)__ldcg(s.tok + t) * d, d);
    wait_for_kernel_before();
    qk::load(rq, qkv, s);
    qk::load(rk, qkv + qd, s);
    rv.load(qkv + 2 * qd, d);
    if (s.table)
        gate_input(u, s, t, re);
#pragma unroll
    for (int i = 0; i < V; i++) {
        int h = head_lane<W>::head(i);
        bool here = h < s.heads;
        bool has = qk::has(i, s), keeps = here && s.factor && lane_id() % W == 0;
        float x[8], factor;
        unpack8(x, rq.u[i]);
        if (s.bias && here)
            add_bias(x, s, row<V>::at(i));
        factor = norm_head<W>(x, qk::size(s));
        rotate(x, r, 1);
        if (keeps)
            s.factor[(int64_t)h * s.tokens + t] = factor;
        if (has)
            store8(q + qk::at(i, s), x);
        unpack8(x, rk.u[i]);
        if (s.bias && here)
            add_bias(x, s, d + row<V>::at(i));
        factor = norm_head<W>(x, qk::size(s));
        rotate(x, r, 1);
        if (keeps)
            s.factor[(int64_t)(s.heads + h) * s.tokens + t] = factor;
        if (has)
            put_key<W>(k + qk::at(i, s), x, t, s, qd, qk::size(s));
        if (s.bias && here) {
            unpack8(x, rv.u[i]);
            add_bias(x, s, 2 * d + row<V>::at(i));
            rv.u[i] = pack8(x);
        }
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

static bool can_do(struct cuda_ops *c, const struct qkv_shape *s)
{
    int e = s->head_dim, qk = qkv_qk_dim(s);
    return !c->failed && ROW_FITS(c, s->heads * e) &&
           CUDA_NEED(c, s->heads <= MAX_HEADS && (e == 32 || e == 64 || e == 128), HEAD_NEED) &&
           CUDA_NEED(c, qk <= e && qk % 32 == 0,
                     "heads of q and k have 32, 64, 96 or 128 channels");
}

/* True if Hopper's own kernels, which have q and k of v's width, half of which turns, do not do it. */
static bool is_narrow(const struct qkv_shape *s, struct rope r)
{
    return qkv_qk_dim(s) != s->head_dim || r.table.cols != s->head_dim / 2;
}

static qkv_args shape_of(const struct qkv_shape *s, struct rope r, int tokens)
{
    qkv_args k = {};

    assert(r.table.dtype == DT_BF16 || r.table.dtype == DT_F32);
    assert(r.table.cols <= qkv_qk_dim(s) && r.table.cols % 8 == 0);
    k.tokens = tokens, k.heads = s->heads, k.head_dim = s->head_dim;
    k.qk_dim = qkv_qk_dim(s), k.turned = (int)r.table.cols;
    k.paired = s->paired, k.key_offset = s->key_offset;
    k.rope = r.table.data, k.rope_f32 = r.table.dtype == DT_F32;
    return k;
}

/* Adds the value gates and their table, which may be none. */
static void add_values(qkv_args *k, const struct qkv_shape *s, struct tensor y, struct tensor gate,
                       struct tensor table, const struct batch *b)
{
    assert(!table.data || (table.dtype == DT_BF16 && y.dtype == DT_BF16 && gate.rows == s->heads &&
                           gate.cols == GATE_WIDTH));
    k->split_gate = s->split_gate;
    k->y = (const bf16 *)y.data, k->y_width = (int)y.cols;
    k->gate = { gate.data, gate.dtype == DT_F32 };
    k->table = (const bf16 *)table.data, k->tok = b->token.row;
}

static bool in_one_kernel(const struct cuda_ops *c, const struct qkv_shape *s, struct rope r,
                          struct tensor x, struct tensor w)
{
    /* Two heads of half the width, whole of which turns, are as one. */
    bool two = 2 * qkv_qk_dim(s) == s->head_dim && r.table.cols == qkv_qk_dim(s) &&
               r.table.dtype == DT_BF16 && s->heads % 2 == 0;
    return !c->portable && !s->cache && s->head_dim == QKV_GEMM_HEAD && x.cols % 8 == 0 &&
           w.dtype == DT_BF16 && (!is_narrow(s, r) || two);
}

void gpu_qkv(struct ops *o, struct tensor q, struct tensor k, struct tensor v, struct tensor factor,
             struct tensor raw, struct tensor x, struct tensor w, const real *scale,
             struct tensor bias, const struct qkv_shape *s, struct rope r, struct tensor y,
             struct tensor gate, struct tensor table, const struct batch *b)
{
    struct cuda_ops *c = cuda_of(o);
    qkv_args a = shape_of(s, r, b->tokens);
    const struct fp8_operands *in8 = c->fp8 ? s->fp8 : NULL;

    assert(!s->fp8 || (!bias.data && !b->pos));
    assert(b->pos || r.table.rows >= (int64_t)b->tokens * (s->paired ? 2 : 1));
    assert(!b->pos || s->key_offset == KEY_OFFSET_NONE);
    assert(raw.rows == b->tokens && raw.cols == s->heads * (2 * qkv_qk_dim(s) + s->head_dim));
    if (!can_do(c, s) || !b->tokens ||
        !CUDA_NEED(c, !in8 || x.cols % 16 == 0, "fp8 products have widths of multiples of 16"))
        return;
    add_values(&a, s, y, gate, table, b);
    a.key_rows = (int)k.rows;
    a.pos = b->pos;
    if (s->cache) {
        a.slot = s->cache->slot, a.capacity = s->cache->capacity;
        a.values_apart = s->cache->values_apart;
        k = s->cache->k, v = s->cache->values_apart ? v : s->cache->v;
    }
    a.qkv = (const bf16 *)raw.data;
    a.q = (bf16 *)q.data, a.k = (bf16 *)k.data, a.v = (bf16 *)v.data;
    a.factor = (float *)factor.data;
    a.bias = bias.data, a.bias_f32 = bias.dtype == DT_F32;
    if (in_one_kernel(c, s, r, x, w) && !b->pos && !o->rows_apart &&
        !((a.table || in8 || a.qk_dim < a.head_dim) && (a.bias || a.rope_f32))) {
        cuda_launch_waiting(c);
        qkv_gemm(c, x, w, scale, in8, &a);
        return;
    }
    if (in8) {
        cuda_gemm_operands(c, raw, in8, scale);
    } else if (bias.data && s->cache) { /* attention_cached may read raw itself */
        gpu_linear_bias(o, raw, x, w, scale, bias, {}, false);
        a.bias = NULL;
    } else {
        gpu_linear(o, raw, x, w, scale, {});
    }
    cuda_launch_waiting(c);
    c->qkv = a;
    if (!s->cache || s->cache->values_apart || !b->apart || c->portable || is_narrow(s, r))
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
            constexpr int V = decltype(vec)::value, W = decltype(w)::value;
            launch_step(c,
                        a.qk_dim < a.head_dim ? qkv_forward<V, W, true> : qkv_forward<V, W, false>,
                        dim3(div_up(a.tokens, ROW_WARPS)), ROW_THREADS, a);
        });
    });
}

/* -- backward ---------------------------------------------------------------------- */

/* A key of token t and its gradient, from the rows that they went to: its own, the next, both (of
 * token 0) or (offset channels of the last token) no gradient. */
template <int V, int W, bool NARROW> struct key_grad {
    typedef qk_row<V, W, NARROW> qk;
    packed_row<V> z, own, next;

    __device__ __forceinline__ void load(const bf16 *k, const bf16 *dk, int t, const qkv_args &s,
                                         int d)
    {
        bool offset = head_lane<W>::offset(s.key_offset, qk::size(s));
#pragma unroll
        for (int i = 0; i < V; i++) {
            bool here = qk::has(i, s);
            z.u[i] = own.u[i] = next.u[i] = make_uint4(0, 0, 0, 0);
            if (here)
                z.u[i] = *(const uint4 *)(k + (offset ? d : 0) + qk::at(i, s));
            if (here && (!offset || t == 0))
                own.u[i] = *(const uint4 *)(dk + qk::at(i, s));
            if (here && offset && t + 1 < s.tokens)
                next.u[i] = *(const uint4 *)(dk + d + qk::at(i, s));
        }
    }
    __device__ __forceinline__ void get(float (&dz)[8], int i, const qkv_args &s) const
    {
        unpack8(dz, own.u[i]);
        if (s.key_offset) {
            float more[8];
            unpack8(more, next.u[i]);
#pragma unroll
            for (int j = 0; j < 8; j++)
                dz[j] += more[j];
        }
    }
};

/* The gradient of a head of z = R Norm(x), of this factor, becomes that of x (lib/ops/qkv.c,
 * raw_grad). */
template <int W>
__device__ __forceinline__ static void raw_grad(float (&d)[8], uint4 packed, const turn &r,
                                                float factor, int size)
{
    float z[8];

    unpack8(z, packed);
    float mean = head_sum<W>(dot8(d, z)) / size;
#pragma unroll
    for (int j = 0; j < 8; j++)
        d[j] -= mean * rcp_approx(fmaf(r.c[j / 2], r.c[j / 2], r.s[j / 2] * r.s[j / 2])) * z[j];
    rotate(d, r, -1);
#pragma unroll
    for (int j = 0; j < 8; j++)
        d[j] *= factor;
}

/* x += what is in memory. */
__device__ __forceinline__ static void add8(float (&x)[8], const bf16 *p)
{
    float old[8];
    load8(old, p);
#pragma unroll
    for (int j = 0; j < 8; j++)
        x[j] += old[j];
}

/* Where gradients of raw q, k and v go: to rows of 3D, or in their place to rows of codes of g / unit. */
struct raw_out {
    bf16 *dqkv;
    uint8_t *codes; /* or NULL */
    float unit;
    explicit raw_out(struct tensor dqkv, const struct fp8_gradient *g8)
        : dqkv((bf16 *)dqkv.data), codes(g8 ? (uint8_t *)g8->codes.data : NULL),
          unit(g8 ? g8->scale : 1)
    {
    }
    /* Writes eight numbers in bf16 from `at` on. */
    __device__ __forceinline__ void put(int64_t at, uint4 packed) const
    {
        float x[8];
        if (!codes) {
            store16(dqkv + at, packed);
            return;
        }
        unpack8(x, packed);
#pragma unroll
        for (int j = 0; j < 8; j++)
            x[j] = quot(x[j], unit);
        *(uint2 *)(codes + at) = pack_e4m3(x);
    }
};

/* Computes the gradients of raw q, k and v. s gives factor, shape, rope and q, k as attention read
 * them; dq, dk, dv are NULL where they are not wanted. Rows of up to 768 channels fit 128 registers: 2
 * CTAs an SM. */
template <int V, int W, bool NARROW>
__global__ static void __launch_bounds__(ROW_THREADS, V <= 3 ? 2 : 1)
    raw_backward(raw_out out, bool add, const bf16 *dq, const bf16 *dk, const bf16 *dv, qkv_args s)
{
    typedef qk_row<V, W, NARROW> qk;
    int d = s.heads * 8 * W, qd = qk::width(s);

    for (int t = blockIdx.x * ROW_WARPS + warp_id(); t < s.tokens; t += gridDim.x * ROW_WARPS) {
        int64_t at = (int64_t)t * qd;
        packed_row<V> z, g, gv;
        key_grad<V, W, NARROW> gk;

        if (dq)
            qk::load(z, s.q + at, s), qk::load(g, dq + at, s);
        if (dk)
            gk.load(s.k + at, dk + at, t, s, qd);
        if (dv)
            gv.load(dv + (int64_t)t * d, d);
        turn r = turn_of<W>(s, t, head_lane<W>::head(0));
#pragma unroll
        for (int i = 0; i < V; i++) {
            int h = head_lane<W>::head(i);
            int64_t first = (int64_t)t * (2 * qd + d), to = first + qk::at(i, s);
            bool here = h < s.heads, has = qk::has(i, s);
            const float *factor = s.factor + (int64_t)(here ? h : 0) * s.tokens + t;
            float x[8];
            if (dq) {
                unpack8(x, g.u[i]);
                raw_grad<W>(x, z.u[i], r, *factor, qk::size(s));
                if (add && has)
                    add8(x, out.dqkv + to);
                if (has)
                    out.put(to, pack8(x));
            }
            if (dk) {
                gk.get(x, i, s);
                raw_grad<W>(x, gk.z.u[i], r, factor[(int64_t)s.heads * s.tokens], qk::size(s));
                if (add && has)
                    add8(x, out.dqkv + qd + to);
                if (has)
                    out.put(qd + to, pack8(x));
            }
            if (dv && here)
                out.put(first + 2 * qd + row<V>::at(i), gv.u[i]);
        }
    }
}

/* each: blocks that an SM holds. */
static int resident_blocks(const struct cuda_ops *c, int tokens, int each)
{
    int blocks = div_up(tokens, ROW_WARPS), most = each * c->sms;

    return blocks < most ? blocks : most;
}

void cuda_raw_grads(struct cuda_ops *c, struct tensor dqkv, bool add, const void *dq,
                    const void *dk, const void *dv, struct tensor q, struct tensor k,
                    const struct qk_made *m)
{
    qkv_args a = shape_of(&m->shape, m->rope, (int)dqkv.rows);
    const struct fp8_gradient *g8 = cuda_dqkv8(c, &m->shape);

    assert(!add || !g8);
    assert(dqkv.cols == a.heads * (2 * a.qk_dim + a.head_dim) && m->factor.rows == 2 * a.heads);
    assert(m->factor.cols == a.tokens);
    assert(!dk || k.rows == a.tokens + (a.key_offset != KEY_OFFSET_NONE));
    if (!can_do(c, &m->shape) || !a.tokens)
        return;
    a.q = (bf16 *)q.data, a.k = (bf16 *)k.data, a.factor = (float *)m->factor.data;
    with_vectors(a.heads * a.head_dim, [&](auto vec) {
        with_head_size(a.head_dim, [&](auto w) {
            constexpr int V = decltype(vec)::value, W = decltype(w)::value;
            auto *kernel =
                a.qk_dim < a.head_dim ? raw_backward<V, W, true> : raw_backward<V, W, false>;
            kernel<<<resident_blocks(c, a.tokens, 2), ROW_THREADS, 0, c->stream>>>(
                raw_out(dqkv, g8), add, (const bf16 *)dq, (const bf16 *)dk, (const bf16 *)dv, a);
        });
    });
    CUDA_LAUNCHED(c);
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

/* dv: NULL, or from where dqkv's last part comes. partial (blocks, H 12). With a table dynamic
 * shared memory: (1 + ROW_WARPS) H 12 floats. Registers as of qkv_forward. */
template <int V, int W, bool TABLE>
__global__ static void __launch_bounds__(ROW_THREADS, V <= 3 ? 3 : 1)
    value_backward(raw_out to, bf16 *drows, float *partial, bf16 *dy12, const bf16 *dv, qkv_args s)
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
        int qd = s.heads * s.qk_dim;
        int64_t out = (int64_t)t * (2 * qd + d) + 2 * qd;
        packed_row<V> gv, re;
        float u[GATE], dz[V], dx[8], first_gate;

        gv.load(dv ? dv + at : to.dqkv + out, d);
        if (TABLE) {
            re.load(s.table + (int64_t)s.tok[t] * d, d);
            gate_input(u, s, t, re);
        }
#pragma unroll
        for (int i = 0; i < V; i++) {
            int h = head_lane<W>::head(i);
            bool here = h < s.heads;
            if (dv && here)
                to.put(out + row<V>::at(i), gv.u[i]);
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
            gate_channels in = { s.y + (int64_t)t * s.y_width, s.table + (int64_t)s.tok[t] * d,
                                 of_y };
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

void gpu_value_bwd(struct ops *o, struct tensor dqkv, struct tensor dtable_rows,
                   struct tensor dgate, struct tensor dy12, struct tensor dv,
                   const struct qkv_shape *s, struct tensor y, struct tensor gate,
                   struct tensor table, const struct batch *b)
{
    struct cuda_ops *c = cuda_of(o);
    qkv_args k = {};
    int blocks = resident_blocks(c, b->tokens, 3);
    size_t shared = table.data ? (1 + ROW_WARPS) * s->heads * GATE * sizeof(float) : 0;
    float *partial;
    const struct fp8_gradient *g8 = cuda_dqkv8(c, s);

    assert(!g8 || dv.data);
    assert(!table.data || (dy12.cols == GATE_WIDTH && dy12.dtype == DT_BF16));
    assert(dqkv.rows == b->tokens && dqkv.cols == s->heads * (2 * qkv_qk_dim(s) + s->head_dim));
    if (!can_do(c, s) || !blocks || (!table.data && !dv.data))
        return;
    partial = (float *)cuda_workspace(c, (size_t)blocks * s->heads * GATE * sizeof *partial);
    if (!partial)
        return;
    k.tokens = b->tokens, k.heads = s->heads, k.head_dim = s->head_dim;
    k.qk_dim = qkv_qk_dim(s);
    add_values(&k, s, y, gate, table, b);
    with_vectors(k.heads * k.head_dim, [&](auto vec) {
        with_head_size(s->head_dim, [&](auto w) {
            constexpr int V = decltype(vec)::value, W = decltype(w)::value;
            auto *kernel = table.data ? value_backward<V, W, true> : value_backward<V, W, false>;
            kernel<<<blocks, ROW_THREADS, shared, c->stream>>>(
                raw_out(dqkv, g8), (bf16 *)dtable_rows.data, partial, (bf16 *)dy12.data,
                (const bf16 *)dv.data, k);
        });
    });
    CUDA_LAUNCHED(c);
    if (table.data)
        cuda_add_partials(c, dgate.data, dgate.dtype, partial, blocks, s->heads * GATE);
}
