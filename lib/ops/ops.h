/* ops.h - the operations of model and optimizer: the interface to a device.
 *
 * An op is a function pointer in struct ops. op_list.h holds its contract:
 * parameters, shapes, formula, what the backward needs. The plain C definition
 * is lib/ops/NAME.c; the CUDA kernel is kernels/NAME.cu; tests compare the two.
 * Model code calls ops and does not depend on where they run.
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
 *   sticks, later ops do nothing, status() returns it. Wrong shapes are bugs of the caller: assert.
 * - Activations and their gradients have dtype o->act: f32 on the CPU, bf16 on a
 *   GPU. The dtype of weights and their gradients is in the tensor (bf16 or f32).
 * - `real` is float; the finite-difference tests compile lib/ops with double.
 *   Learnable scalars, row statistics and per-step numbers are `real` arrays in
 *   device memory and are passed by pointer, so that a captured graph sees new
 *   values.
 * - `add`: false writes the output, true adds to it (one rounding of the sum).
 *   Gradients of learnable scalars (dcoef) and of gate weights are always added.
 * - Notation: T tokens, D model width, H heads, E head size (D = H E), Eq that of
 *   q and k (Q = H Eq; E where a shape says no other), F MLP width, V vocabulary;
 *   d* is the gradient of the loss with respect to *.
 *   Norm(x) = x (mean(x^2) + 2^-23)^-1/2 over a row; s(u) = 1/(1 + exp(-u)).
 *
 * Threads: one struct ops belongs to one rank's thread.
 */
#ifndef OPS_OPS_H
#define OPS_OPS_H

#include <stdbool.h>
#include "base/err.h"
#include "types/batch.h"
#include "types/sizes.h"
#include "types/tensor.h"
#include "types/token_mask.h"

#ifdef GPT_OPS_DOUBLE
typedef double real;
#define DT_REAL DT_F64
#else
typedef float real;
#define DT_REAL DT_F32
#endif

enum { MIX_MAX = 8 };
enum { LANES_MAX = 5 };
enum { INJECT_MAX = 12, INJECT_STREAMS = 2 };
enum { FETCH_MAX = 4, FETCH_BYTES = 1024 };
enum { ADAM_MAX = 40 }; /* parameters of one call */
enum { TRUNK = -1, BRANCHES = 4 }; /* of branch() */

/* What polar does; POLAR_RESTART << k: its Gram form begins anew after k rows. */
enum {
    POLAR_AOL = 1,
    POLAR_GRAM = 2,
    POLAR_RESTART = 4,
    POLAR_GRAM_FORM =
        POLAR_GRAM | POLAR_RESTART << 1 | POLAR_RESTART << 3 /* by default: optimizer.restart */
};
enum {
    POLAR_GRAM_SCALE = 1024
}; /* the Gram form holds 2^10 A, so that f16 has its small numbers */
static inline bool polar_begins(unsigned how, int row)
{
    return row == 0 || (how / POLAR_RESTART) >> row & 1;
}

/* Rows of a table cut by rows among ranks, as other ranks sent them: rank r's are start[r] ..
 * start[r+1]-1, each for row index[i] of the table, ascending; `rank` sent itself none. */
struct row_merge {
    int rank, world;
    int64_t first; /* row of the table at which this rank's begin */
    const int32_t *index;
    const int32_t *start; /* (world+1) */
};

/* How the token after each row is chosen from its logits. */
struct choice {
    int classes; /* of the logits, the first so many are tokens */
    real temperature; /* 0: the greatest logit, of equal ones the first */
    int top_k; /* 0: all */
    real top_p; /* 1: all */
    uint64_t seed;
    const uint64_t *stream; /* device (T): of draws; one a text */
};

/* Rows of a decoding step in device memory (T), which `choose` advances to the next step's. */
struct next_rows {
    int32_t *token, *before, *pos;
    int32_t *bigram; /* NULL: no bigram table */
    int bigram_rows;
};

/* Cosines and sines by position: rows of 2 n numbers, cosine and sine of each of n frequencies, that turn the
 * first 2 n channels of a head of q or k; rounded to bf16 (record-61.md 2.5), or of type f32 and not rounded. */
struct rope {
    struct tensor table;
};

/* Channels of k that come from t-1 (from t itself at t = 0). */
enum key_offset {
    KEY_OFFSET_NONE,
    KEY_OFFSET_QUARTERS, /* [Eq/4,Eq/2) and [3Eq/4,Eq): record 61 */
    KEY_OFFSET_HALF, /* [Eq/2,Eq), where half of a head turns those that rotary leaves alone: record 74 */
};

/* Keys and values of sequences that grow: position p of sequence n is row n capacity + p % capacity,
 * so that the newest stay. A key offset is applied where keys are read. */
struct kv_cache {
    struct tensor k, v; /* (sequences capacity, D); k (.., Q) */
    int capacity; /* more than what a query sees, its key offset and a call's rows of a sequence */
    enum key_offset key_offset;
    const int32_t *slot, *pos; /* (T): sequence and position of each row */
    bool values_apart; /* qkv leaves them to cache_values */
};

/* Codes of a gradient g in e4m3, of g / scale (fp8.md 7). */
struct fp8_gradient {
    struct tensor codes; /* of g's shape; they may lie in its own memory */
    real scale;
};

/* What an attention layer does to q, k, v before the scores. */
struct qkv_shape {
    int heads, head_dim;
    bool paired; /* head h of token t sits at rotary position 2t + (h & 1) */
    enum key_offset key_offset;
    bool split_gate; /* value gates see 6 channels of y and 6 of the value row */
    const struct kv_cache *cache; /* NULL, or where k and v go */
    const struct fp8_operands *fp8; /* of the projection; NULL: its operands are x and w */
    int qk_dim; /* channels of a head of q and k; 0: head_dim */
    /* NULL, or where attention_bwd and value_bwd write the gradient of raw, in place of dqkv; not on a GPU
     * without fp8, and not in f64. */
    const struct fp8_gradient *dqkv8;
};
static inline int qkv_qk_dim(const struct qkv_shape *s)
{
    return s->qk_dim ? s->qk_dim : s->head_dim;
}

/* How op qkv made q and k: what their gradients need. */
struct qk_made {
    struct qkv_shape shape;
    struct rope rope;
    struct tensor factor; /* (2H,T) */
};
/* Where attention_bwd leaves the gradient of v. */
enum values_grad {
    VALUES_JOINED, /* in dqkv */
    VALUES_APART, /* in dv */
    VALUES_ADDED, /* the same, added to what is there */
};

/* Scores: rows R (T, or 2T when heads are paired), h attention heads a row. A
 * query p sees keys p-window .. p of its document. */
struct attn_shape {
    int rows, heads, head_dim;
    int qk_dim; /* channels of a head of q and k; 0: head_dim */
    const int32_t *cu; /* document starts in tokens; times cu_mul in rows */
    int ncu, cu_mul;
    int window; /* keys back, in rows */
    float scale;
    void *plan; /* device memory that attention_plan filled for this cu; NULL: each call plans */
};
static inline int attn_qk_dim(const struct attn_shape *s)
{
    return s->qk_dim ? s->qk_dim : s->head_dim;
}

enum { ATTN_PLANS = 4 }; /* shapes of one call of attention_plan */
/* Bytes of such a plan: of a row two numbers, of 128 rows two records, of those of a head two more. */
static inline size_t attn_plan_bytes(int rows, int heads)
{
    return 4096 + (size_t)(rows + 127) / 128 * (128 * 8 + 32 + 32 * (size_t)heads);
}

/* Exclusive attention (arXiv 2603.09078): of a head's result x the part along its own token's value
 * is taken away: x - tanh(alpha) (x u) u, u = v / max(|v|, 1e-4). */
struct xsa {
    struct tensor v; /* (T,D): the values that attention read */
    struct tensor alpha; /* (1,H) f32 */
    struct tensor dv, dalpha; /* backward: (T,D) written; (1,H) added to */
};

/* Numbers of each token, some side by side: token t's are value[t stride], .. */
struct token_numbers {
    const real *value; /* device; NULL: none */
    real *grad; /* backward: written */
    int stride;
};

#define NO_NUMBERS ((struct token_numbers){ NULL, NULL, 0 })

/* Describes what is done to attention's result with numbers of each token and head. */
struct head_coefs {
    struct token_numbers gate, alpha;
    struct tensor v, dv; /* (T,D): the values that attention read; backward: written */
    const struct kv_cache *cache; /* v is in it; or NULL */
};

/* Mixing the heads' probabilities (op compose). */
struct compose {
    struct token_numbers w1, w2;
    int heads, head_dim, window; /* keys, the token among them */
    const int32_t *cu; /* document starts */
    int ncu;
    float scale;
    int qk_dim; /* channels of a head of q and k; 0: head_dim */
};
static inline int compose_qk_dim(const struct compose *c)
{
    return c->qk_dim ? c->qk_dim : c->head_dim;
}

struct mix_term {
    struct tensor x; /* (T,D); (T,n) */
    const real *coef; /* NULL: 1 */
    bool minus, plus_one; /* the coefficient is -*coef, or 1 + *coef; dcoef is that of *coef */
    int stride; /* 0: one coefficient for all tokens; else token t's is coef[t stride] */
    int64_t first, n; /* a term of so many channels of out alone, the same ones of an x of D; n = 0:
                         of all */
};
struct mix_grad {
    struct tensor dx; /* of x's shape or none; may be the same memory as dout */
    bool add;
    real *dcoef; /* NULL, or added to; several may be one number. With a stride: a number a token,
                    written */
};

/* One term of a mix into two lanes. */
struct lanes_term {
    struct tensor x; /* (T,D) */
    unsigned lanes; /* bit j: x is in lane j */
    const real *coef[2]; /* in each lane; NULL: 1 */
};
struct lanes_grad {
    struct tensor dx; /* (T,D) or none; may be the same memory as a dout or an x */
    real *dcoef[2]; /* NULL, or added to; several may be one number */
};

/* A stream that joins the residual stream, scaled, in n places: its first channels, where it has
 * fewer. */
struct injection {
    struct tensor x, dx; /* (T,P), P <= D */
    bool add; /* to dx */
    const real *coef[INJECT_MAX]; /* NULL: not in this place */
    real *dcoef[INJECT_MAX]; /* NULL, or added to; several may be one number */
};

/* A weight's copy in e4m3: codes of w / scale_inv, saturating at 448. Readers multiply by that
 * same scale_inv, which is exact: a fixed scale is given in this form, and no reciprocal is
 * formed. Weights above 448 scale_inv saturate: then amax exceeds it. */
struct fp8_copy {
    struct tensor codes; /* e4m3, of the weight's shape */
    real scale_inv;
    real *amax; /* device: max |w| of what was last written; NaN if one is */
    /* Scales of a weight that is its codes alone: device (rows), one a row in place of scale_inv, as in
     * struct row_scaled; else NULL. With it top, as struct row_scaled's, of the updates before; of
     * a top of 0 the scale is 1. */
    real *rows;
    const real *top;
};

/* Copies in e4m3 of some rows of a bank, for products: of rows first + i stride .. first + i stride +
 * rows - 1 for each i, with a scale of their own (fp8.md 1). fp8 products take operands that lie along
 * their sums. */
struct fp8_matrices {
    struct tensor codes; /* (n rows, cols); none: no copies */
    struct tensor turned; /* (n cols, rows): each one transposed; or none */
    real *scale; /* device (n) */
    int64_t first, rows, stride;
    bool exact; /* the scale is not rounded to bf16, and codes are rounded once (fp8.md 6) */
};
/* Scales of such copies that come from the weights before (fp8.md 5). */
struct fp8_delay {
    real *next; /* device (n): the next refresh's scales; 0: none yet */
    const real *first; /* device: not 0: the scale is from w itself */
    real headroom;
};
/* One of them, as it is or transposed. */
struct fp8_weight {
    struct tensor codes;
    const real *scale;
};
/* Codes of both operands of a projection: x8 (T,I) of x / x_scale, w (O,I) (fp8.md 6). */
struct fp8_operands {
    struct tensor x8;
    real x_scale;
    struct fp8_weight w;
};
/* Weight gradients of the MLP, dw1 (F,D) and dw2 (F,D), which mlp_bwd_fp8 makes of codes. */
struct fp8_grads {
    struct tensor dw1, x; /* x (T,D): the first product's input */
    struct tensor dw2; /* or none */
    real *dscale; /* added to with dw2; or NULL */
    bool add;
};
#define FP8_NORM_UNIT 16 /* what its codes are divided by (fp8.md 8) */
#define FP8_POST_UNIT 4 /* what codes of the MLP's hidden layer are multiplied by (fp8.md 3) */
/* max|dout| over this is what codes of its gradient are multiplied by (fp8.md 4). */
#define FP8_GRAD_UNIT 64

/* Training head: logits, softcap, multi-token cross entropy, and back. */
struct head_loss {
    const int32_t *tgt; /* (T) */
    const real *mtp; /* (n_mtp, with prefix one more) weights in device memory */
    int n_mtp;
    real seed; /* dLoss/dloss_t: 1 / micro-steps */
    int block; /* rows of logits at a time, where they are kept in memory; 0: the fastest */
    bool fp8; /* e4m3 x, w and e5m2 gradient with the scales below */
    real x_scale, w_scale, g_scale;
    real cap_a, cap_b, cap_c; /* z = a s((l + b) / c) */
    bool cap_root; /* z = a u / sqrt(1 + u^2), u = (l + b) / c */
    struct tensor bias; /* (1,V), added to each row of logits; or none */
    struct tensor dbias; /* training: (1,V) its gradient, added to */
    struct tensor w8; /* with fp8: (D,V) codes of w / w_scale, or none: made from w */
    bool whole; /* the gradient of each row has the sum of all mtp_k, also where t + k >= T */
    bool bf16_sigmoid; /* s is rounded to bf16 */
    bool next; /* training: the loss has a second number, of each row's next token */
    const int32_t *prefix; /* (V) in device memory: a class's prefix, -1: none; or NULL */
    struct token_mask never; /* evaluation: classes that no sum has, in device memory; or none */
    const int32_t *before; /* (T): the token before each target, with a mask */
};

/* Numbers as Adam keeps them, of the weight's shape: f32, bf16; or f16, e4m3 times the scale of
 * their row, a power of two that each update chooses anew (optimizers.md 3.3). */
struct row_scaled {
    struct tensor t;
    real *scale; /* device (rows), with f16 and e4m3; else NULL */
    const real *top; /* device: what the new scale of every row has to hold, no less than the
                        moments' new numbers; NULL: each row's own new numbers */
};

enum adam_decay { DECAY_CAUTIOUS, DECAY_ADAMW, DECAY_L2 };
enum adam_rounding { ROUND_NEAREST, ROUND_STOCHASTIC };

/* One parameter of Adam, or a rank's part of it. The f32 value that is updated is read from the
 * master; without one from w; without a w from the copy. All four are written that are there. */
struct adam_param {
    struct tensor w; /* f32, bf16, f16; none where the weight is its e4m3 codes alone */
    struct tensor g; /* f32, bf16 */
    struct row_scaled master; /* f32; f16; u16: the low halves, beside a bf16 w; or none */
    bool truncate; /* u16: w is cut, not rounded */
    struct row_scaled m, v;
    real *largest; /* device (2): what adam_largest writes; or NULL */
    const struct fp8_copy *copy; /* of w as stored, or of the value; NULL: none */
    struct tensor
        compute; /* bf16: of w in f32 or f16, or without a w of the copy, as stored; or none */
    double beta1, beta2;
    enum adam_decay decay;
    bool eps_inside; /* sqrt(v + eps), not sqrt(v) + eps */
    enum adam_rounding rounding; /* of m and v */
    uint64_t seed, stream; /* ROUND_STOCHASTIC: of this parameter */
    int64_t first; /* index in the whole parameter of the part's first element */
    const struct adam_step *step; /* device; with a gate two: of gate->late 0 and 1 */
    const struct step_gate *gate; /* device, or NULL: apply, factor 1 */
};

/* Numbers of one update, formed on the host (optimizers.md 2.2). */
struct adam_step {
    real step_size, decay, eps;
    uint32_t update; /* n: a part of what a stochastic rounding is drawn from */
};

/* What becomes of a step, decided on the device: its gradients are multiplied by factor, or the
 * step changes nothing. Ops take NULL for a step that is applied, factor 1. */
struct step_gate {
    real factor;
    int32_t skip;
    int32_t late; /* the step before was skipped, which the host may not know yet */
    real norm; /* of all gradients, unscaled */
};
/* Flags say what momentum does besides, or in place of the mean. */
enum {
    MEAN_GRADIENT = 1, /* g is times the gate's factor */
    MEAN_NESTEROV = 2, /* x = mom - b (mom - g) */
    MEAN_SUM = 4, /* mom <- (1 - b) mom + g, with Nesterov's step x = g + (1 - b) mom */
    MEAN_LION = 8, /* x = mom + b (g - mom) of the old mom; the new mom's b is number[1] */
    MEAN_TERM = 16, /* x = number[1] mom; with Nesterov's step x less number[2] (x - g) */
    MEAN_ADD = 32 /* of MEAN_TERM: added to x */
};
enum around_how {
    AROUND_BEGIN, /* before <- w */
    AROUND_AHEAD, /* mean <- mean + n0 (w - before - mean), before <- w, w <- w + n1 mean */
    AROUND_OUTWARDS, /* where n2 is not 0: d = before - w, mean <- n1 mean + n0 d, w and before <- before
                      * - n1 mean - n0 d */
    AROUND_TAIL, /* mean <- mean + n0 (w - mean); where n0 is 1 it is w, whatever the gate says */
    AROUND_APART, /* before <- before + w - (before + n0 (mean - before) as stored), mean <- mean + n1 (before
                   * - mean), w <- before + n0 (mean - before) */
    AROUND_READ /* before, of w's type or bf16, <- w + n0 (mean - w); where n0 is 1 it is mean */
};
enum { VARIANCE_ROUND = 1, VARIANCE_FREE = 2 };
/* norm_fit makes one of these of x, with y as it says; S, T, C: the number. */
enum fit_to {
    FIT_ROWS, /* each row to |x| / sqrt(R) */
    FIT_RENORM, /* to sqrt(min(R, C)) */
    FIT_RADIAL, /* without 1 - S of the part along y that a step by -x would lengthen y by */
    FIT_FLOOR, /* to T |y| at least */
    FIT_FLOOR_ROWS, /* each row so */
    FIT_NORM, /* to |y| */
    FIT_CONTRA, /* less C y / each, to the norm that it had */
    FIT_HYPERBALL, /* x stays; out: what normuon needs to step along |y| x / |x| and to keep |y| */
    FIT_PIN, /* x stays; out: what it needs to step by x to the norm that the radial part leaves */
    /* Without sums: */
    FIT_RATIO, /* times each / max(over, least) */
    FIT_ADD, /* and T y */
    FIT_LESS, /* less C y / each */
    FIT_BLEND /* times 1 - T, and T y */
};
/* A product of n matrices as multiply makes it. */
struct multiply {
    bool ta, tb; /* the operand is transposed */
    bool basis_a, basis_b; /* its lines have norm 1 */
    double alpha; /* of the product; 0: 1 */
    double diagonal; /* times I, added */
    const real
        *blend; /* device: c <- (1 - blend) c + blend times the product; NULL: c <- the product */
    bool sum; /* c <- (1 - blend) c + the product */
    const real *whole; /* device (n): where it is 0 blend is 1; NULL: nowhere */
    const struct step_gate *gate; /* of a c that is a state */
};
/* A turn of a basis. */
struct basis_turn {
    bool sort; /* before, by the falling diagonal of s */
    struct tensor v; /* (n R,C): its rows, or with `right` columns, are sorted alike; or none */
    bool right;
    bool dense; /* s is L, and becomes that of the turned basis */
    const struct step_gate *gate;
    struct tensor other_q,
        other_s; /* of the other side of square matrices, turned by the same call; or none */
};
/* Numbers of stage psgd. */
struct psgd {
    struct tensor g; /* the gradient, whose size the factors begin with */
    struct tensor probe; /* (n R,C); none: drawn from a normal distribution */
    uint64_t seed, stream; /* of matrix 0 */
    const real *step; /* device */
    const real *updates; /* device (n) */
    const struct step_gate *gate;
};
/* Flags say what whiten does: v from x, of which max(v, eps^2) is taken, and the first update passes; v of the first
 * update stays. */
enum { WHITEN_OWN = 1, WHITEN_LATER = 2 };
struct muon_step;
struct norm_fit {
    enum fit_to to;
    struct tensor y,
        low; /* f32, or bf16 with its u16 low halves: the weight; of FIT_NORM and FIT_CONTRA
                             another f32 tensor; none where it is not read */
    const bool
        *turned; /* host (n): such a matrix is stored transposed, so its rows are columns; NULL */
    const real *number; /* device */
    const real *each, *over; /* device (n); each NULL: 1 */
    double least;
    real *out; /* device (n,2) */
    /* The write's numbers, for out: */
    const float *lr_mul; /* host (n) */
    unsigned how; /* MUON_ flags */
    const struct muon_step *m; /* device */
};
/* n matrices whose rows are G v / |v|. L is max(R, C), of which a matrix uses as many as it has rows. */
struct weightnorm {
    struct tensor w, low; /* the exact weight: f32, or bf16 with its u16 low halves */
    struct tensor g; /* gradient */
    real *mom; /* (n R,C) */
    real *gain, *gain_mean, *gain_second, *norm, *first; /* (n,L) */
    real *updates; /* (n,1) */
    real *slope; /* (n,L) of the step: gradients of the gains */
    const bool *turned; /* as of struct norm_fit */
    const float *lr_mul; /* host (n) */
    const real *number; /* device: target of the norm, steps, power */
    const struct muon_step *m; /* device */
    const struct step_gate *gate;
};
/* How normuon's decay goes: of all elements; where update times weight is > 0, not >= 0; of the weight that
 * the update has moved. */
enum { MUON_PLAIN = 1, MUON_STRICT = 2, MUON_BEHIND = 4 };
/* decay = the rate of the decay by that of the matrix, without multipliers. */
struct muon_step {
    real lr, decay;
};

/* A stage of op each, with the arguments of its own op. */
struct each_stage {
    enum each_what {
        EACH_MEAN, /* momentum; with MEAN_TERM of the gradient */
        EACH_SECOND,
        EACH_SCALE,
        EACH_SIGN,
        EACH_WRITE /* normuon, without second moments */
    } what;
    struct tensor state; /* f32; of EACH_WRITE the weight, and low: its low halves */
    struct tensor low;
    unsigned how; /* MEAN_ or MUON_ flags */
    const real *number, *age; /* device */
    const float
        *each; /* host (n): of EACH_SCALE (NULL: 1), of EACH_WRITE the multipliers of the rate */
    const struct muon_step *m; /* device */
};
enum { MAX_EACH = 10 };

struct ops {
    const char *device; /* "cpu", "cuda" */
    enum dtype act;
    /* The caller's to set: products are made for few rows, and the bits of a row do not depend on
     * the others of its call (on a CPU they never do). */
    bool rows_apart;
    int transpose_sms; /* of a GPU, which transpose takes at most, so that a collective at the same
                          time finds some free; 0: all */
    bool bf16_products; /* of a CPU: linear layers and the head round operands to bf16 */
    bool
        bf16_grads; /* the caller's to set: what a product or a table's gradient adds to a weight's is
                        rounded to bf16 before */

    /* -- memory and order ------------------------------------------------- */
    void (*free)(struct ops *o);
    int (*status)(struct ops *o) MUST_CHECK; /* first failure; does not wait */
    int (*sync)(struct ops *o) MUST_CHECK; /* waits for all queued work, then status */
    /* Memory is allocated before step 0, filled with a NaN pattern, and freed by free(). */
    void *(*alloc)(struct ops *o, size_t bytes, const char *what);
    /* The same, of memory that other ranks' devices may reach, for share() of comm.h: GPUs take longer
     * to map it. */
    void *(*alloc_shared)(struct ops *o, size_t bytes, const char *what);
    /* Bytes taken: by alloc, and by ops for themselves. */
    size_t (*allocated)(const struct ops *o);
    /* Takes so much for the ops themselves at once, where taking it piece by piece would waste. */
    void (*reserve)(struct ops *o, size_t bytes);
    /* host may be used again at once. */
    void (*upload)(struct ops *o, void *dst, const void *host, size_t bytes);
    /* Uploads concurrently with the work queued so far, which must not touch dst: the next step's
     * batch while this step computes. Work queued later waits for it. */
    void (*upload_ahead)(struct ops *o, void *dst, const void *host, size_t bytes);
    void (*download)(struct ops *o, void *host, const void *src, size_t bytes); /* waits */
    /* Queues a copy of bytes (at most FETCH_BYTES) of src to the host; fetched() waits for the
     * oldest such copy and returns it. At most FETCH_MAX may be pending. */
    void (*fetch)(struct ops *o, const void *src, size_t bytes);
    void (*fetched)(struct ops *o, void *host, size_t bytes);
    /* Sends what is queued from here on into branch i: after what the trunk has queued so far, in
     * the branch's own order, and concurrent with other branches and the trunk's later work: what
     * one writes the others must not touch. TRUNK: into the trunk again, which waits for all
     * branches at join(), and not before. For the optimizer's ops; a device without branches runs
     * all in the order of the calls. */
    void (*branch)(struct ops *o, int i);
    void (*join)(struct ops *o);
    void (*zero)(struct ops *o, struct tensor t);
    void (*copy)(struct ops *o, struct tensor dst, struct tensor src); /* converts dtypes */

    /* -- ops: contracts and parameters in op_list.h ------------------------ */
#define OP(name, ...) void (*name)(struct ops *, __VA_ARGS__)
#include "ops/op_list.h"
};

/* The reference: plain C, f32 (f64 in the double build). */
int ops_cpu_new(struct ops **o) MUST_CHECK;
/* Sets the threads that the device's ops work on (1 at first): results have the same bits with any
 * number. */
void ops_cpu_threads(struct ops *o, int threads);
/* A device that only counts: alloc() gives addresses of no memory, ops compute nothing, and
 * allocated() is what a device of so many threads would have taken for the same calls. */
int ops_cpu_counting(struct ops **o, int threads) MUST_CHECK;

#endif
