/* model.h - the network: what it keeps, and the flattened forward and backward.
 *
 * forward.c and backward.c are the model as one reads it in record-61.md 2 and
 * 3: a list of ops over the buffers below, with the layer map, banks and
 * learnable scalars of the recipe.
 *
 *     struct model m;
 *     if ((rc = model_init(&m, &banks, tokens_max, val_tokens_max))) return rc;
 *     for each step:
 *         model_set(&m, &point);                // windows, MTP weights, rotary tables
 *         for each micro-batch:
 *             model_train(&m, &batch, loss);    // loss[0] += sum of token losses; gradients
 *     model_eval(&m, &batch, loss);             // loss[0] += sum of token losses
 *
 * All activations live in one arena taken by model_init; a buffer's place
 * depends on the number of tokens alone, so a captured graph stays valid.
 * model_set uploads; model_train and model_eval only queue ops.
 * Threads: one model belongs to one rank's thread.
 */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H

#include "model/bank.h"
#include "model/schedule.h"

struct scalar { const real *value; real *grad; };

/* What the backward needs of a layer's forward. */
struct layer_acts {
    struct tensor in;           /* (T,D) residual stream before the mix; layer i's output is in of i+1 */
    struct tensor mixed;        /* (T,D) after it */
    struct tensor y;            /* (T,D) its norm: input of attention and of the gates */
    struct tensor qkv;          /* (T,3D) raw */
    struct tensor q, k, v;      /* (T,D) as attention sees them */
    struct tensor out, lse;     /* (T,D), (H,T) attention's result */
    struct tensor gated;        /* (T,D) after the output gate */
    struct tensor attended;     /* (T,D) residual stream after attention */
    struct tensor y2;           /* (T,D) its norm: input of the MLP */
    struct tensor post;         /* (T,F) after ReLU^2; in backward, the gradient before it */
    /* Gradients, in the place of what is done with by then: post; q, k, v. */
    struct tensor dq, dk, dv;   /* (T,D) */
    struct tensor drows;        /* (T,D) of the value-embedding rows */
    struct tensor dqkv;         /* (T,3D) */
};

/* Buffers that live within one forward and backward. */
struct acts {
    int tokens;
    struct layer_acts layer[MAX_LAYERS + 1];    /* the last holds only `in`: the output */
    struct tensor x0, z, y;     /* (T,D): input, head's input before and after its norm */
    struct tensor dx, dy, dx0, dskip, dbackout;             /* (T,D) */
    struct tensor dy12;                                     /* (T,12) */
};

/* Parameters and scalars by role; -1 where the recipe has none. */
struct model_params {
    struct param *attn, *mlp, *lm_head, *embed;
    struct param *smear_gate, *skip_gate, *attn_gate, *value_gate;
    struct scalar smear, backout, skip;
    struct scalar residual[MAX_LAYERS], x0[MAX_LAYERS], qkv[MAX_LAYERS], out[MAX_LAYERS];
};

struct model {
    const struct recipe *recipe;
    struct banks *banks;
    struct ops *ops;
    struct model_params p;
    void *arena;
    size_t arena_bytes;
    struct rope rope;
    real *mtp;                  /* device: MTP weights of the step */
    struct point point;
    double attn_scale;
    int rope_step;              /* step whose YaRN state the table holds; -1: none */
    /* Called in backward when n rows of a parameter's gradient are final for this micro-batch: a
     * bank's a layer at a time, others whole. May be NULL, like need. */
    void (*final)(void *ctx, struct param *p, int64_t first, int64_t n);
    /* Called in forward before the weight of p is read, where p may be gathered late: attn, mlp,
     * lm_head, embed and the tables of value embeddings. */
    void (*need)(void *ctx, struct param *p);
    void *ctx;
};

int model_init(struct model *m, struct banks *b, int tokens, int val_tokens) MUST_CHECK;
/* Before the first micro-batch of a step, and before a validation. */
void model_set(struct model *m, const struct point *p);
void model_train(struct model *m, const struct batch *b, real *loss);
void model_eval(struct model *m, const struct batch *b, real *loss);

/* Bytes of the arena for --plan; the same code that model_init uses. */
size_t model_arena_bytes(const struct recipe *r, enum dtype act, int tokens, int val_tokens);

/* -- for forward.c and backward.c ------------------------------------------ */
static inline void model_need(struct model *m, struct param *p)
{
    if (m->need)
        m->need(m->ctx, p);
}
void model_acts(const struct model *m, struct acts *a, int tokens, bool train);
struct tensor bank_rows(struct tensor bank, int64_t rows_each, int first, int n);
void model_forward(struct model *m, struct acts *a, const struct batch *b);
void model_backward(struct model *m, struct acts *a, const struct batch *b);
struct head_loss model_head(const struct model *m, const struct batch *b);
void layer_shapes(const struct model *m, int i, const struct batch *b, struct qkv_shape *q,
                  struct attn_shape *s);

#endif
