/* lanes.cu - two streams mixed from the same terms, and back: record 74's lanes (record-74.md 5).
 *
 *   out_j = sum_k coef_kj x_k, y = Norm(out_normed)
 *   g_j = dout_j (+ Norm'(dy; out) in lane normed)
 *   dx_k = sum_j coef_kj g_j, dcoef_kj += sum g_j x_k
 *
 * All (T,D) bf16, at most LANES_MAX terms; coefficients f32 in device memory. One warp a row, every
 * tensor once: with mix_norm for each lane what both read (o, m) is read twice and its gradient
 * written twice. Tensors moved, A = T D 2 bytes (75.5 MB = 17.8 us at T = 49152, D = 768):
 *
 *   after attention   forward l0, l1, o, x0, bigram -> l0, l1, y: 8A      (mix_norm: 9A)
 *                     backward dl0, dl1, dy, l1', l0, l1, o -> dl0, dl1, do: 10A      (14A)
 *   after the MLP     forward l0, l1, m -> l0, l1, y: 6A                  (7A)
 *                     backward the same count as after attention: 10A     (13A)
 */
#include "behind.h"
#include "dcoef.h"
#include "gpu.h"
#include "row.h"

enum { BWD_WARPS = 4, BWD_BLOCKS = 2 }; /* by the registers of a row's inputs */

struct lanes_args {
    const bf16 *x[LANES_MAX];
    const float *coef[LANES_MAX][2];
    unsigned lanes[LANES_MAX]; /* 0 from the last term on */
    bf16 *out[2], *y; /* forward */
    bf16 *dx[LANES_MAX]; /* backward */
    float *dcoef[2 * LANES_MAX];
    const bf16 *dout[2], *dy, *dy12, *normed_out;
    float *partial; /* (blocks, 2 N) */
    unsigned *ticket;
    int normed, rows, d;
};

/* target += coef x, where the term is in the lane. */
template <int V>
__device__ __forceinline__ static void add_term(row<V> &target, const lanes_args &a, int k,
                                                int lane, const row<V> &x)
{
    if (a.lanes[k] >> lane & 1)
        target.add(a.coef[k][lane] ? *a.coef[k][lane] : 1, x);
}

template <int V, int N>
__global__ static void __launch_bounds__(ROW_THREADS) lanes_forward(lanes_args a)
{
    int t = blockIdx.x * ROW_WARPS + warp_id();
    int64_t at = (int64_t)t * a.d;
    packed_row<V> in[N];
    row<V> sum[2], x;

    begin_step();
    if (t >= a.rows)
        return;
#pragma unroll
    for (int k = 0; k < N; k++)
        if (a.lanes[k])
            in[k].load(a.x[k] + at, a.d);
    sum[0].zero();
    sum[1].zero();
#pragma unroll
    for (int k = 0; k < N; k++)
        if (a.lanes[k]) {
            x.unpack(in[k]);
            add_term(sum[0], a, k, 0, x);
            add_term(sum[1], a, k, 1, x);
        }
    sum[0].store(a.out[0] + at, a.d);
    sum[1].store(a.out[1] + at, a.d);
    if (a.y) {
        if (a.normed)
            sum[0] = sum[1];
        sum[0].scale(norm_factor(warp_sum(sum[0].dot(sum[0])), a.d));
        sum[0].store(a.y + at, a.d);
    }
}

/* What the norm of row t adds to its lane's gradient. */
template <int V>
__device__ __forceinline__ static void norm_gradient(row<V> &g, const lanes_args &a, int64_t t,
                                                     const packed_row<V> &dy,
                                                     const packed_row<V> &out)
{
    row<V> x;

    g.zero();
    if (a.dy)
        g.unpack(dy);
    if (a.dy12)
#pragma unroll
        for (int j = 0; j < 8; j++) { /* channels 8 lane + j of the first two lanes */
            int c = 8 * lane_id() + j;
            g.x[0][j] += c < GATE_WIDTH ? __bfloat162float(a.dy12[t * GATE_WIDTH + c]) : 0;
        }
    x.unpack(out);
    norm_row_bwd(g, x, a.d);
}

template <int V, int N>
__global__ static void __launch_bounds__(32 * BWD_WARPS, V <= 3 ? BWD_BLOCKS : 1)
    lanes_backward(lanes_args a)
{
    float sum[2 * N] = {};

    for (int t = blockIdx.x * BWD_WARPS + warp_id(); t < a.rows; t += gridDim.x * BWD_WARPS) {
        int64_t at = (int64_t)t * a.d;
        packed_row<V> dout[2], dy, out, in[N];
        row<V> g[2], x;

        if (a.dy)
            dy.load(a.dy + at, a.d);
        if (a.dy || a.dy12)
            out.load(a.normed_out + at, a.d);
        dout[0].load(a.dout[0] + at, a.d);
        dout[1].load(a.dout[1] + at, a.d);
#pragma unroll
        for (int k = 0; k < N; k++)
            if (a.dcoef[2 * k] || a.dcoef[2 * k + 1])
                in[k].load(a.x[k] + at, a.d);
        g[0].unpack(dout[0]);
        g[1].unpack(dout[1]);
        if (a.dy || a.dy12) {
            norm_gradient(x, a, t, dy, out);
            if (a.normed)
                g[1].add(1, x);
            else
                g[0].add(1, x);
        }
#pragma unroll
        for (int k = 0; k < N; k++)
            if (a.dcoef[2 * k] || a.dcoef[2 * k + 1]) {
                x.unpack(in[k]);
                sum[2 * k] += a.dcoef[2 * k] ? g[0].dot(x) : 0;
                sum[2 * k + 1] += a.dcoef[2 * k + 1] ? g[1].dot(x) : 0;
            }
#pragma unroll
        for (int k = 0; k < N; k++)
            if (a.dx[k]) {
                x.zero();
                add_term(x, a, k, 0, g[0]);
                add_term(x, a, k, 1, g[1]);
                x.store(a.dx[k] + at, a.d);
            }
    }
    add_up<BWD_WARPS>(sum, a.dcoef, a.partial, a.ticket);
}

/* -- host -------------------------------------------------------------------------------- */

static lanes_args args_of(struct cuda_ops *c, struct tensor like, int normed, int n,
                          const struct lanes_term *in)
{
    lanes_args a = {
        .ticket = c->ticket, .normed = normed, .rows = (int)like.rows, .d = (int)like.cols
    };

    assert(n >= 1 && n <= LANES_MAX && (normed == 0 || normed == 1) && like.dtype == DT_BF16);
    for (int k = 0; k < n; k++) {
        assert(in[k].x.dtype == DT_BF16 && tensor_count(in[k].x) == tensor_count(like));
        a.x[k] = (const bf16 *)in[k].x.data;
        a.lanes[k] = in[k].lanes;
        a.coef[k][0] = in[k].coef[0], a.coef[k][1] = in[k].coef[1];
    }
    return a;
}

static bool can_do(struct cuda_ops *c, const lanes_args &a)
{
    return !c->failed && ROW_FITS(c, a.d) && a.rows;
}

void gpu_lanes_mix(struct ops *o, const struct tensor out[2], struct tensor y, int normed, int n,
                   const struct lanes_term *in)
{
    struct cuda_ops *c = cuda_of(o);
    lanes_args a = args_of(c, out[0], normed, n, in);

    assert(out[1].dtype == DT_BF16 && (!y.data || y.dtype == DT_BF16));
    a.out[0] = (bf16 *)out[0].data, a.out[1] = (bf16 *)out[1].data, a.y = (bf16 *)y.data;
    if (!can_do(c, a))
        return;
    with_vectors(a.d, [&](auto v) {
        constexpr int V = decltype(v)::value;
        auto *kernel = n <= 3 ? lanes_forward<V, 3> : lanes_forward<V, LANES_MAX>;
        launch_step(c, kernel, dim3(div_up(a.rows, ROW_WARPS)), ROW_THREADS, a);
    });
}

void gpu_lanes_mix_bwd(struct ops *o, const struct lanes_grad *d, const struct tensor dout[2],
                       struct tensor dy, struct tensor dy12, struct tensor out, int normed, int n,
                       const struct lanes_term *in)
{
    struct cuda_ops *c = cuda_of(o);
    lanes_args a = args_of(c, out, normed, n, in);
    int blocks = div_up(a.rows, BWD_WARPS), most = BWD_BLOCKS * c->sms;

    assert(dout[0].dtype == DT_BF16 && dout[1].dtype == DT_BF16);
    assert(!dy12.data || (dy12.dtype == DT_BF16 && dy12.cols == GATE_WIDTH));
    a.dout[0] = (const bf16 *)dout[0].data, a.dout[1] = (const bf16 *)dout[1].data;
    a.dy = (const bf16 *)dy.data, a.dy12 = (const bf16 *)dy12.data;
    a.normed_out = (const bf16 *)out.data;
    for (int k = 0; k < n; k++) {
        a.dx[k] = (bf16 *)d[k].dx.data;
        a.dcoef[2 * k] = d[k].dcoef[0], a.dcoef[2 * k + 1] = d[k].dcoef[1];
    }
    if (!can_do(c, a))
        return;
    blocks = blocks < most ? blocks : most;
    a.partial = (float *)cuda_workspace(c, (size_t)blocks * 2 * LANES_MAX * sizeof(float));
    if (!a.partial)
        return;
    with_vectors(a.d, [&](auto v) {
        constexpr int V = decltype(v)::value;
        auto *kernel = n <= 3 ? lanes_backward<V, 3> : lanes_backward<V, LANES_MAX>;
        kernel<<<blocks, 32 * BWD_WARPS, 0, c->stream>>>(a);
    });
    CUDA_LAUNCHED(c);
}
