/* ops_cuda.cu - the table of the GPU's ops. Memory and order are device.cu's. */
#include "gpu.h"

struct ops gpu_ops(void)
{
    struct ops t = {};

    t.device = "cuda";
    t.act = DT_BF16;
    t.rope_table = gpu_rope_table;
    t.embed = gpu_embed;
    t.embed_bwd = gpu_embed_bwd;
    t.table_grad = gpu_table_grad;
    t.mix_norm = gpu_mix_norm;
    t.mix_norm_bwd = gpu_mix_norm_bwd;
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
    t.muon_input = gpu_muon_input;
    t.polar = gpu_polar;
    t.normuon = gpu_normuon;
    t.adam = gpu_adam;
    t.finite = gpu_finite;
    return t;
}
