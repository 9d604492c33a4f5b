/* skip_gate.cu - out = x + kappa_t skip_t, kappa = 2 s(lambda) s(gate . x0_t[0:12]), or with a number of
 * each token s(lambda) number_t, and back. record-61.md 2.3, 3.3; record-89.md 6.
 *
 * x, skip, x0, out (T,D) bf16; gate (12) bf16 or f32. One warp a row, 8 rows a block.
 * Forward moves 3 T D elements (+ 32 bytes a row of x0): 226 MB at T = 49152, D = 768.
 * Backward reads dout and skip, writes dskip: the same. FLOPs: 2 and 4 a channel.
 */
#include "behind.h"
#include "gpu.h"
#include "heads.h"

struct gate12 {
    const void *w;
    bool is_f32;
    const float *lambda;
    struct token_numbers number; /* value NULL: none */
};

struct kappa {
    float value, sig_lambda, sig_psi;
};

/* Returns the factor of token t; with numbers sig_psi is the token's, and 2 is 1. */
__device__ __forceinline__ static kappa kappa_of(const gate12 &g, float w, float x0, int t)
{
    kappa k;
    k.sig_lambda = sigmoid(*g.lambda);
    if (g.number.value) {
        k.sig_psi = token_number(g.number, t, 0);
        k.value = k.sig_lambda * k.sig_psi;
        return k;
    }
    k.sig_psi = sigmoid(warp_sum(w * x0));
    k.value = 2 * k.sig_lambda * k.sig_psi;
    return k;
}

template <int V>
__global__ static void __launch_bounds__(ROW_THREADS)
    skip_forward(bf16 *out, const bf16 *x, const bf16 *skip, const bf16 *x0, gate12 g, int rows,
                 int d)
{
    int t = blockIdx.x * ROW_WARPS + warp_id();
    int64_t at = (int64_t)t * d;
    row<V> a, s;

    begin_step();
    if (t >= rows)
        return;
    a.load(x + at, d);
    s.load(skip + at, d);
    bool gated = !g.number.value;
    float w = gated ? lane12(g.w, g.is_f32) : 0, first = gated ? lane12(x0 + at) : 0;
    a.add(kappa_of(g, w, first, t).value, s);
    a.store(out + at, d);
}

void gpu_skip_gate(struct ops *o, struct tensor out, struct tensor x, struct tensor skip,
                   struct tensor x0, struct tensor gate, const real *lambda,
                   const struct token_numbers *number)
{
    struct cuda_ops *c = cuda_of(o);
    gate12 g = { gate.data, gate.dtype == DT_F32, lambda, number ? *number : NO_NUMBERS };
    int d = (int)out.cols, blocks = div_up(out.rows, ROW_WARPS);

    assert(out.dtype == DT_BF16 &&
           (number || (tensor_count(gate) == GATE_WIDTH && d >= GATE_WIDTH)));
    if (c->failed || !ROW_FITS(c, d) || !blocks)
        return;
    with_vectors(d, [&](auto v) {
        launch_step(c, skip_forward<decltype(v)::value>, dim3(blocks), ROW_THREADS,
                    (bf16 *)out.data, (const bf16 *)x.data, (const bf16 *)skip.data,
                    (const bf16 *)x0.data, g, (int)out.rows, d);
    });
}

/* partial: (blocks, 12) of the gate weights, then (blocks) of lambda. */
template <int V>
__global__ static void __launch_bounds__(ROW_THREADS)
    skip_backward(bf16 *dskip, bf16 *dx0, float *partial, const bf16 *dout, const bf16 *skip,
                  const bf16 *x0, gate12 g, int rows, int d)
{
    __shared__ float warps[ROW_WARPS][GATE_WIDTH + 1];
    bool gated = !g.number.value;
    float w = gated ? lane12(g.w, g.is_f32) : 0, dgate = 0, dlambda = 0;

    for (int t = blockIdx.x * ROW_WARPS + warp_id(); t < rows; t += gridDim.x * ROW_WARPS) {
        int64_t at = (int64_t)t * d;
        row<V> dy, s;
        dy.load(dout + at, d);
        s.load(skip + at, d);
        float x = gated ? lane12(x0 + at) : 0;
        kappa k = kappa_of(g, w, x, t);
        float dkappa = warp_sum(dy.dot(s));
        float dpsi = dkappa * k.value * (1 - k.sig_psi);
        dlambda += dkappa * k.value * (1 - k.sig_lambda);
        dgate += dpsi * x;
        if (!gated && lane_id() == 0)
            g.number.grad[(int64_t)t * g.number.stride] = dkappa * k.sig_lambda;
        if (gated && lane_id() < GATE_WIDTH) {
            bf16 *p = dx0 + at + lane_id();
            *p = __float2bfloat16(__bfloat162float(*p) + dpsi * w);
        }
        dy.scale(k.value);
        dy.store(dskip + at, d);
    }
    if (lane_id() < GATE_WIDTH)
        warps[warp_id()][lane_id()] = dgate;
    if (lane_id() == GATE_WIDTH)
        warps[warp_id()][GATE_WIDTH] = dlambda;
    __syncthreads();
    if (threadIdx.x <= GATE_WIDTH) {
        float s = 0;
        for (int i = 0; i < ROW_WARPS; i++)
            s += warps[i][threadIdx.x];
        int column = threadIdx.x < GATE_WIDTH ? threadIdx.x : gridDim.x * GATE_WIDTH;
        int stride = threadIdx.x < GATE_WIDTH ? GATE_WIDTH : 1;
        partial[column + (int64_t)blockIdx.x * stride] = s;
    }
}

void gpu_skip_gate_bwd(struct ops *o, struct tensor dskip, struct tensor dx0, struct tensor dgate,
                       real *dlambda, struct tensor dout, struct tensor skip, struct tensor x0,
                       struct tensor gate, const real *lambda, const struct token_numbers *number)
{
    struct cuda_ops *c = cuda_of(o);
    gate12 g = { gate.data, gate.dtype == DT_F32, lambda, number ? *number : NO_NUMBERS };
    int d = (int)dout.cols, blocks = div_up(dout.rows, ROW_WARPS);
    float *partial; /* (blocks, 12) of the gate, then (blocks) of lambda */

    if (c->failed || !ROW_FITS(c, d) || !blocks)
        return;
    blocks = blocks < 4 * c->sms ? blocks : 4 * c->sms; /* as many as are resident */
    partial = (float *)cuda_workspace(c, (size_t)blocks * (GATE_WIDTH + 1) * sizeof *partial);
    if (!partial)
        return;
    with_vectors(d, [&](auto v) {
        skip_backward<decltype(v)::value><<<blocks, ROW_THREADS, 0, c->stream>>>(
            (bf16 *)dskip.data, (bf16 *)dx0.data, partial, (const bf16 *)dout.data,
            (const bf16 *)skip.data, (const bf16 *)x0.data, g, (int)dout.rows, d);
    });
    CUDA_LAUNCHED(c);
    if (!number)
        cuda_add_partials(c, dgate.data, dgate.dtype, partial, blocks, GATE_WIDTH);
    cuda_add_partials(c, dlambda, DT_F32, partial + blocks * GATE_WIDTH, blocks, 1);
}
