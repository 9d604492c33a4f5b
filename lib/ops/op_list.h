/* op_list.h - the ops of model and optimizer: the contract of each, and OP(name, parameters).
 *
 * The only place where an op's signature is written. An op takes struct ops *o before these
 * parameters and returns nothing; conventions and types are in ops.h. A file that includes this
 * one defines what an entry expands to:
 *
 *     #define OP(name, ...) void cpu_##name(struct ops *o, __VA_ARGS__)
 *     #include "ops/op_list.h"                        // prototypes; ends with #undef OP
 *
 * OPW is an op that takes a workspace on a GPU: where the includer does not define it, it is OP.
 */
#ifndef OPW
#define OPW OP
#endif

/* -- input ------------------------------------------------------------- */
/* table (n,2 m) from freq (m, host): theta = fl32(p f), p = row % period, with period 0 the row;
 * cos, sin in bf16, or exact in f32. */
OP(rope_table, struct rope r, const float *freq, int period, bool exact);

/* e_t = table[tok_t]; u_t = sum_{j<12} gate_j e_tj; s_t = e_t + lambda s(u_t) e_{t-1}
 * (t >= 1; e, not s, of t-1); x0 = Norm(s). table (V,D), gate (1,12), x0 (T,D). With b->before
 * e_{t-1} is that token's row, and 0 for none. */
OP(embed, struct tensor x0, struct tensor table, struct tensor gate, const real *lambda,
   const struct batch *b);
/* de (T,D) written: gradient of the rows e_t, the dx of table_grad. */
OPW(embed_bwd, struct tensor de, struct tensor dgate, real *dlambda, struct tensor dx0,
    struct tensor table, struct tensor gate, const real *lambda, const struct batch *b);
/* dtable[v] (+)= sum over positions t of token v of the rows dx_t (+ dx2_t when given):
 * every row of dtable is written (with add, every row that a position reads); sums in f32,
 * one rounding. Rows are those of l: its tokens for token tables, hashes for bigrams. */
OPW(table_grad, struct tensor dtable, struct tensor dx, struct tensor dx2, const struct lookup *l,
    bool add);
/* out (T,D): out_t = table[row_t], both of one dtype or out of act; l's rows alone matter. */
OP(gather, struct tensor out, struct tensor table, const struct lookup *l);
/* x_t (P) <- x_t times row (token_{t-1} XOR token_t) mod R of signs (R,P), elementwise; row 0 where
 * there is no token before. x (T,P), in place. With signs of +-1 its own backward. */
OP(pair_signs, struct tensor x, struct tensor signs, const struct batch *b);

/* y (T,D) = Norm(x) times gain (1,D), elementwise: one rounding. gain may be none: 1. */
OP(norm, struct tensor y, struct tensor x, struct tensor gain);
/* x8 = e4m3(x / scale), saturating at 448. On a GPU without fp8, and in f64: nothing (fp8.md 6). */
OP(input_codes, struct tensor x8, struct tensor x, real scale);
/* dx (+)= r dz - x r^3 mean(dz x), r the factor of Norm(x), dz = dy times gain; dgain += sum_t dy Norm(x),
 * where a gain is given. dx may be dy. */
OPW(norm_bwd, struct tensor dx, bool add, struct tensor dgain, struct tensor dy, struct tensor x,
    struct tensor gain);

/* -- residual stream ---------------------------------------------------- */
/* out = sum_k coef_k x_k, with a term of some channels alone in those; y = Norm(out). out may be one
 * of the x_k; y may be none. */
OP(mix_norm, struct tensor out, struct tensor y, int n, const struct mix_term *in);
/* mix_norm, and y8 = input_codes of y as it is stored. */
OP(mix_norm_codes, struct tensor out, struct tensor y, struct tensor y8, real scale, int n,
   const struct mix_term *in);
/* g = dout + Norm'(dy + [dy12 on the first 12 channels]; out). Then for each term, in its channels:
 * dx_k (+)= coef_k g and dcoef_k += sum g x_k. dy, dy12 may be none. */
OPW(mix_norm_bwd, const struct mix_grad *d, struct tensor dout, struct tensor dy,
    struct tensor dy12, struct tensor out, int n, const struct mix_term *in);
/* out_j = sum_k coef_kj x_k for both lanes j; y = Norm(out_normed). An out may be one of the
 * x_k; y may be none. */
OP(lanes_mix, const struct tensor out[2], struct tensor y, int normed, int n,
   const struct lanes_term *in);
/* g_j = dout_j, and in lane `normed` also Norm'(dy + [dy12 on the first 12 channels]; out), out
 * being that lane's. For each term: dx_k = sum_j coef_kj g_j, dcoef_kj += sum g_j x_k. dy,
 * dy12 may be none. */
OPW(lanes_mix_bwd, const struct lanes_grad *d, const struct tensor dout[2], struct tensor dy,
    struct tensor dy12, struct tensor out, int normed, int n, const struct lanes_term *in);
/* Computes from the gradients g_i (T,D) of n places (at most INJECT_MAX) those of the m streams that
 * joined there: dx (+)= sum_i coef_i g_i, dcoef_i += sum g_i x. */
OPW(inject_bwd, int n, const struct tensor *g, int m, const struct injection *in);
/* Coefficients of each token: out (T,m) f32 = f (gelu(pre) w^T + b), gelu(x) = x Phi(x), f = *factor, or
 * 1/10 without one. pre (T,K), w (m,K), b (m) of w's type. */
OP(token_coefs, struct tensor out, struct tensor pre, struct tensor w, struct tensor b,
   const real *factor);
/* With q = f dout: db += sum_t q, dw += q^T gelu(pre), dpre = (q w) gelu'(pre); dpre may be pre. With a
 * factor *dfactor += the sum of dout out / f. */
OPW(token_coefs_bwd, struct tensor dpre, struct tensor dw, struct tensor db, real *dfactor,
    struct tensor dout, struct tensor pre, struct tensor w, struct tensor b, const real *factor);
/* out = x + kappa_t skip_t, kappa = 2 s(lambda) s(psi), psi_t = sum_{j<12} gate_j x0_tj; or of a number a
 * token, kappa = s(lambda) number_t, without x0 and gate. */
OP(skip_gate, struct tensor out, struct tensor x, struct tensor skip, struct tensor x0,
   struct tensor gate, const real *lambda, const struct token_numbers *number);
/* dout passes to x unchanged. dskip written = kappa dout; dx0 channels < 12 added; or number's gradient
 * written. */
OPW(skip_gate_bwd, struct tensor dskip, struct tensor dx0, struct tensor dgate, real *dlambda,
    struct tensor dout, struct tensor skip, struct tensor x0, struct tensor gate,
    const real *lambda, const struct token_numbers *number);

/* -- products ------------------------------------------------------------ */
/* y = scale x w^T (+ residual): x (T,I), w (O,I), y (T,O). scale NULL: 1. y may be residual. */
OP(linear, struct tensor y, struct tensor x, struct tensor w, const real *scale,
   struct tensor residual);
/* dx (+)= scale dy w. */
OP(linear_bwd_x, struct tensor dx, struct tensor dy, struct tensor w, const real *scale, bool add);
/* g = dy^T x; dw (+)= scale g; dscale += sum g w (when dscale is given). */
OPW(linear_bwd_w, struct tensor dw, real *dscale, struct tensor dy, struct tensor x,
    struct tensor w, const real *scale, bool add);
/* Products with w stored (I,O): y = scale x w (+ residual); g = x^T dy, dw (+)= scale g. */
OP(linear_t, struct tensor y, struct tensor x, struct tensor w, const real *scale,
   struct tensor residual);
OPW(linear_t_bwd_w, struct tensor dw, real *dscale, struct tensor dy, struct tensor x,
    struct tensor w, const real *scale, bool add);
/* post = max(x w^T,0)^2. x (T,D), w (F,D). */
OP(linear_relu2, struct tensor post, struct tensor x, struct tensor w);
/* linear_relu2 with pre = f x8 w8^T: x8 = e4m3(bf16(x inv)), inv = bf16(448 / ax), ax = max(|x|, 1e-12) over
 * all of x, f = (*w8.scale ax) / 448 (fp8.md 2); and post8 (T,F) = e4m3(post / FP8_POST_UNIT), or none.
 * On a GPU without fp8, and in f64: linear_relu2, and post8 is left alone. */
OPW(linear_relu2_fp8, struct tensor post, struct tensor post8, struct tensor x, struct tensor w,
    struct fp8_weight w8);
/* linear_t of codes: y = scale f x8 w8^T (+ residual), f = u *w8.scale; w8 (O,I) transposed
 * (fp8.md 3); u = *unit (device), or without one FP8_POST_UNIT. On a GPU without fp8, and in f64: linear_t of x
 * and w. */
OP(linear_t_fp8, struct tensor y, struct tensor x, struct tensor w, struct tensor x8,
   const real *unit, struct fp8_weight w8, const real *scale, struct tensor residual);
/* linear of codes: y = scale *w8.scale x8 w8^T (+ residual), x8 = e4m3(x), w8 (O,I) (fp8.md 9). On a GPU without fp8,
 * and in f64: linear of x and w. */
OPW(linear_fp8, struct tensor y, struct tensor x, struct tensor w, struct fp8_weight w8,
    const real *scale, struct tensor residual);
/* x8 = e4m3(x (1 / s)), s = *scale, where that is 0 1, saturating at 448; *most = max(*most, max x). x (T,F) >= 0;
 * *scale is made s. On a GPU without fp8, and in f64: nothing (fp8.md 5). */
OP(delayed_codes, struct tensor x8, struct tensor x, real *scale, real *most);
/* n numbers each (device): scale = headroom max(most, 1e-12) / 448, then most = 0. */
OP(delayed_scales, real *scale, real *most, int n, real headroom);
/* linear_relu2_bwd and, of what it writes, dx = dpre w1, with gradients in e5m2 (fp8.md 4): d8 =
 * e5m2(bf16(dout inv)), inv = bf16(57344 / ad), ad = max(|dout|, 1e-12) over all of dout; dpre = 2 scale f
 * (d8 w2_8^T) max(pre,0), f = (*w2_8.scale ad) / 57344; g8 = e5m2(dpre (64 / ad)), dx = (ad / 64)
 * *w1_8.scale g8 w1_8, with w1_8 (D,F) transposed. With grads dw1 (+)= (ad / 64 / FP8_NORM_UNIT) g8^T x8,
 * x8 = e4m3(FP8_NORM_UNIT x); with a dw2 h = (ad / 57344 FP8_POST_UNIT) post8^T d8, post8 = e4m3(post / FP8_POST_UNIT),
 * dw2 (+)= scale h, dscale += sum h w2; and dpre is scratch (fp8.md 8). On a GPU without fp8, and in f64, of w1, w2, dpre,
 * x, post and dout. */
OPW(mlp_bwd_fp8, struct tensor dpre, struct tensor dx, struct tensor dout, struct tensor w1,
    struct fp8_weight w1_8, struct tensor w2, struct fp8_weight w2_8, const real *scale,
    struct tensor post, const struct fp8_grads *grads);
/* linear_bwd_w and linear_bwd_x (not added) of codes, dy8 = e4m3(dy / dy_scale), which is made here if it is none,
 * x8 = e4m3(x / x_scale): g = dy_scale x_scale (dy8^T x8), dx = scale (dy_scale *w8.scale) (dy8 w8), w8 (I,O)
 * transposed (fp8.md 7). On a GPU without fp8, and in f64, of dy, x and w. */
OPW(linear_bwd_fp8, struct tensor dx, struct tensor dw, real *dscale, struct tensor dy,
    struct tensor dy8, struct tensor x, struct tensor w, struct fp8_weight w8, const real *scale,
    real dy_scale, real x_scale, bool add);
/* dpre = 2 scale (dout w2^T) max(pre,0), whose last factor is the root of post: dout (T,D), w2
 * (F,D), dpre and post (T,F), which may be the same (once dw2 is done). */
OPW(linear_relu2_bwd, struct tensor dpre, struct tensor dout, struct tensor w2, const real *scale,
    struct tensor post);

/* y (T,O) = scale x w^T + b (+ residual), or with relu2 max(scale x w^T + b, 0)^2: x (T,I), w (O,I), b (1,O), scale
 * NULL: 1. y may be residual. */
OP(linear_bias, struct tensor y, struct tensor x, struct tensor w, const real *scale,
   struct tensor b, struct tensor residual, bool relu2);
/* db (1,O) += sum_t dy_t. */
OPW(bias_bwd, struct tensor db, struct tensor dy);
/* dpre = 2 scale (dout w2) sqrt(post), db += sum_t dpre_t unless it is none: dout (T,D), w2 (D,F), post and dpre
 * (T,F), db (1,F). */
OPW(relu2_bias_bwd, struct tensor dpre, struct tensor db, struct tensor dout, struct tensor w2,
    const real *scale, struct tensor post);
/* Rows of w (n E, D), of n heads of E: in each head row 2m = from's row m, row 2m + 1 = from's row m + E/2,
 * m < E/4; behind them from's other rows in their order. back: the inverse. Types may differ. */
OP(pair_rows, struct tensor w, struct tensor from, int head_dim, bool back);

/* -- attention ------------------------------------------------------------ */
/* q, k, v from a layer's normed input x (T,D): with raw = scale x w^T (+ bias), w (2Q+D,D), q and k are Norm of raw over
 * each head's Eq channels, rotated by -theta, k offset; v is raw's, + 2 s(sum_{j<12} u_tj gate_hj) e_t, e_t =
 * table[token_t], when a table is given. u_t = y_t, or with split_gate y_t0 .. y_t5, e_t0 .. e_t5.
 * factor (2H,T) f32, or none: Norm's factor of each head of q, then of k, for attention_bwd. raw (T,2Q+D):
 * scratch. k has T rows, or one more: for the channels that the offset moves behind the last token.
 * With b->pos row t is rotated by that position, the key offset must be none, and k, v go into
 * s->cache, where there is one; with its values_apart v goes to v.
 * scale NULL: 1. gate (H,12); y (T,12 or more); table (V,D); q, k (T,Q), v (T,D). With s->fp8 raw = scale (x_scale
 * *w.scale) x8 w8^T (+ bias) of its codes; on a GPU without fp8, and in f64, of x and w. */
OP(qkv, struct tensor q, struct tensor k, struct tensor v, struct tensor factor, struct tensor raw,
   struct tensor x, struct tensor w, const real *scale, struct tensor bias,
   const struct qkv_shape *s, struct rope r, struct tensor y, struct tensor gate,
   struct tensor table, const struct batch *b);
/* dtable_rows (T,D) written: gradient of e_t, its part through a split gate included; dy12 (T,12)
 * added to: gradient of y's first 12 (split_gate: 6) channels through this gate. dqkv's last D columns are the
 * gradient of v: where dv (T,D) is given, written from it. Without a table that is all. With s->dqkv8, and a
 * dv, its codes are written there in place of dqkv. */
OPW(value_bwd, struct tensor dqkv, struct tensor dtable_rows, struct tensor dgate,
    struct tensor dy12, struct tensor dv, const struct qkv_shape *s, struct tensor y,
    struct tensor gate, struct tensor table, const struct batch *b);
/* Plans attention and attention_bwd of these shapes from cu and window, once for all layers. A CPU has
 * no plan. */
OP(attention_plan, const struct attn_shape *s, int n);
/* q, k: (R, h Eq), v, out: (R, h E) in row order (the same memory as (T, H E) when paired);
 * lse (h,R) f32. P = softmax(scale q k^T) over what the query sees; out = P v. */
OPW(attention, struct tensor out, struct tensor lse, struct tensor q, struct tensor k,
    struct tensor v, const struct attn_shape *s);
/* v (T,D) into the cache. */
OP(cache_values, const struct kv_cache *c, struct tensor v);
/* Attention and out_gate of rows at positions of sequences that grow: row t attends to what its
 * sequence has in the cache, itself included; out_th = s(sum_{j<12} y_tj gate_hj) x_th of that
 * result x, or with alpha (1,H) f32 of what struct xsa makes of x and the row's value in the cache. A
 * row of scores is that of s, position times pair + 0 or 1; of s the rows and cu are not read, cu_mul
 * is the pair. q (T,Q), out (T,D). */
OP(attention_cached, struct tensor out, struct tensor q, struct tensor y, struct tensor gate,
   struct tensor alpha, const struct kv_cache *c, const struct attn_shape *s);
/* dqkv (T,2Q+D) written: the gradients of raw's q and k, from which qkv made q and k with m's shape, rotary
 * table and factors, and of v as `values` says. dq, dk (T,Q), dv (T,D): scratch, but dv where v's gradient goes
 * there. k has T + 1 rows with a key offset. delta (h,R) f32: sum over a head's channels of dout out,
 * from out_gate_bwd. With m's dqkv8 codes of what dqkv would hold are written there, and dqkv is scratch. */
OPW(attention_bwd, struct tensor dqkv, struct tensor dq, struct tensor dk, struct tensor dv,
    enum values_grad values, struct tensor dout, struct tensor q, struct tensor k, struct tensor v,
    struct tensor lse, struct tensor delta, const struct attn_shape *s, const struct qk_made *m);
/* out_th = s(sum_{j<12} y_tj gate_hj) x_th. x, out (T,H E); gate (H,12). a not NULL: of what struct
 * xsa makes of x. Without a gate there is none of it: x is the result (attention_cached, too). */
OP(out_gate, struct tensor out, struct tensor x, struct tensor y, struct tensor gate, int heads,
   const struct xsa *a);
/* Without a gate: delta alone, dx being dout. dx written (may be dout); dgate added; dy12 (T,12) written (so it must run before value_bwd).
 * delta (h,R) f32 written, R a multiple of T, h R = H T: sums over E channels of dx x, where
 * attention (which x is the result of) counts its R rows of h heads in the same memory. */
OPW(out_gate_bwd, struct tensor dx, struct tensor delta, struct tensor dgate, struct tensor dy12,
    struct tensor dout, struct tensor x, struct tensor y, struct tensor gate, int heads,
    const struct xsa *a);

/* out_th = gate_th (x - tanh(alpha_th) (x v) / max(v v, 1e-8) v), x a head's result of attention and v its
 * token's value; without alphas gate_th x, without gates the bracket. x, out (T,H E), which may be one. */
OP(head_coefs, struct tensor out, struct tensor x, int heads, const struct head_coefs *c);
/* dx written (may be dout), dv, where there are alphas, and the numbers' gradients. delta (H,T) f32 written:
 * sums over a head's E channels of dx own, attention's own result. Where v v is below 1e-8, dv is that of a
 * constant divisor. */
OP(head_coefs_bwd, struct tensor dx, struct tensor delta, struct tensor dout, struct tensor x,
   struct tensor own, int heads, const struct head_coefs *c);

/* Dynamically composable attention (arXiv 2405.08553), its part over the last keys of plain attention: of
 * the `window` keys j of its document that end with token t, P_h = softmax(scale q_h k_h), a_h = w1_h /
 * sqrt(mean over the heads of w1^2 + 1e-6), Z_j = sum_h a_h P_hj; out_h = x_h + sum_j (w2_h Z_j) v_hj.
 * x, out (T,D), which may be one; q, k (T,Q), v as attention reads them; lse (H,T) f32 of the scores, for the
 * backward, or none. On a GPU w2 Z is rounded to bf16 before the product. */
OP(compose, struct tensor out, struct tensor lse, struct tensor x, struct tensor q, struct tensor k,
   struct tensor v, const struct compose *c);
/* dout passes to x unchanged. To the first 2Q columns of dqkv and to dv (T,D) their part is added: behind
 * attention_bwd, whose m it takes, without dqkv8. dq, dk (T,Q): scratch. The numbers' gradients are written.
 * On a GPU dS and w2 Z are rounded to bf16 before products. */
OPW(compose_bwd, struct tensor dqkv, struct tensor dq, struct tensor dk, struct tensor dv,
    struct tensor dout, struct tensor q, struct tensor k, struct tensor v, struct tensor lse,
    const struct compose *c, const struct qk_made *m);
/* compose in place, of rows at positions of sequences that grow (attention_cached); c's documents are not
 * read. */
OP(compose_cached, struct tensor out, struct tensor q, const struct compose *c,
   const struct kv_cache *cache);

/* z (T,N), N >= H: z_th = sum_{j<12} y_tj gate_hj + sum_j e_tj gate_h,12+j, and 0 from H on. y (T,D),
 * e (T,n), gate (H,12+n). Gates of y = z and the unit matrix's first H rows are those of these logits. */
OP(gate_logits, struct tensor z, struct tensor y, struct tensor e, struct tensor gate);
/* dz (T,12 or more); dy12 (T,12) written, or added to; de (T,n) and dgate added. */
OPW(gate_logits_bwd, struct tensor dy12, bool add, struct tensor de, struct tensor dgate,
    struct tensor dz, struct tensor y, struct tensor e, struct tensor gate);

/* -- head ------------------------------------------------------------------ */
/* Logits are x w (+ bias). x (T,D), w (D,V). loss[0] += sum_t loss_t (unseeded); dx (T,D) written; dw (D,V) (+)=.
 * loss_t = sum_{k<n_mtp, t+k<T} mtp_k (lse_t - z_{t, tgt[t+k]}). With h->whole the gradient of lse_t
 * has all mtp_k in the last rows, too. With h->prefix there is one term more, of weight mtp_n_mtp,
 * whose class is prefix[tgt[t]]; where that is -1, there is none. With h->next
 * loss[1] += sum_t (lse_t - z_{t, tgt[t]}). */
OPW(head_loss, real *loss, struct tensor dx, struct tensor dw, bool add, struct tensor x,
    struct tensor w, const struct head_loss *h);
/* loss[0] += sum_t (lse_t - z_{t, tgt[t]}); never fp8. */
OPW(head_eval, real *loss, struct tensor x, struct tensor w, const struct head_loss *h);

/* out (T,V) f32 = cap_a s((x w + cap_b) / cap_c); never fp8. */
OP(logits, struct tensor out, struct tensor x, struct tensor w, const struct head_loss *h);
/* Row t's next token from its logits z (T,V): with a temperature it is drawn from p_v ~ exp(z_v /
 * temperature) over the top_k greatest, of these the fewest greatest whose sum reaches top_p; all
 * that equal the least one kept stay, too. The draw is u in [0,1) of (seed, stream_t, position):
 * the first v with p_0 + .. + p_v > u of the sum. Then before = token, token = the chosen one,
 * bigram = their hash, pos += 1. */
OP(choose, const struct next_rows *n, struct tensor logits, const struct choice *c);

/* -- optimizer --------------------------------------------------------------- */
/* dst (C,R) = src^T (R,C) when mix is NULL, else dst += mix[0] src^T: the product in f32, then one
 * rounding of the sum. Without mix both may be u16 or u8. On a GPU by at most ops.transpose_sms SMs. */
OP(transpose, struct tensor dst, struct tensor src, const real *mix);
/* g (R,D), this rank's rows of a table's gradient <- the mean over ranks, where those of others
 * are `rows` (n,D) as m says, and zero where they sent none. Sums in f32 in the order of
 * ranks, one rounding: what a reduce-scatter between threads gives. */
OP(merge_rows, struct tensor g, struct tensor rows, const struct row_merge *m);
/* n matrices (R,C) each. mom (n R,C) f32 <- mom + blend (g - mom); u = mom - blend (mom - g);
 * x (n R,C) = u / (1.02 |u|_F + 1e-6), bf16 (or what x is). |u|_F not finite: x = 0.
 * g: gradient (any float dtype), times the gate's factor. raw: x = u, not scaled. blend: device. */
OPW(muon_input, struct tensor x, struct tensor mom, struct tensor g, int n, bool raw,
    const real *blend, const struct step_gate *gate);
/* Elementwise, f32: mom <- mom + b (g - mom), x = the new mom; how (MEAN_ flags, ops.h) says what else. No
 * mom: x = g; no x: mom alone. g of any float type, which may be x. number (device): b = 1 - MU, and of
 * MEAN_LION and MEAN_TERM what those say. age (device; NULL: 1) divides the mean: the mean of ones. */
OP(momentum, struct tensor x, struct tensor mom, struct tensor g, unsigned how, const real *number,
   const real *age, const struct step_gate *gate);
/* Elementwise: v f32 <- v + b ((f g)^2 - v), x f32 <- x / (sqrt(v / age) + eps). g the gradient (any float
 * type), f the gate's factor times c. number (device): b, eps, c; age (device; NULL: 1). */
OP(second, struct tensor x, struct tensor v, struct tensor g, const real *number, const real *age,
   const struct step_gate *gate);
/* n matrices (R,C) each, x f32 <- a x + b y, where a and b follow from norms and products of x and y, of
 * each matrix or of each row, as f says (struct norm_fit, norm_fit.h). */
OPW(norm_fit, struct tensor x, int n, const struct norm_fit *f);
/* n matrices each: y (bf16 or f32) = x / (margin |x|_F + eps), x f32; raw: y = x. |x|_F not finite:
 * y = 0. y may be x. */
OPW(polar_input, struct tensor y, struct tensor x, int n, bool raw, double margin, double eps);
/* out[i] (device), of n f32 matrices (R,C) each, is an estimate of the largest singular value of y, |y w| where
 * w = 1 / sqrt(C) becomes y' y w at length 1 five times. turned as of norm_fit: C and R change places. */
OPW(spectral_norm, real *out, struct tensor y, int n, const bool *turned);
/* out[i] (device), of n f32 matrices each, is |x x'|^(1/2): between the largest singular value and the norm. */
OPW(schatten4, real *out, struct tensor x, int n);
/* n f32 matrices (R,C) each, R != C: x = d g, a number for each line of the long side: rows, or where R < C
 * columns. first: d = 1 / max(|line of g|, 1e-7); else, of the x that comes in, d is times
 * (min(R, C) / max(R, C) / max(|line of x|^2, 1e-14))^by. d (n,max(R,C)) f32. */
OP(balance, struct tensor x, struct tensor g, struct tensor d, int n, bool first, double by);
/* n f32 matrices each, x the polar factor of g: x <- (I + p E + p (p - 1) / 2 E^2) x s^P, p = P / 2,
 * s = |g| + 1e-7, E = g g' / s^2 - I on the short side; x as it is where |P| < 1e-12. number (device): P. */
OPW(power, struct tensor x, struct tensor g, int n, const real *number);
/* n f32 matrices (R,C) each: of the lines of the shorter side, rows where R <= C, x keeps the ceil(F n) whose
 * sum of |mom| is largest, and is 0 in others; mom's kept lines are times D. number (device): F, D. turned:
 * where R = C, columns. */
OPW(select, struct tensor x, struct tensor mom, int n, const bool *turned, const real *number,
    const struct step_gate *gate);
/* x (n R,C) f32 <- dv + 0.95 mom, mom <- 0.95 mom + dv, dv the gradient with respect to v; slope <- that of G.
 * Where there was no update, G and the norms begin as those of the rows, or sqrt(0.33) at or below 1e-12. */
OP(weightnorm_input, struct tensor x, int n, const struct weightnorm *s);
/* From x, the polar factor: v <- v - lr 0.2 sqrt(L) x, G by Adam, w <- G v / max(|v|, 1e-12), the next norm, one
 * update more. */
OP(weightnorm, struct tensor x, int n, const struct weightnorm *s);
/* Elementwise: what how says, w f32, or bf16 with its u16 low halves or without; mean, before f32, where they are
 * read or written. number n0, n1, n2: device. */
OP(around, struct tensor w, struct tensor low, struct tensor mean, struct tensor before,
   enum around_how how, const real *number, const struct step_gate *gate);
/* Stages of n f32 matrices x, one after the other, to the bits of momentum, second, scale, sign and normuon, which
 * they are. begins: x is not read but begins as g times the gate's factor. Behind EACH_WRITE, which is the last
 * one, x is undefined. At most three have host factors. */
OP(each, struct tensor x, struct tensor g, int n, const struct each_stage *s, int count,
   bool begins, const struct step_gate *gate);
/* n f32 matrices each: c (R,C) = alpha op(a) op(b) + diagonal I, or c towards it, as m says. c is neither a nor b. */
OPW(multiply, struct tensor c, struct tensor a, struct tensor b, int n, const struct multiply *m);
/* Where q's (n k,k) first row is 0: q is a first basis of x's (n R,C) rows, or with right of its columns. On a CPU
 * eigenvectors of x x', or x' x, by falling eigenvalue; on a GPU, and where x is 0, I. */
OPW(first_basis, struct tensor q, struct tensor x, int n, bool right, const struct step_gate *gate);
/* n bases q (k,k) of as many s = q' L q (n k,k), f32: both become those of the basis q r, r the Q-factor of s = r R with
 * R's diagonal positive; r is I where s is 0. q is orthogonal to rounding before and after. */
OPW(turn, struct tensor q, struct tensor s, int n, const struct basis_turn *t);
/* Elementwise: v <- v + b (p^2 - v), x <- x / (sqrt(v) + eps), 0 where updates[i] of its matrix is 0; how: WHITEN_
 * flags. b, eps: device. */
OP(whiten, struct tensor x, struct tensor v, struct tensor p, int n, unsigned how, const real *b,
   const real *eps, const real *updates, const struct step_gate *gate);
/* Where q's first row is 0: q (n k,k) <- random signs of rows times the orthogonal cosine transform, signs of (seed, stream +
 * matrix). */
OPW(cosine_basis, struct tensor q, int n, uint64_t seed, uint64_t stream,
    const struct step_gate *gate);
/* n matrices (R,C) each, x f32 in place: rows times left (n R), columns times right (n C); either may be none. updates
 * (device, n; NULL): where it is 0 x stays. */
OP(by_lines, struct tensor x, struct tensor left, struct tensor right, int n, const real *updates);
/* e (n lines), of x's rows, or with columns columns: d the line's mean square, E = e^-2, 0 where not finite; e <- min(max(E +
 * b (d - E), 1e-30)^-1/2, 4000); where updates is 0 f^-1/2. number (device): b, nothing, f. */
OP(kl_scales, struct tensor e, struct tensor x, int n, bool columns, const real *number,
   const real *updates, const struct step_gate *gate);
/* out (n k) from the diagonals of n matrices s (k,k): l = max(s_ii, 1e-6)^-G; l sqrt(k) / (|l| + 1e-6). number (device): G. */
OP(line_powers, struct tensor out, struct tensor s, int n, const real *number);
/* n matrices each: x <- L^P x R^P, L = left / age + shift, by eigenvectors; eigenvalues as they are, or pinv: 0 where not
 * above 0. Else they are shifted up by what the least is below 0, and by eps. number (device): nothing, P, eps. */
OP(shampoo, struct tensor x, struct tensor left, struct tensor right, int n, bool pinv,
   const real *number, const real *age);
/* n matrices each: with U, V the eigenvectors of left and right, A = U' x V, E = A^2 + 1e-8, c = 1: N times r_i = 1 / R /
 * ((E c)_i + 1e-8), c_j = 1 / C / ((E' r)_j + 1e-8); x = U (sqrt(r_i) A_ij sqrt(c_j)) V', to the norm sqrt(k max(1, R /
 * C)). turned: rows are columns. number (device): nothing, N. */
OP(sinkhorn, struct tensor x, struct tensor left, struct tensor right, int n, const bool *turned,
   const real *number);
/* n matrices each: a step of PSGD's triangular factors left (R,R), right (C,C), which begin as I times max(mean g^4,
 * 1e-24)^(-1/32), then x <- left' left x right' right (optimizers.md 4.8). */
OP(psgd, struct tensor x, struct tensor left, struct tensor right, int n, const struct psgd *p);
/* n matrices each: x = n + c (x - n), c = clip((cos(x,n) - 0.2) / 0.8, 0, 1) clip(cos(x,g) / max(cos(n,g), 1e-8), 0,
 * 1), at least number[0], at most number[1] (device); cos(a,b) = <a,b> / max(|a| |b|, 1e-8). n is `before`. */
OPW(trust, struct tensor x, struct tensor before, struct tensor g, int n, const real *number);
/* x f32 in place: matrix i times each[i] (host, n; NULL: 1) times *by (device; NULL: 1). */
OP(scale, struct tensor x, int n, const float *each, const real *by);
/* x f32 in place: 1, -1, or 0 where it is 0; NaN stays. */
OP(sign, struct tensor x);
/* x f32 of n matrices (R,C), in place: scaled by row, where R < C by column, to q's running mean square
 * (as normuon has it), the norm kept, or not as how says; VARIANCE_ROUND: to bf16 values. blend: 1 - beta,
 * device. */
OPW(variance, struct tensor x, struct tensor q, int n, unsigned how, const real *blend,
    const struct step_gate *gate);
/* n matrices (R,C) each, in place: rows of coef are a, b, c (host).
 * k = min(R,C) side Gram matrix A; B = b A + c A A; x <- a x + B x (or x B). Every product's
 * result rounds once to x's dtype, except (r61) R > 1024: B x rounds before a x is added.
 * how: POLAR_ flags (ops.h).
 * POLAR_AOL: before the first iteration s_i = max(sum_j |A_ij|, 1e-7)^(-1/2) scales x (its rows, or
 * columns when R > C) and A_ij <- s_i s_j A_ij, one rounding each; s = 0, and x with it, where a sum
 * is not finite.
 * POLAR_GRAM: the same polynomials on the Gram matrix: from row 0 and each that POLAR_RESTART names
 * to the next, A = x x^T, Q = I; each row W = a I + b A + c A A, Q <- Q W, A <- W (A W); x <- Q x
 * (or x Q). Q of the first row is W. Of x in bf16 every A, W and product of them rounds once to f16,
 * which holds POLAR_GRAM_SCALE A, and Q once more to bf16 before Q x (orthogonalisation.md 2, 3). */
OPW(polar, struct tensor x, int n, const double (*coef)[3], int iters, unsigned how);
/* The update from x (n R,C): variance q f32 with blend (1 - beta2, device), one a row (n R,1) or, where
 * R < C, one a column (n,C), norm-preserving; decay, cautious unless how (MUON_ flags) says otherwise;
 * master = w bits : mantissa bits (optimizers.md 4.3, 4.4). lr of matrix i is m->lr * lr_mul[i] (host
 * array of n). w bf16 with mant u16, or w f32 with no mant. q none: x as it is. fit not NULL, device (n,2),
 * where q is none: of matrix i x moves by the rate times fit_i0, and what that leaves, a decay behind it
 * left out, is times fit_i1. */
OPW(normuon, struct tensor w, struct tensor mant, struct tensor q, struct tensor x, int n,
    const float *lr_mul, const real *blend, const real *fit, unsigned how,
    const struct muon_step *m, const struct step_gate *gate);
/* optimizers.md 3, of n parameters (ADAM_MAX at most) that do not overlap, elementwise; one
 * rounding an operation, none contracted; 1 - beta is formed in double. Any may be empty. */
OP(adam, const struct adam_param *p, int n);
/* The weight of p in all its forms from x, f32 of its shape: w, master, copy and compute as adam stores its
 * new value, scales of rows chosen anew; the rest of p but its gate is not read. x may be the master. */
OP(store, const struct adam_param *p, struct tensor x);
/* Finds, of those that have a place for them, the largest |m| and |v| that adam would compute, before they are
 * rounded; NaN where one is, 0 of an empty one. A skipped step leaves the places as they are. */
OP(adam_largest, const struct adam_param *p, int n);
/* A history's rows (n,k) move down by one; its first becomes the greatest of each column of `each`
 * (ranks,k), top[k] the greatest of each column of the history. All f32, >= 0 or NaN, which is above all. */
OP(amax_history, real *top, struct tensor history, struct tensor each,
   const struct step_gate *gate);
/* out[0] = the sum of squares of all elements of n tensors (f32, bf16; ADAM_MAX at most); not finite
 * where an element is not. Sums in f64, one rounding. */
OPW(squares, real *out, const struct tensor *t, int n);
/* Decides on a step whose gradients' sum of squares is *squares times (optimizers.md 2.5). */
OP(step_gate, struct step_gate *gate, const real *squares, real times, real limit, real unscale);
/* The copy of w (any float dtype) by itself: the same codes and amax. */
OP(quantize, const struct fp8_copy *copy, struct tensor w);
/* Copies matrices of w as q says: scale = bf16(max(|w|, 1e-12) / 448), codes = e4m3(bf16(w / scale)),
 * turned = their transpose; with q->exact scale = max(|w|, 1e-12) / 448, codes = e4m3(w / scale). A NaN makes the
 * scale NaN. */
OPW(quantize_matrices, const struct fp8_matrices *q, struct tensor w);
/* quantize_matrices with one rounding, codes = e4m3(w / scale), and a scale of the refresh before: scale = next,
 * or where d->first says so bf16(max(|w|, 1e-12) / 448); then next = headroom max(|w|, 1e-12) / 448. */
OPW(quantize_delayed, const struct fp8_matrices *q, const struct fp8_delay *d, struct tensor w);
/* bad[0] |= 1 when t (any float type) has a NaN or an infinity (device int32). */
OP(finite, int32_t *bad, struct tensor t);

#undef OP
#undef OPW
