/* recipe.h - the whole experiment as one text file.
 *
 * A recipe has `key = value` lines under [section] headings and five tables
 * ([layers], [parameters], [scalars], [stages], [states]); `#` begins a comment. Overrides are
 * "section.key=value". An unknown or missing key, a bad number, a layer map or
 * parameters that the model cannot run with: GPT_INPUT (GPT_USAGE for an
 * override) with file and line, so that a recipe that was read can be run.
 * man/gpt-recipe.5 says what each key means. Keys are listed in keys.c
 * alone, columns in tables.c, what the model reads in role_list.h.
 *
 *     struct recipe *r;
 *     if ((rc = recipe_read(&r, path, overrides, n))) return rc;
 *     r->model.width, r->params[i].rows, ...
 *     recipe_canonical(r)              // text: reading it again gives the same recipe
 *     recipe_free(r);
 *
 * Threads: read-only after recipe_read, so any number may share it.
 */
#ifndef RECIPE_RECIPE_H
#define RECIPE_RECIPE_H

#include <stdbool.h>
#include <stdio.h>
#include "recipe/rule.h"
#include "types/cut.h"
#include "types/dtype.h"
#include "base/err.h"
#include "types/sizes.h"

enum {
    MAX_LAYERS = 64,
    MAX_PARAMS = 32,
    MAX_STAGES = 8,
    MAX_CYCLE = 8, /* initial values of a bank */
    MAX_MULTIPLIERS = 256, /* of its rate: four for each of MAX_LAYERS */
    MAX_PERIOD = 1024,
    MAX_TOKEN_TERMS = 64, /* rows of [token_coefs] */
    MAX_TOKEN_BLOCKS = 8, /* small MLPs that make them */
    MAX_SOURCES = 6, /* of them in one sum */
    MAX_ROPE_WINDOWS = 32,
    LABEL_SIZE = 32
};

enum comms { COMMS_REPLICATED, COMMS_SHARDED, COMMS_SPARSE };
enum attention_kind { ATTN_NONE, ATTN_PLAIN, ATTN_PAIRED };
/* Where x0 and bigrams are added, the skip taken from, and what value gates read. */
enum inject { INJECT_BEFORE, INJECT_AFTER };
enum skip_tap { SKIP_LAYER, SKIP_ATTENTION };
enum key_channels { KEYS_QUARTERS, KEYS_HALF };
enum head_fp8 { HEAD_FP8_NO, HEAD_FP8_YES, HEAD_FP8_REQUIRE };
enum mlp_fp8 { MLP_BF16, MLP_FP8, MLP_FP8_REQUIRE };
enum mlp_grads { GRADS_BF16, GRADS_UP, GRADS_BOTH };
enum mlp_down { DOWN_BF16, DOWN_FP8, DOWN_DELAYED };
enum value_input { VALUE_INPUT, VALUE_SPLIT, VALUE_SPLIT_ALL };
enum init_kind {
    INIT_ZERO,
    INIT_UNIFORM,
    INIT_NORMAL,
    INIT_SIGN,
    INIT_ONE,
    INIT_VALUES,
    INIT_TRANSPOSE
};

struct init {
    enum init_kind kind;
    float value; /* uniform: std times sqrt(cols); normal: std; sign: 1 */
};

/* One row of [parameters]. */
struct param_spec {
    char label[LABEL_SIZE];
    int64_t matrices, rows, cols; /* a bank is matrices of rows x cols; others have one */
    enum dtype dtype; /* of the weight as the model reads it: bf16 or f32 */
    enum dtype
        stored; /* the weight is in f32, f16 or e4m3, of which that is a bf16 copy; DT_NONE */
    bool codes; /* an fp8 head reads e4m3: the stored weight, or a copy */
    struct init init[MAX_CYCLE]; /* matrix i takes init[i % n_init] */
    int n_init;
    char init_text[160]; /* INIT_VALUES: the list; INIT_TRANSPOSE: the label copied */
    struct rule rule;
    enum comms comms;
    double beta1, beta2; /* NorMuon: beta1 follows the schedule */
    float lr_mul[MAX_MULTIPLIERS]; /* matrix i: lr_mul[i % n_lr] */
    int n_lr;
    float wd_mul;
    int schedule; /* of its rate: index into schedules; -1: the run's */
    bool early; /* reduced inside backward as soon as its gradient is final */
    /* Adam, of [precision] and [states]: */
    enum dtype master; /* DT_NONE; DT_F32, DT_F16; DT_U16: the low halves beside a bf16 weight */
    bool truncate; /* DT_U16: the weight is cut, not rounded */
    enum dtype exp_avg, exp_avg_sq; /* f16 and e4m3 with a scale a row */
    bool stochastic; /* rounding of the moments */
    int every; /* gathers gradients over so many steps and moves in the last; others than Adam's: 1 */
};

enum master { MASTER_NONE, MASTER_F32, MASTER_NEAREST, MASTER_TRUNCATE, MASTER_F16 };

/* One row of [layers]. -1: none. */
struct layer_spec {
    enum attention_kind attention;
    int bank; /* index of the attention bank's four matrices */
    int qk_dim; /* channels of a head of q and k */
    double attn_scale; /* in place of the model's, before rotation is stretched; 0: that */
    int spare; /* in place of them: of the MLP bank's matrix whose rows they are */
    bool long_window;
    bool key_offset; /* keys are taken from one token back, in the model's channels */
    int value, value_slot; /* parameter of the value embeddings, and index of a table of
                                   vocab rows in it */
    int value_gate, out_gate; /* rows of the gate banks */
    int mlp; /* index of the MLP bank's two matrices */
};

/* One row of [scalars]: a name for learnable numbers of a parameter. */
struct scalar_spec {
    char name[LABEL_SIZE];
    int param, first, stride;
};

enum { SCALE_DELAYED = -1 }; /* weight_scale: one for all rows, from past updates */

/* Names what a coefficient of each token does in the layer that uses it: it multiplies a source, added to the
 * layer's stream or values; or what the layer's scalar of that name does (role_list.h), in its place; or, one
 * a head, it is a number of attention's result (ops.h, struct head_coefs, struct compose). */
enum token_role {
    TOKEN_STREAM,
    TOKEN_VALUE,
    TOKEN_RESIDUAL,
    TOKEN_ATTN,
    TOKEN_X0,
    TOKEN_BIGRAM,
    TOKEN_RESIDUAL_MLP,
    TOKEN_MLP,
    TOKEN_SKIP, /* the factor of the skip, besides its scalar */
    TOKEN_XSA, /* one a head: from here on */
    TOKEN_GATE,
    TOKEN_DC1,
    TOKEN_DC2,
    N_TOKEN_ROLES
};
enum token_source { SOURCE_NONE, SOURCE_X0, SOURCE_LAYER, SOURCE_TABLE };

/* The MLPs of layers' own coefficients, and those whose coefficients other layers use, too. */
enum token_set { TOKENS_OWN, TOKENS_GIVEN, N_TOKEN_SETS };
struct token_block {
    enum token_set set;
    int index; /* of its set's matrices */
    int at; /* it reads the stream that enters this layer; n_layers: before the head; -1: x0 */
    int n; /* outputs */
};

/* One row of [token_coefs]. */
struct token_term {
    int layer; /* that uses it; n_layers: the stream before the head */
    enum token_role role;
    enum token_source source;
    int from; /* SOURCE_LAYER: whose output; -1: the stream that enters layer 0 */
    int table, slot; /* SOURCE_TABLE: as value, value_slot of a layer */
    int parts; /* so many coefficients, each for as many channels */
    int block, first; /* which MLP; the first of its outputs */
};

struct stage {
    int64_t tokens; /* global batch */
    int window; /* long window in blocks; short is half, rounded down */
    int sequence; /* longest piece of a document, tokens */
    double lr;
    int n_mtp;
    double mtp_first[MAX_MTP], mtp_last[MAX_MTP]; /* linear over the stage */
    double prefix_first, prefix_last; /* weight of the next token's prefix; the same */
};

/* The key `a_b` of a section is the field a.b or a_b of its struct. */
struct recipe {
    char name[64];
    int64_t seed;

    struct {
        int vocab, heads, head_dim, mlp_width;
        int width; /* heads head_dim */
        int qk_dim; /* channels of a head of q and k where the layer says no others */
        int rope_dim; /* of them, those from the first on that turn */
        struct {
            int rows; /* of the table that hashed pairs of tokens index; 0: none */
            int width; /* its channels, those of the stream from the first on; 0 in the file: all */
            int signs; /* rows of the table of signs that its rows are multiplied by; 0: none */
            bool in_x0; /* x0 contains layer 0's bigrams */
        } bigram;
        int block; /* attention block unit, tokens */
        double attn_scale, rope_base;
        struct {
            int at[MAX_ROPE_WINDOWS], n;
        } rope_windows; /* long windows of stages before this run, in blocks */
        struct {
            double a, b, c;
            bool root; /* a u / sqrt(1 + u^2), u = (l + b) / c */
        } softcap; /* a s((l + b) / c) */
        bool rope_halves; /* rotary pairs a head's channels m and m + e/2, not 2m and 2m + 1 */
        struct {
            int from, to; /* layers; -1: no skip */
            enum skip_tap tap; /* from's output, or the stream after its attention */
        } skip;
        int backout; /* layer; -1: none */
        int attend_as; /* attention of later layers reads the input of this one's; -1: none */
        bool xsa; /* plain attention is exclusive (ops.h, struct xsa) */
        int compose_window; /* keys that the heads of a layer with role dc1 are mixed over; 0: none */
        bool mtp_whole; /* the last rows' gradients have all MTP weights */
        enum inject inject; /* x0 and bigrams join before a layer's attention, or with its result */
        bool inject_bare; /* also in layers without attention */
        int lanes; /* from this layer on attention reads lane 0, the MLP lane 1; -1 */
        bool post_single; /* lambdas on attention's result in layers of one lane too */
        bool fold_mlp; /* layers of one lane: the MLP's lambda scales its second product */
        enum key_channels key_channels; /* those that a key offset moves */
        int gate_table; /* columns of the narrow embedding that gates read beside the norm; 0: none */
        enum value_input value_input; /* of plain layers; paired ones see the layer's input */
    } model;

    /* Tables: [layers], [parameters], [scalars], [token_coefs], [stages]. */
    struct layer_spec layers[MAX_LAYERS];
    int n_layers;
    struct param_spec params[MAX_PARAMS];
    int n_params;
    struct scalar_spec scalars[MAX_PARAMS];
    int n_scalars;
    struct {
        struct token_term term[MAX_TOKEN_TERMS];
        int n, n_blocks;
        struct token_block block[MAX_TOKEN_BLOCKS];
        int hidden[N_TOKEN_SETS], width[N_TOKEN_SETS]; /* hidden channels, outputs kept for each */
    } token_coefs;
    struct stage stages[MAX_STAGES];
    int n_stages; /* the last one is the extension */
    struct lr_schedule schedules[MAX_SCHEDULES];
    int n_schedules;

    struct {
        int scatter[MAX_PARAMS], work[MAX_PARAMS]; /* indices into params */
        int tied_head, tied_embed; /* params tied until the untie step; -1 */
        double tied_mix
            [2]; /* of the embedding's gradient in the head's: at step 0, at the untie step */
        int late[MAX_PARAMS], n_late; /* gathered at the start of the next step, in this order */
        bool padding; /* is a bank's padding communicated? */
        int transpose_sms; /* multiprocessors that transposes take at most; 0: all */
    } order;

    struct {
        struct {
            double lr, eps, wd;
            int every; /* 2: on odd steps; of parameters of which [states] says no other */
            int decay; /* enum adam_decay (ops.h): cautious, AdamW, L2 */
            bool decay_lr; /* the decay's rate is lr wd, not lr^2 wd */
            enum eps_at { EPS_ROOT, EPS_CORRECTED, EPS_INSIDE } eps_at;
            bool correction; /* of the moments' bias */
        } adam;
        double clip; /* of the norm of all gradients; 0: none */
        double loss_scale; /* of the loss whose gradients are computed */
        bool loss_sum; /* which is the sum over the micro-batches, not their mean */
        bool grad_norm; /* the norm of the gradients is found, for the log */
        int max_skips; /* steps in a row that may be skipped: their gradients are not finite */
        int period; /* after so many steps each gradient has been applied: all begin anew */
        struct {
            double lr, wd;
            enum muon_decay { MUON_DECAY_RULE, MUON_DECAY_CAUTIOUS, MUON_DECAY_PLAIN } decay;
            bool decay_lr; /* the decay's rate is lr wd, not lr^2 wd */
            double match_rms; /* of the updates (Moonlight); 0: the record's factor */
            bool blend_f32; /* 1 - momentum is formed in f32 (record 74), not f64 */
        } muon;
        struct {
            double at, moments;
        } change; /* normuon>adam: points of the schedule */
        struct {
            double weight[2], span[2];
        } blend; /* normuon+adam: Adam's weight, first and last; points of the schedule */
        double mixed_lr; /* of both: multiplier of adam.lr */
        struct around around;
        struct {
            double row[MAX_POLAR][3];
            int n;
            enum dtype dtype; /* bf16; f32 on request */
            enum polar_form { POLAR_FORM_DIRECT, POLAR_FORM_GRAM } form;
            unsigned restart; /* bit k: the Gram form begins anew after k rows */
            bool aol, for_aol; /* AOL in place of the Frobenius norm; are the rows for that? */
        } polar;
    } optimizer;

    struct {
        int steps, extension;
        bool whole_steps; /* boundaries are rounded to steps (record 74); else they are exact
                             fractions and lr changes strictly after them (record 61) */
        int final_window; /* long window of the last validation, blocks */
        double cooldown, lr_floor;
        struct {
            double low, high;
            int warmup, cooldown; /* steps */
        } momentum;
        double untie; /* a point: up to 2 a fraction of steps, above a step */
        enum untie_state { UNTIE_CARRY, UNTIE_ZERO } untie_state;
    } schedule;

    struct {
        char expect[33]; /* id of the training shards that losses are compared on; "": any */
        int chunks; /* micro-batches a step over all ranks (8) */
        int bos; /* -1: as the shards' MANIFEST says */
        enum cut cut;
        /* A row of CUT_ROWS is of a stage's `sequence` tokens. */
        int piece; /* tokens, of CUT_PIECES; 0 in the file: the longest sequence of the stages */
        int max_documents; /* in a chunk, of training and validation; 0: the records' number */
        bool cycle; /* start over when the shards are used up */
        int repeat; /* steps on one batch */
        struct {
            int64_t tokens, chunk;
            struct {
                int steps, late; /* between validations; 0: only the last one; from `from` on */
                double from; /* a point, as schedule.untie */
            } every;
            bool canonical; /* probability only for tokens that text can have there */
        } val;
        int64_t checkpoint_every; /* steps; 0: only at the end and on a signal */
    } data;

    struct {
        enum dtype gradients; /* DT_NONE: the parameter's */
        bool bf16_grads; /* a micro-batch's part of one is rounded to bf16 before it is added */
        bool f32_rope; /* cosines and sines are not rounded to bf16 */
        struct {
            enum dtype states; /* of both moments; DT_NONE: the parameter's */
            enum master master; /* where the weight is bf16 */
            bool stochastic;
            bool whole; /* moments in f16 and e4m3 have one scale for all rows */
        } adam;
        struct {
            enum head_fp8 fp8; /* yes: bf16 on a GPU without fp8; require: no such GPU */
            double x_scale, w_scale, g_scale;
            bool sigmoid_bf16; /* of the softcap, in training */
            int block; /* rows of logits that a GPU keeps at a time; 0: all of a micro-batch */
            bool scale_micro; /* g_scale is multiplied by 1 / micro-batches, like the loss */
        } head;
        struct {
            enum mlp_fp8 fp8; /* the first product in training: as the head's */
            enum mlp_down down_fp8; /* with it, the second; with scales of earlier values */
            double delayed
                [3]; /* headroom of activations, of weights; steps after which each refresh of
                                  the weights' scales is one from the weights themselves */
            bool backward_fp8; /* with it, what the backward makes of gradients */
            enum mlp_grads grads; /* with that, weight gradients: of the first product, of both */
        } mlp;
        struct {
            bool fp8; /* projections to q, k, v in training; in bf16 on a GPU without fp8 */
            bool backward_fp8; /* with it, both products of their gradients */
            bool out_fp8; /* with it, the output projection */
            double x_scale, g_scale; /* of codes of the input, of the gradient at one micro-batch */
        } attn;
        double weight_scale; /* of weights in e4m3 whose codes no head reads; 0: each row's own */
        int amax_history; /* SCALE_DELAYED: of how many updates */
        bool bf16_products; /* of a CPU, whose other products are of f32 */
        bool fuse; /* neighbouring stages of a rule in one op */
        bool check_weights; /* after each step: do all ranks hold the same weights? */
    } precision;

    char hash[33]; /* XXH3-128 of the canonical text */
    struct recipe_text *text;
};

/* path: a file ("-": stdin), or a name of named.h. A run log is read for the recipe in it. */
int recipe_read(struct recipe **r, const char *path, const char *const *overrides,
                int n) MUST_CHECK;
/* Reads a recipe from memory: a checkpoint or a run log carries its own. name: for messages. */
int recipe_parse(struct recipe **r, const char *name, const char *text,
                 const char *const *overrides, int n) MUST_CHECK;
/* Canonical text, overrides applied; the recipe's own. */
const char *recipe_canonical(const struct recipe *r);
void recipe_free(struct recipe *r);
/* Writes the line that a rule's name stands for, as this recipe's keys have it. */
void recipe_rule_line(const struct recipe *r, const char *name, char *line, size_t size);
/* Writes the line of schedule k. */
void recipe_schedule_line(const struct recipe *r, int k, char *line, size_t size);
/* True if matrix i is the transpose of what the model multiplies by: an MLP's second one. */
bool recipe_is_transposed(const struct param_spec *s, int64_t i);
/* Returns what a matrix of that rule's chain is multiplied by for its shape (optimizers.md 4.5): matrix i
 * of the parameter; 1 without the stage. */
double recipe_shape_factor(const struct param_spec *s, const struct chain *c, int64_t i);
/* Is the parameter's gradient applied in this step? In step -1, before the first, all begin anew. */
static inline bool recipe_moves(const struct param_spec *s, int step)
{
    return (step + 1) % s->every == 0;
}
/* True if after `steps` steps a gradient of the parameter waits for the step that applies it. */
static inline bool recipe_waits(const struct param_spec *s, int steps)
{
    return !recipe_moves(s, steps - 1);
}
/* Returns the type in which the parameter's gradient is summed. */
enum dtype recipe_gradient(const struct recipe *r, const struct param_spec *s);
/* Returns the parameter whose touched rows ranks exchange, of which there is one at most; -1: none. */
static inline int recipe_sparse(const struct recipe *r)
{
    int i = r->n_params - 1;
    while (i >= 0 && r->params[i].comms != COMMS_SPARSE)
        i--;
    return i;
}
/* Returns the fixed scale that e4m3 codes of s are multiplied by, or 0 if each update chooses one a row
 * or recipe_delayed() one for all rows. */
static inline double recipe_weight_scale(const struct recipe *r, const struct param_spec *s)
{
    return s->codes                        ? r->precision.head.w_scale
           : r->precision.weight_scale > 0 ? r->precision.weight_scale
                                           : 0;
}
/* True if the e4m3 codes of s have one scale for all rows, chosen from the largest magnitudes of past updates. */
static inline bool recipe_delayed(const struct recipe *r, const struct param_spec *s)
{
    return s->stored == DT_E4M3 && !s->codes && r->precision.weight_scale < 0;
}
/* The type of a weight in checkpoints. */
static inline enum dtype recipe_stored(const struct param_spec *s)
{
    return s->stored == DT_NONE ? s->dtype : s->stored;
}
/* Tokens of a row, of CUT_ROWS; 0: no rows. */
static inline int recipe_row(const struct recipe *r)
{
    return r->data.cut == CUT_ROWS ? r->stages[0].sequence : 0;
}
/* How many of an MLP's two matrices have copies in fp8. */
static inline int recipe_mlp_copies(const struct recipe *r)
{
    return r->precision.mlp.fp8 ? 1 + (r->precision.mlp.down_fp8 || r->precision.mlp.backward_fp8)
                                : 0;
}
/* Returns the number of validation chunks that follow each other in one shard: the records' 8, whatever
 * data.chunks is. */
static inline int recipe_val_group(const struct recipe *r)
{
    enum { GROUP = 8 };
    return r->data.val.tokens / r->data.val.chunk % GROUP ? 1 : GROUP;
}
/* Index of a parameter, or -1. */
int recipe_param(const struct recipe *r, const char *label);
/* How checkpoints name Adam's master: "master", "mantissa", "remainder". */
const char *recipe_master_kind(const struct param_spec *s);
/* How a bf16 weight is made of the number that its optimizer keeps: to nearest even, or, beside an f32
 * master or low halves of Adam's, halves away from zero, or cut (optimizers.md 3.2, 4.4). */
enum weight_rounding { WEIGHT_EVEN, WEIGHT_AWAY, WEIGHT_CUT };
enum weight_rounding recipe_rounding(const struct param_spec *s);
uint16_t recipe_bf16(const struct param_spec *s, float x);
/* May a step be skipped, or its gradients scaled (optimizers.md 2.5)? */
bool recipe_has_gate(const struct recipe *r);
/* The coefficient of each token in that role of layer i, or NULL. */
const struct token_term *recipe_token_role(const struct recipe *r, int i, enum token_role role);
/* Returns how many MLPs of [token_coefs] a set has. */
int recipe_token_blocks(const struct recipe *r, enum token_set set);
/* Does layer i (n_layers: what is before the head) read that table of value rows? */
bool recipe_reads_table(const struct recipe *r, int i, int param, int slot);
/* Does any layer read one of that parameter's? */
bool recipe_reads(const struct recipe *r, int param);
/* Are Q and K in one bank, V and O in another? Or each in its own, or an MLP's two matrices? */
bool recipe_split_attn(const struct recipe *r);
/* Rows of layer i's matrix of q, as many as of k; of those of q, k and v together. */
int64_t recipe_qk_rows(const struct recipe *r, int i);
int64_t recipe_qkv_rows(const struct recipe *r, int i);
/* Returns how many indices of attention's banks layers have: one more than the greatest. */
int64_t recipe_indices(const struct recipe *r);
/* True if heads of q and k have other widths than those of v, or others than half of their channels turn. */
bool recipe_narrow(const struct recipe *r);
/* Returns what a GPU needs and the recipe lacks; NULL: nothing. */
const char *recipe_cpu_alone(const struct recipe *r);
/* Returns how many rows of q's matrices, or k's, layers have before index `bank` beyond the model's width of
 * q and k (negative: fewer). */
int64_t recipe_qk_extra(const struct recipe *r, int64_t bank);
bool recipe_own_attn(const struct recipe *r);
bool recipe_own_mlp(const struct recipe *r);
/* Does any stage's loss have a term for the next token's prefix? */
bool recipe_prefixes(const struct recipe *r);
/* True if the objective of any stage is another number than the loss of the next token. */
bool recipe_objective_differs(const struct recipe *r);
/* A row of [scalars], or NULL. */
const struct scalar_spec *recipe_scalar(const struct recipe *r, const char *name);

#endif
