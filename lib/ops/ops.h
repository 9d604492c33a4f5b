/* ops.h - the operations of model and optimizer, and the door to devices.
 *
 * An op is a function pointer in struct ops with one contract, written here:
 * shapes, formula, what the backward needs. The plain C definition is
 * lib/ops/NAME.c; the CUDA kernel is kernels/NAME.cu; tests hold one against
 * the other. Model code calls ops and never asks where they run.
 *
 *     struct ops *o;
 *     if ((rc = ops_cpu_new(&o))) return rc;
 *     o->linear(o, y, x, w, scale, residual);
 *     o->linear_bwd_x(o, dx, dy, w, scale, false);
 *     if ((rc = o->status(o))) return rc;         // the first failure since the start sticks
 *     o->free(o);
 *
 * Conventions
 * - Ops queue work in order on the device and return nothing. The first failure
 *   sticks, later ops do nothing, status() tells. Wrong shapes are our bugs: assert.
 * - Activations and their gradients have dtype o->act: f32 on the CPU, bf16 on a
 *   GPU. Weights and weight gradients say their own (bf16 or f32).
 * - `real` is float; the finite-difference tests compile lib/ops with double.
 *   Learnable scalars, row statistics and per-step numbers are `real` arrays in
 *   device memory and are passed by pointer, so that a captured graph sees new
 *   values.
 * - `add`: false writes the output, true adds to it (one rounding of the sum).
 *   Gradients of learnable scalars (dcoef) and of gate weights are always added.
 * - Notation: T tokens, D model width, H heads, E head size (D = H E), F MLP
 *   width, V vocabulary; d* is the gradient of the loss with respect to *.
 *   Norm(x) = x (mean(x^2) + 2^-23)^-1/2 over a row; s(u) = 1/(1 + exp(-u)).
 *
 * Threads: one struct ops belongs to one rank's thread.
 */
#ifndef OPS_OPS_H
#define OPS_OPS_H

#include <stdbool.h>
#include "base/err.h"
#include "base/tensor.h"

#ifdef GPT_OPS_DOUBLE
typedef double real;
#define DT_REAL DT_F64
#else
typedef float real;
#define DT_REAL DT_F32
#endif

enum { GATE_WIDTH = 12 }; /* channels that a gate looks at */
enum { MAX_MTP = 4 }; /* predicted tokens a position, at most */
enum { MIX_MAX = 4 };
enum { LANES_MAX = 5 };
enum { INJECT_MAX = 12, INJECT_STREAMS = 2 };
enum { FETCH_MAX = 4, FETCH_BYTES = 64 };

/* Which row of a table each position reads, and which positions read each row. */
struct lookup {
    int tokens; /* T */
    const int32_t *row; /* (T) */
    const int32_t *order; /* (T): positions sorted by row, stable */
    const int32_t *start; /* (rows+1): order[start[v] .. start[v+1]) read row v */
};

/* Rows of a table cut by rows among ranks, as other ranks sent them: rank r's are start[r] ..
 * start[r+1]-1, each for row index[i] of the table, ascending; `rank` sent itself none. */
struct row_merge {
    int rank, world;
    int64_t first; /* row of the table at which this rank's begin */
    const int32_t *index;
    const int32_t *start; /* (world+1) */
};

/* One rank's micro-batch in device memory. */
struct batch {
    int tokens; /* T */
    const int32_t *tgt; /* (T): the token after each */
    const int32_t *cu; /* (ncu): document starts, cu[0] = 0, padded with T */
    int ncu;
    struct lookup token; /* the tokens themselves: rows of V */
    struct lookup bigram; /* their hashes (record-74.md 3), where there is a table */
};

/* Cosines and sines by position: rows of E/2 numbers, E/4 cosines then E/4
 * sines, each rounded to bf16 (record-61.md 2.5). */
struct rope {
    struct tensor table;
};

/* Channels of k that come from t-1 (from t itself at t = 0). */
enum key_offset {
    KEY_OFFSET_NONE,
    KEY_OFFSET_QUARTERS, /* [E/4,E/2) and [3E/4,E): record 61 */
    KEY_OFFSET_HALF, /* [E/2,E), those that rotary leaves alone: record 74 */
};

/* What an attention layer does to q, k, v before the scores. */
struct qkv_shape {
    int heads, head_dim;
    bool paired; /* head h of token t sits at rotary position 2t + (h & 1) */
    enum key_offset key_offset;
    bool split_gate; /* value gates see 6 channels of y and 6 of the value row */
};

/* Scores: rows R (T, or 2T when heads are paired), h attention heads a row. A
 * query p sees keys p-window .. p of its document. */
struct attn_shape {
    int rows, heads, head_dim;
    const int32_t *cu; /* document starts in tokens; times cu_mul in rows */
    int ncu, cu_mul;
    int window; /* keys back, in rows */
    float scale;
};

struct mix_term {
    struct tensor x; /* (T,D) */
    const real *coef; /* NULL: 1 */
    bool minus; /* the coefficient is -*coef; dcoef is that of *coef */
};
struct mix_grad {
    struct tensor dx; /* (T,D) or none; may be the same memory as dout */
    bool add;
    real *dcoef; /* NULL, or added to; several may be one number */
};

/* What one term brings to two lanes. */
struct lanes_term {
    struct tensor x; /* (T,D) */
    unsigned lanes; /* bit j: x is in lane j */
    const real *coef[2]; /* in each lane; NULL: 1 */
};
struct lanes_grad {
    struct tensor dx; /* (T,D) or none; may be the same memory as a dout or an x */
    real *dcoef[2]; /* NULL, or added to; several may be one number */
};

/* A stream that joins the residual stream, scaled, in n places. */
struct injection {
    struct tensor x, dx; /* (T,D) */
    bool add; /* to dx */
    const real *coef[INJECT_MAX]; /* NULL: not in this place */
    real *dcoef[INJECT_MAX]; /* NULL, or added to; several may be one number */
};

/* A weight's copy in e4m3: codes of w / scale_inv, saturating at 448. Readers multiply by that same
 * scale_inv, which is exact: a fixed scale is given in this form, and no reciprocal is formed. amax
 * tells whether it fits: above 448 scale_inv weights are cut off. */
struct fp8_copy {
    struct tensor codes; /* e4m3, of the weight's shape */
    real scale_inv;
    real *amax; /* device: max |w| of what was last written; NaN if one is */
};

/* Training head: logits, softcap, multi-token cross entropy, and back. */
struct head_loss {
    const int32_t *tgt; /* (T) */
    const real *mtp; /* (n_mtp) weights in device memory */
    int n_mtp;
    real seed; /* dLoss/dloss_t: 1 / micro-steps */
    bool fp8; /* e4m3 x, w and e5m2 gradient with the scales below */
    real x_scale, w_scale, g_scale;
    real cap_a, cap_b, cap_c; /* z = a s((l + b) / c) */
    struct tensor w8; /* with fp8: (D,V) codes of w / w_scale, or none: made from w */
};

struct adam_step {
    real step_size, decay;
}; /* lr sqrt(1-b2^n)/(1-b1^n);  lr^2 wd */
/* blend = 1 - momentum, formed as the recipe says; decay = base lr * weight decay, without
 * multipliers. */
struct muon_step {
    real blend, lr, decay;
};

struct ops {
    const char *device; /* "cpu", "cuda" */
    enum dtype act;

    /* -- memory and order ------------------------------------------------- */
    void (*free)(struct ops *o);
    int (*status)(struct ops *o) MUST_CHECK; /* first failure; does not wait */
    int (*sync)(struct ops *o) MUST_CHECK; /* waits for all queued work, then status */
    /* All memory is taken before step 0, filled with a NaN pattern, and given back by free(). */
    void *(*alloc)(struct ops *o, size_t bytes, const char *what);
    size_t (*allocated)(const struct ops *o);
    /* host may be used again at once. */
    void (*upload)(struct ops *o, void *dst, const void *host, size_t bytes);
    /* As upload, but beside the work queued so far, which must not touch dst: a batch of the next
     * step while this one computes. What is queued later sees it. */
    void (*upload_ahead)(struct ops *o, void *dst, const void *host, size_t bytes);
    void (*download)(struct ops *o, void *host, const void *src, size_t bytes); /* waits */
    /* Starts to copy bytes (at most FETCH_BYTES) of src behind the work queued so far; fetched()
     * waits for the oldest such copy and hands it out. At most FETCH_MAX may be under way. */
    void (*fetch)(struct ops *o, const void *src, size_t bytes);
    void (*fetched)(struct ops *o, void *host, size_t bytes);
    void (*zero)(struct ops *o, struct tensor t);
    void (*copy)(struct ops *o, struct tensor dst, struct tensor src); /* converts dtypes */

    /* -- input ------------------------------------------------------------- */
    /* table (n,E/2) from freq (E/4, host): theta = fl32(p f); bf16 cos, sin. */
    void (*rope_table)(struct ops *o, struct rope r, const float *freq);

    /* e_t = table[tok_t]; u_t = sum_{j<12} gate_j e_tj; s_t = e_t + lambda s(u_t) e_{t-1}
     * (t >= 1; e, not s, of t-1); x0 = Norm(s). table (V,D), gate (1,12), x0 (T,D). */
    void (*embed)(struct ops *o, struct tensor x0, struct tensor table, struct tensor gate,
                  const real *lambda, const struct batch *b);
    /* de (T,D) written: gradient of the rows e_t, ready for table_grad. */
    void (*embed_bwd)(struct ops *o, struct tensor de, struct tensor dgate, real *dlambda,
                      struct tensor dx0, struct tensor table, struct tensor gate,
                      const real *lambda, const struct batch *b);
    /* dtable[v] (+)= sum over positions t of token v of the rows dx_t (+ dx2_t when given):
     * every row of dtable is written (with add, every row that a position reads); sums in f32,
     * one rounding. Rows are those of l: its tokens for token tables, hashes for bigrams. */
    void (*table_grad)(struct ops *o, struct tensor dtable, struct tensor dx, struct tensor dx2,
                       const struct lookup *l, bool add);
    /* out (T,D): out_t = table[row_t], both of one dtype or out of act; l's rows alone matter. */
    void (*gather)(struct ops *o, struct tensor out, struct tensor table, const struct lookup *l);

    /* -- residual stream ---------------------------------------------------- */
    /* out = sum_k coef_k x_k; y = Norm(out). out may be one of the x_k; y may be none. */
    void (*mix_norm)(struct ops *o, struct tensor out, struct tensor y, int n,
                     const struct mix_term *in);
    /* g = dout + Norm'(dy + [dy12 on the first 12 channels]; out). Then for each term:
     * dx_k (+)= coef_k g and dcoef_k += sum g x_k. dy, dy12 may be none. */
    void (*mix_norm_bwd)(struct ops *o, const struct mix_grad *d, struct tensor dout,
                         struct tensor dy, struct tensor dy12, struct tensor out, int n,
                         const struct mix_term *in);
    /* out_j = sum_k coef_kj x_k for both lanes j; y = Norm(out_normed). An out may be one of the
     * x_k; y may be none. */
    void (*lanes_mix)(struct ops *o, const struct tensor out[2], struct tensor y, int normed, int n,
                      const struct lanes_term *in);
    /* g_j = dout_j, and in lane `normed` also Norm'(dy + [dy12 on the first 12 channels]; out), out
     * being that lane's. For each term: dx_k = sum_j coef_kj g_j, dcoef_kj += sum g_j x_k. dy,
     * dy12 may be none. */
    void (*lanes_mix_bwd)(struct ops *o, const struct lanes_grad *d, const struct tensor dout[2],
                          struct tensor dy, struct tensor dy12, struct tensor out, int normed,
                          int n, const struct lanes_term *in);
    /* From the gradients g_i (T,D) of n places (at most INJECT_MAX) to those of the m streams that
     * joined there: dx (+)= sum_i coef_i g_i, dcoef_i += sum g_i x. */
    void (*inject_bwd)(struct ops *o, int n, const struct tensor *g, int m,
                       const struct injection *in);
    /* out = x + kappa_t skip_t, kappa = 2 s(lambda) s(psi), psi_t = sum_{j<12} gate_j x0_tj. */
    void (*skip_gate)(struct ops *o, struct tensor out, struct tensor x, struct tensor skip,
                      struct tensor x0, struct tensor gate, const real *lambda);
    /* dout passes to x unchanged. dskip written = kappa dout; dx0 channels < 12 added. */
    void (*skip_gate_bwd)(struct ops *o, struct tensor dskip, struct tensor dx0,
                          struct tensor dgate, real *dlambda, struct tensor dout,
                          struct tensor skip, struct tensor x0, struct tensor gate,
                          const real *lambda);

    /* -- products ------------------------------------------------------------ */
    /* y = scale x w^T (+ residual): x (T,I), w (O,I), y (T,O). scale NULL: 1. y may be residual. */
    void (*linear)(struct ops *o, struct tensor y, struct tensor x, struct tensor w,
                   const real *scale, struct tensor residual);
    /* dx (+)= scale dy w. */
    void (*linear_bwd_x)(struct ops *o, struct tensor dx, struct tensor dy, struct tensor w,
                         const real *scale, bool add);
    /* g = dy^T x; dw (+)= scale g; dscale += sum g w (when dscale is given). */
    void (*linear_bwd_w)(struct ops *o, struct tensor dw, real *dscale, struct tensor dy,
                         struct tensor x, struct tensor w, const real *scale, bool add);
    /* The same with w stored (I,O): y = scale x w (+ residual); g = x^T dy, dw (+)= scale g. */
    void (*linear_t)(struct ops *o, struct tensor y, struct tensor x, struct tensor w,
                     const real *scale, struct tensor residual);
    void (*linear_t_bwd_w)(struct ops *o, struct tensor dw, real *dscale, struct tensor dy,
                           struct tensor x, struct tensor w, const real *scale, bool add);
    /* post = max(x w^T,0)^2. x (T,D), w (F,D). */
    void (*linear_relu2)(struct ops *o, struct tensor post, struct tensor x, struct tensor w);
    /* dpre = 2 scale (dout w2^T) max(pre,0), whose last factor is the root of post: dout (T,D), w2
     * (F,D), dpre and post (T,F), which may be the same (once dw2 is done). */
    void (*linear_relu2_bwd)(struct ops *o, struct tensor dpre, struct tensor dout,
                             struct tensor w2, const real *scale, struct tensor post);

    /* -- attention ------------------------------------------------------------ */
    /* From qkv (T,3D): q, k = Norm over each head's E channels, rotated by -theta, k offset;
     * v = v + 2 s(sum_{j<12} u_tj gate_hj) e_t, e_t = table[token_t], when a table is given.
     * u_t = y_t, or with split_gate y_t0 .. y_t5, e_t0 .. e_t5.
     * gate (H,12); y (T,D) normed layer input; table (V,D); q, k, v (T,D). */
    void (*qkv)(struct ops *o, struct tensor q, struct tensor k, struct tensor v, struct tensor qkv,
                const struct qkv_shape *s, struct rope r, struct tensor y, struct tensor gate,
                struct tensor table, const struct batch *b);
    /* dqkv (T,3D) written; dtable_rows (T,D, only with a table) written: gradient of e_t, its
     * part through a split gate included; with a table dy12 (T,12) is added to: gradient of y's
     * first 12 (split_gate: 6) channels through this gate. */
    void (*qkv_bwd)(struct ops *o, struct tensor dqkv, struct tensor dtable_rows,
                    struct tensor dgate, struct tensor dy12, struct tensor dq, struct tensor dk,
                    struct tensor dv, struct tensor qkv, const struct qkv_shape *s, struct rope r,
                    struct tensor y, struct tensor gate, struct tensor table,
                    const struct batch *b);
    /* q, k, v, out: (R, h E) in row order (the same memory as (T, H E) when paired);
     * lse (h,R) f32. P = softmax(scale q k^T) over what the query sees; out = P v. */
    void (*attention)(struct ops *o, struct tensor out, struct tensor lse, struct tensor q,
                      struct tensor k, struct tensor v, const struct attn_shape *s);
    /* delta (h,R) f32: sum over a head's channels of dout out, from out_gate_bwd. */
    void (*attention_bwd)(struct ops *o, struct tensor dq, struct tensor dk, struct tensor dv,
                          struct tensor dout, struct tensor q, struct tensor k, struct tensor v,
                          struct tensor lse, struct tensor delta, const struct attn_shape *s);
    /* out_th = s(sum_{j<12} y_tj gate_hj) x_th. x, out (T,H E); gate (H,12). */
    void (*out_gate)(struct ops *o, struct tensor out, struct tensor x, struct tensor y,
                     struct tensor gate, int heads);
    /* dx written (may be dout); dgate added; dy12 (T,12) written (it runs before qkv_bwd).
     * delta (h,R) f32 written, R a multiple of T, h R = H T: sums over E channels of dx x, where
     * attention (which x is the result of) counts its R rows of h heads in the same memory. */
    void (*out_gate_bwd)(struct ops *o, struct tensor dx, struct tensor delta, struct tensor dgate,
                         struct tensor dy12, struct tensor dout, struct tensor x, struct tensor y,
                         struct tensor gate, int heads);

    /* -- head ------------------------------------------------------------------ */
    /* x (T,D), w (D,V). loss[0] += sum_t loss_t (unseeded); dx (T,D) written; dw (D,V) (+)=.
     * loss_t = sum_{k<n_mtp, t+k<T} mtp_k (lse_t - z_{t, tgt[t+k]}). */
    void (*head_loss)(struct ops *o, real *loss, struct tensor dx, struct tensor dw, bool add,
                      struct tensor x, struct tensor w, const struct head_loss *h);
    /* loss[0] += sum_t (lse_t - z_{t, tgt[t]}); never fp8. */
    void (*head_eval)(struct ops *o, real *loss, struct tensor x, struct tensor w,
                      const struct head_loss *h);

    /* -- optimizer --------------------------------------------------------------- */
    /* dst (C,R) = src^T (R,C) when mix is 0, else dst += mix src^T: the product in f32, then one
     * rounding of the sum. */
    void (*transpose)(struct ops *o, struct tensor dst, struct tensor src, real mix);
    /* g (R,D), this rank's rows of a table's gradient <- the mean over ranks, where those of others
     * are `rows` (n,D) as m says, and zero where they sent none. Sums in f32 in the order of
     * ranks, one rounding: what a reduce-scatter between threads gives. */
    void (*merge_rows)(struct ops *o, struct tensor g, struct tensor rows,
                       const struct row_merge *m);
    /* n matrices (R,C) each. mom (n R,C) f32 <- mom + blend (g - mom); u = mom - blend (mom - g);
     * x (n R,C) = u / (1.02 |u|_F + 1e-6), bf16 (or what x is). |u|_F not finite: x = 0.
     * g: gradient (any float dtype). */
    void (*muon_input)(struct ops *o, struct tensor x, struct tensor mom, struct tensor g, int n,
                       const struct muon_step *m);
    /* n matrices (R,C) each, in place: rows of coef are a, b, c (host).
     * k = min(R,C) side Gram matrix A; B = b A + c A A; x <- a x + B x (or x B). Every product's
     * result rounds once to x's dtype, except (r61) R > 1024: B x rounds before a x is added.
     * aol: before the first iteration s_i = max(sum_j |A_ij|, 1e-7)^(-1/2) scales x (its rows, or
     * columns when R > C) and A_ij <- s_i s_j A_ij, one rounding each (orthogonalisation.md 2,
     * 3). */
    void (*polar)(struct ops *o, struct tensor x, int n, const double (*coef)[3], int iters,
                  bool aol);
    /* The update from x (n R,C): row variance q (n R,1) f32 with beta2, norm-preserving; cautious
     * decay; master = w bits : mantissa bits (optimizers.md 4.3, 4.4). lr of matrix i is
     * m->lr * lr_mul[i] (host array of n). w bf16 with mant u16, or w f32 with no mant. */
    void (*normuon)(struct ops *o, struct tensor w, struct tensor mant, struct tensor q,
                    struct tensor x, int n, const float *lr_mul, double beta2,
                    const struct muon_step *m);
    /* Optimizers.md 3; w and g of any float dtype, m and v f32 (or bf16), elementwise; one
     * rounding an operation, none contracted; 1 - beta is formed in double. copy, or NULL: is
     * written in the same pass, of the new w as it is stored. */
    void (*adam)(struct ops *o, struct tensor w, struct tensor g, struct tensor m, struct tensor v,
                 double beta1, double beta2, double eps, const struct adam_step *a,
                 const struct fp8_copy *copy);
    /* The copy of w (any float dtype) by itself: the same codes and amax. */
    void (*quantize)(struct ops *o, const struct fp8_copy *copy, struct tensor w);
    /* bad[0] |= 1 when t has a NaN or an infinity (device int32). */
    void (*finite)(struct ops *o, int32_t *bad, struct tensor t);
};

/* The reference: plain C, f32 (f64 in the double build). */
int ops_cpu_new(struct ops **o) MUST_CHECK;

#endif
