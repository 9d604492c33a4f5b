/* gpu_ops_test.c - each kernel of the model against the plain C op, on fresh random inputs.
 *
 * Both devices get the same numbers (bf16 values; the CPU keeps activations in f32). Outputs
 * hold NaN before. Ragged shapes, and the record's: width 768, heads of 128, MLP 3072, 50304
 * classes; products at 49152 tokens are held against sampled sums in f64.
 *
 * Tolerances, as |gpu - cpu| / |cpu|:
 * - bf16 results: 1e-2 (a rounding is 2^-9 of an element at most; inner tensors in bf16 add);
 * - f32 sums of up to 1e6 terms in another order, with hardware exponentials: 1e-5 of the sum of
 *   absolute terms, which `size` gives where terms cancel;
 * - fp8: 5e-2 (numbers near the edge of two codes go either way, a code is 2^-3 wide).
 * Exit 77 without a GPU.
 */
#include <time.h>
#include "../kernels/ops_cuda.h"
#include "gpu_both.h"

static const double bf16_tolerance = 1e-2, f32_tolerance = 1e-5, fp8_tolerance = 5e-2;
static void same_bf16(const char *name, struct both b) { same(name, b, bf16_tolerance, 0); }

/* -- ops ------------------------------------------------------------------------------------ */

static void test_embed(int tokens, int width, int vocab, bool add, bool twice)
{
    struct tokens tk = tokens_make(tokens, vocab);
    struct both table = weight(vocab, width, 0.5), gate = weight(1, GATE_WIDTH, 0.5);
    struct both lambda = number(0.7), x0 = blank(tokens, width);
    struct both dx0 = drawn(tokens, width, 1), de = blank(tokens, width);
    struct both dgate = weight(1, GATE_WIDTH, 1), dlambda = number(0.3);
    struct both rows = drawn(tokens, width, 1), rows2 = twice ? drawn(tokens, width, 1) : none;
    struct both dtable = weight(vocab, width, 1);

    snprintf(label, sizeof label, "embed T=%d D=%d V=%d add=%d two=%d", tokens, width, vocab, add,
             twice);
    ON_BOTH {
        struct batch b = tokens_on(o, &tk);
        o->embed(o, ON(x0, o), ON(table, o), ON(gate, o), REAL(lambda, o), &b);
        o->embed_bwd(o, ON(de, o), ON(dgate, o), REAL(dlambda, o), ON(dx0, o), ON(table, o),
                     ON(gate, o), REAL(lambda, o), &b);
        o->table_grad(o, ON(dtable, o), ON(rows, o), ON(rows2, o), &b.token, add);
    }
    same_bf16("x0", x0);
    same_bf16("de", de);
    same_bf16("dgate", dgate);
    same("dlambda", dlambda, f32_tolerance, sqrt((double)tokens * width));
    same_bf16("dtable", dtable);
}

/* A letter a term: c with a coefficient, m minus it, 1 without. */
static void test_mix(int tokens, int width, const char *terms, bool norm, bool dy12, bool dout,
                     bool in_place, bool add)
{
    int n = (int)strlen(terms);
    struct both x[MIX_MAX], coef[MIX_MAX], dx[MIX_MAX], dcoef[MIX_MAX];
    struct both out = blank(tokens, width), y = norm ? blank(tokens, width) : none;
    struct both saved = drawn(tokens, width, 2), g = dout ? drawn(tokens, width, 1) : none;
    struct both dy = norm ? drawn(tokens, width, 1) : none;
    struct both d12 = dy12 ? drawn(tokens, GATE_WIDTH, 1) : none;

    snprintf(label, sizeof label, "mix_norm T=%d D=%d %s norm=%d dy12=%d dout=%d in_place=%d "
             "add=%d", tokens, width, terms, norm, dy12, dout, in_place, add);
    for (int k = 0; k < n; k++) {
        x[k] = drawn(tokens, width, 1);
        coef[k] = terms[k] == '1' ? none : number(0.5 + k);
        dcoef[k] = terms[k] == '1' ? none : number(0.25);
        dx[k] = k == 0 && in_place ? g : drawn(tokens, width, 1);
    }
    ON_BOTH {
        struct mix_term in[MIX_MAX];
        struct mix_grad d[MIX_MAX];
        for (int k = 0; k < n; k++) {
            in[k] = (struct mix_term){ ON(x[k], o), REAL(coef[k], o), terms[k] == 'm' };
            d[k] = (struct mix_grad){ ON(dx[k], o), add && !(k == 0 && in_place),
                                      REAL(dcoef[k], o) };
        }
        o->mix_norm(o, ON(out, o), ON(y, o), n, in);
        o->mix_norm_bwd(o, d, ON(g, o), ON(dy, o), ON(d12, o), ON(saved, o), n, in);
    }
    same_bf16("out", out);
    if (norm)
        same_bf16("y", y);
    for (int k = 0; k < n; k++) {
        same_bf16("dx", dx[k]);
        if (terms[k] != '1')
            same("dcoef", dcoef[k], f32_tolerance, sqrt((double)tokens * width));
    }
}

/* Norm of what is there: out stays. */
static void test_norm_only(int tokens, int width)
{
    struct both x = drawn(tokens, width, 3), y = blank(tokens, width);

    snprintf(label, sizeof label, "norm T=%d D=%d", tokens, width);
    ON_BOTH {
        struct mix_term in = { .x = ON(x, o) };
        o->mix_norm(o, ON(x, o), ON(y, o), 1, &in);
    }
    same("x", x, 0, 0);
    same_bf16("y", y);
}

static void test_skip(int tokens, int width)
{
    struct both x = drawn(tokens, width, 1), skip = drawn(tokens, width, 1);
    struct both x0 = drawn(tokens, width, 1), gate = weight(1, GATE_WIDTH, 0.5);
    struct both lambda = number(-1.5), out = blank(tokens, width);
    struct both dskip = blank(tokens, width), dx0 = drawn(tokens, width, 1);
    struct both dgate = weight(1, GATE_WIDTH, 1), dlambda = number(0.1);
    struct both dout = drawn(tokens, width, 1);

    snprintf(label, sizeof label, "skip_gate T=%d D=%d", tokens, width);
    ON_BOTH {
        o->skip_gate(o, ON(out, o), ON(x, o), ON(skip, o), ON(x0, o), ON(gate, o),
                     REAL(lambda, o));
        o->skip_gate_bwd(o, ON(dskip, o), ON(dx0, o), ON(dgate, o), REAL(dlambda, o),
                         ON(dout, o), ON(skip, o), ON(x0, o), ON(gate, o), REAL(lambda, o));
    }
    same_bf16("out", out);
    same_bf16("dskip", dskip);
    same_bf16("dx0", dx0);
    same_bf16("dgate", dgate);
    same("dlambda", dlambda, f32_tolerance, 0.1 * sqrt((double)tokens * width));
}

/* paired: attention counted two rows a token, of half the heads. */
static void test_out_gate(int tokens, int heads, int size, bool in_place, bool paired)
{
    int width = heads * size, rows = paired ? 2 * tokens : tokens;
    struct both delta = blank_as(DT_F32, DT_F32, paired ? heads / 2 : heads, rows);
    struct both x = drawn(tokens, width, 1), y = drawn(tokens, width, 1);
    struct both gate = weight(heads, GATE_WIDTH, 0.5), out = blank(tokens, width);
    struct both dout = drawn(tokens, width, 1), dx = in_place ? dout : blank(tokens, width);
    struct both dgate = weight(heads, GATE_WIDTH, 1), dy12 = blank(tokens, GATE_WIDTH);

    snprintf(label, sizeof label, "out_gate T=%d H=%d E=%d in_place=%d paired=%d", tokens, heads,
             size, in_place, paired);
    ON_BOTH {
        o->out_gate(o, ON(out, o), ON(x, o), ON(y, o), ON(gate, o), heads);
        o->out_gate_bwd(o, ON(dx, o), ON(delta, o), ON(dgate, o), ON(dy12, o), ON(dout, o),
                        ON(x, o), ON(y, o), ON(gate, o), heads);
    }
    same_bf16("out", out);
    same_bf16("dx", dx);
    same("delta", delta, f32_tolerance, 0);
    same_bf16("dgate", dgate);
    same_bf16("dy12", dy12);
}

static void test_qkv(int tokens, int heads, int size, bool paired,
                     enum key_offset key_offset, bool table)
{
    int width = heads * size, positions = paired ? 2 * tokens : tokens;
    struct qkv_shape s = { heads, size, paired, key_offset, false };
    struct tokens tk = tokens_make(tokens, 50);
    struct both qkv = drawn(tokens, 3 * width, 1), y = drawn(tokens, width, 1);
    struct both rope = blank_as(DT_BF16, DT_BF16, positions, size / 2);
    struct both gate = weight(heads, GATE_WIDTH, 0.5), rows = weight(50, width, 1);
    struct both q = blank(tokens, width), k = blank(tokens, width), v = blank(tokens, width);
    struct both dq = drawn(tokens, width, 1), dk = drawn(tokens, width, 1);
    struct both dv = drawn(tokens, width, 1), dqkv = blank(tokens, 3 * width);
    struct both drows = blank(tokens, width), dgate = weight(heads, GATE_WIDTH, 1);
    struct both dy12 = drawn(tokens, GATE_WIDTH, 1);
    float freq[32];

    snprintf(label, sizeof label, "qkv T=%d H=%d E=%d paired=%d key_offset=%d table=%d", tokens,
             heads, size, paired, key_offset, table);
    for (int m = 0; m < size / 4; m++)
        freq[m] = powf(1024, -(float)m / (float)(size / 4 - 1));
    ON_BOTH {
        struct batch b = tokens_on(o, &tk);
        struct rope r = { ON(rope, o) };
        struct tensor t = table ? ON(rows, o) : NO_TENSOR;
        o->rope_table(o, r, freq);
        o->qkv(o, ON(q, o), ON(k, o), ON(v, o), ON(qkv, o), &s, r, ON(y, o), ON(gate, o), t, &b);
        o->qkv_bwd(o, ON(dqkv, o), table ? ON(drows, o) : NO_TENSOR, ON(dgate, o), ON(dy12, o),
                   ON(dq, o), ON(dk, o), ON(dv, o), ON(qkv, o), &s, r, ON(y, o), ON(gate, o), t,
                   &b);
    }
    same("rope", rope, 0, 0);
    same_bf16("q", q);
    same_bf16("k", k);
    same_bf16("v", v);
    same_bf16("dqkv", dqkv);
    same_bf16("dgate", dgate);
    same_bf16("dy12", dy12);
    if (table)
        same_bf16("drows", drows);
}

static void test_linear(int tokens, int in, int out, bool scaled, bool residual, bool add)
{
    struct both x = drawn(tokens, in, 1), w = weight(out, in, 0.1), dy = drawn(tokens, out, 1);
    struct both scale = scaled ? number(0.6) : none, dscale = scaled ? number(0.5) : none;
    struct both r = residual ? drawn(tokens, out, 1) : none, y = blank(tokens, out);
    struct both dx = drawn(tokens, in, 1), dw = weight(out, in, 1);

    snprintf(label, sizeof label, "linear T=%d I=%d O=%d scale=%d residual=%d add=%d", tokens, in,
             out, scaled, residual, add);
    ON_BOTH {
        o->linear(o, ON(y, o), ON(x, o), ON(w, o), REAL(scale, o), ON(r, o));
        o->linear_bwd_x(o, ON(dx, o), ON(dy, o), ON(w, o), REAL(scale, o), add);
        o->linear_bwd_w(o, ON(dw, o), REAL(dscale, o), ON(dy, o), ON(x, o), ON(w, o),
                        REAL(scale, o), add);
    }
    same_bf16("y", y);
    same_bf16("dx", dx);
    same_bf16("dw", dw);
    if (scaled)                             /* |g| |w| */
        same("dscale", dscale, f32_tolerance, 0.1 * sqrt((double)tokens * in * out));
}

/* The MLP of forward and backward with post kept instead of pre. */
static void test_mlp_post(int tokens, int width, int hidden)
{
    struct both x = drawn(tokens, width, 1), w = weight(hidden, width, 0.1);
    struct both post = blank(tokens, hidden), dout = drawn(tokens, width, 1);
    struct both kept = blank(tokens, hidden), dpre = blank(tokens, hidden);

    snprintf(label, sizeof label, "mlp from post T=%d D=%d F=%d", tokens, width, hidden);
    for (int64_t i = 0; i < tensor_count(kept.c); i++) {
        double r = normal();
        set(kept.c, i, bf16_round((float)(r > 0 ? r * r : 0)));
    }
    send(kept);
    ON_BOTH {
        o->linear_relu2(o, NO_TENSOR, ON(post, o), ON(x, o), ON(w, o));
        o->linear_relu2_bwd(o, ON(dpre, o), ON(kept, o), ON(dout, o), ON(w, o), NULL, NO_TENSOR);
        o->linear_relu2_bwd(o, ON(kept, o), ON(kept, o), ON(dout, o), ON(w, o), NULL,
                            NO_TENSOR);
    }
    same_bf16("post", post);
    same_bf16("dpre", dpre);
    same_bf16("in place", kept);
}

static void test_mlp(int tokens, int width, int hidden, bool in_place, bool add)
{
    struct both x = drawn(tokens, width, 1), w1 = weight(hidden, width, 0.1);
    struct both w2 = weight(hidden, width, 0.1), pre = blank(tokens, hidden);
    struct both post = blank(tokens, hidden), out = blank(tokens, width);
    struct both saved = drawn(tokens, hidden, 1), squared = drawn(tokens, hidden, 1);
    struct both dpre = in_place ? saved : blank(tokens, hidden), again = blank(tokens, hidden);
    struct both dout = drawn(tokens, width, 1), dw2 = weight(hidden, width, 1);

    snprintf(label, sizeof label, "mlp T=%d D=%d F=%d in_place=%d add=%d", tokens, width, hidden,
             in_place, add);
    ON_BOTH {
        o->linear_relu2(o, ON(pre, o), ON(post, o), ON(x, o), ON(w1, o));
        o->linear_t(o, ON(out, o), ON(squared, o), ON(w2, o), NULL, NO_TENSOR);
        o->linear_relu2_bwd(o, ON(dpre, o), in_place ? ON(again, o) : NO_TENSOR, ON(dout, o),
                            ON(w2, o), NULL, ON(saved, o));
        o->linear_t_bwd_w(o, ON(dw2, o), NULL, ON(dout, o), ON(squared, o), ON(w2, o), NULL, add);
    }
    same_bf16("pre", pre);
    same_bf16("post", post);
    same_bf16("out", out);
    same_bf16("dpre", dpre);
    if (in_place)
        same_bf16("again", again);
    same_bf16("dw2", dw2);
}

static void test_head(int tokens, int width, int vocab, int n_mtp, bool fp8, bool add)
{
    static const float mtp_weights[] = { 1, 0.5f, 0.25f, 0.125f };
    struct tokens tk = tokens_make(tokens, vocab);
    struct both x = drawn(tokens, width, 1), w = weight(width, vocab, 1 / sqrt((double)width));
    struct both loss = number(2), eval = number(3), dx = blank(tokens, width);
    struct both dw = weight(width, vocab, 0.01), mtp = blank_as(DT_F32, DT_F32, 1, n_mtp);
    /* Among few numbers one may be most of the norm, and fall to the next e5m2 code. */
    double fp8_allowed = tokens * vocab < 1000 ? 0.25 : fp8_tolerance;

    snprintf(label, sizeof label, "head T=%d D=%d V=%d n_mtp=%d fp8=%d add=%d", tokens, width,
             vocab, n_mtp, fp8, add);
    memcpy(mtp.c.data, mtp_weights, (size_t)n_mtp * sizeof(float));
    send(mtp);
    ON_BOTH {
        struct head_loss h = { .mtp = REAL(mtp, o), .n_mtp = n_mtp, .seed = 0.5f, .fp8 = fp8,
                               .x_scale = 100 / 448.f, .w_scale = 1.6f / 448,
                               .g_scale = 0.75f / 448, .cap_a = 23, .cap_b = 5, .cap_c = 7.5f };
        h.tgt = o == cpu ? tk.tok.c : tk.tok.g;
        o->head_loss(o, REAL(loss, o), ON(dx, o), ON(dw, o), add, ON(x, o), ON(w, o), &h);
        o->head_eval(o, REAL(eval, o), ON(x, o), ON(w, o), &h);
    }
    /* Each row's loss moves with the bf16 of its logits: 2^-9 of some 20, averaged over rows. */
    same("loss", loss, 1e-3, 0);
    same("eval", eval, 1e-3, 0);
    same("dx", dx, fp8 ? fp8_allowed : bf16_tolerance, 0);
    same("dw", dw, fp8 ? fp8_allowed : bf16_tolerance, 0);
}

static void test_finite(void)
{
    static const int64_t sizes[] = { 1, 7, 8, 1001, 70001 };
    int32_t got, clean = 0;
    int32_t *bad = gpu->alloc(gpu, 4, "test");

    for (int i = 0; i < 5; i++)
        for (int t = 0; t < 2; t++)
            for (int where = 0; where < 3; where++) {   /* nowhere, first, last */
                struct both b = blank_as(DT_F32, t ? DT_F32 : DT_BF16, 1, sizes[i]);
                draw(b, 1);
                if (where)
                    set(b.c, where == 1 ? 0 : sizes[i] - 1, i % 2 ? INFINITY : NAN);
                send(b);
                gpu->upload(gpu, bad, &clean, 4);
                gpu->finite(gpu, bad, b.g);
                gpu->download(gpu, &got, bad, 4);
                CHECK_EQ(got, where != 0);
            }
}

static void test_copy(void)
{
    struct both a = drawn(3, 333, 1), b = blank_as(DT_F32, DT_F32, 3, 333), z = drawn(5, 5, 1);

    snprintf(label, sizeof label, "copy, zero");
    ON_BOTH {
        o->copy(o, ON(b, o), ON(a, o));
        o->zero(o, ON(z, o));
    }
    same("f32", b, 0, 0);
    same("zero", z, 0, 0);
}

/* Upload runs through a ring of a few MB: more than that, in odd pieces. */
static void test_upload(void)
{
    size_t n = (size_t)37 << 20, step = 1234567;
    unsigned char *a = malloc(n), *b = malloc(n), *d = gpu->alloc(gpu, n, "test");

    for (size_t i = 0; i < n; i++)
        a[i] = (unsigned char)(i * 2654435761u >> 13);
    for (size_t at = 0; at < n; at += step)
        gpu->upload(gpu, d + at, a + at, n - at < step ? n - at : step);
    gpu->download(gpu, b, d, n);
    CHECK(!memcmp(a, b, n));
    free(a), free(b);
}

/* -- products at full length, against sums in f64 -------------------------------------------- */

/* |got - want| over some elements: sampled (i,j), row i of a (or column, ta) times b. */
static void sampled(const char *name, struct tensor out, struct tensor a, bool ta,
                    struct tensor b, bool tb, double scale)
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
        want *= scale;
        d = get(ho, i * out.cols + j) - want;
        off += d * d;
        norm += want * want;
    }
    /* bf16 results of f32 sums: one rounding, 2^-9 / sqrt(3) of an element on average. */
    check_that(off <= 3e-3 * 3e-3 * norm, __FILE__, __LINE__, "%s: off by %g of %g", name,
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
    struct tensor pre = on_gpu(tokens, F), post = on_gpu(tokens, F), out = on_gpu(tokens, D);
    struct tensor dw2 = on_gpu(F, D);
    struct both scale = number(0.7);

    gpu->linear(gpu, y, x, w, scale.g.data, NO_TENSOR);
    sampled("linear", y, x, false, w, true, 0.7f);
    gpu->linear_bwd_x(gpu, dx, y, w, NULL, false);
    sampled("linear_bwd_x", dx, y, false, w, false, 1);
    gpu->linear_bwd_w(gpu, dw, NULL, y, x, w, NULL, false);
    sampled("linear_bwd_w", dw, y, true, x, false, 1);
    gpu->linear_relu2(gpu, pre, post, x, w1);
    sampled("linear_relu2", pre, x, false, w1, true, 1);
    gpu->linear_t(gpu, out, post, w1, NULL, NO_TENSOR);
    sampled("linear_t", out, post, false, w1, false, 1);
    gpu->linear_t_bwd_w(gpu, dw2, NULL, out, post, w1, NULL, false);
    sampled("linear_t_bwd_w", dw2, post, true, out, false, 1);
}

/* -- graphs, failures -------------------------------------------------------------------------- */

/* A captured op runs again on what memory holds then. */
static void test_graph(void)
{
    struct both x = drawn(50, 64, 1), y = blank(50, 64), coef = number(2);
    struct mix_term in = { .x = x.g, .coef = coef.g.data };
    float three = 3;
    void *graph;

    snprintf(label, sizeof label, "graph");
    CHECK_OK(ops_cuda_capture(gpu));
    gpu->mix_norm(gpu, y.g, NO_TENSOR, 1, &in);
    CHECK_OK(ops_cuda_capture_end(gpu, &graph));
    gpu->upload(gpu, coef.g.data, &three, sizeof three);
    ops_cuda_launch(gpu, graph);
    for (int64_t i = 0; i < tensor_count(x.c); i++)
        ((float *)y.c.data)[i] = 3 * ((float *)x.c.data)[i];
    same_bf16("y", y);
    CHECK_OK(gpu->sync(gpu));
    ops_cuda_graph_free(graph);
}

static void test_failures(void)
{
    struct ops *o;
    struct mix_term in = { .x = tensor_of((void *)256, DT_BF16, 1, 12) };

    CHECK_ERR(ops_cuda_new(&o, 999), GPT_DEVICE, "GPU 999 asked for");
    CHECK(o == NULL);
    if (!CHECK_OK(ops_cuda_new(&o, 0)))
        return;
    CHECK(o->alloc(o, (size_t)1 << 50, "a test") == NULL);
    CHECK_ERR(o->status(o), GPT_DEVICE, "too little memory");
    o->free(o);
    if (!CHECK_OK(ops_cuda_new(&o, 0)))
        return;
    o->mix_norm(o, in.x, NO_TENSOR, 1, &in);
    in.coef = (real *)256;
    o->mix_norm(o, in.x, NO_TENSOR, 1, &in);
    CHECK_ERR(o->sync(o), GPT_DEVICE, "multiple of 8");
    o->free(o);
}

/* A device for each test, so that memory is given back. */
static void fresh(void)
{
    if (cpu) {
        CHECK_OK(gpu->sync(gpu));
        CHECK_OK(cpu->status(cpu));
        cpu->free(cpu);
        gpu->free(gpu);
    }
    if (ops_cpu_new(&cpu) || ops_cuda_new(&gpu, 0)) {
        printf("%s\n", err_message());
        exit(1);
    }
}

static void test_small(void)
{
    fresh();
    test_embed(1, 32, 3, false, false);
    test_embed(2, 40, 1, true, true);
    test_embed(37, 96, 7, false, true);
    test_embed(37, 96, 1000, false, true);
    test_embed(37, 264, 7, false, true);
    test_embed(15, 136, 300, false, true);
    test_embed(130, 24, 300, false, true);
    test_embed(300, 264, 50, true, false);
    test_mix(1, 16, "c", true, false, true, false, false);
    test_mix(5, 24, "11", true, false, true, true, false);
    test_mix(7, 40, "cc", true, true, true, false, true);
    test_mix(13, 264, "1m", true, false, false, false, false);
    test_mix(3, 520, "cmc1", true, true, false, false, true);
    test_mix(11, 1000, "c1", false, false, true, true, false);
    test_mix(200, 1544, "1", true, true, true, true, false);
    test_norm_only(77, 136);
    test_skip(1, 16);
    test_skip(13, 264);
    test_out_gate(1, 1, 32, false, false);
    test_out_gate(13, 3, 64, true, false);
    test_out_gate(13, 4, 64, true, true);
    test_out_gate(29, 5, 32, false, false);
    test_out_gate(300, 7, 128, true, false);
    test_qkv(1, 1, 32, false, KEY_OFFSET_QUARTERS, false);
    test_qkv(1, 2, 64, true, KEY_OFFSET_NONE, true);
    test_qkv(2, 3, 32, false, KEY_OFFSET_QUARTERS, true);
    test_qkv(13, 4, 64, true, KEY_OFFSET_NONE, true);
    test_qkv(50, 5, 128, false, KEY_OFFSET_QUARTERS, true);
    test_qkv(31, 2, 128, true, KEY_OFFSET_QUARTERS, false);
    test_linear(1, 8, 16, false, false, false);
    test_linear(7, 16, 24, true, false, false);
    test_linear(13, 40, 72, true, true, true);
    test_linear(64, 16, 48, false, true, true);
    test_mlp(1, 16, 24, false, false);
    test_mlp(33, 32, 136, true, true);
    test_mlp(161, 72, 264, false, false);
    test_mlp_post(1, 16, 24);
    test_mlp_post(500, 72, 904);
    test_mlp(1000, 200, 392, true, false);
    test_mlp(5000, 136, 1160, true, false);
    test_mlp(5000, 136, 1160, false, false);
    test_head(1, 16, 32, 3, false, false);
    test_head(13, 24, 40, 1, false, true);
    test_head(31, 64, 512, 2, false, false);
    test_head(1, 16, 32, 3, true, false);
    test_head(2, 64, 48, 3, true, true);
    test_head(31, 64, 512, 4, true, false);
    test_head(263, 256, 4096, 2, true, true);
    test_finite();
    test_copy();
    test_upload();
    test_graph();
}

static void test_real(void)
{
    fresh();
    test_embed(2048, 768, 50304, false, false);
    test_embed(2048, 768, 50304, true, true);
    fresh();
    test_mix(2048, 768, "cc", true, true, true, true, true);
    test_mix(2048, 768, "1", true, false, true, true, false);
    test_mix(2048, 768, "1m", true, false, false, false, false);
    test_skip(2048, 768);
    test_out_gate(2048, 6, 128, true, true);
    fresh();
    test_qkv(2048, 6, 128, false, KEY_OFFSET_QUARTERS, true);
    test_qkv(2048, 6, 128, true, KEY_OFFSET_NONE, true);
    test_qkv(2048, 6, 128, false, KEY_OFFSET_NONE, false);
    fresh();
    test_linear(2048, 768, 2304, true, false, false);
    test_linear(2048, 768, 768, true, true, true);
    test_mlp(2048, 768, 3072, true, false);
    test_mlp_post(2048, 768, 3072);
    fresh();
    test_head(528, 768, 50304, 3, true, false);
    test_head(528, 768, 50304, 1, false, true);
    for (int tokens = 16384; tokens <= 49152; tokens += 32768) {
        fresh();
        test_long_products(tokens);
    }
}

/* gpu_ops_test [SEED [small]]: that seed again; the small shapes only, for compute-sanitizer. */
int main(int argc, char **argv)
{
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : (uint64_t)time(NULL);

    if (ops_cuda_count() == 0)
        return check_skip("no GPU");
    printf("seed %llu\n", (unsigned long long)seed);
    rng = rng_make(seed, 0);
    test_failures();
    test_small();
    if (argc < 3)
        test_real();
    cpu->free(cpu);
    gpu->free(gpu);
    return check_done();
}
