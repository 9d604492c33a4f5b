/* embed.cu - e_t = table[tok_t], smear, norm; and back. record-61.md 2.2, 3.4.
 *
 *   s_t = e_t + gamma_t e_{t-1},  gamma_t = lambda s(gate . e_t[0:12]) (0 at t = 0),  x0 = Norm(s)
 *
 * table (V,D) bf16, gate (12), x0 (T,D) bf16. Forward: a warp walks RUN rows and keeps the row
 * before; it reads T D (1 + 1/RUN) table elements and writes T D: 151 MB at T = 49152, D = 768.
 *
 * Backward: de_t = ds_t + gamma_{t+1} ds_{t+1} + du_t gate, with ds = Norm'(dx0; s). A warp walks
 * its rows downwards, keeping ds_{t+1}; the row above the run is done twice. Reads dx0 and
 * the table's rows again, writes de: 226 MB (1 + 1/RUN).
 */
#include "behind.h"
#include "gpu.h"
#include "row.h"

enum { RUN = 12 }; /* rows a warp */

struct smear {
    const bf16 *table;
    const int32_t *tok;
    const int32_t *before; /* the token before each, -1: none; NULL: the row before's */
    const void *gate;
    bool gate_f32;
    const float *lambda;
    int tokens, d;
};

/* R: row<V> or packed_row<V>. */
template <typename R> __device__ __forceinline__ static void load_token(R &e, const smear &m, int t)
{
    e.load(m.table + (int64_t)m.tok[t] * m.d, m.d);
}

/* sigmoid(u_t) of the row e: channels 0 .. 11 lie in vector 0 of lanes 0 and 1, whose gate
 * weights are w (0 elsewhere). */
template <int V>
__device__ __forceinline__ static float gate_of(const row<V> &e, const float (&w)[8])
{
    return sigmoid(warp_sum(dot8(e.x[0], w)));
}

__device__ __forceinline__ static void load_gate(float (&w)[8], const smear &m)
{
#pragma unroll
    for (int j = 0; j < 8; j++) {
        int i = 8 * lane_id() + j;
        w[j] = i < GATE_WIDTH ? load_any(m.gate, m.gate_f32, i) : 0;
    }
}

template <int V>
__global__ static void __launch_bounds__(ROW_THREADS) embed_forward(bf16 *x0, smear m)
{
    int first = (blockIdx.x * ROW_WARPS + warp_id()) * RUN;
    int end = min(first + RUN, m.tokens);
    row<V> before, e, s;
    float w[8], lambda = *m.lambda;

    begin_first_of_step();
    if (first >= m.tokens)
        return;
    load_gate(w, m);
    if (first > 0)
        load_token(before, m, first - 1);
    else
        before.zero();
#pragma unroll 2
    for (int t = first; t < end; t++) {
        bool follows = m.before ? m.before[t] >= 0 : t > 0;
        load_token(e, m, t);
        if (m.before && follows)
            before.load(m.table + (int64_t)m.before[t] * m.d, m.d);
        s = e;
        if (follows)
            s.add(lambda * gate_of(e, w), before);
        s.scale(norm_factor(warp_sum(s.dot(s)), m.d));
        s.store(x0 + (int64_t)t * m.d, m.d);
        before = e;
    }
}

static smear smear_of(struct tensor table, struct tensor gate, const real *lambda,
                      const struct batch *b)
{
    assert(tensor_count(gate) == GATE_WIDTH && table.cols >= GATE_WIDTH);
    return smear{ (const bf16 *)table.data, b->token.row, b->before, gate.data,
                  gate.dtype == DT_F32,     lambda,       b->tokens, (int)table.cols };
}

static bool can_do(struct cuda_ops *c, struct tensor table)
{
    return !c->failed && ROW_FITS(c, table.cols) &&
           CUDA_NEED(c, table.dtype == DT_BF16, "an embedding table is bf16");
}

void gpu_embed(struct ops *o, struct tensor x0, struct tensor table, struct tensor gate,
               const real *lambda, const struct batch *b)
{
    struct cuda_ops *c = cuda_of(o);
    smear m = smear_of(table, gate, lambda, b);
    int blocks = div_up(b->tokens, ROW_WARPS * RUN);

    assert(x0.rows == b->tokens && x0.cols == table.cols && x0.dtype == DT_BF16);
    if (!can_do(c, table) || !blocks)
        return;
    with_vectors(m.d, [&](auto v) {
        launch_step(c, embed_forward<decltype(v)::value>, dim3(blocks), ROW_THREADS,
                    (bf16 *)x0.data, m);
    });
}

/* partial: (blocks, 12) of the gate weights, then (blocks) of lambda. Rows of up to 768 channels fit 128
 * registers: 2 CTAs an SM. */
template <int V>
__global__ static void __launch_bounds__(ROW_THREADS, V <= 3 ? 2 : 1)
    embed_backward(bf16 *de, float *partial, const bf16 *dx0, smear m)
{
    __shared__ float warps[ROW_WARPS][GATE_WIDTH + 1];
    int first = (blockIdx.x * ROW_WARPS + warp_id()) * RUN;
    /* Not min(end, tokens - 1): ptxas 13.0 turns the two into a three-way maximum of complements
     * and loses a sign, so that the row before is read T + 2 tokens before the first. */
    int end = min(first + RUN, m.tokens), top = end - (end == m.tokens);
    float w[8], lambda = *m.lambda, dgate[8] = {}, dlambda = 0, gamma_above = 0;
    packed_row<V> e, before, dx;
    row<V> ds_above;

    load_gate(w, m);
    ds_above.zero();
    if (first < m.tokens) {
        load_token(e, m, top);
        dx.load(dx0 + (int64_t)top * m.d, m.d);
    }
    for (int t = top; t >= first; t--) {
        row<V> here, s, ds;
        float sig = 0;
        if (t > 0)
            load_token(before, m, t - 1);
        ds.unpack(dx);
        if (t > first)
            dx.load(dx0 + (int64_t)(t - 1) * m.d, m.d);
        here.unpack(e);
        s = here;
        if (t > 0) {
            row<V> b;
            b.unpack(before);
            sig = gate_of(here, w);
            s.add(lambda * sig, b);
        }
        norm_row_bwd(ds, s, m.d);
        if (t < end) {
            row<V> out = ds;
            out.add(gamma_above, ds_above);
            if (t > 0) {
                row<V> b;
                b.unpack(before);
                float dgamma = warp_sum(ds.dot(b));
                float du = dgamma * lambda * sig * (1 - sig);
                dlambda += dgamma * sig;
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    dgate[j] += du * here.x[0][j];
                    out.x[0][j] += du * w[j];
                }
            }
            out.store(de + (int64_t)t * m.d, m.d);
        }
        ds_above = ds;
        gamma_above = lambda * sig;
        e = before;
    }
#pragma unroll
    for (int j = 0; j < 8; j++)
        if (8 * lane_id() + j < GATE_WIDTH)
            warps[warp_id()][8 * lane_id() + j] = dgate[j];
    if (lane_id() == 31)
        warps[warp_id()][GATE_WIDTH] = dlambda;
    __syncthreads();
    if (threadIdx.x <= GATE_WIDTH) {
        float sum = 0;
        for (int i = 0; i < ROW_WARPS; i++)
            sum += warps[i][threadIdx.x];
        if (threadIdx.x < GATE_WIDTH)
            partial[blockIdx.x * GATE_WIDTH + threadIdx.x] = sum;
        else
            partial[gridDim.x * GATE_WIDTH + blockIdx.x] = sum;
    }
}

void gpu_embed_bwd(struct ops *o, struct tensor de, struct tensor dgate, real *dlambda,
                   struct tensor dx0, struct tensor table, struct tensor gate, const real *lambda,
                   const struct batch *b)
{
    struct cuda_ops *c = cuda_of(o);
    smear m = smear_of(table, gate, lambda, b);
    int blocks = div_up(b->tokens, ROW_WARPS * RUN);
    float *partial;

    assert(de.rows == b->tokens && de.dtype == DT_BF16 && dx0.dtype == DT_BF16);
    if (!can_do(c, table) || !blocks)
        return;
    partial = (float *)cuda_workspace(c, (size_t)blocks * (GATE_WIDTH + 1) * sizeof *partial);
    if (!partial)
        return;
    with_vectors(m.d, [&](auto v) {
        embed_backward<decltype(v)::value><<<blocks, ROW_THREADS, 0, c->stream>>>(
            (bf16 *)de.data, partial, (const bf16 *)dx0.data, m);
    });
    CUDA_LAUNCHED(c);
    cuda_add_partials(c, dgate.data, dgate.dtype, partial, blocks, GATE_WIDTH);
    cuda_add_partials(c, dlambda, DT_F32, partial + blocks * GATE_WIDTH, blocks, 1);
}
