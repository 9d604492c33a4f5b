/* compose_test.c - compose: cases, behind qkv; who sees whom, by hand. */
#include "hand_tensors.h"
#include "op_test.h"

struct compose_shape {
    int tokens, heads, size, window;
    enum key_offset key_offset;
    enum docs docs;
    int qk_size;
};

static const struct compose_shape compose_shapes[] = {
    { 1, 2, 8, 4, KEY_OFFSET_NONE, DOCS_ONE, 8 },
    { 13, 2, 8, 5, KEY_OFFSET_HALF, DOCS_RAGGED, 8 },
    { 17, 6, 4, 100, KEY_OFFSET_NONE, DOCS_ONE, 4 },
    { 40, 3, 8, 14, KEY_OFFSET_QUARTERS, DOCS_MIXED, 8 },
    { 9, 2, 8, 1, KEY_OFFSET_HALF, DOCS_UNITS, 8 },
    { 21, 2, 16, 6, KEY_OFFSET_HALF, DOCS_RAGGED, 8 },
    { 13, 3, 8, 5, KEY_OFFSET_NONE, DOCS_ONE, 4 },
};

static struct compose compose_of(struct ops_case *c)
{
    const struct compose_shape *s = c->shape;
    return (struct compose){
        .w1 = { scalar(c, "w1"), scalar(c, "dw1"), s->heads },
        .w2 = { scalar(c, "w2"), scalar(c, "dw2"), s->heads },
        .heads = s->heads,
        .head_dim = s->size,
        .window = s->window,
        .cu = c->batch.cu,
        .ncu = c->batch.ncu,
        .scale = 0.5f,
        .qk_dim = s->qk_size,
    };
}

static struct qk_made made_of(struct ops_case *c)
{
    const struct compose_shape *s = c->shape;
    return (struct qk_made){ { s->heads, s->size, false, s->key_offset, false, NULL, NULL,
                               s->qk_size, NULL },
                             { at(c, "rope") },
                             at(c, "factor") };
}

static void compose_forward(struct ops_case *c)
{
    struct compose m = compose_of(c);
    struct qk_made made = made_of(c);

    c->o->zero(c->o, at(c, "k"));
    c->o->qkv(c->o, at(c, "q"), at(c, "k"), at(c, "v"), made.factor, at(c, "dqkv"), at(c, "x"),
              at(c, "w"), NULL, NO_TENSOR, &made.shape, made.rope, NO_TENSOR, NO_TENSOR, NO_TENSOR,
              &c->batch);
    c->o->compose(c->o, at(c, "out"), at(c, "lse"), at(c, "result"), at(c, "q"), at(c, "k"),
                  at(c, "v"), &m);
}

static void compose_backward(struct ops_case *c)
{
    struct compose m = compose_of(c);
    struct qk_made made = made_of(c);
    struct tensor dqkv = at(c, "dqkv");

    c->o->zero(c->o, dqkv);
    c->o->zero(c->o, at(c, "dv"));
    c->o->compose_bwd(c->o, dqkv, at(c, "dq"), at(c, "dk"), at(c, "dv"), at(c, "dout"), at(c, "q"),
                      at(c, "k"), at(c, "v"), at(c, "lse"), &m, &made);
    c->o->value_bwd(c->o, dqkv, NO_TENSOR, NO_TENSOR, NO_TENSOR, at(c, "dv"), &made.shape,
                    NO_TENSOR, NO_TENSOR, NO_TENSOR, &c->batch);
    c->o->linear_bwd_w(c->o, at(c, "dw"), NULL, dqkv, at(c, "x"), at(c, "w"), NULL, false);
    c->o->linear_bwd_x(c->o, at(c, "dx"), dqkv, at(c, "w"), NULL, false);
}

static void compose_make(struct ops_case *c, int variant)
{
    const struct compose_shape *s = c->shape = &compose_shapes[variant];
    int T = s->tokens, H = s->heads, width = H * s->size, qk = H * s->qk_size;

    snprintf(c->label, sizeof c->label,
             "compose T=%d H=%d E=%d Eq=%d window=%d key_offset=%d docs=%d", T, H, s->size,
             s->qk_size, s->window, s->key_offset, s->docs);
    case_batch(c, T, 1, s->docs);
    case_input(c, "x", T, width);
    case_weight(c, "w", 2 * qk + width, width);
    case_input(c, "result", T, width);
    case_values(c, case_var(c, VAR_INPUT, "rope", c->weights, T, s->qk_size / 2), 1);
    case_values(c, case_var(c, VAR_INPUT, "w1", DT_REAL, T, H), 1);
    case_values(c, case_var(c, VAR_INPUT, "w2", DT_REAL, T, H), 1);
    case_saved(c, "q", T, qk);
    case_saved(c, "k", T + (s->key_offset != KEY_OFFSET_NONE), qk);
    case_saved(c, "v", T, width);
    case_var(c, VAR_OUTPUT, "factor", DT_REAL, 2 * H, T);
    case_var(c, VAR_OUTPUT, "lse", DT_REAL, H, T);
    case_saved(c, "dqkv", T, 2 * qk + width);
    case_saved(c, "dv", T, width);
    case_scratch(c, "dq", T, qk);
    case_scratch(c, "dk", T, qk);
    case_output(c, "out", T, width, "dout");
    case_grad_in(c, "dresult", "result", "dout");
    case_grad(c, "dx", "x", false);
    case_grad(c, "dw", "w", false);
    case_grad(c, "dw1", "w1", false);
    case_grad(c, "dw2", "w2", false);
    c->forward = compose_forward;
    c->backward = compose_backward;
}

/* With queries of zero each head's probabilities are even, so that Z is the sum of the a over the number of
 * keys, and out - x w2 Z times the sum of the visible values. */
static void by_hand(void)
{
    enum { T = 9, H = 2, WINDOW = 3 };
    static const int32_t cu[] = { 0, 0, 4, 9, 9 };
    struct ops *o = cpu();
    struct tensor q = floats(o, T, H, NULL), v = floats(o, T, H, NULL);
    struct tensor out = floats(o, T, H, NULL), lse = floats(o, H, T, NULL);
    real w1[T * H], w2[T * H];
    struct compose c = { .w1 = { w1, NULL, H },
                         .w2 = { w2, NULL, H },
                         .heads = H,
                         .head_dim = 1,
                         .window = WINDOW,
                         .cu = cu,
                         .ncu = 5,
                         .scale = 1 };

    o->zero(o, q);
    for (int i = 0; i < T * H; i++) {
        ((float *)v.data)[i] = (float)(i * i % 31);
        w1[i] = i % H ? 1 : 7; /* mean square 25 */
        w2[i] = (real)(i - 5);
    }
    o->compose(o, out, lse, v, q, q, v, &c);
    for (int t = 0; t < T; t++)
        for (int h = 0; h < H; h++) {
            int n = 0, document = t < 4 ? 0 : 4;
            double sum = 0, z = 8 / sqrt(25 + 1e-6);
            for (int j = document; j <= t; j++)
                if (j > t - WINDOW)
                    sum += f32_at(v, j * H + h), n++;
            CHECK_NEAR(f32_at(out, t * H + h), f32_at(v, t * H + h) + w2[t * H + h] * z / n * sum,
                       1e-3);
            CHECK_NEAR(f32_at(lse, h * T + t), log(n), 1e-5);
        }
    o->free(o);
}

const struct op_test compose_test = {
    .name = "compose",
    .cases = { { compose_make, COUNT(compose_shapes) } },
    .by_hand = by_hand,
};
