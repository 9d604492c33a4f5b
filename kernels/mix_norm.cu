/* mix_norm.cu - out = sum_k coef_k x_k, y = Norm(out), and back. record-61.md 2.3, 3.3.
 *
 * All (T,D) bf16, at most MIX_MAX terms; coefficients f32 in device memory.
 * One warp a row, 8 rows a block. Bandwidth-bound:
 *
 *   forward    reads n T D, writes T D (out) + T D (y)                  2 (n + 2) T D bytes
 *              out is not written when it is the only term, unscaled
 *   backward   reads out, dy, dout and the terms that have a dcoef, reads dx_k where it
 *              is added to, writes dx_k                                  2 (…) T D bytes
 *
 * At T = 49152, D = 768 a tensor is 75.5 MB = 17.8 us at 4.25 TB/s. FLOPs: about 4 (n + 2) a
 * channel, far below the memory time.
 *
 * Backward sums dcoef over rows in a fixed grid (dcoef.h).
 *
 * Terms of some channels, coefficients of tokens, and more than four terms (record-84.md 2, 5) have
 * kernels of their own, mix_any and mix_any_backward, which read and write the terms' channels
 * alone and 4 bytes for each coefficient of a token. A coefficient's gradient of a token is written
 * where its row is.
 */
#include "behind.h"
#include "dcoef.h"
#include "few_rows.h"
#include "fp8_copy.h"
#include "gpu.h"
#include "head_fp8.h"
#include "mix.h"

/* Stores codes of the norm's row y as it is stored in bf16. */
template <int V>
__device__ __forceinline__ static void store_codes(uint8_t *to, const row<V> &y, float scale, int d)
{
#pragma unroll
    for (int i = 0; i < V; i++) {
        float q[8];
#pragma unroll
        for (int j = 0; j < 8; j++)
            q[j] = quot(as_stored<bf16>(y.x[i][j]), scale);
        if (row<V>::at(i) < d)
            *(uint2 *)(to + row<V>::at(i)) = pack_e4m3(q);
    }
}

template <int V, int N>
__global__ static void __launch_bounds__(ROW_THREADS) mix_forward(mix_args a)
{
    int t = blockIdx.x * ROW_WARPS + warp_id();
    mix_coefs<N> coef;
    row<V> y;

    start_step_behind();
    coef.load(a);
    wait_for_kernel_before();
    if (t < a.rows)
        mix_row(y, a, coef, t, true);
    if (t < a.rows && a.y8)
        store_codes(a.y8 + (int64_t)t * a.d, y, a.y8_scale, a.d);
}

static void launch(struct cuda_ops *c, const mix_args &a)
{
    with_vectors(a.d, [&](auto v) {
        constexpr int V = decltype(v)::value;
        auto *kernel = a.n == 1   ? mix_forward<V, 1>
                       : a.n == 2 ? mix_forward<V, 2>
                       : a.n == 3 ? mix_forward<V, 3>
                                  : mix_forward<V, 4>;
        launch_step(c, kernel, dim3(div_up(a.rows, ROW_WARPS)), ROW_THREADS, a);
    });
}

void cuda_launch_waiting(struct cuda_ops *c)
{
    mix_args a = c->mix;
    c->mix.n = 0;
    if (a.n && !c->failed)
        launch(c, a);
    cuda_launch_qkv(c);
}

/* True if a product may make this mix: its blocks must not read what one of them overwrites. */
static bool can_wait(const mix_args &a)
{
    if (a.n > FEW_MIX_TERMS || a.rows > FEW_MIX_ROWS || !a.y || a.y8)
        return false;
    for (int k = 0; k < a.n; k++)
        if (a.x[k] == a.y || (a.write_out && a.x[k] == a.out))
            return false;
    return true;
}

static bool can_do(struct cuda_ops *c, struct tensor out, int n, const struct mix_term *in)
{
    bool whole = true;

    for (int k = 0; k < n; k++)
        whole &= in[k].x.cols % 8 == 0 && in[k].first % 8 == 0 && in[k].n % 8 == 0;
    return !c->failed && ROW_FITS(c, out.cols) &&
           CUDA_NEED(c, whole, "channels of a term are a multiple of 8, from one on");
}

/* True if the kernels for plain terms take this mix. */
static bool is_plain(struct tensor out, int n, const struct mix_term *in)
{
    bool plain = n <= 4;

    for (int k = 0; k < n; k++)
        plain &= !in[k].stride && !in[k].plus_one && (!in[k].n || in[k].n == out.cols);
    return plain;
}

/* -- any terms ------------------------------------------------------------------------ */

/* Channel c of out, first <= c < end, is element at + c of row t of x, which has `cols`. */
struct any_term {
    const bf16 *x;
    const float *coef;
    float sign, one;
    int stride, first, end, at, cols;

    __device__ __forceinline__ float coefficient(int t) const
    {
        return (coef ? sign * coef[(int64_t)t * stride] : sign) + one;
    }
    template <int V> __device__ __forceinline__ packed_row<V> load(const bf16 *p, int t) const
    {
        packed_row<V> r;
#pragma unroll
        for (int i = 0; i < V; i++) {
            int c = row<V>::at(i);
            r.u[i] = c >= first && c < end ? *(const uint4 *)(p + (int64_t)t * cols + at + c)
                                           : make_uint4(0, 0, 0, 0);
        }
        return r;
    }
    template <int V> __device__ __forceinline__ void store(bf16 *p, int t, const row<V> &r) const
    {
#pragma unroll
        for (int i = 0; i < V; i++) {
            int c = row<V>::at(i);
            if (c >= first && c < end)
                store8(p + (int64_t)t * cols + at + c, r.x[i]);
        }
    }
};

static any_term any_term_of(const struct mix_term *m, struct tensor out)
{
    int64_t end = m->n ? m->first + m->n : out.cols;

    assert(m->x.dtype == DT_BF16 && m->x.rows == out.rows && end <= out.cols);
    assert(m->x.cols == out.cols || m->x.cols == m->n);
    return any_term{ (const bf16 *)m->x.data,
                     m->coef,
                     m->minus ? -1.0f : 1.0f,
                     m->plus_one ? 1.0f : 0.0f,
                     m->stride,
                     (int)m->first,
                     (int)end,
                     m->x.cols == out.cols ? 0 : (int)-m->first,
                     (int)m->x.cols };
}

struct any_args {
    any_term term[MIX_MAX];
    bf16 *out, *y;
    int n, rows, d;
    uint8_t *y8; /* as of mix_args */
    float y8_scale;
};

template <int V, int N>
__global__ static void __launch_bounds__(ROW_THREADS) mix_any(const __grid_constant__ any_args a)
{
    int t = blockIdx.x * ROW_WARPS + warp_id();
    packed_row<V> in[N];
    row<V> sum, x;
    int64_t at = (int64_t)t * a.d;

    begin_step();
    if (t >= a.rows)
        return;
#pragma unroll
    for (int k = 0; k < N; k++)
        if (k < a.n)
            in[k] = a.term[k].load<V>(a.term[k].x, t);
    sum.zero();
#pragma unroll
    for (int k = 0; k < N; k++)
        if (k < a.n) {
            x.unpack(in[k]);
            sum.add(a.term[k].coefficient(t), x);
        }
    sum.store(a.out + at, a.d);
    if (a.y) {
        sum.scale(norm_factor(warp_sum(sum.dot(sum)), a.d));
        sum.store(a.y + at, a.d);
    }
    if (a.y8)
        store_codes(a.y8 + at, sum, a.y8_scale, a.d);
}

static void forward_any(struct cuda_ops *c, struct tensor out, const mix_args &of, int n,
                        const struct mix_term *in)
{
    any_args a = { .out = of.out,
                   .y = of.y,
                   .n = n,
                   .rows = of.rows,
                   .d = of.d,
                   .y8 = of.y8,
                   .y8_scale = of.y8_scale };

    for (int k = 0; k < n; k++)
        a.term[k] = any_term_of(&in[k], out);
    with_vectors(a.d, [&](auto v) {
        constexpr int V = decltype(v)::value;
        launch_step(c, n <= 4 ? mix_any<V, 4> : mix_any<V, MIX_MAX>,
                    dim3(div_up(out.rows, ROW_WARPS)), ROW_THREADS, a);
    });
}

/* -- forward ---------------------------------------------------------------------------- */

void gpu_mix_norm(struct ops *o, struct tensor out, struct tensor y, int n,
                  const struct mix_term *in)
{
    gpu_mix_norm_codes(o, out, y, {}, 1, n, in);
}

void gpu_mix_norm_codes(struct ops *o, struct tensor out, struct tensor y, struct tensor y8,
                        real scale, int n, const struct mix_term *in)
{
    struct cuda_ops *c = cuda_of(o);
    mix_args a = { .out = (bf16 *)out.data,
                   .y = (bf16 *)y.data,
                   .n = n,
                   .rows = (int)out.rows,
                   .d = (int)out.cols,
                   .write_out = true,
                   .y8 = c->fp8 ? (uint8_t *)y8.data : NULL,
                   .y8_scale = scale };

    assert(!y8.data || (y.data && y8.dtype == DT_E4M3 && tensor_count(y8) == tensor_count(y)));
    assert(n >= 1 && n <= MIX_MAX && out.dtype == DT_BF16 && (!y.data || y.dtype == DT_BF16));
    if (!can_do(c, out, n, in))
        return;
    if (!is_plain(out, n, in)) {
        if (a.rows)
            forward_any(c, out, a, n, in);
        return;
    }
    for (int k = 0; k < n; k++) {
        assert(in[k].x.dtype == DT_BF16 && tensor_count(in[k].x) == tensor_count(out));
        a.x[k] = (const bf16 *)in[k].x.data;
        a.coef[k] = in[k].coef;
        a.sign[k] = in[k].minus ? -1 : 1;
    }
    if (n == 1 && !in[0].coef && !in[0].minus && in[0].x.data == out.data)
        a.write_out = false;
    if (!a.rows || (!a.write_out && !a.y))
        return;
    cuda_launch_waiting(c);
    if (o->rows_apart && can_wait(a))
        c->mix = a;
    else
        launch(c, a);
}

/* -- backward --------------------------------------------------------------------- */

enum { BWD_WARPS = 4 }; /* a row's inputs take many registers */

__device__ __forceinline__ static float coefficient(const float *coef, float sign)
{
    return coef ? sign * *coef : sign;
}

struct backward_args {
    const bf16 *dout, *dy, *dy12, *out;
    const bf16 *x[MIX_MAX];
    const float *coef[MIX_MAX];
    float sign[MIX_MAX];
    bf16 *dx[MIX_MAX];
    bool add[MIX_MAX];
    float *dcoef[MIX_MAX];
    float *partial; /* (blocks, terms) */
    unsigned *ticket;
    bool any_dcoef;
    int rows, d;
};

/* What the gradient of a row is made from. */
template <int V> struct gradients {
    packed_row<V> dout, dy, out;
    float dy12[8];

    __device__ __forceinline__ void load(const backward_args &a, int64_t t)
    {
        int64_t at = t * a.d;
        if (a.dy)
            dy.load(a.dy + at, a.d);
        if (a.dy || a.dy12)
            out.load(a.out + at, a.d);
        if (a.dout)
            dout.load(a.dout + at, a.d);
    }
    __device__ __forceinline__ void load12(const backward_args &a, int64_t t)
    {
#pragma unroll
        for (int j = 0; j < 8; j++) { /* channels 8 lane + j of the first two lanes */
            int c = 8 * lane_id() + j;
            dy12[j] = a.dy12 && c < GATE_WIDTH ? __bfloat162float(a.dy12[t * GATE_WIDTH + c]) : 0;
        }
    }
};

/* All that a row reads, loaded before any of it is used. */
template <int V, int N> struct inputs : gradients<V> {
    packed_row<V> x[N], old[N];

    __device__ __forceinline__ void load(const backward_args &a, int64_t t)
    {
        int64_t at = t * a.d;
        gradients<V>::load(a, t);
#pragma unroll
        for (int k = 0; k < N; k++) {
            if (a.dcoef[k])
                x[k].load(a.x[k] + at, a.d);
            if (a.dx[k] && a.add[k])
                old[k].load(a.dx[k] + at, a.d);
        }
        this->load12(a, t);
    }
};

/* g = dout + Norm'(dy + dy12; out). */
template <int V>
__device__ __forceinline__ static void row_gradient(row<V> &g, const backward_args &a,
                                                    const gradients<V> &in)
{
    row<V> other;

    g.zero();
    if (a.dy || a.dy12) {
        if (a.dy)
            g.unpack(in.dy);
#pragma unroll
        for (int j = 0; j < 8; j++)
            g.x[0][j] += in.dy12[j];
        other.unpack(in.out);
        norm_row_bwd(g, other, a.d);
    }
    if (a.dout) {
        other.unpack(in.dout);
        g.add(1, other);
    }
}

/* Rows of up to 768 channels and two terms leave room for 3 CTAs an SM. */
template <int V, int N>
__global__ static void __launch_bounds__(32 * BWD_WARPS, V <= 3 && N <= 2 ? 3 : 1)
    mix_backward(backward_args a)
{
    float sum[N] = {};

    for (int t = blockIdx.x * BWD_WARPS + warp_id(); t < a.rows; t += gridDim.x * BWD_WARPS) {
        inputs<V, N> in;
        row<V> g, x;
        in.load(a, t);
        row_gradient(g, a, in);
#pragma unroll
        for (int k = 0; k < N; k++)
            if (a.dcoef[k]) {
                x.unpack(in.x[k]);
                sum[k] += g.dot(x);
            }
#pragma unroll
        for (int k = 0; k < N; k++)
            if (a.dx[k]) {
                x.zero();
                if (a.add[k])
                    x.unpack(in.old[k]);
                x.add(coefficient(a.coef[k], a.sign[k]), g);
                x.store(a.dx[k] + (int64_t)t * a.d, a.d);
            }
    }
#pragma unroll
    for (int k = 0; k < N; k++)
        sum[k] *= a.sign[k];
    if (a.any_dcoef)
        add_up<BWD_WARPS>(sum, a.dcoef, a.partial, a.ticket);
}

/* -- backward of any terms ------------------------------------------------------------- */

struct any_grad {
    bf16 *dx;
    float *dcoef; /* of a token: + t stride, written */
    bool add;
};
struct any_back {
    backward_args row; /* all but the terms; dcoef: of terms with one coefficient for all tokens */
    any_term term[MIX_MAX];
    any_grad grad[MIX_MAX];
    int n;
};

/* Up to 768 channels: 3 CTAs an SM with four terms, 2 with more. */
template <int V, int N>
__global__ static void __launch_bounds__(32 * BWD_WARPS, V <= 3 ? (N <= 4 ? 3 : 2) : 1)
    mix_any_backward(const __grid_constant__ any_back a)
{
    float sum[N] = {};

    for (int t = blockIdx.x * BWD_WARPS + warp_id(); t < a.row.rows; t += gridDim.x * BWD_WARPS) {
        gradients<V> in;
        packed_row<V> from[N];
        row<V> g, x;
        in.load(a.row, t);
        in.load12(a.row, t);
#pragma unroll
        for (int k = 0; k < N; k++)
            if (k < a.n && a.grad[k].dcoef)
                from[k] = a.term[k].template load<V>(a.term[k].x, t);
        row_gradient(g, a.row, in);
#pragma unroll
        for (int k = 0; k < N; k++)
            if (k < a.n && a.grad[k].dcoef) {
                const any_term &m = a.term[k];
                x.unpack(from[k]);
                float dot = g.dot(x);
                if (!m.stride)
                    sum[k] += dot;
                else if ((dot = warp_sum(dot)), lane_id() == 0)
                    a.grad[k].dcoef[(int64_t)t * m.stride] = m.sign * dot;
            }
#pragma unroll
        for (int k = 0; k < N; k++)
            if (k < a.n && a.grad[k].dx) {
                const any_term &m = a.term[k];
                x.zero();
                if (a.grad[k].add)
                    x.unpack(m.template load<V>(a.grad[k].dx, t));
                x.add(m.coefficient(t), g);
                m.store(a.grad[k].dx, t, x);
            }
    }
#pragma unroll
    for (int k = 0; k < N; k++)
        sum[k] *= k < a.n ? a.term[k].sign : 0;
    if (a.row.any_dcoef)
        add_up<BWD_WARPS>(sum, a.row.dcoef, a.row.partial, a.row.ticket);
}

static void backward_any(struct cuda_ops *c, const backward_args &row, const struct mix_grad *d,
                         struct tensor out, int n, const struct mix_term *in)
{
    any_back a = { .row = row, .n = n };
    int blocks = div_up(out.rows, BWD_WARPS), resident = (n <= 4 ? 3 : 2) * c->sms;

    for (int k = 0; k < n; k++) {
        a.term[k] = any_term_of(&in[k], out);
        a.grad[k] = any_grad{ (bf16 *)d[k].dx.data, d[k].dcoef, d[k].add };
        a.row.dcoef[k] = in[k].stride ? NULL : d[k].dcoef;
        a.row.any_dcoef |= a.row.dcoef[k] != NULL;
    }
    blocks = blocks < resident ? blocks : resident;
    a.row.partial = (float *)cuda_workspace(c, (size_t)blocks * MIX_MAX * sizeof(float));
    if (!a.row.partial)
        return;
    with_vectors(a.row.d, [&](auto v) {
        constexpr int V = decltype(v)::value;
        auto *kernel = n <= 4 ? mix_any_backward<V, 4> : mix_any_backward<V, MIX_MAX>;
        kernel<<<blocks, 32 * BWD_WARPS, 0, c->stream>>>(a);
    });
    CUDA_LAUNCHED(c);
}

void gpu_mix_norm_bwd(struct ops *o, const struct mix_grad *d, struct tensor dout, struct tensor dy,
                      struct tensor dy12, struct tensor out, int n, const struct mix_term *in)
{
    struct cuda_ops *c = cuda_of(o);
    int blocks = div_up(out.rows, BWD_WARPS);
    backward_args a = { .dout = (bf16 *)dout.data,
                        .dy = (bf16 *)dy.data,
                        .dy12 = (bf16 *)dy12.data,
                        .out = (bf16 *)out.data,
                        .ticket = c->ticket,
                        .rows = (int)out.rows,
                        .d = (int)out.cols };

    assert(n >= 1 && n <= MIX_MAX && out.dtype == DT_BF16);
    assert(!dout.data || dout.dtype == DT_BF16);
    assert(!dy.data || dy.dtype == DT_BF16);
    assert(!dy12.data || (dy12.dtype == DT_BF16 && dy12.cols == GATE_WIDTH));
    if (!can_do(c, out, n, in) || !blocks)
        return;
    if (!is_plain(out, n, in)) {
        backward_any(c, a, d, out, n, in);
        return;
    }
    for (int k = 0; k < n; k++) {
        a.x[k] = (const bf16 *)in[k].x.data;
        a.coef[k] = in[k].coef;
        a.sign[k] = in[k].minus ? -1 : 1;
        a.dx[k] = (bf16 *)d[k].dx.data;
        a.add[k] = d[k].add;
        a.dcoef[k] = d[k].dcoef;
        a.any_dcoef |= d[k].dcoef != NULL;
    }
    for (int k = 1; k < n; k++) /* a term's old values are read before any is written */
        for (int j = 0; j < k; j++)
            assert(!a.dx[k] || !a.add[k] || a.dx[j] != a.dx[k]);
    int resident = (n <= 2 ? 3 : 2) * c->sms; /* blocks, by their registers */
    blocks = blocks < resident ? blocks : resident;
    a.partial = (float *)cuda_workspace(c, (size_t)blocks * MIX_MAX * sizeof(float));
    if (!a.partial)
        return;
    with_vectors(a.d, [&](auto v) {
        constexpr int V = decltype(v)::value;
        auto *kernel = n == 1   ? mix_backward<V, 1>
                       : n == 2 ? mix_backward<V, 2>
                       : n == 3 ? mix_backward<V, 3>
                                : mix_backward<V, 4>;
        kernel<<<blocks, 32 * BWD_WARPS, 0, c->stream>>>(a);
    });
    CUDA_LAUNCHED(c);
}
