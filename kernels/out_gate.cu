/* out_gate.cu - out_th = s(gate_h . y_t[0:12]) x_th, and back. Record-61.md 2.4, 3.3.
 *
 * x, out (T,D) bf16 with D = H E; y (T,D') bf16, twelve channels of it read (one 32-byte sector
 * a row); gate (H,12). One warp a row. Forward moves 2 T D elements (151 MB at T = 49152,
 * D = 768, 36 us at 4.25 TB/s), backward 3 T D + 24 T bytes (226 MB, 53 us): du_h = alpha (1 -
 * alpha) sum_d dout x needs x, dx = alpha dout; delta = alpha times the same sum.
 *
 * dgate: lanes, warps and blocks are added in a fixed order.
 */
#include "behind.h"
#include "gpu.h"
#include "heads.h"

template <int V, int W>
__global__ static void __launch_bounds__(ROW_THREADS)
    out_gate_forward(bf16 *out, const bf16 *x, const bf16 *y, int y_width, gates gate, int rows,
                     int heads)
{
    int t = blockIdx.x * ROW_WARPS + warp_id(), d = heads * 8 * W;
    packed_row<V> in;
    float y12[GATE], a[8];

    begin_step();
    if (t >= rows)
        return;
    in.load(x + (int64_t)t * d, d);
    load_y12(y12, y + (int64_t)t * y_width);
#pragma unroll
    for (int i = 0; i < V; i++) {
        int h = (32 * i + lane_id()) / W;
        if (h >= heads)
            continue;
        float alpha = sigmoid(gate_dot(gate, h, y12));
        unpack8(a, in.u[i]);
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
    return !c->failed && CUDA_NEED(c, x.cols <= 2048, ROW_NEED) &&
           CUDA_NEED(c, heads <= MAX_HEADS && (e == 32 || e == 64 || e == 128), HEAD_NEED);
}

void gpu_out_gate(struct ops *o, struct tensor out, struct tensor x, struct tensor y,
                  struct tensor gate, int heads, const struct xsa *a)
{
    struct cuda_ops *c = cuda_of(o);
    int d = (int)x.cols, blocks = div_up(x.rows, ROW_WARPS);

    assert(gate.rows == heads && gate.cols == GATE_WIDTH && y.dtype == DT_BF16);
    if (!can_do(c, x, heads) || !CUDA_NEED(c, !a, "exclusive attention has no kernel yet") ||
        !blocks)
        return;
    with_vectors(d, [&](auto v) {
        with_head_size(d / heads, [&](auto w) {
            launch_step(c, out_gate_forward<decltype(v)::value, decltype(w)::value>, dim3(blocks),
                        ROW_THREADS, (bf16 *)out.data, (const bf16 *)x.data, (const bf16 *)y.data,
                        (int)y.cols, gates{ gate.data, gate.dtype == DT_F32 }, (int)x.rows, heads);
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

/* partial (blocks, H 12). Dynamic shared memory: (1 + ROW_WARPS) H 12 floats. */
template <int V, int W>
__global__ static void __launch_bounds__(ROW_THREADS, V <= 3 ? 3 : 1)
    out_gate_backward(bf16 *dx, delta_out delta, bf16 *dy12, float *partial, const bf16 *dout,
                      const bf16 *x, const bf16 *y, int y_width, gates gate, int rows, int heads)
{
    extern __shared__ float shared[];
    float *w = shared + ROW_WARPS * heads * GATE;
    int d = heads * 8 * W;
    gate_grad<V, W> grad;

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
        if (t + step < rows) {
            next_a.load(x + (int64_t)(t + step) * d, d);
            next_dy.load(dout + (int64_t)(t + step) * d, d);
        }
#pragma unroll
        for (int i = 0; i < V; i++) {
            int h = (32 * i + lane_id()) / W;
            float alpha = h < heads ? sigmoid(gate_dot(w + h * GATE, y12)) : 0;
            float sum = alpha * head_sum<W>(dot8(a.x[i], dy.x[i]));
            if (lane_id() % W == 0 && h < heads)
                delta.put(t, h, sum);
            du[i] = sum * (1 - alpha);
#pragma unroll
            for (int j = 0; j < 8; j++)
                dy.x[i][j] *= alpha;
        }
        dy.store(dx + (int64_t)t * d, d);
        grad.row(dy12_sum, du, w, yt, heads);
#pragma unroll
        for (int n = 0; n < gate_grad<V, W>::N; n++) {
            int j = gate_grad<V, W>::channel(n);
            if (lane_id() < W && j < GATE)
                dy12[(int64_t)t * GATE + j] = __float2bfloat16(dy12_sum[n]);
        }
    }
    grad.store(partial + (int64_t)blockIdx.x * heads * GATE, shared, heads);
}

void gpu_out_gate_bwd(struct ops *o, struct tensor dx, struct tensor delta, struct tensor dgate,
                      struct tensor dy12, struct tensor dout, struct tensor x, struct tensor y,
                      struct tensor gate, int heads, const struct xsa *a)
{
    struct cuda_ops *c = cuda_of(o);
    int d = (int)x.cols, blocks = div_up(x.rows, ROW_WARPS);
    size_t shared = (1 + ROW_WARPS) * heads * GATE * sizeof(float);
    float *partial;

    assert(dy12.cols == GATE_WIDTH && dy12.dtype == DT_BF16);
    assert(delta.dtype == DT_F32 && tensor_count(delta) == x.rows * heads);
    if (!can_do(c, x, heads) || !CUDA_NEED(c, !a, "exclusive attention has no kernel yet") ||
        !blocks)
        return;
    blocks = blocks < 3 * c->sms ? blocks : 3 * c->sms; /* as many as are resident */
    delta_out delta_to = { (float *)delta.data, (int)delta.rows, heads / (int)delta.rows,
                           delta.cols };
    partial = (float *)cuda_workspace(c, (size_t)blocks * heads * GATE * sizeof *partial);
    if (!partial)
        return;
    with_vectors(d, [&](auto v) {
        with_head_size(d / heads, [&](auto w) {
            out_gate_backward<decltype(v)::value, decltype(w)::value>
                <<<blocks, ROW_THREADS, shared, c->stream>>>(
                    (bf16 *)dx.data, delta_to, (bf16 *)dy12.data, partial, (const bf16 *)dout.data,
                    (const bf16 *)x.data, (const bf16 *)y.data, (int)y.cols,
                    gates{ gate.data, gate.dtype == DT_F32 }, (int)x.rows, heads);
        });
    });
    CUDA_LAUNCHED(c);
    cuda_add_partials(c, dgate.data, dgate.dtype, partial, blocks, heads * GATE);
}
