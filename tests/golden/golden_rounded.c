/* golden_rounded.c - the CPU's ops with activations of bf16: what that precision alone does.
 *
 * Every activation and activation gradient that an op writes is rounded to bf16 once, as a GPU
 * stores it; inside of an op everything stays f32. Weights and their gradients have the recipe's
 * types.
 */
#include "golden.h"

#include "base/rng.h"

static struct ops cpu; /* the functions that are wrapped */

static struct rng rng;
static uint64_t drawn;

/* To the nearest, or with a seed to one of both neighbours, the nearer one the more likely: without
 * bias, and another one for each seed; its variance is twice that of rounding to nearest. */
static void rounded(struct tensor t)
{
    enum { PIECE = 256 };
    float *x = t.data, draw[PIECE];
    int64_t n = x ? tensor_count(t) : 0;
    for (int64_t i = 0; i < n; i += PIECE, x += PIECE) {
        int some = n - i < PIECE ? (int)(n - i) : PIECE;
        if (!rng.seed) {
            for (int k = 0; k < some; k++)
                x[k] = bf16_round(x[k]);
            continue;
        }
        rng_uniforms(&rng, drawn, some, draw);
        drawn += (uint64_t)some;
        for (int k = 0; k < some; k++)
            x[k] = f32_from_bits((f32_bits(x[k]) + (uint32_t)(65536 * draw[k])) & 0xffff0000u);
    }
}

static void embed(struct ops *o, struct tensor x0, struct tensor table, struct tensor gate,
                  const real *lambda, const struct batch *b)
{
    cpu.embed(o, x0, table, gate, lambda, b);
    rounded(x0);
}

static void embed_bwd(struct ops *o, struct tensor de, struct tensor dgate, real *dlambda,
                      struct tensor dx0, struct tensor table, struct tensor gate,
                      const real *lambda, const struct batch *b)
{
    cpu.embed_bwd(o, de, dgate, dlambda, dx0, table, gate, lambda, b);
    rounded(de);
}

static void gather(struct ops *o, struct tensor out, struct tensor table, const struct lookup *l)
{
    cpu.gather(o, out, table, l);
    rounded(out);
}

static void mix_norm(struct ops *o, struct tensor out, struct tensor y, int n,
                     const struct mix_term *in)
{
    cpu.mix_norm(o, out, y, n, in);
    rounded(out);
    rounded(y);
}

static void mix_norm_bwd(struct ops *o, const struct mix_grad *d, struct tensor dout,
                         struct tensor dy, struct tensor dy12, struct tensor out, int n,
                         const struct mix_term *in)
{
    cpu.mix_norm_bwd(o, d, dout, dy, dy12, out, n, in);
    for (int k = 0; k < n; k++)
        rounded(d[k].dx);
}

static void lanes_mix(struct ops *o, const struct tensor out[2], struct tensor y, int normed, int n,
                      const struct lanes_term *in)
{
    cpu.lanes_mix(o, out, y, normed, n, in);
    rounded(out[0]);
    rounded(out[1]);
    rounded(y);
}

static void lanes_mix_bwd(struct ops *o, const struct lanes_grad *d, const struct tensor dout[2],
                          struct tensor dy, struct tensor dy12, struct tensor out, int normed,
                          int n, const struct lanes_term *in)
{
    cpu.lanes_mix_bwd(o, d, dout, dy, dy12, out, normed, n, in);
    for (int k = 0; k < n; k++)
        rounded(d[k].dx);
}

static void inject_bwd(struct ops *o, int n, const struct tensor *g, int m,
                       const struct injection *in)
{
    cpu.inject_bwd(o, n, g, m, in);
    for (int k = 0; k < m; k++)
        rounded(in[k].dx);
}

static void skip_gate(struct ops *o, struct tensor out, struct tensor x, struct tensor skip,
                      struct tensor x0, struct tensor gate, const real *lambda,
                      const struct token_numbers *number)
{
    cpu.skip_gate(o, out, x, skip, x0, gate, lambda, number);
    rounded(out);
}

static void skip_gate_bwd(struct ops *o, struct tensor dskip, struct tensor dx0,
                          struct tensor dgate, real *dlambda, struct tensor dout,
                          struct tensor skip, struct tensor x0, struct tensor gate,
                          const real *lambda, const struct token_numbers *number)
{
    cpu.skip_gate_bwd(o, dskip, dx0, dgate, dlambda, dout, skip, x0, gate, lambda, number);
    rounded(dskip);
    if (!number)
        rounded(dx0);
}

static void linear(struct ops *o, struct tensor y, struct tensor x, struct tensor w,
                   const real *scale, struct tensor residual)
{
    cpu.linear(o, y, x, w, scale, residual);
    rounded(y);
}

static void linear_bwd_x(struct ops *o, struct tensor dx, struct tensor dy, struct tensor w,
                         const real *scale, bool add)
{
    cpu.linear_bwd_x(o, dx, dy, w, scale, add);
    rounded(dx);
}

static void norm(struct ops *o, struct tensor y, struct tensor x, struct tensor gain)
{
    cpu.norm(o, y, x, gain);
    rounded(y);
}

static void norm_bwd(struct ops *o, struct tensor dx, bool add, struct tensor dgain,
                     struct tensor dy, struct tensor x, struct tensor gain)
{
    cpu.norm_bwd(o, dx, add, dgain, dy, x, gain);
    rounded(dx);
}

static void linear_bias(struct ops *o, struct tensor y, struct tensor x, struct tensor w,
                        const real *scale, struct tensor b, struct tensor residual, bool relu2)
{
    cpu.linear_bias(o, y, x, w, scale, b, residual, relu2);
    rounded(y);
}

static void relu2_bias_bwd(struct ops *o, struct tensor dpre, struct tensor db, struct tensor dout,
                           struct tensor w2, const real *scale, struct tensor post)
{
    cpu.relu2_bias_bwd(o, dpre, db, dout, w2, scale, post);
    rounded(dpre);
}

static void linear_t(struct ops *o, struct tensor y, struct tensor x, struct tensor w,
                     const real *scale, struct tensor residual)
{
    cpu.linear_t(o, y, x, w, scale, residual);
    rounded(y);
}

static void linear_relu2(struct ops *o, struct tensor post, struct tensor x, struct tensor w)
{
    cpu.linear_relu2(o, post, x, w);
    rounded(post);
}

static void linear_t_fp8(struct ops *o, struct tensor y, struct tensor x, struct tensor w,
                         struct tensor x8, const real *unit, struct fp8_weight w8,
                         const real *scale, struct tensor residual)
{
    cpu.linear_t_fp8(o, y, x, w, x8, unit, w8, scale, residual);
    rounded(y);
}

static void linear_fp8(struct ops *o, struct tensor y, struct tensor x, struct tensor w,
                       struct fp8_weight w8, const real *scale, struct tensor residual)
{
    cpu.linear_fp8(o, y, x, w, w8, scale, residual);
    rounded(y);
}

static void linear_relu2_fp8(struct ops *o, struct tensor post, struct tensor post8,
                             struct tensor x, struct tensor w, struct fp8_weight w8)
{
    cpu.linear_relu2_fp8(o, post, post8, x, w, w8);
    rounded(post);
}

static void mlp_bwd_fp8(struct ops *o, struct tensor dpre, struct tensor dx, struct tensor dout,
                        struct tensor w1, struct fp8_weight w1_8, struct tensor w2,
                        struct fp8_weight w2_8, const real *scale, struct tensor post,
                        const struct fp8_grads *grads)
{
    cpu.mlp_bwd_fp8(o, dpre, dx, dout, w1, w1_8, w2, w2_8, scale, post, grads);
    rounded(dpre);
    rounded(dx);
}

static void linear_relu2_bwd(struct ops *o, struct tensor dpre, struct tensor dout,
                             struct tensor w2, const real *scale, struct tensor post)
{
    cpu.linear_relu2_bwd(o, dpre, dout, w2, scale, post);
    rounded(dpre);
}

static void qkv(struct ops *o, struct tensor q, struct tensor k, struct tensor v,
                struct tensor factor, struct tensor raw, struct tensor x, struct tensor w,
                const real *scale, struct tensor bias, const struct qkv_shape *s, struct rope r,
                struct tensor y, struct tensor gate, struct tensor table, const struct batch *b)
{
    cpu.qkv(o, q, k, v, factor, raw, x, w, scale, bias, s, r, y, gate, table, b);
    rounded(q);
    rounded(k);
    rounded(v);
}

static void value_bwd(struct ops *o, struct tensor dqkv, struct tensor dtable_rows,
                      struct tensor dgate, struct tensor dy12, struct tensor dv,
                      const struct qkv_shape *s, struct tensor y, struct tensor gate,
                      struct tensor table, const struct batch *b)
{
    cpu.value_bwd(o, dqkv, dtable_rows, dgate, dy12, dv, s, y, gate, table, b);
    if (table.data) {
        rounded(dtable_rows);
        rounded(dy12);
    }
}

static void attention(struct ops *o, struct tensor out, struct tensor lse, struct tensor q,
                      struct tensor k, struct tensor v, const struct attn_shape *s)
{
    cpu.attention(o, out, lse, q, k, v, s);
    rounded(out);
}

static void attention_bwd(struct ops *o, struct tensor dqkv, struct tensor dq, struct tensor dk,
                          struct tensor dv, enum values_grad values, struct tensor dout,
                          struct tensor q, struct tensor k, struct tensor v, struct tensor lse,
                          struct tensor delta, const struct attn_shape *s, const struct qk_made *m)
{
    cpu.attention_bwd(o, dqkv, dq, dk, dv, values, dout, q, k, v, lse, delta, s, m);
    rounded(dqkv);
    rounded(dv);
}

static void out_gate(struct ops *o, struct tensor out, struct tensor x, struct tensor y,
                     struct tensor gate, int heads, const struct xsa *a)
{
    cpu.out_gate(o, out, x, y, gate, heads, a);
    rounded(out);
}

static void out_gate_bwd(struct ops *o, struct tensor dx, struct tensor delta, struct tensor dgate,
                         struct tensor dy12, struct tensor dout, struct tensor x, struct tensor y,
                         struct tensor gate, int heads, const struct xsa *a)
{
    cpu.out_gate_bwd(o, dx, delta, dgate, dy12, dout, x, y, gate, heads, a);
    rounded(dx);
    rounded(dy12);
    if (a)
        rounded(a->dv);
}

static void token_coefs_bwd(struct ops *o, struct tensor dpre, struct tensor dw, struct tensor db,
                            real *dfactor, struct tensor dout, struct tensor pre, struct tensor w,
                            struct tensor b, const real *factor)
{
    cpu.token_coefs_bwd(o, dpre, dw, db, dfactor, dout, pre, w, b, factor);
    rounded(dpre);
}

static void head_coefs(struct ops *o, struct tensor out, struct tensor x, int heads,
                       const struct head_coefs *c)
{
    cpu.head_coefs(o, out, x, heads, c);
    rounded(out);
}

static void head_coefs_bwd(struct ops *o, struct tensor dx, struct tensor delta, struct tensor dout,
                           struct tensor x, struct tensor own, int heads,
                           const struct head_coefs *c)
{
    cpu.head_coefs_bwd(o, dx, delta, dout, x, own, heads, c);
    rounded(dx);
    if (c->alpha.value)
        rounded(c->dv);
}

static void compose(struct ops *o, struct tensor out, struct tensor lse, struct tensor x,
                    struct tensor q, struct tensor k, struct tensor v, const struct compose *c)
{
    cpu.compose(o, out, lse, x, q, k, v, c);
    rounded(out);
}

static void compose_bwd(struct ops *o, struct tensor dqkv, struct tensor dq, struct tensor dk,
                        struct tensor dv, struct tensor dout, struct tensor q, struct tensor k,
                        struct tensor v, struct tensor lse, const struct compose *c,
                        const struct qk_made *m)
{
    cpu.compose_bwd(o, dqkv, dq, dk, dv, dout, q, k, v, lse, c, m);
    rounded(dqkv);
    rounded(dv);
}

static void head_loss(struct ops *o, real *loss, struct tensor dx, struct tensor dw, bool add,
                      struct tensor x, struct tensor w, const struct head_loss *h)
{
    cpu.head_loss(o, loss, dx, dw, add, x, w, h);
    rounded(dx);
}

int golden_rounded_ops(struct ops **o, uint64_t seed)
{
    int rc = ops_cpu_new(o);
    struct ops *t = *o;
    if (rc)
        return rc;
    cpu = *t;
    rng = rng_make(seed, 0);
    drawn = 0;
    t->device = "cpu, activations in bf16";
    t->embed = embed;
    t->embed_bwd = embed_bwd;
    t->gather = gather;
    t->mix_norm = mix_norm;
    t->mix_norm_bwd = mix_norm_bwd;
    t->lanes_mix = lanes_mix;
    t->lanes_mix_bwd = lanes_mix_bwd;
    t->inject_bwd = inject_bwd;
    t->skip_gate = skip_gate;
    t->skip_gate_bwd = skip_gate_bwd;
    t->linear = linear;
    t->linear_bwd_x = linear_bwd_x;
    t->linear_t = linear_t;
    t->norm = norm;
    t->norm_bwd = norm_bwd;
    t->linear_bias = linear_bias;
    t->relu2_bias_bwd = relu2_bias_bwd;
    t->linear_relu2 = linear_relu2;
    t->linear_relu2_fp8 = linear_relu2_fp8;
    t->linear_t_fp8 = linear_t_fp8;
    t->linear_fp8 = linear_fp8;
    t->mlp_bwd_fp8 = mlp_bwd_fp8;
    t->linear_relu2_bwd = linear_relu2_bwd;
    t->qkv = qkv;
    t->value_bwd = value_bwd;
    t->attention = attention;
    t->attention_bwd = attention_bwd;
    t->out_gate = out_gate;
    t->out_gate_bwd = out_gate_bwd;
    t->token_coefs_bwd = token_coefs_bwd;
    t->head_coefs = head_coefs;
    t->head_coefs_bwd = head_coefs_bwd;
    t->compose = compose;
    t->compose_bwd = compose_bwd;
    t->head_loss = head_loss;
    return 0;
}
