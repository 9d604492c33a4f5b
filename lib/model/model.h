/* model.h - the network: what it keeps, and the flattened forward and backward.
 *
 * forward.c and backward.c follow record-61.md 2 and 3 and record-74.md 5 and
 * 7: a list of ops over the buffers below, with the layer map, banks and
 * learnable scalars of the recipe. The residual stream around attention and MLP,
 * which differs between records, is lists (streams.h) that stream.c runs.
 *
 *     struct model m;
 *     if ((rc = model_init(&m, &banks, tokens_max, val_tokens_max))) return rc;
 *     for each step:
 *         model_set(&m, &schedule);             // windows, MTP weights, rotary tables
 *         for each micro-batch:
 *             model_train(&m, &batch, loss);    // loss[0] += sum of token losses; gradients
 *                                               // m.next: loss[1] += that of next tokens alone
 *     model_eval(&m, &batch, loss);             // loss[0] += sum of token losses
 *
 * All activations are in one arena allocated by model_init, planned once for a number of tokens:
 * a buffer's place depends on that alone, so a captured graph stays valid.
 * model_set uploads; model_train and model_eval only queue ops.
 * Threads: one model belongs to one rank's thread.
 */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H

#include "model/bank.h"
#include "model/streams.h"
#include "recipe/schedule.h"

struct scalar {
    const real *value;
    real *grad;
    int stride; /* of a coefficient of each token; 0: one for all */
};
static inline struct token_numbers token_numbers(const struct scalar *s)
{
    return (struct token_numbers){ s->value, s->grad, s->stride };
}

/* Activations of a layer that the backward reads. */
struct layer_acts {
    struct tensor in; /* (T,D) residual stream; layer i's output is in of i+1 */
    struct tensor in1; /* (T,D) its second lane, where there are two */
    struct tensor rows; /* (T,D) of the table that [token_coefs] names for it */
    struct tensor mixed; /* (T,D) `in` with what is added before attention: x0, other streams */
    struct tensor y; /* (T,D) norm of mixed, or of in: input of attention and gates */
    struct tensor q, k, v; /* (T,Q), (T,Q), (T,D) input of attention; k with a key offset (T+1,Q) */
    struct tensor factor; /* (2H,T) of the norms that made q and k */
    struct tensor out, lse; /* (T,D), (H,T) attention's result */
    struct tensor composed, mixed_lse; /* the same with heads mixed (op compose) */
    struct tensor gated; /* (T,D) after the output gate */
    struct tensor o; /* (T,D) attention's product, where a mix adds it to the stream */
    struct tensor attended, attended1; /* (T,D) the lanes after attention */
    struct tensor y2; /* (T,D) norm of the last of them: input of the MLP */
    struct tensor post; /* (T,F) after ReLU^2; in backward, the gradient before it */
    struct tensor m; /* (T,D) the MLP's product, where a mix adds it to the stream */
    /* Gradients; they reuse the memory of m and post, which are read before. */
    struct tensor g; /* (T,D) of the stream, where x0 and bigrams are added after attention */
    struct tensor dq, dk, dv; /* (T,Q), (T,Q), (T,D) */
    struct tensor drows; /* (T,D) of the value-embedding rows; before, what XSA gives of dv */
    struct tensor din; /* (T,D) of `in` where it is read again later, by those */
};

/* Buffers of one forward and backward. */
struct acts {
    int tokens; /* 0: not planned yet */
    bool train; /* else an evaluation, whose MLPs are never in fp8 */
    struct layer_acts layer[MAX_LAYERS + 1]; /* of the last layer + 1: `in`, the output, and rows */
    struct tensor x0, z, head; /* (T,D): input, head's input before and after its norm */
    struct tensor bigram; /* (T,P): rows of the bigram table */
    struct tensor narrow, dnarrow; /* (T,gate_table): rows of the narrow embedding */
    struct tensor logits, dlogits; /* (T,16), (T,12): of the gates at hand, with gate_table */
    struct tensor dpost; /* (T,F): gradient of an MLP's hidden layer, where it has two banks */
    struct tensor raw; /* (T,3D): room of attention_raw */
    struct tensor product; /* (T,D): an o or m that the backward does not read */
    struct tensor dx, dx1; /* (T,D) gradients of the lanes */
    struct tensor dy; /* (T,D) of the input of attention, MLP or head */
    struct tensor dbranch; /* (T,D) of o or m */
    struct tensor dx0, dbigram, dskip; /* (T,D) */
    /* The MLPs of [token_coefs], by block: hidden layer before its activation, outputs, their
     * gradients; and of each row the coefficient. */
    struct tensor hidden[MAX_TOKEN_BLOCKS], coefs[MAX_TOKEN_BLOCKS], dcoefs[MAX_TOKEN_BLOCKS];
    struct scalar token[MAX_TOKEN_TERMS];
    struct tensor dy12; /* (T,12) */
    struct tensor delta; /* (H,T) of attention's result and its gradient */
    struct tensor plan[ATTN_PLANS]; /* (1,bytes): attention of short, long windows, paired or not */
    struct tensor
        y8; /* (T,D) codes of the y that attention reads next, in the memory of dx; or none */
    struct tensor post8; /* (T,F) codes of a layer's post, in the memory of dx and so on; or none */
};

/* Parameters and scalars by role (role_list.h); NULL, or of value NULL, where the recipe has none:
 * a scalar is 1 then. */
struct model_params {
#define PARAM_ROLE(label, ...) struct param *label;
#define SCALAR_ROLE(name, count, ...) struct scalar name[count];
#include "recipe/role_list.h"
    struct scalar half; /* the constant 1/2 */
};

struct model {
    const struct recipe *recipe;
    struct banks *banks;
    struct ops *ops;
    struct model_params p;
    struct param *bank[LAYER_BANKS]; /* those of layer_banks; NULL: the recipe has none */
    struct streams streams;
    void *arena;
    size_t arena_bytes;
    struct acts acts[2]; /* planned last: of evaluation, of training */
    struct rope rope;
    int rope_period; /* tokens of a row, whose positions begin anew; 0: no rows */
    real *mtp; /* device: MTP weights of the step, then that of prefixes */
    real *first_scales; /* device: not 0: a refresh of delayed scales takes the weights' own */
    struct token_mask never; /* device: of evaluation; or none */
    int32_t *prefix; /* device (V): tokens' prefixes, -1: none; NULL: no stage has the term */
    struct tensor qkv_w, qkv_g; /* (2Q+D,D) of each index, where Q, K and V lie in several banks */
    struct tensor qkv_b, qkv_bg; /* (1,3D) of each: their biases */
    struct fp8_matrices qkv8; /* copies in fp8 of Q, K, V of each layer that attends, (2Q+D,D) and
                                 transposed (D,2Q+D); or none */
    struct fp8_matrices out8; /* of O; or none */
    struct tensor unit, dunit; /* (H,12): the gates of logits, and a gradient that nothing reads */
    struct step_schedule schedule;
    double attn_scale;
    const struct kv_cache *cache; /* of each layer, while rows are tokens of sequences that grow
                                     (decode.h); else NULL */
    int rope_updates; /* YaRN updates in the table; -1: the table is not filled */
    bool stale; /* weights may have moved: the next forward makes its copies of them (model_set) */
    bool more; /* another micro-batch of the step follows: no gradient is final */
    /* Called in backward when n rows of a parameter's gradient are final: in a bank layer by layer,
     * others whole. Both callbacks may be NULL. */
    void (*final)(void *ctx, struct param *p, int64_t first, int64_t n);
    /* Called in forward before the weight of p is read, where the recipe may gather p late: banks,
     * head and tables. */
    void (*need)(void *ctx, struct param *p);
    void *ctx;
    bool next; /* the loss of training has a second number, of next tokens alone */
};

int model_init(struct model *m, struct banks *b, int tokens, int val_tokens) MUST_CHECK;
/* With a rotary table for so many positions. */
int model_init_to(struct model *m, struct banks *b, int tokens, int val_tokens,
                  int64_t positions) MUST_CHECK;
/* The prefix of each of the recipe's `vocab` tokens, -1: none, where its loss has that term (recipe_prefixes);
 * until then no token has one. Host memory. */
void model_prefixes(struct model *m, const int32_t *prefix);
/* From now on evaluation leaves the barred tokens out of each softmax; host memory, of the recipe's
 * `vocab` ids. */
void model_never(struct model *m, const struct token_mask *never);
/* Uploads what depends on the step; before its first micro-batch, before a validation, and where
 * weights have changed otherwise. */
void model_set(struct model *m, const struct step_schedule *p);
void model_train(struct model *m, const struct batch *b, real *loss);
void model_eval(struct model *m, const struct batch *b, real *loss);
/* Evaluates n tokens alone, those at first .. first + n - 1. */
void model_eval_part(struct model *m, const struct batch *b, int first, int n, real *loss);

/* -- for forward.c and backward.c ------------------------------------------ */
static inline void model_need(struct model *m, struct param *p)
{
    if (m->need)
        m->need(m->ctx, p);
}
/* The buffers of so many tokens. */
struct acts *model_acts(struct model *m, int tokens, bool train);
static inline bool layer_attends(const struct recipe *r, int i)
{
    return r->layers[i].attention != ATTN_NONE;
}
/* Returns the bank that has layer i's four matrices of attention, or Q and K. */
struct param *attention_bank(const struct model *m, int i);
/* Finds all banks that have matrices of layer i's attention; returns their number. */
int attention_banks(const struct model *m, int i, struct param *bank[4]);
/* Return the first of layer i's rows in one of these banks, and their number. */
int64_t attention_row(const struct model *m, int i, const struct param *bank);
int64_t attention_rows(const struct model *m, int i, const struct param *bank);
/* (T,2Q+D): layer i's q, k, v as projected, and their gradient. */
struct tensor attention_raw(const struct model *m, const struct acts *a, int i);
/* True if Q, K, V and O have a bank each. */
static inline bool attention_own(const struct model *m) { return m->p.q_bank != NULL; }
/* Layer i's row of a parameter that has one a layer, or of its gradient; none without the parameter. */
struct tensor layer_vector(const struct param *p, int i, bool grad);
/* One matrix of a bank of matrices of `rows` rows. */
struct tensor bank_rows(struct tensor bank, int64_t rows, int64_t matrix);
/* What a gate's op takes for a row of a bank of gates: the norm and that row; with gate_table their
 * logits and the unit matrix. */
struct gate_input {
    struct tensor y, w, dw, dy12;
};
struct gate_input gate_input(struct model *m, struct acts *a, const struct layer_acts *l,
                             const struct param *bank, int row);
/* With gate_table, after the op's backward: dw and dy12 become the bank's gradient and a->dy12's. */
void gate_input_bwd(struct model *m, struct acts *a, const struct layer_acts *l,
                    const struct param *bank, int row, bool add);
/* The copy of the first (k: 0) or second matrix of layer i's MLP in fp8. */
struct fp8_weight mlp_weight8(const struct model *m, int i, int k, bool turned);
/* Returns how many layers below i attend, and how many rows copies of their matrices have in model.qkv8. */
int attention_codes(const struct model *m, int i);
int64_t attention_codes_row(const struct model *m, int i);
/* Returns the copy in fp8 of layer i's Q, K, V together. */
struct fp8_weight attention_weight8(const struct model *m, int i, bool turned);
/* Returns the copy in fp8 of layer i's O. */
struct fp8_weight out_weight8(const struct model *m, int i);
/* Returns what codes of the gradients of projections are multiplied by, with this run's micro-batches. */
real attention_gradient_scale(const struct model *m);
void model_forward(struct model *m, struct acts *a, const struct batch *b);
void model_backward(struct model *m, struct acts *a, const struct batch *b);
struct head_loss model_head(const struct model *m, const struct batch *b);
/* Layer i's matrices of attention, or their gradients. */
struct attention_part {
    struct tensor qkv, o; /* (2Q+D,D), (D,D) */
    struct tensor bias; /* (1,3D) of the first; or none */
};
struct attention_part attention_weight(const struct model *m, int i, bool grad);
/* Are they in several banks? Then Q, K, V of the weight are copied to where the products take them once a
 * step, and of its gradient, when it is complete, to the banks. */
bool attention_apart(const struct model *m, int i);
void attention_copy(struct model *m, int i, bool grad);
/* Which table of value rows layer i reads, in [layers] or [token_coefs]; n_layers: before the head. */
bool layer_table(const struct recipe *r, int i, int *param, int *slot);
struct tensor table_rows(const struct model *m, int param, int slot, bool grad);
enum key_offset layer_key_offset(const struct recipe *r, int i);
/* With a cache the key offset is left to the cache. */
void layer_shapes(const struct model *m, const struct acts *a, int i, const struct batch *b,
                  struct qkv_shape *q, struct attn_shape *s);
/* Layer i's rows of its value-embedding table, as weight (grad: as gradient); none without one. */
struct tensor value_rows(const struct model *m, int i, bool grad);

/* Returns what XSA of the layer's attention reads; none where it is not exclusive. */
struct xsa layer_xsa_of(const struct model *m, const struct layer_acts *l, int i);

/* Describes what coefficients of tokens do to the layer's result of attention. */
struct attention_coefs {
    bool any, composes; /* head_coefs is there; so is compose */
    struct head_coefs head;
    struct compose compose;
};
struct attention_coefs attention_coefs_of(const struct model *m, const struct acts *a, int i,
                                          const struct attn_shape *s);

/* -- stream.c: runs the lists of the residual stream ----------------------------- */
struct tensor stream_tensor(const struct acts *a, struct ref r);
struct scalar stream_scalar(const struct model *m, const struct acts *a, struct coef c);
/* The steps of a place (streams.h); layer 0 for those of the model. */
void stream_forward(struct model *m, struct acts *a, enum stream_place place, int layer,
                    const struct batch *b);
/* Takes and leaves the gradients of the lanes in dx and dx1, reads in dy (and dy12) the gradient of
 * the norm that the forward made, and writes that of a product to its product.dout. */
void stream_backward(struct model *m, struct acts *a, enum stream_place place, int layer);

#endif
