/* head_coefs.cu - out_th = gate_th (x - p q v), q = x v / max(v v, 1e-8), p = tanh(alpha_th), and back.
 * record-89.md 6, 8.
 *
 * x, out, v (T,D) bf16 with D = H E, gates and alphas f32 of each token and head. One warp a row.
 * Forward moves 3 T D elements with alphas, 2 without (226 and 151 MB at T = 49152, D = 768: 53 and 36
 * us at 4.25 TB/s), backward 5 (and attention's own result, where x is another) and 3.
 *
 * With m = dz v, dz = gate dout: dx = dz - p m / vv v, dv = -p (q dz + (m x - 2 q m v) / vv), dalpha =
 * -(1 - p^2) q m, dgate = dout (x - p q v); without the last term of dv where v v is below 1e-8.
 */
#include "behind.h"
#include "gpu.h"
#include "heads.h"

/* Holds what struct head_coefs (ops.h) points to. */
struct coefs_args {
    struct token_numbers gate, alpha;
    const bf16 *v;
    bf16 *dv;
    const int32_t *slot, *pos; /* of a cache that v is */
    int capacity;
};

/* Returns the row of v that is token t's. */
__device__ __forceinline__ static int64_t value_row(const coefs_args &a, int t)
{
    return a.slot ? (int64_t)a.slot[t] * a.capacity + a.pos[t] % a.capacity : t;
}

template <int V, int W>
__global__ static void __launch_bounds__(ROW_THREADS)
    coefs_forward(bf16 *out, const bf16 *x, coefs_args c, int rows, int heads)
{
    int t = blockIdx.x * ROW_WARPS + warp_id(), d = heads * 8 * W;
    packed_row<V> in, values;
    float a[8];

    begin_step();
    if (t >= rows)
        return;
    in.load(x + (int64_t)t * d, d);
    if (c.alpha.value)
        values.load(c.v + value_row(c, t) * d, d);
#pragma unroll
    for (int i = 0; i < V; i++) {
        int h = (32 * i + lane_id()) / W;
        unpack8(a, in.u[i]);
        if (c.alpha.value) {
            float v[8];
            unpack8(v, values.u[i]);
            float xv = head_sum<W>(dot8(a, v)), vv = fmaxf(head_sum<W>(dot8(v, v)), 1e-8f);
            float part = h < heads ? tanhf(token_number(c.alpha, t, h)) * (xv / vv) : 0;
#pragma unroll
            for (int j = 0; j < 8; j++)
                a[j] = fmaf(-part, v[j], a[j]);
        }
        if (h >= heads)
            continue;
        float gate = c.gate.value ? token_number(c.gate, t, h) : 1;
#pragma unroll
        for (int j = 0; j < 8; j++)
            a[j] *= gate;
        store8(out + (int64_t)t * d + row<V>::at(i), a);
    }
}

template <int V, int W>
__global__ static void __launch_bounds__(ROW_THREADS)
    coefs_backward(bf16 *dx, float *delta, const bf16 *dout, const bf16 *x, const bf16 *own,
                   coefs_args c, int rows, int heads)
{
    int t = blockIdx.x * ROW_WARPS + warp_id(), d = heads * 8 * W;
    int64_t at = (int64_t)t * d;
    packed_row<V> in, values, result, dv;
    row<V> dy;

    if (t >= rows)
        return;
    in.load(x + at, d);
    dy.load(dout + at, d);
    if (own != x)
        result.load(own + at, d);
    if (c.alpha.value)
        values.load(c.v + at, d);
#pragma unroll
    for (int i = 0; i < V; i++) {
        int h = (32 * i + lane_id()) / W;
        bool first = lane_id() % W == 0 && h < heads;
        float a[8], v[8], gate = c.gate.value && h < heads ? token_number(c.gate, t, h) : 1;
        unpack8(a, in.u[i]);
        float open = head_sum<W>(dot8(a, dy.x[i])); /* dout times what is left of x */
        if (c.alpha.value) {
            unpack8(v, values.u[i]);
            float p = h < heads ? tanhf(token_number(c.alpha, t, h)) : 0;
            float square = head_sum<W>(dot8(v, v)), vv = fmaxf(square, 1e-8f);
            float q = head_sum<W>(dot8(a, v)) / vv, dyv = head_sum<W>(dot8(dy.x[i], v));
            float m = gate * dyv, by = m / vv, twice = square < 1e-8f ? 0 : 2 * q * by, out[8];
            open -= p * q * dyv;
#pragma unroll
            for (int j = 0; j < 8; j++) {
                float dz = gate * dy.x[i][j];
                out[j] = -p * (q * dz + by * a[j] - twice * v[j]);
                dy.x[i][j] = dz - p * by * v[j];
            }
            dv.u[i] = pack8(out);
            if (first)
                c.alpha.grad[(int64_t)t * c.alpha.stride + h] = -(1 - p * p) * q * m;
        } else {
#pragma unroll
            for (int j = 0; j < 8; j++)
                dy.x[i][j] *= gate;
        }
        if (c.gate.value && first)
            c.gate.grad[(int64_t)t * c.gate.stride + h] = open;
        if (own != x)
            unpack8(a, result.u[i]);
        float sum = head_sum<W>(dot8(dy.x[i], a));
        if (first)
            delta[(int64_t)h * rows + t] = sum;
    }
    dy.store(dx + at, d);
    if (c.alpha.value)
        dv.store(c.dv + at, d);
}

static coefs_args args_of(const struct head_coefs *h)
{
    coefs_args a = {
        h->gate, h->alpha, (const bf16 *)h->v.data, (bf16 *)h->dv.data, NULL, NULL, 0
    };

    if (h->cache) {
        a.v = (const bf16 *)h->cache->v.data;
        a.slot = h->cache->slot, a.pos = h->cache->pos, a.capacity = h->cache->capacity;
    }
    return a;
}

static bool can_do(struct cuda_ops *c, struct tensor x, int heads)
{
    int64_t e = x.cols / heads;

    assert(x.cols % heads == 0 && x.dtype == DT_BF16);
    return !c->failed && ROW_FITS(c, x.cols) &&
           CUDA_NEED(c, heads <= MAX_HEADS && (e == 32 || e == 64 || e == 128), HEAD_NEED) &&
           x.rows > 0;
}

void gpu_head_coefs(struct ops *o, struct tensor out, struct tensor x, int heads,
                    const struct head_coefs *h)
{
    struct cuda_ops *c = cuda_of(o);
    int d = (int)x.cols;

    if (!can_do(c, x, heads))
        return;
    with_vectors(d, [&](auto v) {
        with_head_size(d / heads, [&](auto w) {
            launch_step(c, coefs_forward<decltype(v)::value, decltype(w)::value>,
                        dim3(div_up(x.rows, ROW_WARPS)), ROW_THREADS, (bf16 *)out.data,
                        (const bf16 *)x.data, args_of(h), (int)x.rows, heads);
        });
    });
}

void gpu_head_coefs_bwd(struct ops *o, struct tensor dx, struct tensor delta, struct tensor dout,
                        struct tensor x, struct tensor own, int heads, const struct head_coefs *h)
{
    struct cuda_ops *c = cuda_of(o);
    int d = (int)x.cols;

    assert(delta.dtype == DT_F32 && delta.rows == heads && delta.cols == x.rows);
    if (!can_do(c, x, heads))
        return;
    with_vectors(d, [&](auto v) {
        with_head_size(d / heads, [&](auto w) {
            coefs_backward<decltype(v)::value, decltype(w)::value>
                <<<div_up(x.rows, ROW_WARPS), ROW_THREADS, 0, c->stream>>>(
                    (bf16 *)dx.data, (float *)delta.data, (const bf16 *)dout.data,
                    (const bf16 *)x.data, (const bf16 *)own.data, args_of(h), (int)x.rows, heads);
        });
    });
    CUDA_LAUNCHED(c);
}
