/* out_gate.cu - out_th = s(gate_h . y_t[0:12]) x_th, and back. record-61.md 2.4, 3.3. With
 * exclusive attention (record-84.md 6) of z = x - p q u, u = v / max(|v|, 1e-4), q = x u, p =
 * tanh(alpha).
 *
 * x, out (T,D) bf16 with D = H E; y (T,D') bf16, twelve channels of it read (one 32-byte sector
 * a row); gate (H,12). One warp a row. Forward moves 2 T D elements (151 MB at T = 49152,
 * D = 768, 36 us at 4.25 TB/s), backward 3 T D + 24 T bytes (226 MB, 53 us): du_h = alpha (1 -
 * alpha) sum_d dout x needs x, dx = alpha dout; delta = alpha times the same sum.
 *
 * dgate: lanes, warps and blocks are added in a fixed order.
 *
 * Exclusive attention reads v too, and backward writes dv: 3 and 5 T D elements, 53 and 89 us. All
 * that it needs follows from four sums a head: v v, x v, and with dout x and v (below, dz = alpha
 * dout):
 *   dx = dz - p (dz u) u,  dv = -p / |v| ((dz u) x + q dz - 2 q (dz u) u),  dalpha = -(1 - p^2) (dz u) q
 * without the last term of dv where |v| is below 1e-4.
 */
#include "behind.h"
#include "gpu.h"
#include "heads.h"

/* The tensors that struct xsa (ops.h) points to; partial (blocks, H): sums of dalpha. */
struct exclusive {
    const bf16 *v;
    const float *alpha;
    bf16 *dv;
    float *partial;
};

template <int V, int W, bool XSA>
__global__ static void __launch_bounds__(ROW_THREADS)
    out_gate_forward(bf16 *out, const bf16 *x, const bf16 *y, int y_width, gates gate,
                     exclusive xsa, int rows, int heads)
{
    int t = blockIdx.x * ROW_WARPS + warp_id(), d = heads * 8 * W;
    packed_row<V> in, values;
    float y12[GATE], a[8];

    begin_step();
    if (t >= rows)
        return;
    in.load(x + (int64_t)t * d, d);
    if (XSA)
        values.load(xsa.v + (int64_t)t * d, d);
    load_y12(y12, y + (int64_t)t * y_width);
#pragma unroll
    for (int i = 0; i < V; i++) {
        int h = (32 * i + lane_id()) / W;
        unpack8(a, in.u[i]);
        if (XSA) {
            float v[8];
            unpack8(v, values.u[i]);
            float xv = head_sum<W>(dot8(a, v)), inverse = inverse_length(head_sum<W>(dot8(v, v)));
            float part = h < heads ? tanhf(xsa.alpha[h]) * xv * inverse * inverse : 0;
#pragma unroll
            for (int j = 0; j < 8; j++)
                a[j] = fmaf(-part, v[j], a[j]);
        }
        if (h >= heads)
            continue;
        float alpha = sigmoid(gate_dot(gate, h, y12));
#pragma unroll
        for (int j = 0; j < 8; j++)
            a[j] *= alpha;
        store8(out + (int64_t)t * d + row<V>::at(i), a);
    }
}

static bool can_do(struct cuda_ops *c, struct tensor x, int heads)
{
    int64_t e = x.cols / heads;

    assert(x.cols % heads == 0 && x.dtype == DT_BF16);
    return !c->failed && ROW_FITS(c, x.cols) &&
           CUDA_NEED(c, heads <= MAX_HEADS && (e == 32 || e == 64 || e == 128), HEAD_NEED);
}

static exclusive exclusive_of(const struct xsa *a)
{
    if (!a)
        return exclusive{};
    assert(a->v.dtype == DT_BF16 && a->alpha.dtype == DT_F32);
    return exclusive{ (const bf16 *)a->v.data, (const float *)a->alpha.data, (bf16 *)a->dv.data,
                      NULL };
}

void gpu_out_gate(struct ops *o, struct tensor out, struct tensor x, struct tensor y,
                  struct tensor gate, int heads, const struct xsa *a)
{
    struct cuda_ops *c = cuda_of(o);
    int d = (int)x.cols, blocks = div_up(x.rows, ROW_WARPS);

    assert(gate.rows == heads && gate.cols == GATE_WIDTH && y.dtype == DT_BF16);
    if (!can_do(c, x, heads) || !blocks)
        return;
    exclusive xsa = exclusive_of(a);
    with_vectors(d, [&](auto v) {
        with_head_size(d / heads, [&](auto w) {
            constexpr int V = decltype(v)::value, W = decltype(w)::value;
            launch_step(c, a ? out_gate_forward<V, W, true> : out_gate_forward<V, W, false>,
                        dim3(blocks), ROW_THREADS, (bf16 *)out.data, (const bf16 *)x.data,
                        (const bf16 *)y.data, (int)y.cols, gates{ gate.data, gate.dtype == DT_F32 },
                        xsa, (int)x.rows, heads);
        });
    });
}

/* Index of delta of head h of token t: attention's shape has `rows` rows a token, of `heads`
 * heads. */
struct delta_out {
    float *at;
    int heads, rows;
    int64_t all_rows;
    __device__ __forceinline__ void put(int t, int h, float x) const
    {
        at[h % heads * all_rows + (int64_t)t * rows + h / heads] = x;
    }
};

/* A head's dalpha of one block: the lanes of a head hold the same sums, warps are added in order. */
template <int V, int W>
__device__ static void store_dalpha(float *out, float *shared, const float (&sum)[V], int heads)
{
    __syncthreads(); /* what lay in shared memory before has been read */
#pragma unroll
    for (int i = 0; i < V; i++) {
        int h = (32 * i + lane_id()) / W;
        if (h < heads && lane_id() % W == 0)
            shared[warp_id() * heads + h] = sum[i];
    }
    __syncthreads();
    for (int h = threadIdx.x; h < heads; h += blockDim.x) {
        float s = 0;
        for (int w = 0; w < ROW_WARPS; w++)
            s += shared[w * heads + h];
        out[h] = s;
    }
}

/* partial (blocks, H 12). Dynamic shared memory: (1 + ROW_WARPS) H 12 floats. */
template <int V, int W, bool XSA>
__global__ static void __launch_bounds__(ROW_THREADS, V > 3 ? 1
                                                      : XSA ? 2
                                                            : 3)
    out_gate_backward(bf16 *dx, delta_out delta, bf16 *dy12, float *partial, const bf16 *dout,
                      const bf16 *x, const bf16 *y, int y_width, gates gate, exclusive xsa,
                      int rows, int heads)
{
    extern __shared__ float shared[];
    float *w = shared + ROW_WARPS * heads * GATE;
    int d = heads * 8 * W;
    gate_grad<V, W> grad;
    float dalpha[V] = {};

    heads_load_gate(w, gate, heads);
    __syncthreads();
    grad.zero();
    int t = blockIdx.x * ROW_WARPS + warp_id(), step = gridDim.x * ROW_WARPS;
    packed_row<V> next_a, next_dy; /* the next row's, while this one is worked on */
    if (t < rows) {
        next_a.load(x + (int64_t)t * d, d);
        next_dy.load(dout + (int64_t)t * d, d);
    }
    for (; t < rows; t += step) {
        row<V> a, dy;
        float y12[GATE], du[V], dy12_sum[gate_grad<V, W>::N];
        const bf16 *yt = y + (int64_t)t * y_width;
        a.unpack(next_a);
        dy.unpack(next_dy);
        load_y12(y12, yt);
        packed_row<V> values, dv;
        if (XSA)
            values.load(xsa.v + (int64_t)t * d, d);
        if (t + step < rows) {
            next_a.load(x + (int64_t)(t + step) * d, d);
            next_dy.load(dout + (int64_t)(t + step) * d, d);
        }
#pragma unroll
        for (int i = 0; i < V; i++) {
            int h = (32 * i + lane_id()) / W;
            float alpha = h < heads ? sigmoid(gate_dot(w + h * GATE, y12)) : 0;
            float sum = alpha * head_sum<W>(dot8(a.x[i], dy.x[i]));
            if (XSA) {
                float v[8], p = h < heads ? tanhf(xsa.alpha[h]) : 0, out[8];
                unpack8(v, values.u[i]);
                float vv = head_sum<W>(dot8(v, v)), inverse = inverse_length(vv);
                float q = inverse * head_sum<W>(dot8(a.x[i], v)); /* x u */
                float m = alpha * inverse * head_sum<W>(dot8(dy.x[i], v)); /* dz u */
                float twice = vv > 1e-8f ? 2 * q * m * inverse : 0;
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    float dz = alpha * dy.x[i][j];
                    out[j] = -p * inverse * (m * a.x[i][j] + q * dz - twice * v[j]);
                    dy.x[i][j] = dz - p * m * inverse * v[j];
                }
                dv.u[i] = pack8(out);
                dalpha[i] -= (1 - p * p) * m * q;
                sum -= p * m * q; /* of dz z; of dx x it is the same */
            } else {
#pragma unroll
                for (int j = 0; j < 8; j++)
                    dy.x[i][j] *= alpha;
            }
            if (lane_id() % W == 0 && h < heads)
                delta.put(t, h, sum);
            du[i] = sum * (1 - alpha);
        }
        dy.store(dx + (int64_t)t * d, d);
        if (XSA)
            dv.store(xsa.dv + (int64_t)t * d, d);
        grad.row(dy12_sum, du, w, yt, heads);
#pragma unroll
        for (int n = 0; n < gate_grad<V, W>::N; n++) {
            int j = gate_grad<V, W>::channel(n);
            if (lane_id() < W && j < GATE)
                dy12[(int64_t)t * GATE + j] = __float2bfloat16(dy12_sum[n]);
        }
    }
    grad.store(partial + (int64_t)blockIdx.x * heads * GATE, shared, heads);
    if (XSA)
        store_dalpha<V, W>(xsa.partial + (int64_t)blockIdx.x * heads, shared, dalpha, heads);
}

template <int V, int W>
__global__ static void __launch_bounds__(ROW_THREADS)
    head_deltas(delta_out delta, const bf16 *dout, const bf16 *x, int rows, int heads)
{
    int t = blockIdx.x * ROW_WARPS + warp_id(), d = heads * 8 * W;
    row<V> a, dy;

    if (t >= rows)
        return;
    a.load(x + (int64_t)t * d, d);
    dy.load(dout + (int64_t)t * d, d);
#pragma unroll
    for (int i = 0; i < V; i++) {
        int h = (32 * i + lane_id()) / W;
        float sum = head_sum<W>(dot8(a.x[i], dy.x[i]));
        if (lane_id() % W == 0 && h < heads)
            delta.put(t, h, sum);
    }
}

/* Without a gate: 2 T D elements read. */
static void deltas_alone(struct cuda_ops *c, const delta_out &delta, struct tensor dout,
                         struct tensor x, int heads)
{
    int d = (int)x.cols;
    with_vectors(d, [&](auto v) {
        with_head_size(d / heads, [&](auto w) {
            head_deltas<decltype(v)::value, decltype(w)::value>
                <<<div_up(x.rows, ROW_WARPS), ROW_THREADS, 0, c->stream>>>(
                    delta, (const bf16 *)dout.data, (const bf16 *)x.data, (int)x.rows, heads);
        });
    });
    CUDA_LAUNCHED(c);
}

void gpu_out_gate_bwd(struct ops *o, struct tensor dx, struct tensor delta, struct tensor dgate,
                      struct tensor dy12, struct tensor dout, struct tensor x, struct tensor y,
                      struct tensor gate, int heads, const struct xsa *a)
{
    struct cuda_ops *c = cuda_of(o);
    int d = (int)x.cols, blocks = div_up(x.rows, ROW_WARPS);
    size_t shared = (1 + ROW_WARPS) * heads * GATE * sizeof(float);
    float *partial;

    assert(!gate.data || (dy12.cols == GATE_WIDTH && dy12.dtype == DT_BF16));
    assert(delta.dtype == DT_F32 && tensor_count(delta) == x.rows * heads);
    if (!can_do(c, x, heads) || !blocks)
        return;
    exclusive xsa = exclusive_of(a);
    int resident = (a ? 2 : 3) * c->sms;
    blocks = blocks < resident ? blocks : resident;
    delta_out delta_to = { (float *)delta.data, (int)delta.rows, heads / (int)delta.rows,
                           delta.cols };
    if (!gate.data) {
        if (!c->counting) /* it takes no workspace */
            deltas_alone(c, delta_to, dout, x, heads);
        return;
    }
    partial = (float *)cuda_workspace(c, (size_t)blocks * heads * (GATE + 1) * sizeof *partial);
    if (!partial)
        return;
    xsa.partial = partial + (size_t)blocks * heads * GATE;
    with_vectors(d, [&](auto v) {
        with_head_size(d / heads, [&](auto w) {
            constexpr int V = decltype(v)::value, W = decltype(w)::value;
            auto *kernel = a ? out_gate_backward<V, W, true> : out_gate_backward<V, W, false>;
            kernel<<<blocks, ROW_THREADS, shared, c->stream>>>(
                (bf16 *)dx.data, delta_to, (bf16 *)dy12.data, partial, (const bf16 *)dout.data,
                (const bf16 *)x.data, (const bf16 *)y.data, (int)y.cols,
                gates{ gate.data, gate.dtype == DT_F32 }, xsa, (int)x.rows, heads);
        });
    });
    CUDA_LAUNCHED(c);
    cuda_add_partials(c, dgate.data, dgate.dtype, partial, blocks, heads * GATE);
    if (a)
        cuda_add_partials(c, a->dalpha.data, a->dalpha.dtype, xsa.partial, blocks, heads);
}
