/* cpu.h - inside of the plain C device: its state, scratch memory, its ops.
 *
 * Every op NAME of ops.h is a function cpu_NAME in lib/ops/NAME.c (a backward
 * lives beside its forward). An op begins like this:
 *
 *     void cpu_linear(struct ops *o, struct tensor y, ...)
 *     {
 *         const real *wr = real_view(o, 0, w);               // in slot 0 if w is not real
 *         real *tmp = cpu_scratch(o, 1, tensor_count(y));
 *         if (cpu_failed(o))                                 // also true when no memory was left
 *             return;
 *
 * Scratch slots grow and are kept until free(), so nothing allocates in the
 * steady state. What a slot holds is lost when the op returns; an op gives each
 * thing that it holds at once a slot of its own.
 *
 * Threads: as struct ops, one rank's thread.
 */
#ifndef OPS_CPU_H
#define OPS_CPU_H

#include "ops/ops.h"

enum { CPU_SLOTS = 12 };

struct cpu_scratch {
    void *data;
    size_t bytes;
};

struct cpu {
    struct ops o; /* first: struct ops * is struct cpu * */
    int failure; /* code of the first failure, 0 while none */
    char message[256];
    void **blocks; /* what alloc() gave */
    int n_blocks, cap_blocks;
    size_t bytes;
    struct cpu_scratch scratch[CPU_SLOTS];
    char fetch[FETCH_MAX][FETCH_BYTES];
    unsigned fetch_in, fetch_out;
};

/* count numbers, uninitialised, 64-byte aligned; NULL once the device has failed. */
real *cpu_scratch(struct ops *o, int slot, int64_t count);
/* The same in bytes, for what is not real. */
void *cpu_scratch_bytes(struct ops *o, int slot, size_t bytes);
bool cpu_failed(const struct ops *o);
/* Keeps the first failure. */
void cpu_fail(struct ops *o, int code, const char *fmt, ...) PRINTF_LIKE(3, 4);

void cpu_zero(struct ops *o, struct tensor t);
void cpu_copy(struct ops *o, struct tensor dst, struct tensor src);

void cpu_rope_table(struct ops *o, struct rope r, const float *freq);
void cpu_embed(struct ops *o, struct tensor x0, struct tensor table, struct tensor gate,
               const real *lambda, const struct batch *b);
void cpu_embed_bwd(struct ops *o, struct tensor de, struct tensor dgate, real *dlambda,
                   struct tensor dx0, struct tensor table, struct tensor gate, const real *lambda,
                   const struct batch *b);
void cpu_table_grad(struct ops *o, struct tensor dtable, struct tensor dx, struct tensor dx2,
                    const struct lookup *l, bool add);
void cpu_gather(struct ops *o, struct tensor out, struct tensor table, const struct lookup *l);

void cpu_mix_norm(struct ops *o, struct tensor out, struct tensor y, int n,
                  const struct mix_term *in);
void cpu_mix_norm_bwd(struct ops *o, const struct mix_grad *d, struct tensor dout, struct tensor dy,
                      struct tensor dy12, struct tensor out, int n, const struct mix_term *in);
void cpu_lanes_mix(struct ops *o, const struct tensor out[2], struct tensor y, int normed, int n,
                   const struct lanes_term *in);
void cpu_lanes_mix_bwd(struct ops *o, const struct lanes_grad *d, const struct tensor dout[2],
                       struct tensor dy, struct tensor dy12, struct tensor out, int normed, int n,
                       const struct lanes_term *in);
void cpu_inject_bwd(struct ops *o, int n, const struct tensor *g, int m,
                    const struct injection *in);
void cpu_skip_gate(struct ops *o, struct tensor out, struct tensor x, struct tensor skip,
                   struct tensor x0, struct tensor gate, const real *lambda);
void cpu_skip_gate_bwd(struct ops *o, struct tensor dskip, struct tensor dx0, struct tensor dgate,
                       real *dlambda, struct tensor dout, struct tensor skip, struct tensor x0,
                       struct tensor gate, const real *lambda);

void cpu_linear(struct ops *o, struct tensor y, struct tensor x, struct tensor w, const real *scale,
                struct tensor residual);
void cpu_linear_bwd_x(struct ops *o, struct tensor dx, struct tensor dy, struct tensor w,
                      const real *scale, bool add);
void cpu_linear_bwd_w(struct ops *o, struct tensor dw, real *dscale, struct tensor dy,
                      struct tensor x, struct tensor w, const real *scale, bool add);
void cpu_linear_t(struct ops *o, struct tensor y, struct tensor x, struct tensor w,
                  const real *scale, struct tensor residual);
void cpu_linear_t_bwd_w(struct ops *o, struct tensor dw, real *dscale, struct tensor dy,
                        struct tensor x, struct tensor w, const real *scale, bool add);
void cpu_linear_relu2(struct ops *o, struct tensor post, struct tensor x, struct tensor w);
void cpu_linear_relu2_bwd(struct ops *o, struct tensor dpre, struct tensor dout, struct tensor w2,
                          const real *scale, struct tensor post);

void cpu_qkv(struct ops *o, struct tensor q, struct tensor k, struct tensor v, struct tensor qkv,
             const struct qkv_shape *s, struct rope r, struct tensor y, struct tensor gate,
             struct tensor table, const struct batch *b);
void cpu_qkv_bwd(struct ops *o, struct tensor dqkv, struct tensor dtable_rows, struct tensor dgate,
                 struct tensor dy12, struct tensor dq, struct tensor dk, struct tensor dv,
                 struct tensor qkv, const struct qkv_shape *s, struct rope r, struct tensor y,
                 struct tensor gate, struct tensor table, const struct batch *b);
void cpu_attention(struct ops *o, struct tensor out, struct tensor lse, struct tensor q,
                   struct tensor k, struct tensor v, const struct attn_shape *s);
void cpu_attention_bwd(struct ops *o, struct tensor dq, struct tensor dk, struct tensor dv,
                       struct tensor dout, struct tensor q, struct tensor k, struct tensor v,
                       struct tensor lse, struct tensor delta, const struct attn_shape *s);
void cpu_out_gate(struct ops *o, struct tensor out, struct tensor x, struct tensor y,
                  struct tensor gate, int heads);
void cpu_out_gate_bwd(struct ops *o, struct tensor dx, struct tensor delta, struct tensor dgate,
                      struct tensor dy12, struct tensor dout, struct tensor x, struct tensor y,
                      struct tensor gate, int heads);

void cpu_head_loss(struct ops *o, real *loss, struct tensor dx, struct tensor dw, bool add,
                   struct tensor x, struct tensor w, const struct head_loss *h);
void cpu_head_eval(struct ops *o, real *loss, struct tensor x, struct tensor w,
                   const struct head_loss *h);

void cpu_transpose(struct ops *o, struct tensor dst, struct tensor src, real mix);
void cpu_merge_rows(struct ops *o, struct tensor g, struct tensor rows, const struct row_merge *m);
void cpu_muon_input(struct ops *o, struct tensor x, struct tensor mom, struct tensor g, int n,
                    const struct muon_step *m);
void cpu_polar(struct ops *o, struct tensor x, int n, const double (*coef)[3], int iters, bool aol);
void cpu_normuon(struct ops *o, struct tensor w, struct tensor mant, struct tensor q,
                 struct tensor x, int n, const float *lr_mul, double beta2,
                 const struct muon_step *m);
void cpu_adam(struct ops *o, struct tensor w, struct tensor g, struct tensor m, struct tensor v,
              double beta1, double beta2, double eps, const struct adam_step *a,
              const struct fp8_copy *copy);
void cpu_quantize(struct ops *o, const struct fp8_copy *copy, struct tensor w);
/* quantize.c: codes of w as it is stored, elements first .. first + n - 1; amax grows. */
void cpu_fp8_write(const struct fp8_copy *copy, struct tensor w, int64_t first, int n);
enum { FP8_BLOCK = 512 }; /* n at most */
void cpu_finite(struct ops *o, int32_t *bad, struct tensor t);

#endif
