/* gpu_products_test.c - the products of the model on a GPU against the plain C ops, on fresh random
 * inputs; at the records' 16384 and 49152 tokens, against sums in f64.
 *
 * Outputs hold NaN before. Tolerances in gpu_both.h and at sampled(). Exit 77 without a GPU.
 */
#include "../kernels/sm90/transposed_gemm.h"
#include "gpu_both.h"

/* Tensor cores end sums of codes at 14 bits or so, 128 terms at a time: numbers of a weight gradient h are off by 2^-13 of
 * their terms, and the sum of as many products with W by this of its terms' norm at most. */
static const double code_sums = 0x1p-11;

static void test_linear(int tokens, int in, int out, bool scaled, bool residual, bool add)
{
    struct both x = drawn(tokens, in, 1), w = weight(out, in, 0.1), dy = drawn(tokens, out, 1);
    struct both scale = scaled ? number(0.6) : none, dscale = scaled ? number(0.5) : none;
    struct both r = residual ? drawn(tokens, out, 1) : none, y = blank(tokens, out);
    struct both dx = drawn(tokens, in, 1), dw = weight(out, in, 1);

    snprintf(label, sizeof label, "linear T=%d I=%d O=%d scale=%d residual=%d add=%d", tokens, in,
             out, scaled, residual, add);
    ON_BOTH
    {
        o->linear(o, ON(y, o), ON(x, o), ON(w, o), REAL(scale, o), ON(r, o));
        o->linear_bwd_x(o, ON(dx, o), ON(dy, o), ON(w, o), REAL(scale, o), add);
        o->linear_bwd_w(o, ON(dw, o), REAL(dscale, o), ON(dy, o), ON(x, o), ON(w, o),
                        REAL(scale, o), add);
    }
    same_bf16("y", y);
    same_bf16("dx", dx);
    same_bf16("dw", dw);
    if (scaled) /* |g| |w| */
        same("dscale", dscale, f32_tolerance, 0.1 * sqrt((double)tokens * in * out));
}

static void test_mlp(int tokens, int width, int hidden, bool add, bool scaled)
{
    struct both x = drawn(tokens, width, 1), w1 = weight(hidden, width, 0.1);
    struct both w2 = weight(hidden, width, 0.1), post = blank(tokens, hidden);
    struct both kept = blank(tokens, hidden), dpre = blank(tokens, hidden);
    struct both out = blank(tokens, width), dout = drawn(tokens, width, 1);
    struct both dw2 = weight(hidden, width, 1), residual = scaled ? drawn(tokens, width, 1) : none;
    struct both scale = scaled ? number(-0.6) : none, dscale = scaled ? number(0.5) : none;

    snprintf(label, sizeof label, "mlp T=%d D=%d F=%d add=%d scale=%d", tokens, width, hidden, add,
             scaled);
    for (int64_t i = 0; i < tensor_count(kept.c); i++) {
        double r = normal();
        set(kept.c, i, bf16_round((float)(r > 0 ? r * r : 0)));
    }
    send(kept);
    ON_BOTH
    {
        o->linear_relu2(o, ON(post, o), ON(x, o), ON(w1, o));
        o->linear_t(o, ON(out, o), ON(kept, o), ON(w2, o), REAL(scale, o), ON(residual, o));
        o->linear_t_bwd_w(o, ON(dw2, o), REAL(dscale, o), ON(dout, o), ON(kept, o), ON(w2, o),
                          REAL(scale, o), add);
        o->linear_relu2_bwd(o, ON(dpre, o), ON(dout, o), ON(w2, o), REAL(scale, o), ON(kept, o));
        o->linear_relu2_bwd(o, ON(kept, o), ON(dout, o), ON(w2, o), REAL(scale, o), ON(kept, o));
    }
    same_bf16("post", post);
    same_bf16("out", out);
    same_bf16("dw2", dw2);
    if (scaled) /* |g| |w2| */
        same("dscale", dscale, f32_tolerance, 0.1 * sqrt((double)tokens * width * hidden));
    same_bf16("dpre", dpre);
    same_bf16("in place", kept);
}

/* Products with biases: with the squared ReLU, with a residual, alone; and back. */
static void test_bias(int tokens, int width, int hidden, enum dtype type, bool scaled)
{
    struct both x = drawn(tokens, width, 1), w1 = weight(hidden, width, 0.1);
    struct both b1 = draw(blank_as(type, type, 1, hidden), 1), w2 = weight(width, hidden, 0.1);
    struct both b2 = draw(blank_as(type, type, 1, width), 1), r = drawn(tokens, width, 1);
    struct both post = blank(tokens, hidden), kept = blank(tokens, hidden);
    struct both out = blank(tokens, width), alone = blank(tokens, hidden);
    struct both dpre = blank(tokens, hidden), again = blank(tokens, hidden);
    struct both dout = drawn(tokens, width, 1), scale = scaled ? number(-0.6) : none;
    struct both db1 = draw(blank_as(DT_F32, DT_F32, 1, hidden), 1);
    struct both db2 = draw(blank_as(DT_F32, DT_F32, 1, width), 1);

    snprintf(label, sizeof label, "bias T=%d D=%d F=%d %s scale=%d", tokens, width, hidden,
             dtype_name(type), scaled);
    for (int64_t i = 0; i < tensor_count(kept.c); i++) {
        double z = normal();
        set(kept.c, i, bf16_round((float)(z > 0 ? z * z : 0)));
    }
    send(kept);
    ON_BOTH
    {
        o->linear_bias(o, ON(post, o), ON(x, o), ON(w1, o), NULL, ON(b1, o), NO_TENSOR, true);
        o->linear_bias(o, ON(out, o), ON(kept, o), ON(w2, o), REAL(scale, o), ON(b2, o), ON(r, o),
                       false);
        o->linear_bias(o, ON(alone, o), ON(x, o), ON(w1, o), REAL(scale, o), ON(b1, o), NO_TENSOR,
                       false);
        o->bias_bwd(o, ON(db2, o), ON(dout, o));
        o->relu2_bias_bwd(o, ON(dpre, o), ON(db1, o), ON(dout, o), ON(w2, o), REAL(scale, o),
                          ON(kept, o));
        o->relu2_bias_bwd(o, ON(again, o), NO_TENSOR, ON(dout, o), ON(w2, o), REAL(scale, o),
                          ON(kept, o));
    }
    same_bf16("post", post);
    same_bf16("out", out);
    same_bf16("alone", alone);
    same_bf16("dpre", dpre);
    same_bf16("dpre without a bias", again);
    same("db2", db2, f32_tolerance, sqrt((double)tokens * width));
    /* The GPU sums dpre as it is rounded. */
    same("db1", db1, bf16_tolerance, sqrt((double)tokens * hidden));
}

/* post8 is e4m3(post / 4) of the post beside it, to the bit; the first is in the saturated range. */
static void codes_of(struct tensor post8, struct tensor post)
{
    int64_t off = 0;

    for (int64_t i = 0; i < tensor_count(post); i++)
        off += ((uint8_t *)post8.data)[i] != e4m3_from_f32((float)get(post, i) / 4);
    check_that(!off && get(post, 0) > 4 * 448, __FILE__, __LINE__,
               "%s: %lld codes are not those of post, whose first is %g", label, (long long)off,
               get(post, 0));
}

/* The first product in fp8. Both devices make the same codes, as x and w are bf16 on both, so that what
 * is left is bf16's rounding of pre and post, and the tensor cores' of sums: within the tolerance of a
 * product in bf16. Copies of the first and the third quarter of w are made, the latter is used. */
static void test_relu2_fp8(int tokens, int width, int hidden)
{
    struct both x = drawn(tokens, width, 1), w = weight(4 * hidden, width, 0.1);
    struct both post = blank(tokens, hidden), scale = blank_as(DT_F32, DT_F32, 2, 1);
    struct both codes = blank_as(DT_E4M3, DT_E4M3, 2 * hidden, width);
    struct both loud = drawn(tokens, width, 1), again = blank(tokens, hidden),
                post8 = blank_as(DT_E4M3, DT_E4M3, tokens, hidden);

    snprintf(label, sizeof label, "relu2_fp8 T=%d D=%d F=%d", tokens, width, hidden);
    set(x.c, 5, -40), set(w.c, 2 * (int64_t)hidden * width + 3, 2);
    set(loud.c, 3, 30);
    send(x), send(w), send(loud);
    ON_BOTH
    {
        struct fp8_matrices q = {
            .codes = ON(codes, o), .scale = REAL(scale, o), .rows = hidden, .stride = 2 * hidden
        };
        struct fp8_weight w8 = { tensor_rows(q.codes, hidden, hidden), q.scale + 1 };
        struct tensor w1 = tensor_rows(ON(w, o), 2 * hidden, hidden);
        o->quantize_matrices(o, &q, ON(w, o));
        o->linear_relu2_fp8(o, ON(post, o), NO_TENSOR, ON(x, o), w1, w8);
        o->linear_relu2_fp8(o, ON(again, o), ON(post8, o), ON(loud, o), w1, w8);
    }
    same("codes", codes, 0, 0);
    same("scale", scale, 0, 0);
    same_bf16("post", post);
    same_bf16("loud", again);
    codes_of(post8.c, again.c);
    struct tensor codes_g = fetched(post8.g), post_g = fetched(again.g);
    codes_of(codes_g, post_g);
    free(codes_g.data), free(post_g.data);
}

/* The second, of codes that both devices have: no more is left than in bf16. */
static void test_down_fp8(int tokens, int hidden, int width, bool scaled, bool residual)
{
    struct both w = weight(4 * hidden, width, 0.1), x = blank(tokens, hidden);
    struct both x8 = blank_as(DT_E4M3, DT_E4M3, tokens, hidden), y = blank(tokens, width);
    struct both codes = blank_as(DT_E4M3, DT_E4M3, 2 * hidden, width);
    struct both turned = blank_as(DT_E4M3, DT_E4M3, 2 * width, hidden);
    struct both of = blank_as(DT_F32, DT_F32, 2, 1), r = residual ? drawn(tokens, width, 1) : none;
    struct both scale = scaled ? number(-0.6) : none;
    int64_t off = 0;

    snprintf(label, sizeof label, "down_fp8 T=%d F=%d D=%d scale=%d residual=%d", tokens, hidden,
             width, scaled, residual);
    for (int64_t i = 0; i < tensor_count(x8.c); i++)
        set(x8.c, i, normal() * normal());
    send(x8);
    ON_BOTH
    {
        struct fp8_matrices q = { ON(codes, o), ON(turned, o), REAL(of, o), hidden,
                                  hidden,       2 * hidden,    false };
        struct fp8_weight w8 = { tensor_rows(q.turned, width, width), q.scale + 1 };
        o->quantize_matrices(o, &q, ON(w, o));
        o->linear_t_fp8(o, ON(y, o), ON(x, o), tensor_rows(ON(w, o), 3 * hidden, hidden), ON(x8, o),
                        NULL, w8, REAL(scale, o), ON(r, o));
    }
    same("codes", codes, 0, 0);
    same("turned", turned, 0, 0);
    same("scale", of, 0, 0);
    for (int64_t i = 0; i < tensor_count(turned.c); i++) {
        int64_t m = i / ((int64_t)width * hidden), at = i % ((int64_t)width * hidden);
        off += ((uint8_t *)turned.c.data)[i] !=
               ((uint8_t *)codes.c.data)[(m * hidden + at % hidden) * width + at / hidden];
    }
    check_that(!off, __FILE__, __LINE__, "%s: turned is not the transpose of codes", label);
    same_bf16("y", y);
}

/* The output projection, of codes made on the way. */
static void test_out_fp8(int tokens, int width, bool residual)
{
    struct both w = weight(4 * width, width, 0.02), x = drawn(tokens, width, 1);
    struct both codes = blank_as(DT_E4M3, DT_E4M3, width, width), of = number(0);
    struct both y = blank(tokens, width), r = residual ? drawn(tokens, width, 1) : none;
    struct both scale = number(-0.6);

    snprintf(label, sizeof label, "out_fp8 T=%d D=%d residual=%d", tokens, width, residual);
    ON_BOTH
    {
        struct fp8_matrices q = { .codes = ON(codes, o),
                                  .scale = REAL(of, o),
                                  .first = 3 * width,
                                  .rows = width,
                                  .stride = 4 * width,
                                  .exact = true };
        struct fp8_weight w8 = { q.codes, q.scale };
        o->quantize_matrices(o, &q, ON(w, o));
        o->linear_fp8(o, ON(y, o), ON(x, o), tensor_rows(ON(w, o), 3 * width, width), w8,
                      REAL(scale, o), ON(r, o));
    }
    same("codes", codes, 0, 0);
    same_bf16("y", y);
}

/* Attention's projections in fp8, and their gradients: both devices have the same codes, and what is left is
 * bf16's rounding and the tensor cores' of sums. The first of x and dy saturate. add: dy's codes are made before. */
static void test_projections_fp8(int tokens, int heads, int size, bool table, bool add)
{
    int width = heads * size;
    struct both w = weight(2 * 4 * width, width, 0.02), x = drawn(tokens, width, 1);
    struct both codes = blank_as(DT_E4M3, DT_E4M3, 2 * 3 * width, width);
    struct both turned = blank_as(DT_E4M3, DT_E4M3, 2 * width, 3 * width);
    struct both of = blank_as(DT_F32, DT_F32, 2, 1), scale = number(0.7);
    struct both x8 = blank_as(DT_E4M3, DT_E4M3, tokens, width), raw = blank(tokens, 3 * width);
    struct both q = blank(tokens, width), k = blank(tokens, width), v = blank(tokens, width);
    struct both rope = blank_as(DT_BF16, DT_BF16, tokens, size / 2);
    struct both factor = blank_as(DT_F32, DT_F32, 2 * heads, tokens);
    struct both gate = weight(heads, GATE_WIDTH, 0.5), e = weight(50, width, 1);
    struct both dy = drawn(tokens, 3 * width, 0.02), dx = blank(tokens, width);
    struct both dy8 = blank_as(DT_E4M3, DT_E4M3, tokens, 3 * width);
    struct both dw = weight(3 * width, width, 1), dscale = number(0.5);
    struct tokens tk = tokens_make(tokens, 50);
    float freq[32];

    snprintf(label, sizeof label, "projections_fp8 T=%d H=%d E=%d table=%d add=%d", tokens, heads,
             size, table, add);
    for (int m = 0; m < size / 4; m++)
        freq[m] = powf(1024, -(float)m / (float)(size / 4 - 1));
    set(x.c, 0, 20), set(dy.c, 0, -1);
    send(x), send(dy);
    ON_BOTH
    {
        struct batch b = tokens_on(o, &tk);
        struct fp8_matrices m = { .codes = ON(codes, o),
                                  .turned = ON(turned, o),
                                  .scale = REAL(of, o),
                                  .rows = 3 * width,
                                  .stride = 4 * width,
                                  .exact = true };
        struct fp8_operands in = { ON(x8, o),
                                   8.0f / 448,
                                   { tensor_rows(m.codes, 3 * width, 3 * width), m.scale + 1 } };
        struct qkv_shape s = { .heads = heads, .head_dim = size, .fp8 = &in };
        struct tensor qkv = tensor_rows(ON(w, o), 4 * width, 3 * width);
        struct rope r = { ON(rope, o) };
        o->rope_table(o, r, freq, 0, false);
        o->quantize_matrices(o, &m, ON(w, o));
        o->input_codes(o, in.x8, ON(x, o), in.x_scale);
        o->qkv(o, ON(q, o), ON(k, o), ON(v, o), ON(factor, o), ON(raw, o), ON(x, o), qkv,
               REAL(scale, o), NO_TENSOR, &s, r, ON(x, o), ON(gate, o),
               table ? ON(e, o) : NO_TENSOR, &b);
        struct fp8_weight back = { tensor_rows(m.turned, width, width), m.scale + 1 };
        o->input_codes(o, ON(dy8, o), ON(dy, o), 0.125f / 448);
        o->linear_bwd_fp8(o, ON(dx, o), ON(dw, o), REAL(dscale, o), ON(dy, o),
                          add ? ON(dy8, o) : NO_TENSOR, ON(x, o), qkv, back, REAL(scale, o),
                          0.125f / 448, in.x_scale, add);
    }
    same("codes", codes, 0, 0);
    same("turned", turned, 0, 0);
    same("scale", of, 0, 0);
    same("x8", x8, 0, 0);
    same_bf16("q", q);
    same_bf16("k", k);
    same_bf16("v", v);
    same_bf16("factor", factor);
    same_bf16("dx", dx);
    same_bf16("dw", dw);
    same("dscale", dscale, code_sums, 0.02 * 0.02 * sqrt(3.0 * tokens) * width);
}

static double coded(double x) { return e5m2_to_f32(e5m2_from_f32((float)x)); }

/* dx = g w, g the codes of dpre. On a GPU dpre has been rounded twice at most before it is coded, each time by
 * 2^-8 of it, which may turn its code: then dx may differ by that step times w. Besides by bf16's rounding,
 * and by the tensor cores' sums, which keep 13 bits of a term beside the greatest of 128. */
static void same_unless_turned(struct both dx, struct both dpre, double unit, struct both codes,
                               double w_scale)
{
    int64_t rows = dx.c.rows, width = dx.c.cols, hidden = dpre.c.cols, off = 0;
    double *allowed = calloc((size_t)width, sizeof *allowed);
    double *norm = calloc((size_t)width, sizeof *norm), worst = 0;
    struct tensor h = fetched(dx.g);

    for (int64_t i = 0; i < width * hidden; i++) {
        double w = w_scale * get(codes.c, i);
        norm[i / hidden] += w * w;
    }
    for (int64_t t = 0; t < rows; t++) {
        double g = 0;
        memset(allowed, 0, (size_t)width * sizeof *allowed);
        for (int64_t f = 0; f < hidden; f++) {
            double x = get(dpre.c, t * hidden + f) / unit;
            double step = unit * fabs(coded(x * (1 + 0x1.1p-7)) - coded(x * (1 - 0x1.1p-7)));
            g += unit * unit * x * x;
            for (int64_t d = 0; d < width && step > 0; d++)
                allowed[d] += step * fabs(w_scale * get(codes.c, d * hidden + f));
        }
        for (int64_t d = 0; d < width; d++) {
            double want = get(dx.c, t * width + d), e = fabs(get(h, t * width + d) - want);
            double most = 1.01 * allowed[d] + 0x1p-8 * fabs(want) + 0x1p-12 * sqrt(g * norm[d]);
            off += !(e <= most);
            worst = e / most > worst ? e / most : worst;
        }
    }
    check_that(!off, __FILE__, __LINE__, "%s: dx: %lld numbers off, by up to %g of what is allowed",
               label, (long long)off, worst);
    free(allowed), free(norm), free(h.data);
}

/* The backward. dout's codes are the same on both. A gradient before the ReLU may be rounded to bf16 on the
 * GPU, which turns its code where the middle of two lies between: of one in 2^7, as 2^-9 is the mean error
 * of bf16 and 2^-2 the distance of codes in e5m2, by 0.17 of it on average: sqrt(2^-7) 0.17 = 1.5e-2 of all
 * where there are many. */
static void test_bwd_fp8(int tokens, int width, int hidden, bool scaled)
{
    struct both w = weight(2 * hidden, width, 0.1), dout = drawn(tokens, width, 1e-4);
    struct both dpre = blank(tokens, hidden), dx = blank(tokens, width);
    struct both codes[2], turned[2], of[2], scale = scaled ? number(-0.6) : none;
    struct both x = drawn(tokens, width, 1), dw1 = weight(hidden, width, 1e-3);
    struct both again = blank(tokens, hidden), dx2 = blank(tokens, width);
    struct both post = blank(tokens, hidden), dw2 = weight(hidden, width, 1e-3);
    struct both dscale = scaled ? number(0.5) : none;

    snprintf(label, sizeof label, "bwd_fp8 T=%d D=%d F=%d scale=%d", tokens, width, hidden, scaled);
    for (int64_t i = 0; i < tensor_count(dpre.c); i++) {
        double r = normal();
        set(dpre.c, i, bf16_round((float)(r > 0 ? r * r : 0)));
        set(again.c, i, get(dpre.c, i)), set(post.c, i, get(dpre.c, i));
    }
    send(dpre), send(again), send(post);
    for (int k = 0; k < 2; k++) {
        codes[k] = blank_as(DT_E4M3, DT_E4M3, hidden, width);
        turned[k] = blank_as(DT_E4M3, DT_E4M3, width, hidden);
        of[k] = number(0);
    }
    ON_BOTH
    {
        for (int k = 0; k < 2; k++) {
            struct fp8_matrices q = { ON(codes[k], o), ON(turned[k], o), REAL(of[k], o), k * hidden,
                                      hidden,          2 * hidden,       false };
            o->quantize_matrices(o, &q, ON(w, o));
        }
        struct fp8_weight w1_8 = { ON(turned[0], o), REAL(of[0], o) };
        struct fp8_weight w2_8 = { ON(codes[1], o), REAL(of[1], o) };
        o->mlp_bwd_fp8(o, ON(dpre, o), ON(dx, o), ON(dout, o), tensor_rows(ON(w, o), 0, hidden),
                       w1_8, tensor_rows(ON(w, o), hidden, hidden), w2_8, REAL(scale, o),
                       ON(dpre, o), NULL);
        struct fp8_grads grads = { ON(dw1, o), ON(x, o), NO_TENSOR, NULL, scaled };
        o->mlp_bwd_fp8(o, ON(again, o), ON(dx2, o), ON(dout, o), tensor_rows(ON(w, o), 0, hidden),
                       w1_8, tensor_rows(ON(w, o), hidden, hidden), w2_8, REAL(scale, o),
                       ON(again, o), &grads);
        grads.dw2 = ON(dw2, o), grads.dscale = REAL(dscale, o), grads.add = !scaled;
        o->mlp_bwd_fp8(o, ON(post, o), ON(dx2, o), ON(dout, o), tensor_rows(ON(w, o), 0, hidden),
                       w1_8, tensor_rows(ON(w, o), hidden, hidden), w2_8, REAL(scale, o),
                       ON(post, o), &grads);
    }
    same_bf16("dpre", dpre);
    /* A code that turned is a step of 2^-3 off, and few of them do; at one token it is the whole sum. */
    same("dw1", dw1, 1.5e-1, 1e-3);
    if (tokens > 100)
        same("dw1", dw1, 3e-2, 0);
    same_bf16("dw2", dw2); /* of codes that are the same on both */
    if (scaled)
        same("dscale", dscale, code_sums, 1e-4 * 0.1 * sqrt((double)tokens * width * hidden));
    struct tensor one = fetched(dx.g), two = fetched(dx2.g);
    CHECK(!memcmp(one.data, two.data, tensor_bytes(one)));
    free(one.data), free(two.data);
    double most = 0;
    for (int64_t i = 0; i < tensor_count(dout.c); i++)
        most = fmax(most, fabs(get(dout.c, i)));
    same_unless_turned(dx, dpre, most / FP8_GRAD_UNIT, turned[0], *(float *)of[0].c.data);
    if (tokens * hidden > 10000)
        same("dx", dx, 3e-2, 0);
}

/* Codes and scales of the micro-batch and of the refresh before: the same bits. */
static void test_delayed(int tokens, int hidden, int width)
{
    struct both x = drawn(tokens, hidden, 1), x8 = blank_as(DT_E4M3, DT_E4M3, tokens, hidden);
    struct both w = weight(4 * hidden, width, 0.1);
    struct both codes = blank_as(DT_E4M3, DT_E4M3, 2 * hidden, width);
    struct both turned = blank_as(DT_E4M3, DT_E4M3, 2 * width, hidden);
    struct both of = blank_as(DT_F32, DT_F32, 2, 1), next = blank_as(DT_F32, DT_F32, 2, 1);
    struct both scale = number(0), most = number(0), first = number(1);

    snprintf(label, sizeof label, "delayed T=%d F=%d D=%d", tokens, hidden, width);
    for (int64_t i = 0; i < tensor_count(x.c); i++)
        set(x.c, i, bf16_round((float)(get(x.c, i) * get(x.c, i)))); /* as a squared ReLU */
    send(x);
    ON_BOTH
    {
        o->zero(o, ON(next, o));
        struct fp8_matrices q = { ON(codes, o), ON(turned, o), REAL(of, o), hidden,
                                  hidden,       2 * hidden,    false };
        struct fp8_delay d = { REAL(next, o), REAL(first, o), 1.12f };
        for (int k = 0; k < 2; k++) {
            o->delayed_codes(o, ON(x8, o), ON(x, o), REAL(scale, o), REAL(most, o));
            if (k == 0)
                o->delayed_scales(o, REAL(scale, o), REAL(most, o), 1, 1.8f);
            o->quantize_delayed(o, &q, &d, ON(w, o));
            o->zero(o, ON(first, o));
        }
    }
    same("codes of x", x8, 0, 0);
    same("scale", scale, 0, 0);
    same("most", most, 0, 0);
    same("codes of w", codes, 0, 0);
    same("turned", turned, 0, 0);
    same("scales of w", of, 0, 0);
    same("next", next, 0, 0);
}

/* -- a product that turns its operand (sm90/transposed_gemm.cu) ------------------------------------ */

static struct tensor codes_on_gpu(enum dtype type, int64_t rows, int64_t cols, double **values)
{
    struct tensor t = tensor_of(NULL, type, rows, cols);
    int64_t n = rows * cols;
    uint8_t *codes = malloc((size_t)n);

    *values = malloc((size_t)n * sizeof **values);
    for (int64_t i = 0; i < n; i++) {
        float x = (float)normal();
        codes[i] = type == DT_E5M2 ? e5m2_from_f32(x) : e4m3_from_f32(x);
        (*values)[i] = type == DT_E5M2 ? e5m2_to_f32(codes[i]) : e4m3_to_f32(codes[i]);
    }
    t.data = gpu->alloc(gpu, (size_t)n, "test");
    gpu->upload(gpu, t.data, codes, (size_t)n);
    free(codes);
    return t;
}

/* b (n,wide), a (k,m), as numbers. */
struct codes_case {
    int m, n, k, wide;
    double *a, *b;
};

/* out (n,m) against 0.5 b a + before in f64. The tensor cores keep 13 bits of a term beside the greatest of 128:
 * 2^-13 for each of four products, and bf16's rounding. */
static void turned_is(const char *name, const struct codes_case *t, const double *got,
                      const double *before, double most)
{
    double off = 0, norm = 0;

    for (int64_t i = 0; i < t->n; i++)
        for (int64_t j = 0; j < t->m; j++) {
            double want = before ? before[i * t->m + j] : 0, d;
            for (int64_t l = 0; l < t->k; l++)
                want += 0.5 * t->b[i * t->wide + l] * t->a[l * t->m + j];
            d = got[i * t->m + j] - want;
            off += d * d;
            norm += want * want;
        }
    check_that(off <= most * most * norm, __FILE__, __LINE__, "%s M=%d N=%d K=%d: off by %g of %g",
               name, t->m, t->n, t->k, sqrt(off), sqrt(norm));
}

/* a of k rows, b of k columns in whole sixteens. */
static struct codes_case codes_case(int m, int n, int k, struct tensor *a, enum dtype a_type,
                                    struct tensor *b, enum dtype b_type)
{
    struct codes_case t = { m, n, k, (k + 15) / 16 * 16, NULL, NULL };

    *a = codes_on_gpu(a_type, k, m, &t.a);
    *b = codes_on_gpu(b_type, n, t.wide, &t.b);
    return t;
}

static void test_turned(int m, int n, int k, enum dtype out_type, bool add)
{
    struct tensor ta, tb;
    struct codes_case t = codes_case(m, n, k, &ta, DT_E5M2, &tb, DT_E4M3);
    struct both out = draw(blank_as(DT_F32, out_type, n, m), 1);
    double *before = calloc((size_t)m * n, sizeof *before), *after = calloc((size_t)m * n, 8);

    for (int64_t i = 0; i < tensor_count(out.c); i++) {
        before[i] = get(out.c, i);
        if (!add)
            set(out.c, i, NAN);
    }
    send(out);
    transposed_gemm((struct cuda_ops *)gpu, out.g, tb, ta, 0.5f, add);
    struct tensor got = fetched(out.g);
    for (int64_t i = 0; i < tensor_count(got); i++)
        after[i] = get(got, i);
    turned_is(out_type == DT_F32 ? "turned" : "turned to bf16", &t, after, add ? before : NULL,
              out_type == DT_F32 ? 1e-3 : 3e-3);
    free(t.a), free(t.b), free(got.data), free(before), free(after);
}

/* Checks that product transposed, of all three pairs of types, in parts that are added up. */
static void test_turned_out(int m, int n, int k, enum dtype a_type, enum dtype b_type, int parts)
{
    struct tensor ta, tb;
    struct codes_case t = codes_case(m, n, k, &ta, a_type, &tb, b_type);
    struct both out = blank_as(DT_F32, DT_F32, (int64_t)parts * m, n);
    double *after = calloc((size_t)m * n, sizeof *after);

    transposed_gemm_turned((struct cuda_ops *)gpu, out.g, tb, ta, 0.5f);
    struct tensor got = fetched(out.g);
    for (int64_t i = 0; i < (int64_t)m * n; i++)
        for (int p = 0; p < parts; p++)
            after[i % n * m + i / n] += get(got, (int64_t)p * m * n + i);
    turned_is("turned, transposed", &t, after, NULL, 1e-3);
    free(t.a), free(t.b), free(got.data), free(after);
}

/* One great product, then 2^-15 of it 8191 times: only those of its own 128 may be lost. */
static void test_turned_sums(void)
{
    enum { K = 8192 };
    double *a, *b;
    struct tensor ta = codes_on_gpu(DT_E5M2, K, 16, &a), tb = codes_on_gpu(DT_E4M3, 16, K, &b);
    struct both out = blank_as(DT_F32, DT_F32, 16, 16);
    uint8_t *codes = malloc(16 * K);

    for (int i = 0; i < 16 * K; i++)
        codes[i] = e5m2_from_f32(i < 16 ? 1 : 0x1p-15f);
    gpu->upload(gpu, ta.data, codes, 16 * K);
    for (int i = 0; i < 16 * K; i++)
        codes[i] = e4m3_from_f32(1);
    gpu->upload(gpu, tb.data, codes, 16 * K);
    transposed_gemm((struct cuda_ops *)gpu, out.g, tb, ta, 1, false);
    struct tensor got = fetched(out.g);
    for (int i = 0; i < 256; i++)
        CHECK_NEAR(get(got, i), 1.25, 128 * 0x1p-15);
    free(a), free(b), free(codes), free(got.data);
}

/* No part is empty, and one is enough where tiles fill the GPU or k is short. */
static void test_parts(void)
{
    struct cuda_ops *c = (struct cuda_ops *)gpu;
    static const int64_t k[] = { 1, 127, 129, 2048, 16384, 49152, 100000 };

    for (int i = 0; i < 7; i++)
        for (int64_t m = 256; m < 4000; m += 256) {
            int stages = (int)((k[i] + 127) / 128), parts = transposed_gemm_parts(c, m, 768, k[i]);
            CHECK(parts >= 1 && (parts - 1) * ((stages + parts - 1) / parts) < stages);
        }
    CHECK_EQ(transposed_gemm_parts(c, 2304, 768, 128), 1);
    CHECK_EQ(transposed_gemm_parts(c, 1 << 20, 768, 49152), 1);
}

static void test_turned_all(void)
{
    bool portable;

    CHECK_OK(ops_cuda_portable(0, &portable));
    if (portable)
        return;
    test_turned(16, 16, 1, DT_F32, false);
    test_turned(16, 16, 128, DT_F32, false);
    test_turned(144, 208, 300, DT_F32, true);
    test_turned(272, 48, 700, DT_BF16, false);
    test_turned(400, 400, 1000, DT_BF16, true);
    test_turned_out(16, 16, 1, DT_E5M2, DT_E4M3, 1);
    test_turned_out(144, 208, 300, DT_E4M3, DT_E5M2, 2);
    test_turned_out(400, 48, 700, DT_E4M3, DT_E4M3, 3);
    test_parts();
    test_turned_sums();
}

/* -- products at full length, against sums in f64 -------------------------------------------- */

/* |got - want| over some elements: sampled (i,j), row i of a (or column, ta) times b. A scale of 0
 * stands for the squared ReLU. */
static void sampled(const char *name, struct tensor out, struct tensor a, bool ta, struct tensor b,
                    bool tb, double scale)
{
    enum { SAMPLES = 300 };
    struct tensor ho = fetched(out), ha = fetched(a), hb = fetched(b);
    int64_t k = ta ? a.rows : a.cols;
    double off = 0, norm = 0;

    for (int s = 0; s < SAMPLES; s++) {
        int64_t i = (int64_t)rng_below(&rng, draws++, (uint64_t)out.rows);
        int64_t j = (int64_t)rng_below(&rng, draws++, (uint64_t)out.cols);
        double want = 0, d;
        for (int64_t l = 0; l < k; l++)
            want += get(ha, ta ? l * a.cols + i : i * a.cols + l) *
                    get(hb, tb ? j * b.cols + l : l * b.cols + j);
        want = scale ? want * scale : want > 0 ? want * want : 0;
        d = get(ho, i * out.cols + j) - want;
        off += d * d;
        norm += want * want;
    }
    /* bf16 results of f32 sums: one rounding, 2^-9 / sqrt(3) of an element on average; the square
     * is of a sum that was rounded, so that three count. */
    double most = scale ? 3e-3 : 9e-3;
    check_that(off <= most * most * norm, __FILE__, __LINE__, "%s: off by %g of %g", name,
               sqrt(off), sqrt(norm));
    free(ho.data), free(ha.data), free(hb.data);
}

/* Random bf16 on the GPU only, quickly: ten thousand numbers, repeated out of step. */
static struct tensor on_gpu(int64_t rows, int64_t cols)
{
    enum { DISTINCT = 9973 };
    struct tensor t = tensor_of(NULL, DT_BF16, rows, cols);
    uint16_t some[DISTINCT], *all = malloc(tensor_bytes(t));

    t.data = gpu->alloc(gpu, tensor_bytes(t), "test");
    for (int i = 0; i < DISTINCT; i++)
        some[i] = bf16_from_f32((float)normal());
    for (int64_t i = 0, j = 0; i < rows * cols; i++) {
        all[i] = some[j];
        j = (j + 1 + (i % 4099 == 0)) % DISTINCT;
    }
    gpu->upload(gpu, t.data, all, tensor_bytes(t));
    free(all);
    return t;
}

static void test_long_products(int tokens)
{
    enum { D = 768, F = 3072 };
    struct tensor x = on_gpu(tokens, D), w = on_gpu(3 * D, D), y = on_gpu(tokens, 3 * D);
    struct tensor dx = on_gpu(tokens, D), dw = on_gpu(3 * D, D), w1 = on_gpu(F, D);
    struct tensor post = on_gpu(tokens, F), out = on_gpu(tokens, D), dw2 = on_gpu(F, D);
    struct both scale = number(0.7);

    gpu->linear(gpu, y, x, w, scale.g.data, NO_TENSOR);
    sampled("linear", y, x, false, w, true, 0.7f);
    gpu->linear_bwd_x(gpu, dx, y, w, NULL, false);
    sampled("linear_bwd_x", dx, y, false, w, false, 1);
    gpu->linear_bwd_w(gpu, dw, NULL, y, x, w, NULL, false);
    sampled("linear_bwd_w", dw, y, true, x, false, 1);
    gpu->linear_relu2(gpu, post, x, w1);
    sampled("linear_relu2", post, x, false, w1, true, 0);
    gpu->linear_t(gpu, out, post, w1, NULL, NO_TENSOR);
    sampled("linear_t", out, post, false, w1, false, 1);
    gpu->linear_t_bwd_w(gpu, dw2, NULL, out, post, w1, NULL, false);
    sampled("linear_t_bwd_w", dw2, post, true, out, false, 1);
}

static void test_small(void)
{
    fresh();
    if (check_of("linear")) {
        test_linear(1, 8, 16, false, false, false);
        test_linear(7, 16, 24, true, false, false);
        test_linear(13, 40, 72, true, true, true);
        test_linear(64, 16, 48, false, true, true);
    }
    if (check_of("linear_relu2 linear")) {
        test_mlp(1, 16, 24, false, true);
        test_mlp(33, 32, 136, true, true);
        test_mlp(161, 72, 264, false, true);
        test_mlp(500, 72, 904, false, false);
        test_mlp(1000, 200, 392, true, false);
    }
    if (check_of("bias linear")) {
        test_bias(1, 8, 16, DT_F32, false);
        test_bias(33, 72, 136, DT_BF16, true);
        test_bias(161, 264, 72, DT_F32, true);
        test_bias(check_small() ? 500 : 1000, 136, 904, DT_BF16, false);
    }
    if (check_of("linear_relu2")) {
        test_relu2_fp8(1, 16, 16);
        test_relu2_fp8(33, 48, 144);
        test_relu2_fp8(500, 144, 400);
        test_bwd_fp8(1, 16, 16, false);
        test_bwd_fp8(33, 48, 144, true);
        test_bwd_fp8(500, 144, 400, false);
    }
    if (check_of("linear_relu2 linear")) {
        test_delayed(1, 16, 32);
        test_delayed(33, 144, 48);
        test_down_fp8(1, 16, 32, false, false);
        test_down_fp8(33, 144, 48, true, true);
        test_down_fp8(500, 400, 144, false, true);
    }
    if (check_of("qkv linear quantize")) {
        test_out_fp8(1, 16, false);
        test_out_fp8(333, 144, true);
        test_projections_fp8(1, 1, 32, false, false);
        test_projections_fp8(37, 3, 64, true, true);
        test_projections_fp8(331, 2, 128, true, true);
        test_projections_fp8(160, 1, 128, false, false);
    }
    if (check_of("linear head_loss"))
        test_turned_all();
    for (int scaled = 0; scaled < 2 && check_of("linear_relu2 linear"); scaled++)
        test_mlp(check_small() ? 700 : 5000, 136, 1160, false, scaled);
}

static void test_real(void)
{
    fresh();
    if (check_of("linear")) {
        test_linear(2048, 768, 2304, true, false, false);
        test_linear(2048, 768, 768, true, true, true);
    }
    if (check_of("linear_relu2 linear")) {
        test_mlp(2048, 768, 3072, false, false);
        test_mlp(2048, 768, 3072, true, true);
    }
    if (check_of("bias linear"))
        test_bias(2048, 768, 3072, DT_F32, true);
    if (check_of("qkv linear quantize")) {
        test_out_fp8(2048, 768, true);
        test_projections_fp8(2048, 6, 128, true, true);
        test_projections_fp8(2048, 6, 128, false, false);
    }
    if (check_of("linear_relu2"))
        test_relu2_fp8(2048, 768, 3072);
    if (check_of("linear_relu2 linear"))
        test_down_fp8(2048, 3072, 768, true, true);
    if (check_of("linear_relu2"))
        test_bwd_fp8(2048, 768, 3072, true);
    for (int tokens = 16384; tokens <= 49152; tokens += 32768) {
        fresh();
        if (check_of("linear linear_relu2"))
            test_long_products(tokens);
    }
}

/* gpu_products_test [SEED [small]]: that seed again; the small shapes only. */
int main(int argc, char **argv)
{
    if (!both_begin(argc, argv))
        return check_skip("gpu");
    test_small();
    if (argc < 3 && !check_small())
        test_real();
    return both_end();
}
