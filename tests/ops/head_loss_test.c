/* head_loss_test.c - head_loss and head_eval: cases; tokens ahead at the end of a sequence, tokens' prefixes, barred
 * classes, the evaluation's loss, and fp8 by its definition. */
#include "base/rng.h"
#include "hand_tensors.h"
#include "op_test.h"

struct head_case {
    int tokens, width, vocab, n_mtp;
    bool add, prefix;
    bool root, bias; /* of the cap; of the logits */
};

static const struct head_case head_cases[] = {
    { 1, 3, 5, 3, false, false, false, false },    { 2, 4, 2, 3, true, false, false, false },
    { 13, 8, 31, 1, true, false, false, false },   { 31, 5, 7, 2, false, false, false, false },
    { 17, 6, 600, 3, true, false, false, false },  { 263, 4, 37, 3, false, false, false, false },
    { 1, 3, 5, 3, false, true, false, false },     { 13, 8, 31, 1, true, true, false, false },
    { 263, 4, 600, 3, false, true, false, false }, { 13, 8, 31, 1, true, false, true, false },
    { 17, 6, 600, 3, false, false, true, true },   { 263, 4, 37, 1, true, false, true, true },
    { 13, 8, 31, 2, false, true, false, true },
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
        .bias = at(c, "bias"),
        .dbias = at(c, "dbias"),
    };
    if (s->root) /* where the slope varies over the logits */
        h.cap_root = true, h.cap_a = 15, h.cap_b = 0, h.cap_c = 2;
    c->o->head_loss(c->o, scalar(c, "loss"), at(c, "dx"), at(c, "dw"), s->add, at(c, "x"),
                    at(c, "w"), &h);
}

static void head_backward(struct ops_case *c) { (void)c; } /* forward did both */
static void head_make(struct ops_case *c, int variant)
{
    const struct head_case *s = c->shape = &head_cases[variant];
    struct var *v;

    snprintf(c->label, sizeof c->label,
             "head_loss T=%d D=%d V=%d n_mtp=%d add=%d prefix=%d root=%d bias=%d", s->tokens,
             s->width, s->vocab, s->n_mtp, s->add, s->prefix, s->root, s->bias);
    case_batch(c, s->tokens, s->vocab < CASE_DOCS ? s->vocab : CASE_DOCS - 1, DOCS_ONE);
    case_input(c, "x", s->tokens, s->width);
    case_weight(c, "w", s->width, s->vocab);
    if (s->bias)
        case_values(c, case_var(c, VAR_INPUT, "bias", DT_REAL, 1, s->vocab), 1);
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
    if (s->bias)
        case_grad(c, "dbias", "bias", true);
    c->forward = head_forward;
    c->backward = head_backward;
}

enum { SEED = 7 };

/* Weights of zero: every class, used or padding, has probability 1/V, and a position loses log V
 * times the weights of the targets that it has. dl is known too, so dw is for x = 1. whole: its part
 * of the log sum has all weights in every position, but of a prefix only where there is one. */
static void test_mtp_end(bool whole, bool bf16_sigmoid, double prefix)
{
    enum { T = 4, V = 6 };
    struct ops *o = cpu();
    struct tensor x = floats(o, T, 1, (float[]){ 1, 1, 1, 1 });
    struct tensor w = floats(o, 1, V, (float[V]){ 0 });
    struct tensor dx = floats(o, T, 1, NULL), dw = floats(o, 1, V, NULL);
    real mtp[4] = { 1, 0.5f, 0.25f, (real)prefix }, both[2] = { 100, 50 }, loss;
    struct head_loss h = { .tgt = (int32_t[]){ 0, 1, 1, 2 },
                           .mtp = mtp,
                           .n_mtp = 3,
                           .seed = 0.5f,
                           .cap_a = 23,
                           .cap_b = 5,
                           .cap_c = 7.5f,
                           .whole = whole,
                           .bf16_sigmoid = bf16_sigmoid,
                           .prefix = prefix > 0 ? (int32_t[V]){ -1, 0, 1, -1, -1, -1 } : NULL };
    /* Weights that a class has as a target: 0 one ahead of position 0; 1 one ahead of 1 and 2, two
     * ahead of 0 and 1, three ahead of 0; 2 one ahead of 3, two of 2, three of 1. */
    const double hits[V] = { 1 + 2 * prefix, 2 + 2 * 0.5 + 0.25 + prefix, 1 + 0.5 + 0.25 };
    double weight = 1.75 + 1.75 + 1.5 + 1 + 3 * prefix, s = 1 / (1 + exp(-5 / 7.5));
    s = bf16_sigmoid ? bf16_round((float)s) : s;

    o->head_loss(o, both, dx, dw, false, x, w, &h);
    CHECK_NEAR(both[0], 100 + weight * log(V), 1e-4); /* f32 around 110 */
    CHECK(both[1] == 50);
    for (int v = 0; v < V; v++)
        CHECK_NEAR(f32_at(dw, v),
                   0.5 * ((whole ? 7 + 3 * prefix : weight) / V - hits[v]) * 23 / 7.5 * s * (1 - s),
                   1e-6);
    for (int t = 0; t < T; t++)
        CHECK(f32_at(dx, t) == 0);
    h.next = true;
    both[0] = 100;
    o->head_loss(o, both, dx, dw, false, x, w, &h);
    CHECK_NEAR(both[0], 100 + weight * log(V), 1e-4);
    CHECK_NEAR(both[1], 50 + T * log(V), 1e-4);
    loss = 100;
    o->head_eval(o, &loss, x, w, &h); /* next token only */
    CHECK_NEAR(loss, 100 + T * log(V), 1e-4);
    o->free(o);
}

/* Published values of 15 l / sqrt(l^2 + 15^2): 10.6066 at 15, where its slope is 0.353553. Weights of
 * zero: logits are the bias. Evaluation and logits() have the same. */
static void test_root_cap(void)
{
    enum { V = 2 };
    struct ops *o = cpu();
    struct tensor x = floats(o, 1, 1, (float[]){ 1 }), w = floats(o, 1, V, (float[V]){ 0 });
    struct tensor dx = floats(o, 1, 1, NULL), dw = floats(o, 1, V, NULL), z = floats(o, 1, V, NULL);
    struct tensor bias = floats(o, 1, V, (float[]){ 15, 0 });
    struct tensor dbias = floats(o, 1, V, (float[]){ 5, 7 });
    real mtp = 1, loss = 0, eval = 0;
    struct head_loss h = { .tgt = (int32_t[]){ 1 },
                           .mtp = &mtp,
                           .n_mtp = 1,
                           .seed = 1,
                           .cap_a = 15,
                           .cap_c = 15,
                           .cap_root = true,
                           .bias = bias,
                           .dbias = dbias };
    double p = 1 / (1 + exp(-10.606601717798213));

    o->head_loss(o, &loss, dx, dw, false, x, w, &h);
    o->head_eval(o, &eval, x, w, &h);
    o->logits(o, z, x, w, &h);
    CHECK_NEAR(f32_at(z, 0), 10.6066, 1e-4);
    CHECK(f32_at(z, 1) == 0);
    CHECK_NEAR(loss, -log(1 - p), 1e-5);
    CHECK_NEAR(eval, loss, 1e-6);
    CHECK_NEAR(f32_at(dw, 0), p * 0.353553, 1e-6);
    CHECK_NEAR(f32_at(dbias, 0), 5 + p * 0.353553, 1e-6);
    CHECK_NEAR(f32_at(dbias, 1), 7 - p, 1e-5); /* the slope at 0 is 1 */
    o->free(o);
}

/* Evaluation is the training loss of one token ahead, over more rows and columns than a block. */
static void test_eval(void)
{
    enum { T = 300, D = 5, V = 1100 };
    struct ops *o = cpu();
    struct tensor x = floats(o, T, D, NULL), w = floats(o, D, V, NULL), dx = floats(o, T, D, NULL);
    struct tensor dw = floats(o, D, V, NULL);
    struct rng r = rng_make(SEED, 1);
    int32_t tgt[T];
    real mtp[2] = { 1, 0.5f }, trained = 0, evaluated = 0, both[2] = { 0 };
    struct head_loss h = {
        .tgt = tgt, .mtp = mtp, .n_mtp = 1, .seed = 1, .cap_a = 23, .cap_b = 5, .cap_c = 7.5f
    };

    for (int i = 0; i < T * D; i++)
        ((float *)x.data)[i] = rng_normal(&r, (uint64_t)i);
    for (int i = 0; i < D * V; i++)
        ((float *)w.data)[i] = rng_normal(&r, (uint64_t)(i + T * D));
    for (int i = 0; i < T; i++)
        tgt[i] = (int32_t)rng_below(&r, (uint64_t)(i + 100000), V);
    o->head_loss(o, &trained, dx, dw, false, x, w, &h);
    o->head_eval(o, &evaluated, x, w, &h);
    CHECK_NEAR(trained / evaluated, 1, 1e-6); /* other products, the same sums */
    CHECK(trained > 0.5 * T * log(V));
    /* beside a second token, the next one's loss is what it is alone */
    h.n_mtp = 2;
    h.next = true;
    o->head_loss(o, both, dx, dw, false, x, w, &h);
    CHECK(both[1] == trained);
    CHECK(both[0] > 1.2 * trained);
    o->free(o);
}

/* Classes that a mask bars have no part in a row's sum: over more rows and columns than a block, rows of
 * which some are barred whole but for their target. */
static void test_never(void)
{
    enum { T = 300, D = 5, V = 1100, WORDS = (V + 31) / 32, ROWS = 3 };
    struct ops *o = cpu();
    struct tensor x = floats(o, T, D, NULL), w = floats(o, D, V, NULL);
    struct rng r = rng_make(SEED, 3);
    static uint32_t bits[ROWS][WORDS];
    static int32_t row[V], tgt[T], before[T];
    double want = 0;
    real found = 0;
    struct head_loss h = { .tgt = tgt,
                           .cap_a = 23,
                           .cap_b = 5,
                           .cap_c = 7.5f,
                           .never = { V, ROWS, WORDS, row, bits[0] },
                           .before = before };

    for (int i = 0; i < T * D; i++)
        ((float *)x.data)[i] = 9 * rng_normal(&r, (uint64_t)i);
    for (int i = 0; i < D * V; i++)
        ((float *)w.data)[i] = rng_normal(&r, (uint64_t)(i + T * D));
    for (int v = 0; v < V; v++) {
        row[v] = v % ROWS; /* row 0 bars nothing, 1 a third, 2 all but a few */
        bits[1][v / 32] |= (uint32_t)(v % 3 == 1) << v % 32;
        bits[2][v / 32] |= (uint32_t)(v % 100 != 7) << v % 32;
    }
    for (int t = 0; t < T; t++) {
        double sum = 0, z[V];
        before[t] = (int32_t)rng_below(&r, (uint64_t)(t + 100000), V);
        tgt[t] = 100 * (t % 11) + 7;
        if (token_mask_never(&h.never, before[t], tgt[t]))
            tgt[t] += 50 - 7; /* 50, 150, ...: v % 3 is another */
        for (int v = 0; v < V; v++) {
            double l = 0;
            for (int d = 0; d < D; d++)
                l += (double)f32_at(x, t * D + d) * f32_at(w, d * V + v);
            z[v] = 23 / (1 + exp(-(l + 5) / 7.5));
            sum += bits[row[before[t]]][v / 32] >> v % 32 & 1 ? 0 : exp(z[v]);
        }
        want += log(sum) - z[tgt[t]];
    }
    o->head_eval(o, &found, x, w, &h);
    CHECK_NEAR(found / want, 1, 1e-6);
    o->free(o);
}

/* fp8 by its definition, one number at a time. Values are multiples of a power of two times the
 * scale, so that sums are exact in any order and no bf16 logit can fall to another side. */
enum { FT = 7, FD = 4, FV = 50 }; /* enough that each rounding shows somewhere */

static double fp8_logit(const float *x, const float *w, const struct head_loss *h, int t, int v)
{
    double sum = 0;

    for (int d = 0; d < FD; d++)
        sum += (double)e4m3_to_f32(e4m3_from_f32(x[t * FD + d] / h->x_scale)) *
               e4m3_to_f32(e4m3_from_f32(w[d * FV + v] / h->w_scale));
    return bf16_round((float)(sum * (h->x_scale * h->w_scale)));
}

static void fp8_reference(const float *x, const float *w, const struct head_loss *h, double *loss,
                          double *dx, double *dw)
{
    for (int t = 0; t < FT; t++) {
        double z[FV], s[FV], lse = 0, all = 0;
        for (int v = 0; v < FV; v++) {
            s[v] = 1 / (1 + exp(-(fp8_logit(x, w, h, t, v) + h->cap_b) / h->cap_c));
            z[v] = h->cap_a * s[v];
            lse += exp(z[v]);
        }
        lse = log(lse);
        for (int k = 0; k < h->n_mtp && t + k < FT; k++) {
            all += h->mtp[k];
            *loss += h->mtp[k] * (lse - z[h->tgt[t + k]]);
        }
        for (int v = 0; v < FV; v++) {
            double dz = all * exp(z[v] - lse), g;
            for (int k = 0; k < h->n_mtp && t + k < FT; k++)
                dz -= h->tgt[t + k] == v ? h->mtp[k] : 0;
            g = bf16_round((float)(h->seed * dz * z[v] * (1 - s[v]) / h->cap_c));
            g = h->g_scale * e5m2_to_f32(e5m2_from_f32((float)g / h->g_scale));
            for (int d = 0; d < FD; d++) {
                dx[t * FD + d] +=
                    g * h->w_scale * e4m3_to_f32(e4m3_from_f32(w[d * FV + v] / h->w_scale));
                dw[d * FV + v] +=
                    g * h->x_scale * e4m3_to_f32(e4m3_from_f32(x[t * FD + d] / h->x_scale));
            }
        }
    }
}

static void test_fp8(void)
{
    struct ops *o = cpu();
    real mtp[2] = { 1, 0.5f }, loss = 0;
    struct head_loss h = { .tgt = (int32_t[]){ 3, 9, 3, 3, 0, 49, 9 },
                           .mtp = mtp,
                           .n_mtp = 2,
                           .seed = 0.125f,
                           .fp8 = true,
                           .x_scale = 100.f / 448,
                           .w_scale = 1.6f / 448,
                           .g_scale = 0.75f / 448,
                           .cap_a = 23,
                           .cap_b = 5,
                           .cap_c = 7.5f };
    struct rng r = rng_make(SEED, 2);
    float xv[FT * FD], wv[FD * FV];
    double want = 0, want_dx[FT * FD] = { 0 }, want_dw[FD * FV] = { 0 };
    struct tensor x, w, dx = floats(o, FT, FD, NULL), dw = floats(o, FD, FV, NULL);

    for (int i = 0; i < FT * FD; i++) /* 6 bits: e4m3 must round to 4 */
        xv[i] = h.x_scale * ((float)rng_below(&r, (uint64_t)i, 64) - 31.5f) / 4;
    for (int i = 0; i < FD * FV; i++)
        wv[i] = h.w_scale * ((float)rng_below(&r, (uint64_t)i + 1000, 64) - 31.5f) * 4;
    xv[1] = h.x_scale * 3.4f / 512; /* below the smallest normal, 2^-6 */
    wv[5] = 3, wv[6] = -3; /* beyond 1.6: saturate */
    x = floats(o, FT, FD, xv), w = floats(o, FD, FV, wv);
    fp8_reference(xv, wv, &h, &want, want_dx, want_dw);
    o->head_loss(o, &loss, dx, dw, false, x, w, &h);
    CHECK_NEAR(loss / want, 1, 1e-6);
    for (int i = 0; i < FT * FD; i++) /* sums of 50 or 7 terms in f32 */
        CHECK_NEAR(f32_at(dx, i), want_dx[i], 1e-6);
    for (int i = 0; i < FD * FV; i++)
        CHECK_NEAR(f32_at(dw, i), want_dw[i], 1e-5);
    o->free(o);
}

static void by_hand(void)
{
    for (int k = 0; k < 8; k++)
        test_mtp_end(k & 1, k & 2, k & 4 ? 0.75 : 0);
    test_root_cap();
    test_eval();
    test_never();
    test_fp8();
}

const struct op_test head_loss_test = {
    .name = "head_loss",
    .cases = { { head_make, COUNT(head_cases) } },
    .by_hand = by_hand,
};
