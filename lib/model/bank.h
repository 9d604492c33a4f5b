/* bank.h - parameter banks: weights, gradients, and the shard of each rank.
 *
 * A parameter is one contiguous array of `matrices` equal matrices (rows x
 * cols). Weight, gradient, momenta and mantissa share the layout. A sharded
 * parameter is divided along its leading axis - whole matrices of a bank, rows
 * of a table - into shards, one a rank (recipe/share.h); a shard is a pointer and a count.
 *
 *     struct banks b;
 *     if ((rc = banks_init(&b, recipe, ops, rank, world))) return rc;
 *     if ((rc = banks_fill(&b, initial))) return rc;      // the same values on every rank
 *     struct tensor qkv = tensor_rows(b.p[attn].w, 4 * d * i, 3 * d);
 *
 * Memory is allocated by ops and freed with it.
 */
#ifndef MODEL_BANK_H
#define MODEL_BANK_H

#include "recipe/initial.h"
#include "recipe/recipe.h"
#include "ops/ops.h"

struct param {
    const struct param_spec *spec;
    struct tensor w, g; /* (matrices*rows, cols) */
    struct fp8_copy fp8; /* of w; without codes where there is none (banks_keep_fp8) */
    struct fp8_matrices fp8_each[2]; /* of matrices of w; the same (banks_keep_fp8_each) */
    /* With delayed scales (fp8.md 5): the second matrices' next ones, and of each first matrix's results
     * the scale and its greatest number since. Own memory, or the optimizer's, which checkpoints have. */
    real *next_scale, *post_scale, *post_most;
    struct tensor w_own, g_own; /* this rank's shard; the whole when replicated */
    int64_t units, own_first, own_count; /* of the leading axis: matrices, or rows of one */
    int64_t used; /* units before the padding, which no layer reads */
    bool fresh; /* the backward writes the gradient; else it adds to it */
};

struct banks {
    const struct recipe *recipe;
    struct ops *ops;
    int rank, world;
    struct param p[MAX_PARAMS];
    int n;
    /* With several ranks: one block for all weights and gradients that are gathered or reduced in
     * shards, so that it is shared at once (comm.h); its bytes, and those that are taken. */
    char *shared;
    size_t shared_bytes, shared_taken;
};

int banks_init(struct banks *b, const struct recipe *r, struct ops *o, int rank,
               int world) MUST_CHECK;
/* Banks of one rank and without gradients, for evaluation. On a CPU bf16 weights are kept as f32, so that
 * products need not convert them each time. */
int banks_init_weights(struct banks *b, const struct recipe *r, struct ops *o) MUST_CHECK;
/* Uploads the initial values; waits for those that are not drawn yet. */
int banks_fill(struct banks *b, struct initial *v) MUST_CHECK;
/* Allocates an fp8 copy of p, which Adam updates with the weight; before the weights are set.
 * banks_fill makes the copies; after weights were loaded otherwise, banks_quantize does: from the
 * whole weight, whole on every rank. */
void banks_keep_fp8(struct banks *b, struct param *p, real scale_inv);
/* Copies of `rows` of every `stride` rows of p, from the first or the second `rows` of them on (k: 0,
 * 1), also transposed where `turned`, which the model makes again in the first forward of a step. */
void banks_keep_fp8_each(struct banks *b, struct param *p, int k, int64_t rows, int64_t stride,
                         bool turned);
void banks_quantize(struct banks *b);
/* Forgets the gradients of a set of parameters (a bit each). Small (replicated) ones are zeroed, of large
 * ones the next backward writes them (`fresh`). */
void banks_clear(struct banks *b, uint32_t set);
/* At the start of a step: sets the `fresh` flags, so that capture and eager execution agree. */
void banks_begin(struct banks *b, uint32_t fresh);
/* Rows of a unit. */
static inline int64_t param_unit_rows(const struct param *p) { return p->w.rows / p->units; }
/* This rank's shard of the fp8 copy. */
static inline struct fp8_copy param_own_fp8(const struct param *p)
{
    struct fp8_copy own = p->fp8;
    own.codes = tensor_rows(own.codes, p->own_first * param_unit_rows(p), p->w_own.rows);
    return own;
}
/* A bank of matrices by layer: its label, the column of [layers] that has its index, and the rows that
 * an index stands for, in widths of the model and of an MLP, and as matrices of q and k. */
struct layer_bank {
    const char *label;
    bool mlp; /* layers[i].mlp, not bank */
    int widths, hidden, qk;
};
enum { LAYER_BANKS = 10 };
extern const struct layer_bank layer_banks[LAYER_BANKS];
const struct layer_bank *layer_bank_of(const char *label); /* NULL: the parameter is no such bank */
/* The first row of what index `at` stands for; one after its last is that of at + 1. */
int64_t layer_bank_row(const struct recipe *r, const struct layer_bank *b, int64_t at);
/* Units of the leading axis that layers read: those after are padding. */
int64_t param_used(const struct recipe *r, const struct param_spec *s);
/* For --plan: bytes of a weight; of the head's fp8 copy, 0 if the recipe has none. */
int64_t param_bytes(const struct param_spec *s);
int64_t head_fp8_bytes(const struct recipe *r);
int64_t layers_fp8_bytes(const struct recipe *r); /* of copies of the layers' matrices */

#endif
