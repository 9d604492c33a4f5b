/* ops_cuda.cu - the table of the GPU's ops. Memory and order are device.cu's; attention.h knows
 * nothing of struct ops, so the two launchers that join them are here.
 */
#include "gpu.h"
#include "sm90/attention.h"

static struct attention_shape attention_shape_of(const struct attn_shape *s)
{
    return attention_shape{ s->rows, s->heads,  s->head_dim, s->cu,
                            s->ncu,  s->cu_mul, s->window,   s->scale };
}

void gpu_attention(struct ops *o, struct tensor out, struct tensor lse, struct tensor q,
                   struct tensor k, struct tensor v, const struct attn_shape *s)
{
    struct cuda_ops *c = cuda_of(o);
    struct attention_shape a = attention_shape_of(s);
    void *workspace = cuda_workspace(c, attention_workspace_bytes(&a));

    assert(q.dtype == DT_BF16 && lse.dtype == DT_F32);
    if (workspace)
        CUDA_TRY(c, attention_forward(c->stream, &a, out.data, (float *)lse.data, q.data, k.data,
                                      v.data, workspace));
}

void gpu_attention_bwd(struct ops *o, struct tensor dq, struct tensor dk, struct tensor dv,
                       struct tensor dout, struct tensor q, struct tensor k, struct tensor v,
                       struct tensor lse, struct tensor delta, const struct attn_shape *s)
{
    struct cuda_ops *c = cuda_of(o);
    struct attention_shape a = attention_shape_of(s);
    void *workspace = cuda_workspace(c, attention_workspace_bytes(&a));

    assert(lse.dtype == DT_F32 && delta.dtype == DT_F32);
    if (workspace)
        CUDA_TRY(c, attention_backward(c->stream, &a, dq.data, dk.data, dv.data, dout.data, q.data,
                                       k.data, v.data, (const float *)lse.data,
                                       (const float *)delta.data, workspace));
}

struct ops gpu_ops(void)
{
    struct ops t = {};

    t.device = "cuda";
    t.act = DT_BF16;
    t.rope_table = gpu_rope_table;
    t.embed = gpu_embed;
    t.embed_bwd = gpu_embed_bwd;
    t.table_grad = gpu_table_grad;
    t.gather = gpu_gather;
    t.mix_norm = gpu_mix_norm;
    t.mix_norm_bwd = gpu_mix_norm_bwd;
    t.lanes_mix = gpu_lanes_mix;
    t.lanes_mix_bwd = gpu_lanes_mix_bwd;
    t.inject_bwd = gpu_inject_bwd;
    t.skip_gate = gpu_skip_gate;
    t.skip_gate_bwd = gpu_skip_gate_bwd;
    t.linear = gpu_linear;
    t.linear_bwd_x = gpu_linear_bwd_x;
    t.linear_bwd_w = gpu_linear_bwd_w;
    t.linear_t = gpu_linear_t;
    t.linear_t_bwd_w = gpu_linear_t_bwd_w;
    t.linear_relu2 = gpu_linear_relu2;
    t.linear_relu2_bwd = gpu_linear_relu2_bwd;
    t.qkv = gpu_qkv;
    t.qkv_bwd = gpu_qkv_bwd;
    t.attention = gpu_attention;
    t.attention_bwd = gpu_attention_bwd;
    t.out_gate = gpu_out_gate;
    t.out_gate_bwd = gpu_out_gate_bwd;
    t.head_loss = gpu_head_loss;
    t.head_eval = gpu_head_eval;
    t.transpose = gpu_transpose;
    t.merge_rows = gpu_merge_rows;
    t.muon_input = gpu_muon_input;
    t.polar = gpu_polar;
    t.normuon = gpu_normuon;
    t.adam = gpu_adam;
    t.quantize = gpu_quantize;
    t.finite = gpu_finite;
    return t;
}
