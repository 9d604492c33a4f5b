/* ops_cases.h - every differentiable op as a case (ops_case.h), on ragged shapes.
 *
 *     for (int i = 0; i < n_families; i++)
 *         for (int j = 0; j < families[i].variants; j++) {
 *             case_make(&c, o, &families[i], j, DT_BF16, seed);
 *             case_load(&c);
 *             c.forward(&c);
 *             c.backward(&c);
 */
#ifndef OPS_CASES_H
#define OPS_CASES_H

#include "ops_case.h"
#include "ops_cases_stream.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof(a)[0]))

/* -- embed, gather and table_grad --------------------------------------------------------- */

struct embed_shape {
    int tokens, width, vocab;
    bool add;
};
static const struct embed_shape embed_shapes[] = {
    { 1, 12, 3, false },
    { 2, 13, 1, true },
    { 13, 24, 7, false },
    { 31, 40, 50, true },
};

static void embed_forward(struct ops_case *c)
{
    c->o->embed(c->o, at(c, "x0"), at(c, "table"), at(c, "gate"), scalar(c, "lambda"), &c->batch);
}
static void embed_backward(struct ops_case *c)
{
    const struct embed_shape *s = c->shape;

    c->o->embed_bwd(c->o, at(c, "de"), at(c, "dgate"), scalar(c, "dlambda"), at(c, "dx0"),
                    at(c, "table"), at(c, "gate"), scalar(c, "lambda"), &c->batch);
    c->o->table_grad(c->o, at(c, "dtable"), at(c, "de"), NO_TENSOR, &c->batch.token, s->add);
}
static void embed_make(struct ops_case *c, int variant)
{
    const struct embed_shape *s = c->shape = &embed_shapes[variant];

    snprintf(c->label, sizeof c->label, "embed T=%d D=%d V=%d add=%d", s->tokens, s->width,
             s->vocab, s->add);
    case_batch(c, s->tokens, s->vocab, DOCS_RAGGED);
    case_weight(c, "table", s->vocab, s->width);
    case_weight(c, "gate", 1, GATE_WIDTH);
    case_scalar(c, "lambda");
    case_output(c, "x0", s->tokens, s->width, "dx0");
    case_saved(c, "de", s->tokens, s->width);
    case_grad(c, "dtable", "table", s->add);
    case_grad(c, "dgate", "gate", true);
    case_grad(c, "dlambda", "lambda", true);
    c->forward = embed_forward;
    c->backward = embed_backward;
}

/* out = table[row]: a table's rows by the batch's tokens. */
static void gather_forward(struct ops_case *c)
{
    c->o->gather(c->o, at(c, "out"), at(c, "table"), &c->batch.token);
}
static void gather_backward(struct ops_case *c)
{
    const struct embed_shape *s = c->shape;
    c->o->table_grad(c->o, at(c, "dtable"), at(c, "dout"), NO_TENSOR, &c->batch.token, s->add);
}
static void gather_make(struct ops_case *c, int variant)
{
    const struct embed_shape *s = c->shape = &embed_shapes[variant];

    snprintf(c->label, sizeof c->label, "gather T=%d D=%d V=%d add=%d", s->tokens, s->width,
             s->vocab, s->add);
    case_batch(c, s->tokens, s->vocab, DOCS_RAGGED);
    case_weight(c, "table", s->vocab, s->width);
    case_output(c, "out", s->tokens, s->width, "dout");
    case_grad(c, "dtable", "table", s->add);
    c->forward = gather_forward;
    c->backward = gather_backward;
}

/* -- skip_gate, out_gate ------------------------------------------------------------------ */

struct gate_shape {
    int tokens, heads, size;
    bool in_place, xsa;
};
static const struct gate_shape gate_shapes[] = {
    { 1, 1, 12, false, false }, { 13, 2, 8, true, false }, { 5, 3, 20, false, false },
    { 11, 3, 8, true, true },   { 1, 2, 12, false, true },
};

static void skip_forward(struct ops_case *c)
{
    c->o->skip_gate(c->o, at(c, "out"), at(c, "x"), at(c, "skip"), at(c, "x0"), at(c, "gate"),
                    scalar(c, "lambda"));
}
static void skip_backward(struct ops_case *c)
{
    c->o->skip_gate_bwd(c->o, at(c, "dskip"), at(c, "dx0"), at(c, "dgate"), scalar(c, "dlambda"),
                        at(c, "dout"), at(c, "skip"), at(c, "x0"), at(c, "gate"),
                        scalar(c, "lambda"));
}
static void skip_make(struct ops_case *c, int variant)
{
    const struct gate_shape *s = c->shape = &gate_shapes[variant];
    int width = s->heads * s->size;

    snprintf(c->label, sizeof c->label, "skip_gate T=%d D=%d", s->tokens, width);
    case_input(c, "x", s->tokens, width);
    case_input(c, "skip", s->tokens, width);
    case_input(c, "x0", s->tokens, width);
    case_weight(c, "gate", 1, GATE_WIDTH);
    case_scalar(c, "lambda");
    case_output(c, "out", s->tokens, width, "dout");
    case_grad_in(c, "dx", "x", "dout");
    case_grad(c, "dskip", "skip", false);
    case_grad(c, "dx0", "x0", true);
    case_grad(c, "dgate", "gate", true);
    case_grad(c, "dlambda", "lambda", true);
    c->forward = skip_forward;
    c->backward = skip_backward;
}

static void out_gate_forward(struct ops_case *c)
{
    const struct gate_shape *s = c->shape;
    struct xsa a = { at(c, "v"), at(c, "alpha"), at(c, "dv"), at(c, "dalpha") };
    c->o->out_gate(c->o, at(c, "out"), at(c, "x"), at(c, "y"), at(c, "gate"), s->heads,
                   s->xsa ? &a : NULL);
}
static void out_gate_backward(struct ops_case *c)
{
    const struct gate_shape *s = c->shape;
    struct xsa a = { at(c, "v"), at(c, "alpha"), at(c, "dv"), at(c, "dalpha") };
    c->o->out_gate_bwd(c->o, at(c, "dx"), at(c, "delta"), at(c, "dgate"), at(c, "dy12"),
                       at(c, "dout"), at(c, "x"), at(c, "y"), at(c, "gate"), s->heads,
                       s->xsa ? &a : NULL);
}
static void out_gate_make(struct ops_case *c, int variant)
{
    const struct gate_shape *s = c->shape = &gate_shapes[variant];
    int width = s->heads * s->size;

    snprintf(c->label, sizeof c->label, "out_gate T=%d H=%d E=%d in_place=%d xsa=%d", s->tokens,
             s->heads, s->size, s->in_place, s->xsa);
    case_input(c, "x", s->tokens, width);
    case_input(c, "y", s->tokens, width);
    case_weight(c, "gate", s->heads, GATE_WIDTH);
    case_output(c, "out", s->tokens, width, "dout");
    if (s->in_place)
        case_grad_in(c, "dx", "x", "dout");
    else
        case_grad(c, "dx", "x", false);
    case_grad(c, "dgate", "gate", true);
    case_grad_cols(c, "dy12", "y", GATE_WIDTH, false);
    case_var(c, VAR_OUTPUT, "delta", DT_REAL, s->heads, s->tokens);
    if (s->xsa) {
        case_input(c, "v", s->tokens, width);
        case_weight(c, "alpha", 1, s->heads);
        case_grad(c, "dv", "v", false);
        case_grad(c, "dalpha", "alpha", true);
    }
    c->forward = out_gate_forward;
    c->backward = out_gate_backward;
}

/* -- token_coefs, pair_signs --------------------------------------------------------------- */

static const int coefs_shapes[][3] = { { 1, 3, 1 }, { 7, 16, 5 }, { 13, 64, 14 } };

static void coefs_forward(struct ops_case *c)
{
    c->o->token_coefs(c->o, at(c, "out"), at(c, "pre"), at(c, "w"), at(c, "b"));
}
static void coefs_backward(struct ops_case *c)
{
    c->o->token_coefs_bwd(c->o, at(c, "dpre"), at(c, "dw"), at(c, "db"), at(c, "dout"),
                          at(c, "pre"), at(c, "w"));
}
static void coefs_make(struct ops_case *c, int variant)
{
    const int *s = coefs_shapes[variant];

    snprintf(c->label, sizeof c->label, "token_coefs T=%d K=%d m=%d", s[0], s[1], s[2]);
    case_values(c, case_var(c, VAR_INPUT, "dout", DT_REAL, s[0], s[2]), 1);
    case_input(c, "pre", s[0], s[1]);
    case_weight(c, "w", s[2], s[1]);
    case_weight(c, "b", 1, s[2]);
    case_var(c, VAR_OUTPUT, "out", DT_REAL, s[0], s[2])->weight = "dout";
    case_grad(c, "dpre", "pre", false);
    case_grad(c, "dw", "w", true);
    case_grad(c, "db", "b", true);
    c->forward = coefs_forward;
    c->backward = coefs_backward;
}

/* The signs are those of what was drawn. */
static void signs_forward(struct ops_case *c)
{
    c->o->copy(c->o, at(c, "out"), at(c, "x"));
    c->o->pair_signs(c->o, at(c, "out"), at(c, "signs"), &c->batch);
}
static void signs_backward(struct ops_case *c)
{
    c->o->copy(c->o, at(c, "dx"), at(c, "dout"));
    c->o->pair_signs(c->o, at(c, "dx"), at(c, "signs"), &c->batch);
}
static void signs_make(struct ops_case *c, int variant)
{
    const struct embed_shape *s = &embed_shapes[variant];

    snprintf(c->label, sizeof c->label, "pair_signs T=%d P=%d R=%d", s->tokens, s->width, s->vocab);
    case_batch(c, s->tokens, s->vocab, DOCS_RAGGED);
    case_input(c, "x", s->tokens, s->width);
    case_weight(c, "signs", s->vocab, s->width);
    struct var *v = case_find(c, "signs");
    for (int64_t i = 0; i < tensor_count(v->t); i++)
        v->value[i] = v->value[i] < 0 ? -1 : 1;
    case_output(c, "out", s->tokens, s->width, "dout");
    case_grad(c, "dx", "x", false);
    c->forward = signs_forward;
    c->backward = signs_backward;
}

/* -- gate_logits -------------------------------------------------------------------------- */

struct logits_shape {
    int tokens, heads, width, more;
    bool add;
};
static const struct logits_shape logits_shapes[] = {
    { 1, 1, 12, 8, false },
    { 13, 12, 17, 8, true },
    { 5, 3, 40, 24, false },
};

static void logits_forward(struct ops_case *c)
{
    c->o->gate_logits(c->o, at(c, "z"), at(c, "y"), at(c, "e"), at(c, "gate"));
}
static void logits_backward(struct ops_case *c)
{
    const struct logits_shape *s = c->shape;
    c->o->gate_logits_bwd(c->o, at(c, "dy12"), s->add, at(c, "de"), at(c, "dgate"), at(c, "dz"),
                          at(c, "y"), at(c, "e"), at(c, "gate"));
}
static void logits_make(struct ops_case *c, int variant)
{
    const struct logits_shape *s = c->shape = &logits_shapes[variant];

    snprintf(c->label, sizeof c->label, "gate_logits T=%d H=%d D=%d n=%d add=%d", s->tokens,
             s->heads, s->width, s->more, s->add);
    case_input(c, "y", s->tokens, s->width);
    case_input(c, "e", s->tokens, s->more);
    case_weight(c, "gate", s->heads, GATE_WIDTH + s->more);
    case_output(c, "z", s->tokens, GATE_LOGITS, "dz");
    case_grad_cols(c, "dy12", "y", GATE_WIDTH, s->add);
    case_grad(c, "de", "e", true);
    case_grad(c, "dgate", "gate", true);
    c->forward = logits_forward;
    c->backward = logits_backward;
}

/* -- linear, linear_t, linear_relu2 ------------------------------------------------------- */

struct linear_shape {
    int tokens, in, out;
    bool scale, residual, add;
};
static const struct linear_shape linear_shapes[] = {
    { 1, 5, 3, false, false, false },
    { 7, 12, 20, true, false, false },
    { 13, 31, 17, true, true, true },
    { 64, 16, 48, false, true, true },
};

static void linear_forward(struct ops_case *c)
{
    c->o->linear(c->o, at(c, "y"), at(c, "x"), at(c, "w"), scalar(c, "scale"), at(c, "residual"));
}
static void linear_backward(struct ops_case *c)
{
    const struct linear_shape *s = c->shape;

    c->o->linear_bwd_x(c->o, at(c, "dx"), at(c, "dy"), at(c, "w"), scalar(c, "scale"), s->add);
    c->o->linear_bwd_w(c->o, at(c, "dw"), scalar(c, "dscale"), at(c, "dy"), at(c, "x"), at(c, "w"),
                       scalar(c, "scale"), s->add);
}
static void linear_make(struct ops_case *c, int variant)
{
    const struct linear_shape *s = c->shape = &linear_shapes[variant];

    snprintf(c->label, sizeof c->label, "linear T=%d I=%d O=%d scale=%d residual=%d add=%d",
             s->tokens, s->in, s->out, s->scale, s->residual, s->add);
    case_input(c, "x", s->tokens, s->in);
    case_weight(c, "w", s->out, s->in);
    if (s->scale)
        case_scalar(c, "scale");
    if (s->residual)
        case_input(c, "residual", s->tokens, s->out);
    case_output(c, "y", s->tokens, s->out, "dy");
    if (s->residual)
        case_grad_in(c, "dresidual", "residual", "dy");
    case_grad(c, "dx", "x", s->add);
    case_grad(c, "dw", "w", s->add);
    if (s->scale)
        case_grad(c, "dscale", "scale", true);
    c->forward = linear_forward;
    c->backward = linear_backward;
}

/* The MLP: out = relu(x w1^T)^2 w2 + residual. In place: dpre over post. */
struct mlp_shape {
    int tokens, width, hidden;
    bool residual, in_place, add, scale;
};
static const struct mlp_shape mlp_shapes[] = {
    { 1, 3, 5, false, false, false, false },
    { 13, 12, 31, true, false, true, true },
    { 32, 16, 64, true, true, false, false },
    { 7, 9, 24, false, true, false, true },
};

static void mlp_forward(struct ops_case *c)
{
    c->o->linear_relu2(c->o, at(c, "post"), at(c, "x"), at(c, "w1"));
    c->o->linear_t(c->o, at(c, "out"), at(c, "post"), at(c, "w2"), scalar(c, "scale"),
                   at(c, "residual"));
}
static void mlp_backward(struct ops_case *c)
{
    const struct mlp_shape *s = c->shape;
    struct tensor post = at(c, "post"), dpre = at(c, s->in_place ? "post" : "dpre");

    c->o->linear_t_bwd_w(c->o, at(c, "dw2"), scalar(c, "dscale"), at(c, "dout"), post, at(c, "w2"),
                         scalar(c, "scale"), s->add);
    c->o->linear_relu2_bwd(c->o, dpre, at(c, "dout"), at(c, "w2"), scalar(c, "scale"), post);
    c->o->linear_bwd_w(c->o, at(c, "dw1"), NULL, dpre, at(c, "x"), at(c, "w1"), NULL, s->add);
    c->o->linear_bwd_x(c->o, at(c, "dx"), dpre, at(c, "w1"), NULL, s->add);
}
static void mlp_make(struct ops_case *c, int variant)
{
    const struct mlp_shape *s = c->shape = &mlp_shapes[variant];

    snprintf(c->label, sizeof c->label,
             "mlp T=%d D=%d F=%d residual=%d in_place=%d add=%d scale=%d", s->tokens, s->width,
             s->hidden, s->residual, s->in_place, s->add, s->scale);
    case_input(c, "x", s->tokens, s->width);
    case_weight(c, "w1", s->hidden, s->width);
    case_weight(c, "w2", s->hidden, s->width);
    if (s->scale)
        case_scalar(c, "scale");
    if (s->residual)
        case_input(c, "residual", s->tokens, s->width);
    case_saved(c, "post", s->tokens, s->hidden);
    case_output(c, "out", s->tokens, s->width, "dout");
    if (s->residual)
        case_grad_in(c, "dresidual", "residual", "dout");
    if (!s->in_place)
        case_saved(c, "dpre", s->tokens, s->hidden);
    case_grad(c, "dx", "x", s->add);
    case_grad(c, "dw1", "w1", s->add);
    case_grad(c, "dw2", "w2", s->add);
    if (s->scale)
        case_grad(c, "dscale", "scale", true);
    c->forward = mlp_forward;
    c->backward = mlp_backward;
}

/* -- qkv and attention -------------------------------------------------------------------- */

struct attend_case {
    int tokens, vocab, window; /* vocab 0: no table */
    struct qkv_shape s;
    enum docs docs;
    float scale;
    enum values_grad values;
    bool add; /* to dw and dtable */
};
static const struct attend_case attend_cases[] = {
    { 1,
      0,
      16,
      { 1, 16, false, KEY_OFFSET_QUARTERS, false, NULL },
      DOCS_ONE,
      0.5f,
      VALUES_JOINED,
      false },
    { 1, 3, 4, { 2, 8, true, KEY_OFFSET_NONE, false, NULL }, DOCS_ONE, 0.5f, VALUES_APART, false },
    { 2,
      5,
      1,
      { 3, 8, false, KEY_OFFSET_QUARTERS, false, NULL },
      DOCS_ONE,
      1.0f,
      VALUES_ADDED,
      true },
    { 13,
      0,
      100,
      { 2, 8, false, KEY_OFFSET_NONE, false, NULL },
      DOCS_ONE,
      0.4f,
      VALUES_ADDED,
      false },
    { 13,
      7,
      3,
      { 4, 16, true, KEY_OFFSET_NONE, false, NULL },
      DOCS_RAGGED,
      0.3f,
      VALUES_JOINED,
      true },
    { 17,
      29,
      5,
      { 3, 12, false, KEY_OFFSET_QUARTERS, false, NULL },
      DOCS_UNITS,
      0.3f,
      VALUES_JOINED,
      false },
    { 7,
      4,
      7,
      { 2, 16, true, KEY_OFFSET_QUARTERS, false, NULL },
      DOCS_ONE,
      0.5f,
      VALUES_ADDED,
      false },
    { 31,
      11,
      3,
      { 6, 4, false, KEY_OFFSET_NONE, false, NULL },
      DOCS_RAGGED,
      1.0f,
      VALUES_JOINED,
      false },
    { 1,
      2,
      0,
      { 1, 16, false, KEY_OFFSET_HALF, true, NULL },
      DOCS_ONE,
      0.5f,
      VALUES_JOINED,
      false },
    { 13, 7, 9, { 3, 8, false, KEY_OFFSET_HALF, true, NULL }, DOCS_ONE, 0.5f, VALUES_APART, true },
    { 7,
      4,
      33,
      { 2, 16, true, KEY_OFFSET_HALF, true, NULL },
      DOCS_ONE,
      0.7f,
      VALUES_JOINED,
      false },
    { 17,
      0,
      20,
      { 2, 8, false, KEY_OFFSET_HALF, false, NULL },
      DOCS_MIXED,
      0.4f,
      VALUES_JOINED,
      false },
    { 150,
      0,
      20,
      { 2, 8, false, KEY_OFFSET_QUARTERS, false, NULL },
      DOCS_MIXED,
      0.5f,
      VALUES_JOINED,
      false },
    { 149,
      0,
      70,
      { 1, 16, false, KEY_OFFSET_NONE, false, NULL },
      DOCS_ONE,
      0.3f,
      VALUES_APART,
      false },
    { 90,
      0,
      33,
      { 4, 4, true, KEY_OFFSET_NONE, false, NULL },
      DOCS_MIXED,
      0.7f,
      VALUES_ADDED,
      false },
    { 19,
      0,
      0,
      { 2, 8, true, KEY_OFFSET_NONE, false, NULL },
      DOCS_ONE,
      0.5f,
      VALUES_JOINED,
      false },
};

static struct attn_shape attn_shape_of(struct ops_case *c)
{
    const struct attend_case *s = c->shape;
    int pair = s->s.paired ? 2 : 1;
    return (struct attn_shape){
        .rows = s->tokens * pair,
        .heads = s->s.heads / pair,
        .head_dim = s->s.head_dim,
        .cu = c->batch.cu,
        .ncu = c->batch.ncu,
        .cu_mul = pair,
        .window = s->window,
        .scale = s->scale,
    };
}
static struct qk_made qk_made_of(struct ops_case *c)
{
    const struct attend_case *s = c->shape;
    return (struct qk_made){ s->s, { at(c, "rope") }, at(c, "factor") };
}
static void attend_forward(struct ops_case *c)
{
    struct attn_shape s = attn_shape_of(c);
    struct qk_made m = qk_made_of(c);

    c->o->zero(c->o,
               at(c, "k")); /* of its row behind the last token only some channels are written */
    c->o->qkv(c->o, at(c, "q"), at(c, "k"), at(c, "v"), m.factor, at(c, "dqkv"), at(c, "x"),
              at(c, "w"), scalar(c, "scale"), &m.shape, m.rope, at(c, "y"), at(c, "gate"),
              at(c, "table"), &c->batch);
    c->o->attention(c->o, at(c, "out"), at(c, "lse"), at(c, "q"), at(c, "k"), at(c, "v"), &s);
}
/* delta (h,R) = sums over a head's channels of x y. */
static void sum_heads(const struct attn_shape *s, struct tensor delta, struct tensor x,
                      struct tensor y)
{
    for (int64_t i = 0; i < tensor_count(delta); i++) {
        int64_t from = (i % s->rows * s->heads + i / s->rows) * s->head_dim;
        real *sum = (real *)delta.data + i;
        *sum = 0;
        for (int j = 0; j < s->head_dim; j++)
            *sum += ((real *)x.data)[from + j] * ((real *)y.data)[from + j];
    }
}
static void attend_backward(struct ops_case *c)
{
    const struct attend_case *w = c->shape;
    struct attn_shape s = attn_shape_of(c);
    struct qk_made m = qk_made_of(c);
    struct tensor dqkv = at(c, "dqkv"), rows = at(c, "dtable_rows"), dv = at(c, "dv_sum");

    sum_heads(&s, at(c, "delta"), at(c, "dout"), at(c, "out"));
    if (w->values == VALUES_ADDED)
        c->o->copy(c->o, dv, at(c, "dv"));
    c->o->attention_bwd(c->o, dqkv, at(c, "dq"), at(c, "dk"), dv, w->values, at(c, "dout"),
                        at(c, "q"), at(c, "k"), at(c, "v"), at(c, "lse"), at(c, "delta"), &s, &m);
    c->o->value_bwd(c->o, dqkv, rows, at(c, "dgate"), at(c, "dy12"),
                    w->values == VALUES_JOINED ? NO_TENSOR : dv, &m.shape, at(c, "y"),
                    at(c, "gate"), at(c, "table"), &c->batch);
    if (w->vocab)
        c->o->table_grad(c->o, at(c, "dtable"), rows, NO_TENSOR, &c->batch.token, w->add);
    c->o->linear_bwd_w(c->o, at(c, "dw"), scalar(c, "dscale"), dqkv, at(c, "x"), at(c, "w"),
                       scalar(c, "scale"), w->add);
    c->o->linear_bwd_x(c->o, at(c, "dx"), dqkv, at(c, "w"), scalar(c, "scale"), false);
}
/* Cosines and sines times up to 1.3: turning back undoes the length as well, in which rounding leaves
 * 2^-9 of the real ones. */
static void case_rope(struct ops_case *c, int64_t rows, int64_t cols)
{
    struct var *v = case_var(c, VAR_INPUT, "rope", c->weights, rows, cols);

    case_values(c, v, 1);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j += 2) {
            double *cosine = v->value + i * cols + j, *sine = cosine + 1;
            double angle = 3 * *cosine, length = 1 + 0.3 * *sine;
            *cosine = bf16_round((float)(length * cos(angle)));
            *sine = bf16_round((float)(length * sin(angle)));
        }
}
static void attend_make(struct ops_case *c, int variant)
{
    const struct attend_case *s = c->shape = &attend_cases[variant];
    int H = s->s.heads, width = H * s->s.head_dim, T = s->tokens;
    int y_width = width > GATE_WIDTH ? width : GATE_WIDTH;
    struct attn_shape a;

    snprintf(c->label, sizeof c->label,
             "attend T=%d H=%d E=%d paired=%d key_offset=%d split=%d V=%d window=%d docs=%d "
             "values=%d",
             T, H, s->s.head_dim, s->s.paired, s->s.key_offset, s->s.split_gate, s->vocab,
             s->window, s->docs, s->values);
    case_batch(c, T, s->vocab ? s->vocab : 1, s->docs);
    a = attn_shape_of(c);
    case_input(c, "x", T, width);
    case_weight(c, "w", 3 * width, width);
    case_scalar(c, "scale");
    case_input(c, "y", T, y_width);
    case_rope(c, s->s.paired ? 2 * T : T, s->s.head_dim / 2);
    case_saved(c, "q", T, width);
    case_saved(c, "k", T + (s->s.key_offset != KEY_OFFSET_NONE), width);
    if (s->values == VALUES_ADDED)
        case_output(c, "v", T, width, "dv");
    else
        case_saved(c, "v", T, width);
    case_var(c, VAR_OUTPUT, "factor", DT_REAL, 2 * H, T);
    case_saved(c, "dqkv", T, 3 * width);
    case_scratch(c, "dq", T, width);
    case_scratch(c, "dk", T, width);
    case_scratch(c, "dv_sum", T, width);
    case_output(c, "out", T, width, "dout");
    case_var(c, VAR_OUTPUT, "lse", DT_REAL, a.heads, a.rows);
    case_var(c, VAR_OUTPUT, "delta", DT_REAL, a.heads, a.rows);
    case_grad(c, "dx", "x", false);
    case_grad(c, "dw", "w", s->add);
    case_grad(c, "dscale", "scale", true);
    if (s->vocab) {
        case_weight(c, "gate", H, GATE_WIDTH);
        case_weight(c, "table", s->vocab, width);
        case_saved(c, "dtable_rows", T, width);
        case_grad(c, "dgate", "gate", true);
        case_grad(c, "dtable", "table", s->add);
        case_grad_cols(c, "dy12", "y", GATE_WIDTH, true);
    }
    c->forward = attend_forward;
    c->backward = attend_backward;
}

/* -- head --------------------------------------------------------------------------------- */

struct head_case {
    int tokens, width, vocab, n_mtp;
    bool add, prefix;
};
static const struct head_case head_cases[] = {
    { 1, 3, 5, 3, false, false },  { 2, 4, 2, 3, true, false },    { 13, 8, 31, 1, true, false },
    { 31, 5, 7, 2, false, false }, { 17, 6, 600, 3, true, false }, { 263, 4, 37, 3, false, false },
    { 1, 3, 5, 3, false, true },   { 13, 8, 31, 1, true, true },   { 263, 4, 600, 3, false, true },
};

static void head_forward(struct ops_case *c)
{
    const struct head_case *s = c->shape;
    struct head_loss h = {
        .tgt = c->batch.tgt,
        .mtp = scalar(c, "mtp"),
        .n_mtp = s->n_mtp,
        .seed = (real)case_find(c, "seed")->value[0],
        .cap_a = 23,
        .cap_b = 5,
        .cap_c = 7.5f,
        .prefix = s->prefix ? c->prefix : NULL,
    };
    c->o->head_loss(c->o, scalar(c, "loss"), at(c, "dx"), at(c, "dw"), s->add, at(c, "x"),
                    at(c, "w"), &h);
}
static void head_backward(struct ops_case *c) { (void)c; } /* forward did both */
static void head_make(struct ops_case *c, int variant)
{
    const struct head_case *s = c->shape = &head_cases[variant];
    struct var *v;

    snprintf(c->label, sizeof c->label, "head_loss T=%d D=%d V=%d n_mtp=%d add=%d prefix=%d",
             s->tokens, s->width, s->vocab, s->n_mtp, s->add, s->prefix);
    case_batch(c, s->tokens, s->vocab < CASE_DOCS ? s->vocab : CASE_DOCS - 1, DOCS_ONE);
    case_input(c, "x", s->tokens, s->width);
    case_weight(c, "w", s->width, s->vocab);
    v = case_var(c, VAR_INPUT, "mtp", DT_REAL, 1, s->n_mtp + 1);
    case_values(c, v, 1);
    for (int k = 0; k <= s->n_mtp; k++)
        v->value[k] = 1.0 / (1 << k);
    for (int k = 0; k < s->vocab; k++)
        c->prefix[k] = k % 3 ? k / 2 : -1; /* one that some classes have */
    case_scalar(c, "seed");
    v = case_var(c, VAR_OUTPUT, "loss", DT_REAL, 1, 1);
    case_values(c, v, 1); /* the op adds to it */
    v->weight = "seed";
    case_grad(c, "dx", "x", false);
    case_grad(c, "dw", "w", s->add);
    c->forward = head_forward;
    c->backward = head_backward;
}

/* -- all ---------------------------------------------------------------------------------- */

struct family {
    void (*make)(struct ops_case *c, int variant);
    int variants;
};
static const struct family families[] = {
    { embed_make, COUNT(embed_shapes) },   { gather_make, COUNT(embed_shapes) },
    { mix_make, COUNT(mix_shapes) },       { lanes_make, COUNT(lanes_shapes) },
    { inject_make, COUNT(inject_shapes) }, { skip_make, COUNT(gate_shapes) },
    { out_gate_make, COUNT(gate_shapes) }, { linear_make, COUNT(linear_shapes) },
    { mlp_make, COUNT(mlp_shapes) },       { attend_make, COUNT(attend_cases) },
    { head_make, COUNT(head_cases) },      { coefs_make, COUNT(coefs_shapes) },
    { signs_make, COUNT(embed_shapes) },   { logits_make, COUNT(logits_shapes) },
};
enum { n_families = COUNT(families) };

/* The device is the case's from here on: case_release frees it. */
static inline void case_make(struct ops_case *c, struct ops *o, int family, int variant,
                             enum dtype weights, uint64_t seed)
{
    memset(c, 0, sizeof *c);
    c->o = o;
    c->weights = weights;
    c->rng = rng_make(seed, (uint64_t)(family * 100 + variant));
    families[family].make(c, variant);
}

#endif
