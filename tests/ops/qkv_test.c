/* qkv_test.c - qkv, with attention and the gates of values: cases; rotary positions, turns and key offsets by hand. */
#include "hand_tensors.h"
#include "op_test.h"

struct attend_case {
    int tokens, vocab, window; /* vocab 0: no table */
    struct qkv_shape s;
    enum docs docs;
    float scale;
    enum values_grad values;
    bool add; /* to dw and dtable */
    int turned; /* channels of a head of q and k; 0: half */
};

static int qk_width(const struct attend_case *s) { return s->s.heads * qkv_qk_dim(&s->s); }

static const struct attend_case attend_cases[] = {
    { 1,
      0,
      16,
      { 1, 16, false, KEY_OFFSET_QUARTERS, false, NULL, NULL, 0, NULL },
      DOCS_ONE,
      0.5f,
      VALUES_JOINED,
      false,
      0 },
    { 1,
      3,
      4,
      { 2, 8, true, KEY_OFFSET_NONE, false, NULL, NULL, 0, NULL },
      DOCS_ONE,
      0.5f,
      VALUES_APART,
      false,
      0 },
    { 2,
      5,
      1,
      { 3, 8, false, KEY_OFFSET_QUARTERS, false, NULL, NULL, 0, NULL },
      DOCS_ONE,
      1.0f,
      VALUES_ADDED,
      true,
      0 },
    { 13,
      0,
      100,
      { 2, 8, false, KEY_OFFSET_NONE, false, NULL, NULL, 0, NULL },
      DOCS_ONE,
      0.4f,
      VALUES_ADDED,
      false,
      0 },
    { 13,
      7,
      3,
      { 4, 16, true, KEY_OFFSET_NONE, false, NULL, NULL, 0, NULL },
      DOCS_RAGGED,
      0.3f,
      VALUES_JOINED,
      true,
      0 },
    { 17,
      29,
      5,
      { 3, 12, false, KEY_OFFSET_QUARTERS, false, NULL, NULL, 0, NULL },
      DOCS_UNITS,
      0.3f,
      VALUES_JOINED,
      false,
      0 },
    { 7,
      4,
      7,
      { 2, 16, true, KEY_OFFSET_QUARTERS, false, NULL, NULL, 0, NULL },
      DOCS_ONE,
      0.5f,
      VALUES_ADDED,
      false,
      0 },
    { 31,
      11,
      3,
      { 6, 4, false, KEY_OFFSET_NONE, false, NULL, NULL, 0, NULL },
      DOCS_RAGGED,
      1.0f,
      VALUES_JOINED,
      false,
      0 },
    { 1,
      2,
      0,
      { 1, 16, false, KEY_OFFSET_HALF, true, NULL, NULL, 0, NULL },
      DOCS_ONE,
      0.5f,
      VALUES_JOINED,
      false,
      0 },
    { 13,
      7,
      9,
      { 3, 8, false, KEY_OFFSET_HALF, true, NULL, NULL, 0, NULL },
      DOCS_ONE,
      0.5f,
      VALUES_APART,
      true,
      0 },
    { 7,
      4,
      33,
      { 2, 16, true, KEY_OFFSET_HALF, true, NULL, NULL, 0, NULL },
      DOCS_ONE,
      0.7f,
      VALUES_JOINED,
      false,
      0 },
    { 17,
      0,
      20,
      { 2, 8, false, KEY_OFFSET_HALF, false, NULL, NULL, 0, NULL },
      DOCS_MIXED,
      0.4f,
      VALUES_JOINED,
      false,
      0 },
    { 150,
      0,
      20,
      { 2, 8, false, KEY_OFFSET_QUARTERS, false, NULL, NULL, 0, NULL },
      DOCS_MIXED,
      0.5f,
      VALUES_JOINED,
      false,
      0 },
    { 149,
      0,
      70,
      { 1, 16, false, KEY_OFFSET_NONE, false, NULL, NULL, 0, NULL },
      DOCS_ONE,
      0.3f,
      VALUES_APART,
      false,
      0 },
    { 90,
      0,
      33,
      { 4, 4, true, KEY_OFFSET_NONE, false, NULL, NULL, 0, NULL },
      DOCS_MIXED,
      0.7f,
      VALUES_ADDED,
      false,
      0 },
    { 19,
      0,
      0,
      { 2, 8, true, KEY_OFFSET_NONE, false, NULL, NULL, 0, NULL },
      DOCS_ONE,
      0.5f,
      VALUES_JOINED,
      false,
      0 },
    /* Heads of q and k narrower than those of v. */
    { 1,
      0,
      4,
      { 1, 16, false, KEY_OFFSET_HALF, false, NULL, NULL, 12, NULL },
      DOCS_ONE,
      0.5f,
      VALUES_JOINED,
      false,
      12 },
    { 17,
      7,
      9,
      { 3, 8, false, KEY_OFFSET_HALF, true, NULL, NULL, 4, NULL },
      DOCS_RAGGED,
      0.5f,
      VALUES_JOINED,
      true,
      0 },
    { 11,
      5,
      7,
      { 2, 16, true, KEY_OFFSET_QUARTERS, false, NULL, NULL, 8, NULL },
      DOCS_UNITS,
      0.5f,
      VALUES_APART,
      false,
      8 },
    { 90,
      0,
      33,
      { 2, 16, true, KEY_OFFSET_NONE, false, NULL, NULL, 12, NULL },
      DOCS_MIXED,
      0.4f,
      VALUES_ADDED,
      false,
      6 },
    { 13,
      0,
      9,
      { 2, 8, false, KEY_OFFSET_NONE, false, NULL, NULL, 0, NULL },
      DOCS_ONE,
      0.5f,
      VALUES_JOINED,
      false,
      8 },
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
        .qk_dim = s->s.qk_dim,
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
              at(c, "w"), scalar(c, "scale"), NO_TENSOR, &m.shape, m.rope, at(c, "y"),
              at(c, "gate"), at(c, "table"), &c->batch);
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
    int H = s->s.heads, width = H * s->s.head_dim, qk = qk_width(s), T = s->tokens;
    int y_width = width > GATE_WIDTH ? width : GATE_WIDTH;
    struct attn_shape a;

    snprintf(c->label, sizeof c->label,
             "attend T=%d H=%d E=%d Eq=%d paired=%d key_offset=%d split=%d V=%d window=%d docs=%d "
             "values=%d",
             T, H, s->s.head_dim, qkv_qk_dim(&s->s), s->s.paired, s->s.key_offset, s->s.split_gate,
             s->vocab, s->window, s->docs, s->values);
    case_batch(c, T, s->vocab ? s->vocab : 1, s->docs);
    a = attn_shape_of(c);
    case_input(c, "x", T, width);
    case_weight(c, "w", 2 * qk + width, width);
    case_scalar(c, "scale");
    case_input(c, "y", T, y_width);
    case_rope(c, s->s.paired ? 2 * T : T, s->turned ? s->turned : qk / H / 2);
    case_saved(c, "q", T, qk);
    case_saved(c, "k", T + (s->s.key_offset != KEY_OFFSET_NONE), qk);
    if (s->values == VALUES_ADDED)
        case_output(c, "v", T, width, "dv");
    else
        case_saved(c, "v", T, width);
    case_var(c, VAR_OUTPUT, "factor", DT_REAL, 2 * H, T);
    case_saved(c, "dqkv", T, 2 * qk + width);
    case_scratch(c, "dq", T, qk);
    case_scratch(c, "dk", T, qk);
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

/* q, k, v of projections `in` (T,2Q+D), which is x w^T with rows of x of the unit matrix, T <= D. */
static void qkv_of(struct ops *o, struct tensor q, struct tensor k, struct tensor v,
                   struct tensor in, const struct qkv_shape *s, struct rope r)
{
    int T = (int)in.rows, D = s->heads * s->head_dim, R = (int)in.cols;
    struct tensor x = floats(o, T, D, NULL), w = floats(o, R, D, NULL);
    struct tensor raw = floats(o, T, R, NULL);
    struct batch b = { .tokens = T };

    for (int t = 0; t < T; t++)
        for (int c = 0; c < D; c++)
            ((float *)x.data)[t * D + c] = c == t;
    for (int i = 0; i < R; i++)
        for (int c = 0; c < D; c++)
            ((float *)w.data)[i * D + c] = c < T ? f32_at(in, c * R + i) : 0;
    o->qkv(o, q, k, v, NO_TENSOR, raw, x, w, NULL, NO_TENSOR, s, r, NO_TENSOR, NO_TENSOR, NO_TENSOR,
           &b);
}

/* With cosine = position and sine = 0, channel 0 of a normed head tells its rotary position. */
static void test_positions(bool paired)
{
    enum { T = 3, H = 4, E = 4, D = H * E };
    struct ops *o = cpu();
    struct qkv_shape s = { H, E, paired, KEY_OFFSET_NONE, false, NULL, NULL, 0, NULL };
    struct rope r = { floats(o, 2 * T, 2, NULL) };
    struct tensor in = floats(o, T, 3 * D, NULL), q = floats(o, T, D, NULL);
    struct tensor k = floats(o, T, D, NULL), v = floats(o, T, D, NULL);

    for (int p = 0; p < 2 * T; p++) {
        ((float *)r.table.data)[2 * p] = (float)p;
        ((float *)r.table.data)[2 * p + 1] = 0;
    }
    for (int i = 0; i < T * 3 * D; i++)
        ((float *)in.data)[i] = 5;
    qkv_of(o, q, k, v, in, &s, r);
    for (int t = 0; t < T; t++)
        for (int h = 0; h < H; h++) {
            int position = paired ? 2 * t + h % 2 : t, at = t * D + h * E;
            CHECK_NEAR(f32_at(q, at), position, 1e-5);
            CHECK_NEAR(f32_at(k, at + 1), position, 1e-5);
            CHECK_NEAR(f32_at(q, at + 2), 1, 1e-6); /* the upper half does not turn */
            CHECK(f32_at(v, at) == 5);
        }
    o->free(o);
}

/* A quarter turn by -theta: the first of a pair becomes the second, the second minus the first. */
static void test_turn(void)
{
    enum { E = 4 };
    struct ops *o = cpu();
    struct qkv_shape s = { 1, E, false, KEY_OFFSET_NONE, false, NULL, NULL, 0, NULL };
    struct rope r = { floats(o, 1, 2, (float[]){ 0, 1 }) };
    struct tensor in = floats(o, 1, 3 * E, (float[]){ 1, 2, 3, 4, 4, 3, 2, 1, 0, 0, 0, 0 });
    struct tensor q = floats(o, 1, E, NULL), k = floats(o, 1, E, NULL), v = floats(o, 1, E, NULL);
    static const float want_q[E] = { 2, -1, 3, 4 }, want_k[E] = { 3, -4, 2, 1 };

    qkv_of(o, q, k, v, in, &s, r);
    for (int c = 0; c < E; c++) {
        CHECK_NEAR(f32_at(q, c), want_q[c] / sqrt(7.5), 1e-6); /* 7.5: the mean square */
        CHECK_NEAR(f32_at(k, c), want_k[c] / sqrt(7.5), 1e-6);
    }
    o->free(o);
}

/* Keys +-1 survive the norm; channels 2, 3, 6, 7 (half: 4 to 7) of 8 come from the token before. */
static void test_key_offset(enum key_offset offset)
{
    enum { T = 3, E = 8 };
    static const float key[T][E] = { { 1, 1, 1, 1, 1, 1, 1, 1 },
                                     { -1, -1, -1, -1, -1, -1, -1, -1 },
                                     { 1, -1, 1, -1, 1, -1, 1, -1 } };
    static const float quarters[T][E] = { { 1, 1, 1, 1, 1, 1, 1, 1 },
                                          { -1, -1, 1, 1, -1, -1, 1, 1 },
                                          { 1, -1, -1, -1, 1, -1, -1, -1 } };
    static const float half[T][E] = { { 1, 1, 1, 1, 1, 1, 1, 1 },
                                      { -1, -1, -1, -1, 1, 1, 1, 1 },
                                      { 1, -1, 1, -1, -1, -1, -1, -1 } };
    const float(*want)[E] = offset == KEY_OFFSET_HALF ? half : quarters;
    struct ops *o = cpu();
    struct qkv_shape s = { 1, E, false, offset, false, NULL, NULL, 0, NULL };
    struct rope r = { floats(o, T, 4, (float[]){ 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0 }) };
    struct tensor in = floats(o, T, 3 * E, NULL), q = floats(o, T, E, NULL);
    struct tensor k = floats(o, T, E, NULL), v = floats(o, T, E, NULL);

    for (int t = 0; t < T; t++)
        for (int part = 0; part < 3; part++)
            memcpy((float *)in.data + (t * 3 + part) * E, key[t], sizeof key[t]);
    qkv_of(o, q, k, v, in, &s, r);
    for (int t = 0; t < T; t++)
        for (int c = 0; c < E; c++) {
            CHECK_NEAR(f32_at(k, t * E + c), want[t][c], 1e-6);
            CHECK_NEAR(f32_at(q, t * E + c), key[t][c], 1e-6);
        }
    o->free(o);
}

/* Heads of q and k of 4 channels beside values of 8: the norm is over 4 (mean square 4), of which all turn, each
 * pair by an angle of its own, or two; the key offset moves channels 2 and 3; v passes whole. */
static void test_narrow(int turned)
{
    enum { H = 2, E = 8, Q = H * 4, R = 2 * Q + H * E };
    struct ops *o = cpu();
    struct qkv_shape s = { H, E, false, KEY_OFFSET_HALF, false, NULL, NULL, 4, NULL };
    struct rope r = { turned == 4 ? floats(o, 2, 4, (float[]){ 0, 1, -1, 0, 0, 1, -1, 0 })
                                  : floats(o, 2, 2, (float[]){ 0, 1, 0, 1 }) };
    struct tensor in = floats(o, 2, R, NULL), q = floats(o, 2, Q, NULL);
    struct tensor k = floats(o, 2, Q, NULL), v = floats(o, 2, H * E, NULL);
    float half = turned == 4 ? -1 : 1; /* what becomes of channels 2 and 3 */

    for (int t = 0; t < 2; t++)
        for (int i = 0; i < R; i++) {
            static const float head[4] = { 2, -2, 2, -2 };
            float x = i < 2 * Q ? head[i % 4] : (float)(i + t);
            ((float *)in.data)[t * R + i] = i >= Q && i < 2 * Q && t ? -x : x;
        }
    qkv_of(o, q, k, v, in, &s, r);
    for (int t = 0; t < 2; t++)
        for (int h = 0; h < H; h++) {
            const float want_q[4] = { -1, -1, half, -half };
            float own = t ? -1 : 1;
            const float want_k[4] = { -own, -own, half, -half };
            for (int c = 0; c < 4; c++) {
                CHECK_NEAR(f32_at(q, t * Q + h * 4 + c), want_q[c], 1e-6);
                CHECK_NEAR(f32_at(k, t * Q + h * 4 + c), want_k[c], 1e-6);
            }
            for (int c = 0; c < E; c++)
                CHECK(f32_at(v, t * H * E + h * E + c) == 2 * Q + h * E + c + t);
        }
    o->free(o);
}

/* Writes attention's result of T tokens, with heads of q and k of `size` channels, the first 4 of which are `in`'s (T,2Q+D,
 * of 4) and the others 0. */
static void padded_attention(struct tensor out, struct tensor in, int size, float scale)
{
    enum { T = 9, H = 2, E = 8 };
    struct ops *o = cpu();
    int Q = H * size;
    struct qkv_shape s = { H, E, false, KEY_OFFSET_NONE, false, NULL, NULL, size, NULL };
    struct attn_shape as = { .rows = T,
                             .heads = H,
                             .head_dim = E,
                             .cu = (int32_t[]){ 0, 5, T },
                             .ncu = 3,
                             .cu_mul = 1,
                             .window = 3,
                             .scale = scale,
                             .qk_dim = size };
    struct rope r = { floats(o, T, 2, NULL) };
    struct tensor raw = floats(o, T, 2 * Q + H * E, NULL), q = floats(o, T, Q, NULL);
    struct tensor k = floats(o, T, Q, NULL), v = floats(o, T, H * E, NULL);
    struct tensor lse = floats(o, H, T, NULL);

    for (int t = 0; t < T; t++) {
        ((float *)r.table.data)[2 * t] = cosf((float)t);
        ((float *)r.table.data)[2 * t + 1] = sinf((float)t);
        for (int h = 0; h < 2 * H; h++)
            for (int c = 0; c < size; c++)
                ((float *)raw.data)[t * raw.cols + h * size + c] =
                    c < 4 ? f32_at(in, t * in.cols + h * 4 + c) : 0;
        for (int c = 0; c < H * E; c++)
            ((float *)raw.data)[t * raw.cols + 2 * Q + c] = f32_at(in, t * in.cols + 8 * H + c);
    }
    qkv_of(o, q, k, v, raw, &s, r);
    o->attention(o, out, lse, q, k, v, &as);
    o->free(o);
}

/* Heads of 4 channels are those of 8 of which the others are 0, but for the norm: over twice as many it gives
 * 2^(1/2) times as much to each, so that half the scale gives the same scores. */
static void test_padded(void)
{
    enum { T = 9, H = 2, E = 8, R = 8 * H + H * E };
    struct ops *o = cpu();
    struct tensor in = floats(o, T, R, NULL), narrow = floats(o, T, H * E, NULL);
    struct tensor wide = floats(o, T, H * E, NULL);

    for (int i = 0; i < T * R; i++)
        ((float *)in.data)[i] = (float)(i * i % 23) / 11 - 1;
    padded_attention(narrow, in, 4, 0.8f);
    padded_attention(wide, in, 8, 0.4f);
    for (int i = 0; i < T * H * E; i++)
        CHECK_NEAR(f32_at(narrow, i), f32_at(wide, i), 1e-5); /* of 1: some roundings */
    o->free(o);
}

static void by_hand(void)
{
    test_padded();
    test_narrow(4);
    test_narrow(2);
    test_positions(false);
    test_positions(true);
    test_turn();
    test_key_offset(KEY_OFFSET_QUARTERS);
    test_key_offset(KEY_OFFSET_HALF);
}

const struct op_test qkv_test = {
    .name = "qkv attention rope_table",
    .cases = { { attend_make, COUNT(attend_cases) } },
    .by_hand = by_hand,
};
