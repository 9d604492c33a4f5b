/* gpu.h - the launchers: each op NAME of ops.h is gpu_NAME in kernels/NAME.cu, a backward beside
 * its forward. Contracts in ops.h and at the top of each file.
 */
#ifndef KERNELS_GPU_H
#define KERNELS_GPU_H

#include "host/device.h"

/* ops_cuda.cu: the table of them; memory and order are filled in by device.cu. */
struct ops gpu_ops(void);

/* embed.cu, table_grad.cu, rope_table.cu */
void gpu_rope_table(struct ops *o, struct rope r, const float *freq);
void gpu_embed(struct ops *o, struct tensor x0, struct tensor table, struct tensor gate,
               const real *lambda, const struct batch *b);
void gpu_embed_bwd(struct ops *o, struct tensor de, struct tensor dgate, real *dlambda,
                   struct tensor dx0, struct tensor table, struct tensor gate, const real *lambda,
                   const struct batch *b);
void gpu_table_grad(struct ops *o, struct tensor dtable, struct tensor dx, struct tensor dx2,
                    const struct lookup *l, bool add);
void gpu_gather(struct ops *o, struct tensor out, struct tensor table, const struct lookup *l);

/* mix_norm.cu, lanes.cu, inject.cu, skip_gate.cu */
void gpu_mix_norm(struct ops *o, struct tensor out, struct tensor y, int n,
                  const struct mix_term *in);
void gpu_mix_norm_bwd(struct ops *o, const struct mix_grad *d, struct tensor dout, struct tensor dy,
                      struct tensor dy12, struct tensor out, int n, const struct mix_term *in);
void gpu_lanes_mix(struct ops *o, const struct tensor out[2], struct tensor y, int normed, int n,
                   const struct lanes_term *in);
void gpu_lanes_mix_bwd(struct ops *o, const struct lanes_grad *d, const struct tensor dout[2],
                       struct tensor dy, struct tensor dy12, struct tensor out, int normed, int n,
                       const struct lanes_term *in);
void gpu_inject_bwd(struct ops *o, int n, const struct tensor *g, int m,
                    const struct injection *in);
void gpu_skip_gate(struct ops *o, struct tensor out, struct tensor x, struct tensor skip,
                   struct tensor x0, struct tensor gate, const real *lambda);
void gpu_skip_gate_bwd(struct ops *o, struct tensor dskip, struct tensor dx0, struct tensor dgate,
                       real *dlambda, struct tensor dout, struct tensor skip, struct tensor x0,
                       struct tensor gate, const real *lambda);

/* linear.cu, linear_relu2.cu */
void gpu_linear(struct ops *o, struct tensor y, struct tensor x, struct tensor w, const real *scale,
                struct tensor residual);
void gpu_linear_bwd_x(struct ops *o, struct tensor dx, struct tensor dy, struct tensor w,
                      const real *scale, bool add);
void gpu_linear_bwd_w(struct ops *o, struct tensor dw, real *dscale, struct tensor dy,
                      struct tensor x, struct tensor w, const real *scale, bool add);
void gpu_linear_t(struct ops *o, struct tensor y, struct tensor x, struct tensor w,
                  const real *scale, struct tensor residual);
void gpu_linear_t_bwd_w(struct ops *o, struct tensor dw, real *dscale, struct tensor dy,
                        struct tensor x, struct tensor w, const real *scale, bool add);
void gpu_linear_relu2(struct ops *o, struct tensor post, struct tensor x, struct tensor w);
void gpu_linear_relu2_bwd(struct ops *o, struct tensor dpre, struct tensor dout, struct tensor w2,
                          const real *scale, struct tensor post);

/* qkv.cu, out_gate.cu */
void gpu_qkv(struct ops *o, struct tensor q, struct tensor k, struct tensor v, struct tensor qkv,
             const struct qkv_shape *s, struct rope r, struct tensor y, struct tensor gate,
             struct tensor table, const struct batch *b);
void gpu_qkv_bwd(struct ops *o, struct tensor dqkv, struct tensor dtable_rows, struct tensor dgate,
                 struct tensor dy12, struct tensor dq, struct tensor dk, struct tensor dv,
                 struct tensor qkv, const struct qkv_shape *s, struct rope r, struct tensor y,
                 struct tensor gate, struct tensor table, const struct batch *b);
void gpu_out_gate(struct ops *o, struct tensor out, struct tensor x, struct tensor y,
                  struct tensor gate, int heads);
void gpu_out_gate_bwd(struct ops *o, struct tensor dx, struct tensor delta, struct tensor dgate,
                      struct tensor dy12, struct tensor dout, struct tensor x, struct tensor y,
                      struct tensor gate, int heads);

/* attention.cu */
void gpu_attention(struct ops *o, struct tensor out, struct tensor lse, struct tensor q,
                   struct tensor k, struct tensor v, const struct attn_shape *s);
void gpu_attention_bwd(struct ops *o, struct tensor dq, struct tensor dk, struct tensor dv,
                       struct tensor dout, struct tensor q, struct tensor k, struct tensor v,
                       struct tensor lse, struct tensor delta, const struct attn_shape *s);

/* head_loss.cu */
void gpu_head_loss(struct ops *o, real *loss, struct tensor dx, struct tensor dw, bool add,
                   struct tensor x, struct tensor w, const struct head_loss *h);
void gpu_head_eval(struct ops *o, real *loss, struct tensor x, struct tensor w,
                   const struct head_loss *h);

/* transpose.cu, merge_rows.cu, muon_input.cu, polar.cu, normuon.cu, adam.cu, quantize.cu,
 * finite.cu */
void gpu_transpose(struct ops *o, struct tensor dst, struct tensor src, real mix);
void gpu_merge_rows(struct ops *o, struct tensor g, struct tensor rows, const struct row_merge *m);
void gpu_muon_input(struct ops *o, struct tensor x, struct tensor mom, struct tensor g, int n,
                    const struct muon_step *m);
void gpu_polar(struct ops *o, struct tensor x, int n, const double (*coef)[3], int iters, bool aol);
void gpu_normuon(struct ops *o, struct tensor w, struct tensor mant, struct tensor q,
                 struct tensor x, int n, const float *lr_mul, double beta2,
                 const struct muon_step *m);
void gpu_adam(struct ops *o, struct tensor w, struct tensor g, struct tensor m, struct tensor v,
              double beta1, double beta2, double eps, const struct adam_step *a,
              const struct fp8_copy *copy);
void gpu_quantize(struct ops *o, const struct fp8_copy *copy, struct tensor w);
void gpu_finite(struct ops *o, int32_t *bad, struct tensor t);

#endif
