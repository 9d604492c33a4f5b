/* linear_relu2_test.c - linear_relu2, the MLP: cases, and its products in fp8 by hand (fp8.md). */
#include "hand_tensors.h"
#include "op_test.h"

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

static void are(const char *what, struct tensor t, const float *want)
{
    for (int64_t i = 0; i < tensor_count(t); i++)
        check_that(fabsf(f32_at(t, i) - want[i]) <= 1e-6f * fabsf(want[i]), __FILE__, __LINE__,
                   "%s[%d]: %g, not %g", what, (int)i, f32_at(t, i), want[i]);
}

/* w1 = (7, 1; -7, 2.125) and w2 = (1.75, 0.5; -1, 0.3125) have the scales 2^-6 and 2^-8, of which all are
 * codes but 2.125 = 136 2^-6: it lies between 128 and 144, and 128 is even. */
static struct fp8_matrices mlp_copies(struct ops *o, int k)
{
    static const float w[8] = { 7, 1, -7, 2.125f, 1.75f, 0.5f, -1, 0.3125f };
    struct tensor bank = tensor_shape(bf16s(o, 8, w), 4, 2);
    struct fp8_matrices q = { tensor_of(o->alloc(o, 4, "codes"), DT_E4M3, 2, 2),
                              tensor_of(o->alloc(o, 4, "turned"), DT_E4M3, 2, 2),
                              o->alloc(o, sizeof(real), "scale"),
                              2 * k,
                              2,
                              4,
                              false };

    o->quantize_matrices(o, &q, bank);
    CHECK(*q.scale == (k ? 0x1p-8f : 0x1p-6f));
    return q;
}

/* x, at most 0.875, is multiplied by 512: 65 / 1024 becomes 32.5, whose code is 32, so 1 / 16. post / 4 is
 * 9.57 and 15.5: 10 and, of 15 and 16, the even 16. */
static void test_mlp_fp8(void)
{
    struct ops *o = cpu();
    struct fp8_matrices up = mlp_copies(o, 0), down = mlp_copies(o, 1);
    struct fp8_weight w1 = { up.codes, up.scale }, w2 = { down.turned, down.scale };
    struct tensor x = floats(o, 2, 2, (float[]){ 0.875f, 65 / 1024.0f, -0.875f, 0.875f });
    struct tensor post = floats(o, 2, 2, NULL), y = floats(o, 2, 2, (float[]){ 1, 2, 3, 4 });
    struct tensor post8 = tensor_of(o->alloc(o, 4, "codes"), DT_E4M3, 2, 2);
    struct tensor any = tensor_of(NULL, DT_BF16, 2, 2); /* read by no product here */
    real half = 0.5f;

    o->linear_relu2_fp8(o, post, post8, x, any, w1);
    are("post", post, (float[]){ 6.1875f * 6.1875f, 0, 0, 7.875f * 7.875f });
    o->linear_t_fp8(o, y, post, any, post8, NULL, w2, &half, y);
    are("y", y, (float[]){ 1 + 35, 2 + 10, 3 - 32, 4 + 10 });
    CHECK_OK(o->status(o));
    o->free(o);
}

/* The scale of codes is that of the numbers before: 1 at first, then 1.8 times the greatest over 448. w2, of
 * which 1.75 is the greatest, has 2^-8 at first, then 1.125 times 2^-8, by which 1.75 is 398.2: 384, not 416. */
static void test_delayed(void)
{
    struct ops *o = cpu();
    struct fp8_matrices down = mlp_copies(o, 1);
    struct tensor bank =
        tensor_shape(bf16s(o, 8, (float[]){ 7, 1, -7, 2.125f, 1.75f, 0.5f, -1, 0.3125f }), 4, 2);
    struct tensor x = floats(o, 1, 4, (float[]){ 17, 1, 600, 0 });
    struct tensor x8 = tensor_of(o->alloc(o, 4, "codes"), DT_E4M3, 1, 4);
    uint8_t *codes = x8.data;
    real scale = 0, most = 0, next = 0, first = 1;
    struct fp8_delay d = { .next = &next, .first = &first, .headroom = 1.125f };

    o->delayed_codes(o, x8, x, &scale, &most);
    CHECK(scale == 1 && most == 600);
    CHECK(e4m3_to_f32(codes[0]) == 16 && e4m3_to_f32(codes[1]) == 1); /* 17: between 16 and 18 */
    CHECK(e4m3_to_f32(codes[2]) == 448 && codes[3] == 0);
    o->delayed_scales(o, &scale, &most, 1, 1.8f);
    CHECK_NEAR(scale, 1.8 * 600 / 448, 1e-6);
    CHECK(most == 0);
    o->delayed_codes(o, x8, x, &scale, &most);
    CHECK(e4m3_to_f32(codes[2]) == 256); /* of 248.9 */
    o->quantize_delayed(o, &down, &d, bank);
    CHECK(*down.scale == 0x1p-8f);
    CHECK_NEAR(next, 1.125 * 0x1p-8, 1e-9);
    first = 0;
    o->quantize_delayed(o, &down, &d, bank);
    CHECK_NEAR(*down.scale, 1.125 * 0x1p-8, 1e-9);
    CHECK(e4m3_to_f32(((uint8_t *)down.codes.data)[0]) == 384);
    CHECK(((uint8_t *)down.turned.data)[0] == ((uint8_t *)down.codes.data)[0]);
    o->free(o);
}

/* dout, at most 0.5, is multiplied by 114688: 0.3125 becomes 1.09375 2^15, whose code is 2^15, so 2 / 7.
 * dpre = (2, -1.265625; 4/7, 0.0893) times 64 / 0.5 is 256, -162, 73.1, 11.4, with the codes 256, -160, 80
 * and 12. */
static void test_mlp_bwd_fp8(void)
{
    struct ops *o = cpu();
    struct fp8_matrices up = mlp_copies(o, 0), down = mlp_copies(o, 1);
    struct fp8_weight w1 = { up.turned, up.scale }, w2 = { down.codes, down.scale };
    struct tensor dout = floats(o, 2, 2, (float[]){ 0.5f, 0.25f, 0, 0.3125f });
    struct tensor post = floats(o, 2, 2, (float[]){ 4, 9, 16, 1 }), dx = floats(o, 2, 2, NULL);
    struct tensor any = tensor_of(NULL, DT_BF16, 2, 2);
    struct tensor again = floats(o, 2, 2, (float[]){ 4, 9, 16, 1 });
    struct tensor dw = floats(o, 2, 2, (float[]){ 1, 10, 1, 10 });
    struct tensor x = floats(o, 2, 2, (float[]){ 1, -40, 1.53f, 1 });
    struct fp8_grads first = { dw, x, NO_TENSOR, NULL, true };
    struct tensor dw1 = floats(o, 2, 2, NULL), dw2 = floats(o, 2, 2, NULL);
    struct tensor w = floats(o, 2, 2, (float[]){ 1, 2, 3, 4 });
    real dscale = 1;
    struct fp8_grads both = { dw1, x, dw2, &dscale, false };
    real half = 0.5f;

    o->mlp_bwd_fp8(o, post, dx, dout, any, w1, any, w2, &half, post, NULL);
    are("dpre", post, (float[]){ 2, -1.265625f, 4 / 7.0f, 0.625f / 7 });
    are("dx", dx, (float[]){ 22.75f, -0.5f, 3.71875f, 0.8125f });
    o->mlp_bwd_fp8(o, again, dx, dout, any, w1, any, w2, &half, again, &first);
    are("dx", dx, (float[]){ 22.75f, -0.5f, 3.71875f, 0.8125f });
    are("dw1", dw,
        (float[]){ 1 + 2 + 15 / 16.0f, 10 - 56 + 1.25f / 2, 1 - 1.25f + 9 / 64.0f,
                   10 + 35 + 1.5f / 16 });
    o->upload(o, again.data, (float[]){ 4, 9, 16, 1 }, tensor_bytes(again));
    o->mlp_bwd_fp8(o, again, dx, dout, any, w1, w, w2, &half, again, &both);
    are("dx", dx, (float[]){ 22.75f, -0.5f, 3.71875f, 0.8125f });
    are("dw1", dw1, (float[]){ 2.9375f, -55.375f, -1.109375f, 35.09375f });
    /* Codes of post / 4 are those of 1, 2.25, 4, 0.25, of dout 1/2, 1/4, 0, 2/7: half of the sums. */
    are("dw2", dw2, (float[]){ 1, 0.5f + 16 / 7.0f, 2.25f, 1.125f + 1 / 7.0f });
    CHECK_NEAR(dscale, 1 + 2 + 4 * (0.5 + 16 / 7.0) + 13.5 + 8 * (1.125 + 1 / 7.0), 1e-5);
    CHECK_OK(o->status(o));
    o->free(o);
}

static void by_hand(void)
{
    test_mlp_fp8();
    test_delayed();
    test_mlp_bwd_fp8();
}

const struct op_test linear_relu2_test = {
    .name = "linear_relu2",
    .cases = { { mlp_make, COUNT(mlp_shapes) } },
    .by_hand = by_hand,
};
