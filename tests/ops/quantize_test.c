/* quantize_test.c - a weight's fp8 copy: as quantize makes it, as Adam leaves it, as the head reads it. Codes,
 * weights and losses are compared bit by bit. Codes of attention's projections, and the products of them.
 */
#include "adam_call.h"
#include "cpu_tensors.h"
#include "op_test.h"

static struct tensor again(struct tensor t)
{
    struct tensor x = blank(t.dtype, t.rows, t.cols);
    memcpy(x.data, t.data, tensor_bytes(t));
    return x;
}

static bool same(struct tensor a, struct tensor b)
{
    return tensor_bytes(a) == tensor_bytes(b) && !memcmp(a.data, b.data, tensor_bytes(a));
}

static struct fp8_copy copy_of(struct tensor w, float scale_inv)
{
    return (struct fp8_copy){ .codes = blank(DT_E4M3, w.rows, w.cols),
                              .scale_inv = scale_inv,
                              .amax = blank(DT_F32, 1, 1).data };
}

/* -- by definition ------------------------------------------------------------------------- */

/* Number of code 0 .. 126: three bits behind the point, exponents from -6, bias 7. */
static double number_of(int code)
{
    int e = code >> 3, m = code & 7;
    return e ? ldexp(8 + m, e - 10) : ldexp(m, -9);
}

/* The nearest of all codes, of two that are as near the even one; x / scale in f32 before. */
static uint8_t code_of(float x, float scale)
{
    float q = (float)((double)x / scale);
    int best = 0;

    if (isnan(q))
        return 0x7f;
    for (int c = 1; c <= 126; c++) {
        double to_c = fabs(fabs(q) - number_of(c)), to_best = fabs(fabs(q) - number_of(best));
        if (to_c < to_best || (to_c == to_best && c % 2 == 0))
            best = c;
    }
    return (uint8_t)(best | (signbit(q) ? 0x80 : 0));
}

static long wrong_codes(const struct fp8_copy *c, struct tensor w)
{
    long bad = 0;
    for (int64_t i = 0; i < tensor_count(w); i++)
        bad += ((uint8_t *)c->codes.data)[i] != code_of((float)get(w, i), c->scale_inv);
    return bad;
}

static float largest(struct tensor w)
{
    float most = 0;
    for (int64_t i = 0; i < tensor_count(w); i++)
        if (fabsf((float)get(w, i)) > most)
            most = fabsf((float)get(w, i));
    return most;
}

/* Numbers around the whole range of codes, among them halves between two and what saturates; the
 * largest of them first, last or in between. */
static struct tensor weights(enum dtype t, int64_t n, float scale, int where)
{
    struct tensor w = drawn(t, 1, n, scale);
    for (int64_t i = 0; i < n; i += 3)
        set(w, i, scale * ldexp(normal(), (int)(i % 17) - 9));
    for (int64_t i = 1; i < n; i += 3)
        set(w, i, scale * (number_of((int)(i % 126)) + number_of((int)(i % 126) + 1)) / 2);
    int64_t at[] = { 0, n - 1, n / 2 };
    set(w, at[where], (where & 1 ? -3 : 3) * 448 * (double)scale);
    return w;
}

static void test_quantize(enum dtype t, int64_t n, int where)
{
    float scale = where ? 1.6f / 448 : 0.25f; /* a power of two: halves stay halves */
    struct tensor w = weights(t, n, scale, where);
    struct fp8_copy c = copy_of(w, scale);

    o->quantize(o, &c, w);
    CHECK_EQ(wrong_codes(&c, w), 0);
    CHECK(*c.amax == largest(w));
}

static void test_not_finite(void)
{
    struct tensor w = drawn(DT_F32, 1, 700, 1);
    struct fp8_copy c = copy_of(w, 1);
    const uint8_t *code = c.codes.data;

    set(w, 3, -INFINITY);
    o->quantize(o, &c, w);
    CHECK(isinf(*c.amax) && *c.amax > 0 && code[3] == 0xfe);
    set(w, 0, NAN);
    o->quantize(o, &c, w);
    CHECK(isnan(*c.amax) && code[0] == 0x7f && code[3] == 0xfe);
    CHECK_EQ(wrong_codes(&c, w), 0);
    set(w, 0, 1), set(w, 3, -2), set(w, 699, NAN); /* in the last block: what came before goes */
    o->quantize(o, &c, w);
    CHECK(isnan(*c.amax) && code[699] == 0x7f);
    set(w, 699, 0);
    o->quantize(o, &c, w); /* and the NaN does not stay for ever */
    CHECK(*c.amax == largest(w));
}

/* -- Adam ------------------------------------------------------------------------------------ */

/* Weight and moments as without a copy; the copy is that of the new weight. */
static void test_adam(enum dtype tw, enum dtype tm, int64_t n)
{
    struct tensor w = drawn(tw, 1, n, 1), g = drawn(tw, 1, n, 0.1), m = drawn(tm, 1, n, 0.1);
    struct tensor v = drawn(tm, 1, n, 0.1), w2, m2, v2;
    struct adam_step a = { .step_size = 0.013f, .decay = 0.0007f, .eps = 1e-10f };
    struct fp8_copy c = copy_of(w, 1.6f / 448);

    for (int64_t i = 0; i < n; i++)
        set(v, i, fabs(get(v, i)));
    if (n > 5)
        set(g, 5, NAN);
    w2 = again(w), m2 = again(m), v2 = again(v);
    for (int step = 0; step < 2; step++) {
        adam_call(o, w, g, m, v, 0.5, 0.95, &a, NULL);
        adam_call(o, w2, g, m2, v2, 0.5, 0.95, &a, &c);
        CHECK(same(w, w2) && same(m, m2) && same(v, v2));
        CHECK_EQ(wrong_codes(&c, w), 0);
        CHECK(n > 5 ? isnan(*c.amax) : *c.amax == largest(w));
    }
}

/* -- the head ---------------------------------------------------------------------------------- */

struct results {
    struct tensor loss, dx, dw;
};

static struct results head(struct tensor x, struct tensor w, const struct head_loss *h)
{
    struct results r = { blank(DT_F32, 1, 1), blank(DT_F32, x.rows, x.cols),
                         blank(w.dtype, w.rows, w.cols) };
    set(r.loss, 0, 0);
    o->head_loss(o, r.loss.data, r.dx, r.dw, false, x, w, h);
    return r;
}

static bool equal(struct results a, struct results b)
{
    return same(a.loss, b.loss) && same(a.dx, b.dx) && same(a.dw, b.dw);
}

static void test_head(enum dtype t, int tokens, int64_t width, int64_t vocab)
{
    struct tensor x = drawn(DT_F32, tokens, width, 1), w = drawn(t, width, vocab, 0.5);
    struct fp8_copy c = copy_of(w, 1.6f / 448);
    int32_t tgt[64];
    real mtp[2] = { 1, 0.5f };
    struct head_loss h = { .tgt = tgt,
                           .mtp = mtp,
                           .n_mtp = 2,
                           .seed = 0.125f,
                           .fp8 = true,
                           .x_scale = 100.f / 448,
                           .w_scale = c.scale_inv,
                           .g_scale = 0.75f / 448,
                           .cap_a = 23,
                           .cap_b = 5,
                           .cap_c = 7.5f };

    for (int i = 0; i < tokens; i++)
        tgt[i] = (int32_t)(fabs(normal()) * 1e6) % (int32_t)vocab;
    for (int64_t i = 0; i < width * vocab; i += 5) /* vanish, with either sign */
        set(w, i, 1e-7 * normal());
    set(w, 1, 5), set(w, 2, -5); /* saturate */
    struct results own = head(x, w, &h);
    o->quantize(o, &c, w);
    h.w8 = c.codes;
    CHECK(equal(head(x, w, &h), own));
    struct tensor other = drawn(t, width, vocab, 0.5); /* only the codes count */
    CHECK(equal(head(x, other, &h), own));
    ((uint8_t *)c.codes.data)[1] ^= 0x80;
    CHECK(!equal(head(x, w, &h), own));
    h.fp8 = false; /* only an fp8 head reads them */
    struct results plain = head(x, w, &h);
    h.w8 = NO_TENSOR;
    CHECK(equal(head(x, w, &h), plain));
}

/* -- attention's projections --------------------------------------------------------------------- */

static double coded(struct tensor codes, int64_t i)
{
    uint8_t c = ((uint8_t *)codes.data)[i];
    return (c & 0x80 ? -1 : 1) * number_of(c & 0x7f);
}

/* Numbers that codes c of t, times `scale`, differ from t's by at most: half a step of three bits, or of the
 * least ones. */
static double error_of(struct tensor t, int64_t i, double scale)
{
    return fmax(0x1p-4 * fabs(get(t, i)), 0x1p-10 * scale);
}

static void are_codes(struct tensor codes, struct tensor t, float scale)
{
    long bad = 0;
    for (int64_t i = 0; i < tensor_count(t); i++)
        bad += ((uint8_t *)codes.data)[i] != code_of((float)get(t, i), scale);
    CHECK_EQ(bad, 0);
}

/* Copies of the first 3 D of every 4 D rows with a scale of 24 bits, codes rounded once. */
static struct fp8_matrices test_exact(struct tensor bank, int64_t d)
{
    int64_t n = bank.rows / (4 * d);
    struct fp8_matrices q = { .codes = blank(DT_E4M3, n * 3 * d, d),
                              .turned = blank(DT_E4M3, n * d, 3 * d),
                              .scale = blank(DT_F32, n, 1).data,
                              .rows = 3 * d,
                              .stride = 4 * d,
                              .exact = true };

    o->quantize_matrices(o, &q, bank);
    for (int64_t m = 0; m < n; m++) {
        struct tensor w = tensor_rows(bank, 4 * d * m, 3 * d);
        struct tensor codes = tensor_rows(q.codes, 3 * d * m, 3 * d);
        struct tensor turned = tensor_rows(q.turned, d * m, d);
        long bad = 0;
        CHECK(q.scale[m] == largest(w) / 448);
        are_codes(codes, w, q.scale[m]);
        for (int64_t i = 0; i < 3 * d * d; i++)
            bad += ((uint8_t *)turned.data)[i % d * 3 * d + i / d] != ((uint8_t *)codes.data)[i];
        CHECK_EQ(bad, 0);
    }
    return q;
}

/* Raw q, k, v are the sums of products of codes, and within what codes are off by of those of x and w. */
static void check_raw(struct tensor raw, struct tensor x, struct tensor w,
                      const struct fp8_operands *in, double scale)
{
    double units = in->x_scale * (double)*in->w.scale;
    long off = 0, far = 0, other = 0;

    for (int64_t i = 0; i < tensor_count(raw); i++) {
        int64_t t = i / raw.cols * x.cols, r = i % raw.cols * x.cols;
        double sum = 0, size = 0, exact = 0, may = 0;
        for (int64_t j = 0; j < x.cols; j++) {
            double p = coded(in->x8, t + j) * coded(in->w.codes, r + j);
            double ex = error_of(x, t + j, in->x_scale), ew = error_of(w, r + j, *in->w.scale);
            sum += p, size += fabs(p);
            exact += get(x, t + j) * get(w, r + j);
            may += fabs(get(x, t + j)) * ew + fabs(get(w, r + j)) * ex + ex * ew;
        }
        double error = fabs(get(raw, i) - scale * units * sum);
        off += !(error <= 1e-6 * fabs(scale) * units * size);
        far += !(fabs(get(raw, i) - scale * exact) <= fabs(scale) * may * (1 + 1e-6));
        other += fabs(get(raw, i) - scale * exact) > 1e-5 * fabs(scale * exact);
    }
    CHECK_EQ(off, 0);
    CHECK_EQ(far, 0);
    CHECK(other > 0); /* it was quantised */
}

/* dw, dscale, dx of the codes of g and x: plain sums in double. */
static void test_gradients(struct tensor x, struct tensor w, struct fp8_weight w8, bool add)
{
    int64_t T = x.rows, d = x.cols, n = w.rows;
    const float v = 0.125f / 448, u = 8.0f / 448;
    struct tensor g = drawn(DT_F32, T, n, 0.02), dx = blank(DT_F32, T, d);
    struct tensor dw = drawn(DT_F32, n, d, 1), old = again(dw);
    struct tensor g8 = blank(DT_E4M3, T, n), x8 = blank(DT_E4M3, T, d);
    real scale = -0.7f, dscale = 2;
    double want = 2, size = 0, worst = 0, worst_x = 0;

    set(g, 0, 5), set(x, 0, 20); /* saturate */
    o->input_codes(o, g8, g, v);
    o->input_codes(o, x8, x, u);
    are_codes(g8, g, v), are_codes(x8, x, u);
    if (add) /* with its codes g is not read */
        for (int64_t i = 0; i < tensor_count(g); i++)
            set(g, i, NAN);
    o->linear_bwd_fp8(o, dx, dw, &dscale, g, add ? g8 : NO_TENSOR, x, w, w8, &scale, v, u, add);
    for (int64_t i = 0; i < n * d; i++) {
        double h = 0, of = 1e-12;
        for (int64_t t = 0; t < T; t++) {
            double p = (double)v * u * coded(g8, t * n + i / d) * coded(x8, t * d + i % d);
            h += p, of += fabs(p);
        }
        want += h * get(w, i), size += fabs(h * get(w, i));
        double from = add ? get(old, i) : 0;
        worst = fmax(worst, fabs(get(dw, i) - from - scale * h) / (of + fabs(from)));
    }
    for (int64_t i = 0; i < T * d; i++) {
        double s = 0, of = 1e-12;
        for (int64_t j = 0; j < n; j++) {
            double p =
                scale * v * *w8.scale * coded(g8, i / d * n + j) * coded(w8.codes, i % d * n + j);
            s += p, of += fabs(p);
        }
        worst_x = fmax(worst_x, fabs(get(dx, i) - s) / of);
    }
    CHECK_NEAR(dscale, want, 1e-5 * (size + 2));
    CHECK(worst <= 1e-6);
    CHECK(worst_x <= 1e-6);
}

static void test_projection(int tokens, int heads, int head_dim)
{
    int64_t d = (int64_t)heads * head_dim;
    struct tensor bank = drawn(DT_BF16, 2 * 4 * d, d, 0.02), w = tensor_rows(bank, 4 * d, 3 * d);
    struct fp8_matrices copies = test_exact(bank, d);
    struct tensor from = drawn(DT_F32, tokens, d, 3), sum = blank(DT_F32, tokens, d);
    struct tensor y = blank(DT_F32, tokens, d), y8 = blank(DT_E4M3, tokens, d), again_y = again(y);
    struct mix_term term = { .x = from };
    struct fp8_operands in = { y8,
                               8.0f / 448,
                               { tensor_rows(copies.codes, 3 * d, 3 * d), copies.scale + 1 } };
    struct qkv_shape s = { .heads = heads, .head_dim = head_dim, .fp8 = &in };
    struct batch b = { .tokens = tokens };
    struct tensor raw = blank(DT_F32, tokens, 3 * d), q = blank(DT_F32, tokens, d);
    struct tensor k = blank(DT_F32, tokens, d), v = blank(DT_F32, tokens, d);
    struct rope r = { drawn(DT_F32, tokens, head_dim / 2, 1) };
    real scale = 1.3f;
    bool same_v = true;

    o->mix_norm_codes(o, sum, y, y8, in.x_scale, 1, &term);
    o->mix_norm(o, sum, again_y, 1, &term);
    CHECK(same(y, again_y));
    are_codes(y8, y, in.x_scale);
    o->qkv(o, q, k, v, NO_TENSOR, raw, y, w, &scale, NO_TENSOR, &s, r, NO_TENSOR, NO_TENSOR,
           NO_TENSOR, &b);
    check_raw(raw, y, w, &in, scale);
    for (int64_t i = 0; i < tokens * d; i++)
        same_v &= get(v, i) == get(raw, i / d * 3 * d + 2 * d + i % d);
    CHECK(same_v);
    struct fp8_weight turned = { tensor_rows(copies.turned, d, d), copies.scale + 1 };
    test_gradients(from, w, turned, false);
    test_gradients(from, w, turned, true);
}

static void by_hand(void)
{
    static const int64_t size[] = { 1, 2, 7, 511, 512, 513, 1031, 5000 };

    cpu_begin();
    for (int s = 0; s < 8; s++)
        for (int k = 0; k < 6; k++)
            test_quantize(k & 1 ? DT_BF16 : DT_F32, size[s], k / 2);
    test_not_finite();
    for (int s = 0; s < 8; s++)
        for (int k = 0; k < 4; k++)
            test_adam(k & 1 ? DT_BF16 : DT_F32, k & 2 ? DT_BF16 : DT_F32, size[s]);
    for (int k = 0; k < 2; k++) {
        test_head(k ? DT_BF16 : DT_F32, 1, 16, 3);
        test_head(k ? DT_BF16 : DT_F32, 37, 24, 613);
    }
    test_projection(1, 1, 4);
    test_projection(19, 2, 16);
    test_projection(5, 3, 8);
    cpu_end();
}

const struct op_test quantize_test = {
    .name = "quantize quantize_matrices input_codes mix_norm_codes qkv linear_bwd_fp8",
    .by_hand = by_hand,
};
