/* bank.h - parameter banks: weights and gradients, and who owns which part.
 *
 * A parameter is one contiguous array of `matrices` equal matrices (rows x
 * cols). Weight, gradient, momenta and mantissa share the layout. A sharded
 * parameter is cut along its leading axis - whole matrices of a bank, rows of
 * a table - into world equal parts; a rank's part is a pointer and a count.
 *
 *     struct banks b;
 *     if ((rc = banks_init(&b, recipe, ops, rank, world))) return rc;
 *     if ((rc = banks_fill(&b, initial))) return rc;      // the same values on every rank
 *     struct tensor qkv = tensor_rows(b.p[attn].w, 4 * d * i, 3 * d);
 *
 * Memory is taken from ops and goes with it.
 */
#ifndef MODEL_BANK_H
#define MODEL_BANK_H

#include "model/initial.h"
#include "model/recipe.h"
#include "ops/ops.h"

struct param {
    const struct param_spec *spec;
    struct tensor w, g; /* (matrices*rows, cols) */
    struct fp8_copy fp8; /* of w; no codes where none is kept (banks_keep_fp8) */
    struct tensor w_own, g_own; /* this rank's part; the whole when replicated */
    int64_t units, own_first, own_count; /* of the leading axis: matrices, or rows of one */
    int64_t used; /* units before the padding, which no layer reads: model_init */
    bool fresh; /* the gradient is to be written, not added to */
};

struct banks {
    const struct recipe *recipe;
    struct ops *ops;
    int rank, world;
    struct param p[MAX_PARAMS];
    int n;
};

enum dtype gradient_dtype(const struct recipe *r, const struct param_spec *s);
/* GPT_INPUT naming parameter, units and ranks when a shard would not be whole. */
int banks_init(struct banks *b, const struct recipe *r, struct ops *o, int rank,
               int world) MUST_CHECK;
/* Waits for values that are not drawn yet. */
int banks_fill(struct banks *b, struct initial *v) MUST_CHECK;
/* From now on p has an fp8 copy, which Adam writes with the weight; once, before values are
 * there. Right after banks_fill and, where weights came otherwise, after banks_quantize: on every
 * rank whole, from the whole weight. */
void banks_keep_fp8(struct banks *b, struct param *p, real scale_inv);
void banks_quantize(struct banks *b);
/* Clears gradients for the next step: NorMuon's always, Adam's when adam. Small (replicated)
 * ones are zeroed, large ones marked fresh. */
void banks_clear(struct banks *b, bool adam);
/* At the start of a step: says what clearing left, so that a captured step and an eager one
 * see the same. adam_fresh: Adam's gradients were cleared after the step before. */
void banks_begin(struct banks *b, bool adam_fresh);
/* Rows of a unit. */
static inline int64_t param_unit_rows(const struct param *p) { return p->w.rows / p->units; }
/* This rank's part of the copy. */
static inline struct fp8_copy param_own_fp8(const struct param *p)
{
    struct fp8_copy own = p->fp8;
    own.codes = tensor_rows(own.codes, p->own_first * param_unit_rows(p), p->w_own.rows);
    return own;
}
/* Bytes of a weight, for --plan; of the fp8 copy that the recipe has Adam write, 0 if none. */
int64_t param_bytes(const struct param_spec *s);
int64_t head_fp8_bytes(const struct recipe *r);

#endif
