/* ops_hand_test.c - the plain C ops on cases worked out by hand: memory, masks, maps, edges. The
 * head has its own, ops_head_test.c.
 *
 * What finite differences cannot see, because forward and backward may be wrong in the same way.
 */
#include <math.h>
#include "hand_tensors.h"

/* -- memory ------------------------------------------------------------------------------- */

static struct tensor bf16s(struct ops *o, int64_t n, const float *v)
{
    struct tensor t = tensor_of(o->alloc(o, (size_t)n * 2, "test"), DT_BF16, 1, n);
    o->copy(o, t, floats(o, 1, n, v));
    return t;
}

static void test_memory(void)
{
    struct ops *o = cpu();
    struct tensor t = floats(o, 1, 5, NULL), b = bf16s(o, 3, (float[]){ 1, -2.5f, 1.00390625f });
    struct tensor f = floats(o, 1, 3, NULL);
    float back[5];
    int32_t *bad = o->alloc(o, 4, "bad");

    CHECK_STR(o->device, "cpu");
    CHECK_EQ(o->act, DT_F32);
    CHECK(o->allocated(o) == 5 * 4 + 3 * 2 + 3 * 4 + 3 * 4 + 4);
    for (int i = 0; i < 5; i++)
        CHECK(isnan(f32_at(t, i))); /* what nobody wrote shows itself */
    o->zero(o, t);
    o->download(o, back, t.data, sizeof back);
    for (int i = 0; i < 5; i++)
        CHECK(back[i] == 0);
    o->copy(o, f, b);
    CHECK(f32_at(f, 0) == 1 && f32_at(f, 1) == -2.5f);
    CHECK(f32_at(f, 2) == 1); /* 1 + 2^-8 is halfway: to the even one */
    *bad = 0;
    o->finite(o, bad, f);
    o->finite(o, bad, b);
    CHECK_EQ(*bad, 0);
    for (int i = 0; i < 3; i++) {
        static const float worst[] = { INFINITY, -INFINITY, NAN };
        ((float *)f.data)[2] = worst[i];
        *bad = 0;
        o->finite(o, bad, f);
        CHECK_EQ(*bad, 1);
        o->copy(o, b, f);
        *bad = 0;
        o->finite(o, bad, b);
        CHECK_EQ(*bad, 1);
        o->finite(o, bad, t); /* sticks */
        CHECK_EQ(*bad, 1);
    }
    uint16_t half[] = { 0x7bff, 0xfc00 };
    uint8_t code[] = { 0xfe, 0x7f };
    for (int n = 1; n <= 2; n++) {
        *bad = 0;
        o->finite(o, bad, tensor_of(half, DT_F16, 1, n));
        CHECK_EQ(*bad, n == 2);
        *bad = 0;
        o->finite(o, bad, tensor_of(code, DT_E4M3, 1, n));
        CHECK_EQ(*bad, n == 2);
    }
    CHECK_OK(o->sync(o));
    o->free(o);
}

/* Under the address sanitizer an allocation that cannot be is NULL, as elsewhere. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "allocator_may_return_null=1"; }

static void test_failure_sticks(void)
{
    struct ops *o = cpu();
    struct tensor t = floats(o, 1, 1, (float[]){ 3 });
    struct tensor none = tensor_of(NULL, DT_F32, 1, 1);

    CHECK(!o->alloc(o, (size_t)1 << 60, "the moon"));
    CHECK_ERR(o->status(o), GPT_SYSTEM, "cannot allocate 1152921504606846976 bytes for the moon");
    CHECK(!o->alloc(o, 4, "anything")); /* nothing happens from here on */
    o->zero(o, t);
    o->linear(o, none, t, t, NULL, NO_TENSOR);
    o->mix_norm(o, none, NO_TENSOR, 1, &(struct mix_term){ .x = none });
    CHECK(f32_at(t, 0) == 3);
    CHECK_ERR(o->sync(o), GPT_SYSTEM, "the moon");
    o->free(o);
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

/* -- the MLP in fp8 (fp8.md) ----------------------------------------------------------------- */

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
                              4 };

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
    o->linear_t_fp8(o, y, post, any, post8, w2, &half, y);
    are("y", y, (float[]){ 1 + 35, 2 + 10, 3 - 32, 4 + 10 });
    CHECK_OK(o->status(o));
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
    real half = 0.5f;

    o->mlp_bwd_fp8(o, post, dx, dout, any, w1, any, w2, &half, post);
    are("dpre", post, (float[]){ 2, -1.265625f, 4 / 7.0f, 0.625f / 7 });
    are("dx", dx, (float[]){ 22.75f, -0.5f, 3.71875f, 0.8125f });
    CHECK_OK(o->status(o));
    o->free(o);
}

/* -- rotary, paired heads, key offset ----------------------------------------------------- */

static void test_rope_table(void)
{
    enum { ROWS = 524288 };
    struct ops *o = cpu();
    struct rope r = { floats(o, ROWS, 4, NULL) };
    const float freq[2] = { 1, 0.79963823f };

    o->rope_table(o, r, freq);
    CHECK(f32_at(r.table, 0) == 1 && f32_at(r.table, 2) == 1);
    CHECK(f32_at(r.table, 1) == 0 && f32_at(r.table, 3) == 0);
    /* cos 1 = 0.5403023 lies between 138/256 and 139/256, sin 1 = 0.8414710 between 215/256 and
     * 216/256: the nearest are 0.5390625 and 0.83984375. */
    CHECK(f32_at(r.table, 4) == 0.5390625f);
    CHECK(f32_at(r.table, 5) == 0.83984375f);
    for (int p = 1; p < ROWS; p += 37321) { /* the angle is a float, its cosine is not */
        float theta = (float)p * freq[1];
        CHECK_NEAR(f32_at(r.table, 4 * (int64_t)p + 2), cos((double)theta), 0x1p-9);
        CHECK_NEAR(f32_at(r.table, 4 * (int64_t)p + 3), sin((double)theta), 0x1p-9);
    }
    o->free(o);
}

/* q, k, v of projections `in` (T,3D), which is x w^T with rows of x of the unit matrix, T <= D. */
static void qkv_of(struct ops *o, struct tensor q, struct tensor k, struct tensor v,
                   struct tensor in, const struct qkv_shape *s, struct rope r)
{
    int T = (int)in.rows, D = (int)in.cols / 3;
    struct tensor x = floats(o, T, D, NULL), w = floats(o, 3 * D, D, NULL);
    struct tensor raw = floats(o, T, 3 * D, NULL);
    struct batch b = { .tokens = T };

    for (int t = 0; t < T; t++)
        for (int c = 0; c < D; c++)
            ((float *)x.data)[t * D + c] = c == t;
    for (int i = 0; i < 3 * D; i++)
        for (int c = 0; c < D; c++)
            ((float *)w.data)[i * D + c] = c < T ? f32_at(in, c * 3 * D + i) : 0;
    o->qkv(o, q, k, v, NO_TENSOR, raw, x, w, NULL, s, r, NO_TENSOR, NO_TENSOR, NO_TENSOR, &b);
}

/* With cosine = position and sine = 0, channel 0 of a normed head tells its rotary position. */
static void test_positions(bool paired)
{
    enum { T = 3, H = 4, E = 4, D = H * E };
    struct ops *o = cpu();
    struct qkv_shape s = { H, E, paired, KEY_OFFSET_NONE, false, NULL };
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
    struct qkv_shape s = { 1, E, false, KEY_OFFSET_NONE, false, NULL };
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
    struct qkv_shape s = { 1, E, false, offset, false, NULL };
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

/* With queries of zero, attention is the mean of the visible values and lse the log of their
 * number. */
struct visible {
    int rows, heads, mul, window, ncu;
    const int32_t *cu;
};

static void check_visible(const struct visible *w)
{
    struct ops *o = cpu();
    struct tensor q = floats(o, w->rows, w->heads, NULL), v = floats(o, w->rows, w->heads, NULL);
    struct tensor out = floats(o, w->rows, w->heads, NULL);
    struct tensor lse = floats(o, w->heads, w->rows, NULL);
    struct attn_shape s = { .rows = w->rows,
                            .heads = w->heads,
                            .head_dim = 1,
                            .cu = w->cu,
                            .ncu = w->ncu,
                            .cu_mul = w->mul,
                            .window = w->window,
                            .scale = 1 };

    o->zero(o, q);
    for (int i = 0; i < w->rows * w->heads; i++)
        ((float *)v.data)[i] = (float)(i * i % 31);
    o->attention(o, out, lse, q, v, v, &s);
    for (int h = 0; h < w->heads; h++)
        for (int p = 0; p < w->rows; p++) {
            int document = 0, n = 0;
            double sum = 0;
            for (int d = 0; d < w->ncu; d++)
                document = w->cu[d] * w->mul <= p ? w->cu[d] * w->mul : document;
            for (int j = 0; j <= p; j++)
                if (j >= document && j >= p - w->window) {
                    sum += f32_at(v, j * w->heads + h);
                    n++;
                }
            CHECK_NEAR(f32_at(out, p * w->heads + h), sum / n, 1e-4); /* of 31, 100 roundings */
            CHECK_NEAR(f32_at(lse, h * w->rows + p), log(n), 1e-5);
        }
    o->free(o);
}

static void test_visible(void)
{
    check_visible(&(struct visible){ 1, 1, 1, 0, 2, (int32_t[]){ 0, 1 } });
    check_visible(&(struct visible){ 7, 2, 1, 2, 3, (int32_t[]){ 0, 4, 7 } });
    check_visible(&(struct visible){ 7, 1, 1, 9, 7, (int32_t[]){ 0, 0, 3, 3, 6, 7, 7 } });
    check_visible(&(struct visible){ 3, 1, 1, 5, 4, (int32_t[]){ 0, 1, 2, 3 } });
    check_visible(&(struct visible){ 10, 2, 2, 3, 3, (int32_t[]){ 0, 2, 5 } });
    check_visible(&(struct visible){ 200, 1, 1, 63, 3, (int32_t[]){ 0, 150, 200 } });
    check_visible(&(struct visible){ 200, 1, 1, 64, 2, (int32_t[]){ 0, 200 } });
    check_visible(&(struct visible){ 130, 2, 2, 300, 4, (int32_t[]){ 0, 1, 60, 65 } });
}

/* Memory (T,H E) read as (2T,H/2 E): with a window of one row, head c + H/2 of a token sees itself
 * and head c of the same token; head c sees itself and head c + H/2 of the token before. */
static void test_paired_rows(void)
{
    enum { T = 3, H = 4 };
    struct ops *o = cpu();
    struct tensor q = floats(o, T, H, NULL), lse = floats(o, H / 2, 2 * T, NULL);
    struct tensor v =
        floats(o, T, H, (float[]){ 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048 });
    struct tensor out = floats(o, T, H, NULL);
    struct attn_shape s = { .rows = 2 * T,
                            .heads = H / 2,
                            .head_dim = 1,
                            .cu = (int32_t[]){ 0, 2, 3 },
                            .ncu = 3,
                            .cu_mul = 2,
                            .window = 1,
                            .scale = 1 };
    static const float want[T * H] = {
        1,
        2,
        (1 + 4) / 2.f,
        (2 + 8) / 2.f,
        (4 + 16) / 2.f,
        (8 + 32) / 2.f,
        (16 + 64) / 2.f,
        (32 + 128) / 2.f,
        256,
        512,
        (256 + 1024) / 2.f,
        (512 + 2048) / 2.f, /* a document of its own */
    };

    o->zero(o, q);
    o->attention(o, out, lse, q, q, v, &s);
    for (int i = 0; i < T * H; i++)
        CHECK_NEAR(f32_at(out, i), want[i], 1e-3);
    o->free(o);
}

/* The gate is a half, so dx = 1: a head's sum is its x. Attention counts two rows a token. */
static void test_paired_sums(void)
{
    enum { T = 3, H = 4, R = 2 * T };
    struct ops *o = cpu();
    struct tensor x = floats(o, T, H, NULL), dout = floats(o, T, H, NULL);
    struct tensor y = floats(o, T, GATE_WIDTH, NULL), gate = floats(o, H, GATE_WIDTH, NULL);
    struct tensor dgate = floats(o, H, GATE_WIDTH, NULL), dy12 = floats(o, T, GATE_WIDTH, NULL);
    struct tensor delta = floats(o, H / 2, R, NULL);

    o->zero(o, y);
    o->zero(o, gate);
    o->zero(o, dgate);
    for (int i = 0; i < T * H; i++) {
        ((float *)x.data)[i] = (float)i;
        ((float *)dout.data)[i] = 2;
    }
    o->out_gate_bwd(o, dout, delta, dgate, dy12, dout, x, y, gate, H, NULL);
    for (int i = 0; i < T * H; i++) {
        CHECK_NEAR(f32_at(dout, i), 1, 1e-6);
        CHECK_NEAR(f32_at(delta, i % 2 * R + i / 2), i, 1e-5);
    }
    o->free(o);
}

/* -- tables, smear, in place -------------------------------------------------------------- */

static void test_table_grad(void)
{
    struct ops *o = cpu();
    /* tokens 2 0 2 2: token 1 and 3 do not occur */
    struct lookup b = { 4, NULL, (int32_t[]){ 1, 0, 2, 3 }, (int32_t[]){ 0, 1, 1, 4, 4 } };
    struct tensor dx = floats(o, 4, 2, (float[]){ 1, 10, 2, 20, 3, 30, 4, 40 });
    struct tensor dx2 = floats(o, 4, 2, (float[]){ 100, 0, 200, 0, 300, 0, 400, 0 });
    struct tensor d = floats(o, 4, 2, NULL);
    static const float once[8] = { 2, 20, 0, 0, 8, 80, 0, 0 };
    static const float both[8] = { 202, 20, 0, 0, 808, 80, 0, 0 };

    o->table_grad(o, d, dx, NO_TENSOR, &b, false); /* every row, over the NaNs */
    for (int i = 0; i < 8; i++)
        CHECK(f32_at(d, i) == once[i]);
    o->table_grad(o, d, dx, dx2, &b, true);
    for (int i = 0; i < 8; i++)
        CHECK(f32_at(d, i) == once[i] + both[i]);
    o->table_grad(o, d, dx, dx2, &b, false);
    for (int i = 0; i < 8; i++)
        CHECK(f32_at(d, i) == both[i]);
    o->free(o);
}

/* Gate 0: s = e + lambda/2 e_before, of e before its own smear; token 0 alone is not smeared. */
static void test_smear(void)
{
    enum { T = 3, D = 12 };
    struct ops *o = cpu();
    struct tensor table = floats(o, 3, D, NULL), gate = floats(o, 1, D, NULL);
    struct tensor x0 = floats(o, T, D, NULL);
    struct batch b = { .tokens = T, .token = { T, (int32_t[]){ 2, 0, 1 }, NULL, NULL } };
    float lambda = 2;

    o->zero(o, table);
    o->zero(o, gate);
    for (int v = 0; v < 3; v++)
        ((float *)table.data)[v * D + v] = 1; /* token v is the unit vector v */
    o->embed(o, x0, table, gate, &lambda, &b);
    for (int t = 0; t < T; t++)
        for (int i = 0; i < D; i++) {
            bool own = i == b.token.row[t], before = t > 0 && i == b.token.row[t - 1];
            double norm = sqrt(D / (t ? 2.0 : 1.0));
            CHECK_NEAR(f32_at(x0, t * D + i), own || before ? norm : 0, 1e-5);
        }
    o->free(o);
}

static void test_mix_in_place(void)
{
    struct ops *o = cpu();
    real half = 0.5f;
    struct tensor x = floats(o, 1, 3, (float[]){ 2, 4, 6 });
    struct tensor z = floats(o, 1, 3, (float[]){ 1, 1, 3 });

    o->mix_norm(
        o, x, NO_TENSOR, 3,
        (struct mix_term[]){ { .x = x, .coef = &half }, { .x = z, .minus = true }, { .x = x } });
    CHECK(f32_at(x, 0) == 2 && f32_at(x, 1) == 5 && f32_at(x, 2) == 6);
    o->linear(o, x, z, floats(o, 3, 3, (float[]){ 1, 0, 0, 0, 1, 0, 0, 0, 1 }), &half, x);
    CHECK(f32_at(x, 0) == 2.5f && f32_at(x, 1) == 5.5f && f32_at(x, 2) == 7.5f);
    o->free(o);
}

int main(void)
{
    test_memory();
    test_failure_sticks();
    test_one_rounding();
    test_mlp_fp8();
    test_mlp_bwd_fp8();
    test_rope_table();
    test_positions(false);
    test_positions(true);
    test_turn();
    test_key_offset(KEY_OFFSET_QUARTERS);
    test_key_offset(KEY_OFFSET_HALF);
    test_visible();
    test_paired_rows();
    test_paired_sums();
    test_table_grad();
    test_smear();
    test_mix_in_place();
    return check_done();
}
