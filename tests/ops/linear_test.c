/* linear_test.c - linear and linear_t: cases, the rounding of a gradient in bf16, out in place of its operand. */
#include "hand_tensors.h"
#include "op_test.h"

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

/* A gradient in bf16 is added with one rounding: 256 + (1 + 2^-8) lies above the halfway point to
 * 258, the next bf16, while 256 + bf16(1 + 2^-8) = 257 would go to 256. */
static void test_one_rounding(void)
{
    struct ops *o = cpu();
    struct tensor dw = bf16s(o, 1, (float[]){ 256 });
    struct tensor dy = floats(o, 1, 1, (float[]){ 1.00390625f });
    struct tensor x = floats(o, 1, 1, (float[]){ 1 });
    struct tensor sum = floats(o, 1, 1, NULL);

    o->linear_bwd_w(o, dw, NULL, dy, x, NO_TENSOR, NULL, true);
    o->copy(o, sum, dw);
    CHECK(f32_at(sum, 0) == 258);
    o->free(o);
}

/* With bf16_grads what is added to an f32 gradient is rounded first: 1 + 2^-8 lies halfway between 1 and
 * 1 + 2^-7, and 1 is even; 1 + 2^-8 + 2^-12 is nearer to 1 + 2^-7. */
static void test_rounded_product(void)
{
    struct ops *o = cpu();
    struct tensor x = floats(o, 1, 1, (float[]){ 1 });
    struct tensor dw = floats(o, 2, 1, (float[]){ 256, 0.25f });
    struct tensor dy = floats(o, 1, 2, (float[]){ 1.00390625f, 1.004150390625f });

    o->bf16_grads = true;
    o->linear_bwd_w(o, dw, NULL, dy, x, NO_TENSOR, NULL, true);
    CHECK(f32_at(dw, 0) == 257 && f32_at(dw, 1) == 1.2578125f);
    o->linear_bwd_w(o, dw, NULL, dy, x, NO_TENSOR, NULL, false);
    CHECK(f32_at(dw, 0) == 1 && f32_at(dw, 1) == 1.0078125f);
    o->free(o);
}

/* y may be the residual. */
static void test_in_place(void)
{
    struct ops *o = cpu();
    real half = 0.5f;
    struct tensor x = floats(o, 1, 3, (float[]){ 2, 5, 6 });
    struct tensor z = floats(o, 1, 3, (float[]){ 1, 1, 3 });

    o->linear(o, x, z, floats(o, 3, 3, (float[]){ 1, 0, 0, 0, 1, 0, 0, 0, 1 }), &half, x);
    CHECK(f32_at(x, 0) == 2.5f && f32_at(x, 1) == 5.5f && f32_at(x, 2) == 7.5f);
    o->free(o);
}

/* Codes of x keep 4 bits: 17 lies between 16 and 18, of which 16 is even; 600 saturates; 2^-11 is nothing. Codes of w
 * are its numbers over 1 / 448 of the greatest: 448 and 32.5 / 448 of it, which is 32. */
static void test_codes(void)
{
    struct ops *o = cpu();
    real half = 0.5f;
    struct tensor x = floats(o, 2, 2, (float[]){ 17, 600, 0x1p-11f, 1 });
    struct tensor w = bf16s(o, 4, (float[]){ 1.75f, 65 / 512.0f, -1.75f, 0 });
    struct tensor y = floats(o, 2, 2, (float[]){ 1, 2, 3, 4 });
    struct fp8_matrices q = { .codes = tensor_of(o->alloc(o, 4, "codes"), DT_E4M3, 2, 2),
                              .scale = o->alloc(o, sizeof(real), "its scale"),
                              .rows = 2,
                              .stride = 2,
                              .exact = true };

    o->quantize_matrices(o, &q, tensor_shape(w, 2, 2));
    CHECK(*q.scale == 0x1p-8f);
    o->linear_fp8(o, y, x, w, (struct fp8_weight){ q.codes, q.scale }, &half, y);
    CHECK(f32_at(y, 0) == 1 + 0.5f * (16 * 1.75f + 448 * 0.125f));
    CHECK(f32_at(y, 1) == 2 - 0.5f * 16 * 1.75f);
    CHECK(f32_at(y, 2) == 3 + 0.5f * 0.125f && f32_at(y, 3) == 4);
    CHECK_OK(o->status(o));
    o->free(o);
}

static void by_hand(void)
{
    test_codes();
    test_one_rounding();
    test_rounded_product();
    test_in_place();
}

const struct op_test linear_test = {
    .name = "linear linear_fp8",
    .cases = { { linear_make, COUNT(linear_shapes) } },
    .by_hand = by_hand,
};
