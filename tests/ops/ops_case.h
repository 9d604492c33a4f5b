/* ops_case.h - an op, forward and backward, on named tensors of a device.
 *
 * A case names its inputs, outputs and gradients and says how to call the op;
 * the same case serves finite differences (ops_fd_test), f32 against f64
 * (ops_test), and one device against another.
 *
 *     static void linear_forward(struct ops_case *c)
 *     {
 *         c->o->linear(c->o, at(c, "y"), at(c, "x"), at(c, "w"), scalar(c, "scale"), NO_TENSOR);
 *     }
 *     ...
 *     case_input(c, "x", T, I);                  // drawn at random
 *     case_weight(c, "w", O, I);
 *     case_output(c, "y", T, O, "dy");           // loss = sum y dy, dy drawn
 *     case_grad(c, "dw", "w", true);             // added to what is there
 *     c->forward = linear_forward; c->backward = linear_backward;
 *
 * A name that the case does not have is NO_TENSOR or NULL: so optional
 * arguments need no code. Outputs and gradients hold NaN before each run.
 * Values drawn for tensors are bf16 numbers, exact in every float type.
 */
#ifndef OPS_CASE_H
#define OPS_CASE_H

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include "base/rng.h"
#include "ops/ops.h"

enum { CASE_VARS = 32, CASE_DOCS = 400, CASE_CLASSES = 600 };
enum var_kind { VAR_INPUT, VAR_OUTPUT, VAR_GRAD, VAR_SCRATCH };

struct var {
    enum var_kind kind;
    const char *name;
    struct tensor t;
    double *value; /* what the device memory holds before a run; NULL: NaN */
    const char *weight; /* of an output: the input that weighs it in the loss, if any */
    const char *weight_left; /* and one that weighs its first columns besides */
    const char *of; /* of a gradient: the input */
};

struct ops_case {
    struct ops *o;
    enum dtype weights; /* element type of weights and their gradients */
    struct rng rng;
    uint64_t draws;
    char label[160];
    struct var var[CASE_VARS];
    int n_vars;
    struct batch batch;
    int32_t tok[CASE_DOCS], tgt[CASE_DOCS], cu[CASE_DOCS], prefix[CASE_CLASSES];
    void (*forward)(struct ops_case *c);
    void (*backward)(struct ops_case *c);
    const void *shape; /* the family's row of its table of variants */
};

/* -- tensors by name ---------------------------------------------------------------------- */

static inline struct var *case_find(struct ops_case *c, const char *name)
{
    for (int i = 0; i < c->n_vars; i++)
        if (!strcmp(c->var[i].name, name))
            return &c->var[i];
    return NULL;
}
static inline struct tensor at(struct ops_case *c, const char *name)
{
    struct var *v = case_find(c, name);
    return v ? v->t : NO_TENSOR;
}
static inline real *scalar(struct ops_case *c, const char *name) { return at(c, name).data; }

static inline double case_draw(struct ops_case *c) /* in [-1, 1) */
{
    return 2.0 * rng_uniform(&c->rng, c->draws++) - 1.0;
}

static inline struct var *case_var(struct ops_case *c, enum var_kind kind, const char *name,
                                   enum dtype dtype, int64_t rows, int64_t cols)
{
    struct var *v = &c->var[c->n_vars];
    size_t bytes = (size_t)(rows * cols) * dtype_size(dtype);

    assert(c->n_vars < CASE_VARS && !case_find(c, name));
    c->n_vars++;
    *v = (struct var){ .kind = kind, .name = name };
    v->t = tensor_of(c->o->alloc(c->o, bytes, name), dtype, rows, cols);
    return v;
}

static inline void case_values(struct ops_case *c, struct var *v, double size)
{
    int64_t n = tensor_count(v->t);

    v->value = malloc((size_t)n * sizeof *v->value);
    for (int64_t i = 0; i < n; i++)
        v->value[i] = bf16_round((float)(size * case_draw(c)));
}

static inline struct tensor case_input(struct ops_case *c, const char *name, int64_t rows,
                                       int64_t cols)
{
    struct var *v = case_var(c, VAR_INPUT, name, c->o->act, rows, cols);
    case_values(c, v, 1);
    return v->t;
}
static inline void case_weight(struct ops_case *c, const char *name, int64_t rows, int64_t cols)
{
    case_values(c, case_var(c, VAR_INPUT, name, c->weights, rows, cols), 1);
}
static inline void case_scalar(struct ops_case *c, const char *name)
{
    case_values(c, case_var(c, VAR_INPUT, name, DT_REAL, 1, 1), 1);
}
/* Saved by forward for backward; not part of the loss. */
static inline void case_saved(struct ops_case *c, const char *name, int64_t rows, int64_t cols)
{
    case_var(c, VAR_OUTPUT, name, c->o->act, rows, cols);
}
/* Memory of the op's own; what it holds is no result. */
static inline void case_scratch(struct ops_case *c, const char *name, int64_t rows, int64_t cols)
{
    case_var(c, VAR_SCRATCH, name, c->o->act, rows, cols);
}
static inline bool case_is_result(const struct var *v)
{
    return v->kind == VAR_OUTPUT || v->kind == VAR_GRAD;
}
static inline void case_output(struct ops_case *c, const char *name, int64_t rows, int64_t cols,
                               const char *weight)
{
    case_var(c, VAR_OUTPUT, name, c->o->act, rows, cols)->weight = weight;
    if (!case_find(c, weight))
        case_input(c, weight, rows, cols);
}
/* Gradient of input `of`, in its type and shape; with `add`, on top of random numbers. */
static inline void case_grad(struct ops_case *c, const char *name, const char *of, bool add)
{
    struct tensor t = at(c, of);
    struct var *v = case_var(c, VAR_GRAD, name, t.dtype, t.rows, t.cols);
    v->of = of;
    if (add)
        case_values(c, v, 1);
}
/* The same in memory of another tensor, which the op may overwrite; written, not added to. */
static inline void case_grad_in(struct ops_case *c, const char *name, const char *of,
                                const char *memory)
{
    struct var *v = &c->var[c->n_vars++];
    assert(c->n_vars <= CASE_VARS);
    *v = (struct var){ .kind = VAR_GRAD, .name = name, .t = at(c, memory), .of = of };
}
/* Gradient of the first `cols` columns only. */
static inline void case_grad_cols(struct ops_case *c, const char *name, const char *of,
                                  int64_t cols, bool add)
{
    struct tensor t = at(c, of);
    struct var *v = case_var(c, VAR_GRAD, name, t.dtype, t.rows, cols);
    v->of = of;
    if (add)
        case_values(c, v, 1);
}

/* -- between host and device -------------------------------------------------------------- */

static inline void case_upload(struct ops_case *c, struct tensor t, const double *value)
{
    int64_t n = tensor_count(t);
    unsigned char *raw = malloc(tensor_bytes(t));

    for (int64_t i = 0; i < n; i++) {
        if (t.dtype == DT_F64)
            ((double *)raw)[i] = value[i];
        else if (t.dtype == DT_F32)
            ((float *)raw)[i] = (float)value[i];
        else
            ((uint16_t *)raw)[i] = bf16_from_f32((float)value[i]);
    }
    c->o->upload(c->o, t.data, raw, tensor_bytes(t));
    free(raw);
}

/* The caller frees. */
static inline double *case_download(struct ops_case *c, struct tensor t)
{
    int64_t n = tensor_count(t);
    unsigned char *raw = malloc(tensor_bytes(t));
    double *value = malloc((size_t)n * sizeof *value);

    memset(raw, 0xff, tensor_bytes(t)); /* NaN, should the device have failed */
    c->o->download(c->o, raw, t.data, tensor_bytes(t));
    for (int64_t i = 0; i < n; i++) {
        if (t.dtype == DT_F64)
            value[i] = ((double *)raw)[i];
        else if (t.dtype == DT_F32)
            value[i] = ((float *)raw)[i];
        else
            value[i] = bf16_to_f32(((uint16_t *)raw)[i]);
    }
    free(raw);
    return value;
}

static inline bool case_is_input(struct ops_case *c, const void *memory)
{
    for (int i = 0; i < c->n_vars; i++)
        if (c->var[i].kind == VAR_INPUT && c->var[i].t.data == memory)
            return true;
    return false;
}

/* Inputs and prefilled gradients as drawn; all else NaN. */
static inline void case_load(struct ops_case *c)
{
    for (int i = 0; i < c->n_vars; i++) {
        struct var *v = &c->var[i];
        if (v->value) {
            case_upload(c, v->t, v->value);
        } else if (!case_is_input(c, v->t.data)) {
            unsigned char *raw = malloc(tensor_bytes(v->t));
            memset(raw, 0xff, tensor_bytes(v->t));
            c->o->upload(c->o, v->t.data, raw, tensor_bytes(v->t));
            free(raw);
        }
    }
}

static inline double case_weighed(const double *y, int64_t cols, const struct var *w)
{
    double sum = 0;

    for (int64_t i = 0; i < w->t.rows; i++)
        for (int64_t j = 0; j < w->t.cols; j++)
            sum += y[i * cols + j] * w->value[i * w->t.cols + j];
    return sum;
}

/* sum over outputs of output times weight; the device holds the result of forward. */
static inline double case_loss(struct ops_case *c)
{
    double loss = 0;

    for (int i = 0; i < c->n_vars; i++) {
        struct var *v = &c->var[i];
        double *y = v->weight ? case_download(c, v->t) : NULL;
        if (v->weight)
            loss += case_weighed(y, v->t.cols, case_find(c, v->weight));
        if (v->weight_left)
            loss += case_weighed(y, v->t.cols, case_find(c, v->weight_left));
        free(y);
    }
    return loss;
}

static inline void case_release(struct ops_case *c)
{
    for (int i = 0; i < c->n_vars; i++)
        free(c->var[i].value);
    c->o->free(c->o);
}

/* -- a micro-batch ------------------------------------------------------------------------ */

enum docs {
    DOCS_ONE, /* one document */
    DOCS_UNITS, /* every token a document */
    DOCS_RAGGED, /* lengths 1 to 7 and empty ones, as a loader gives for a cut last piece */
    DOCS_MIXED, /* lengths 1 to 40 */
};

static inline void case_documents(struct ops_case *c, int tokens, enum docs docs)
{
    int n = 0, end = 0;

    c->cu[n++] = 0;
    while (end < tokens) {
        int length = docs == DOCS_ONE ? tokens
                     : docs == DOCS_UNITS
                         ? 1
                         : (int)rng_below(&c->rng, c->draws++, docs == DOCS_RAGGED ? 8 : 41);
        end = end + length < tokens ? end + length : tokens;
        if (length || (n > 0 && docs == DOCS_RAGGED))
            c->cu[n++] = end;
        assert(n < CASE_DOCS - 3);
    }
    for (int pad = 0; pad < 3; pad++)
        c->cu[n++] = tokens;
    c->batch.ncu = n;
}

static inline const int32_t *case_ints(struct ops_case *c, const int32_t *v, int64_t n)
{
    int32_t *d = c->o->alloc(c->o, (size_t)n * sizeof *d, "integers");
    c->o->upload(c->o, d, v, (size_t)n * sizeof *d);
    return d;
}

/* Tokens below `vocab`, few enough to repeat, sorted as struct batch wants them. */
static inline void case_batch(struct ops_case *c, int tokens, int vocab, enum docs docs)
{
    int32_t order[CASE_DOCS], start[CASE_DOCS + 1] = { 0 }, at = 0;

    assert(tokens < CASE_DOCS && vocab < CASE_DOCS);
    for (int t = 0; t < tokens; t++) {
        c->tok[t] = (int32_t)rng_below(&c->rng, c->draws++, (uint64_t)vocab);
        c->tgt[t] = (int32_t)rng_below(&c->rng, c->draws++, (uint64_t)vocab);
    }
    for (int v = 0; v < vocab; v++) {
        start[v] = at;
        for (int t = 0; t < tokens; t++)
            if (c->tok[t] == v)
                order[at++] = t;
    }
    start[vocab] = at;
    case_documents(c, tokens, docs);
    c->batch.tokens = tokens;
    c->batch.tgt = case_ints(c, c->tgt, tokens);
    c->batch.cu = case_ints(c, c->cu, c->batch.ncu);
    c->batch.token = (struct lookup){ tokens, case_ints(c, c->tok, tokens),
                                      case_ints(c, order, tokens), case_ints(c, start, vocab + 1) };
}

#endif
