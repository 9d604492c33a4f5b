/* gpu_decode_test.c - decoding on a GPU: each of its kernels against the plain C op, and the model's
 * logits by cache against those of the CPU, of which they may be off by twice what the GPU's full
 * forward is (bf16 activations), and that the rows of a call do not change a bit of each other.
 *
 * Tolerances: gpu_both.h. Exit 77 without a GPU.
 */
#include "floats.h"
#include "gpu_both.h"
#include "model/decode.h"
#include "small_model.h"

/* -- ops ---------------------------------------------------------------------------- */

/* x w' and x w, of few rows, with everything that may be added to them. */
static void test_products(int rows, int in, int cols, bool scaled, bool added)
{
    struct both x = drawn(rows, in, 1), w = weight(cols, in, 0.3), t = weight(in, cols, 0.3);
    struct both scale = number(0.7), y = blank(rows, cols), z = blank(rows, cols);
    struct both add = added ? drawn(rows, cols, 1) : none, post = blank(rows, cols);
    struct both soft = blank_as(DT_F32, DT_F32, rows, cols);
    struct head_loss h = { .cap_a = 23, .cap_b = 5, .cap_c = 7.5 };

    snprintf(label, sizeof label, "few rows T=%d I=%d O=%d scale=%d add=%d", rows, in, cols, scaled,
             added);
    gpu->rows_apart = true;
    ON_BOTH
    {
        const real *by = scaled ? REAL(scale, o) : NULL;
        o->linear(o, ON(y, o), ON(x, o), ON(w, o), by, ON(add, o));
        o->linear_t(o, ON(z, o), ON(x, o), ON(t, o), by, ON(add, o));
        o->linear_relu2(o, ON(post, o), ON(x, o), ON(w, o));
        o->logits(o, ON(soft, o), ON(x, o), ON(t, o), &h);
    }
    gpu->rows_apart = false;
    same_bf16("linear", y);
    same_bf16("linear_t", z);
    same_bf16("relu2", post);
    same("logits", soft, f32_tolerance, 0);
}

/* On the GPU alone: do the first rows of both have the same bits? */
static bool same_bits(struct both a, struct both b)
{
    struct tensor x = fetched(a.g), y = fetched(b.g);
    size_t bytes = tensor_bytes(x) < tensor_bytes(y) ? tensor_bytes(x) : tensor_bytes(y);
    bool is = !memcmp(x.data, y.data, bytes);
    free(x.data), free(y.data);
    return is;
}

/* A mix and the products that read its norm, which make it themselves for few rows: all rows, and
 * the first `fewer` of them by themselves. */
static void test_mixed(int rows, int fewer, int width, int cols, int terms)
{
    struct both x[] = { drawn(rows, width, 1), drawn(rows, width, 1) }, scale = number(-0.7);
    struct both w = weight(cols, width, 0.3), t = weight(width, cols, 0.3);
    struct both out[2], y[2], z[2], soft[2];
    struct head_loss h = { .cap_a = 23, .cap_b = 5, .cap_c = 7.5 };

    snprintf(label, sizeof label, "mix of %d, few rows T=%d, %d I=%d O=%d", terms, rows, fewer,
             width, cols);
    gpu->rows_apart = true;
    for (int k = 0; k < 2; k++) {
        int n = k ? fewer : rows;
        out[k] = blank(n, width), y[k] = blank(n, width), z[k] = blank(n, cols);
        soft[k] = blank_as(DT_F32, DT_F32, n, cols);
        ON_BOTH
        {
            struct mix_term in[] = { { .x = tensor_rows(ON(x[0], o), 0, n),
                                       .coef = terms > 1 ? REAL(scale, o) : NULL },
                                     { .x = tensor_rows(ON(x[1], o), 0, n), .minus = true } };
            struct tensor sum = terms > 1 ? ON(out[k], o) : in[0].x;
            o->mix_norm(o, sum, ON(y[k], o), terms, in);
            o->linear(o, ON(z[k], o), ON(y[k], o), ON(w, o), NULL, NO_TENSOR);
            o->mix_norm(o, sum, ON(y[k], o), terms, in);
            o->logits(o, ON(soft[k], o), ON(y[k], o), ON(t, o), &h);
        }
        if (terms > 1)
            same_bf16("sum", out[k]);
        same_bf16("norm", y[k]);
        same_bf16("linear", z[k]);
        same("logits", soft[k], bf16_tolerance, 0); /* of norms that are rounded to bf16 */
    }
    gpu->rows_apart = false;
    CHECK(same_bits(y[0], y[1]) && same_bits(z[0], z[1]) && same_bits(soft[0], soft[1]));
    CHECK(terms == 1 || same_bits(out[0], out[1]));
}

/* Logits, and x w, of rows together and of the first alone, where a block holds a part of w's rows. */
static void test_alone(int rows, int in, int cols)
{
    struct both x = drawn(rows, in, 1), t = weight(in, cols, 0.3);
    struct both all = blank_as(DT_F32, DT_F32, rows, cols);
    struct both one = blank_as(DT_F32, DT_F32, 1, cols);
    struct both y = blank(rows, cols), y_one = blank(1, cols);
    struct head_loss h = { .cap_a = 23, .cap_b = 5, .cap_c = 7.5 };

    gpu->logits(gpu, all.g, x.g, t.g, &h);
    gpu->logits(gpu, one.g, tensor_rows(x.g, 0, 1), t.g, &h);
    CHECK(same_bits(all, one));
    gpu->rows_apart = true;
    gpu->linear_t(gpu, y.g, x.g, t.g, NULL, NO_TENSOR);
    gpu->linear_t(gpu, y_one.g, tensor_rows(x.g, 0, 1), t.g, NULL, NO_TENSOR);
    gpu->rows_apart = false;
    CHECK(same_bits(y, y_one));
}

static void test_embed_before(int rows, int width)
{
    int32_t tok[64], before[64];
    struct both table = weight(17, width, 0.5), gate = weight(1, GATE_WIDTH, 0.5);
    struct both lambda = number(0.7), x0 = blank(rows, width);
    for (int t = 0; t < rows; t++) {
        tok[t] = (int32_t)rng_below(&rng, draws++, 17);
        before[t] = t % 3 ? (int32_t)rng_below(&rng, draws++, 17) : -1;
    }
    struct ints a = ints(tok, rows), b = ints(before, rows);
    snprintf(label, sizeof label, "embed with the tokens before T=%d", rows);
    ON_BOTH
    {
        struct batch batch = { .tokens = rows,
                               .token = { .tokens = rows, .row = o == cpu ? a.c : a.g },
                               .before = o == cpu ? b.c : b.g };
        o->embed(o, ON(x0, o), ON(table, o), ON(gate, o), REAL(lambda, o), &batch);
    }
    same_bf16("x0", x0);
}

/* Rows at the begin of a sequence, in its first window and beyond the ring's end. */
static void test_cache_of(int heads, int e, int qk, bool paired, enum key_offset offset, int window,
                          bool exclusive)
{
    enum { ROWS = 7 };
    int d = heads * e, pair = paired ? 2 : 1, capacity = window + 5;
    struct both q = drawn(ROWS, heads * qk, 1), y = drawn(ROWS, d, 1), out = blank(ROWS, d);
    struct both ck = drawn(2 * capacity, heads * qk, 1), cv = drawn(2 * capacity, d, 1);
    struct both gate = weight(heads, GATE_WIDTH, 0.5), value = drawn(ROWS, d, 1);
    struct both alpha = exclusive ? draw(blank_as(DT_F32, DT_F32, 1, heads), 1) : none;
    int32_t slot[ROWS] = { 0, 1, 0, 1, 1, 0, 1 };
    int32_t pos[ROWS] = { 0, 1, 2, window / 2, window, window + 3, 3 * window + 1 };
    struct ints si = ints(slot, ROWS), pi = ints(pos, ROWS);
    struct attn_shape s = { .heads = heads / pair,
                            .head_dim = e,
                            .cu_mul = pair,
                            .window = window,
                            .scale = 0.3f,
                            .qk_dim = qk };

    snprintf(label, sizeof label,
             "cache H=%d E=%d Eq=%d paired=%d offset=%d window=%d exclusive=%d", heads, e, qk,
             paired, (int)offset, window, exclusive);
    ON_BOTH
    {
        struct kv_cache c = { .k = ON(ck, o),
                              .v = ON(cv, o),
                              .capacity = capacity,
                              .key_offset = offset,
                              .slot = o == cpu ? si.c : si.g,
                              .pos = o == cpu ? pi.c : pi.g };
        if (exclusive)
            o->cache_values(o, &c, ON(value, o));
        o->attention_cached(o, ON(out, o), ON(q, o), ON(y, o), ON(gate, o), ON(alpha, o), &c, &s);
    }
    same_bf16("out", out);
    same_bf16("values", cv);
}

static void test_cache(int heads, int e, bool paired, enum key_offset offset, int window,
                       bool exclusive)
{
    test_cache_of(heads, e, e, paired, offset, window, exclusive);
}

static struct both copy_of(struct both b)
{
    struct both x = blank(b.c.rows, b.c.cols);
    memcpy(x.c.data, b.c.data, tensor_bytes(b.c));
    send(x);
    return x;
}

/* qkv and what reads it, of rows of two sequences: by themselves, and of a call that says so (apart),
 * where a GPU may make one kernel of both. The same bits. */
static void test_rows_apart(int heads, int e, bool paired, enum key_offset offset, int window,
                            bool table, bool split)
{
    enum { ROWS = 2, CLASSES = 9 };
    int d = heads * e, pair = paired ? 2 : 1, capacity = window / pair + 5;
    int32_t slot[ROWS] = { 1, 0 }, pos[ROWS] = { window + 9, 3 }, tok[ROWS] = { 4, 8 };
    struct both x = drawn(ROWS, d, 1), w = weight(3 * d, d, 1 / sqrt((double)d));
    struct both raw = blank(ROWS, 3 * d), y = drawn(ROWS, d, 1), rows = weight(CLASSES, d, 1);
    struct both gate = weight(heads, GATE_WIDTH, 0.5), out_gate = weight(heads, GATE_WIDTH, 0.5);
    struct both rope = blank_as(DT_BF16, DT_BF16, pair * (window + 10), e / 2);
    struct both k = blank(ROWS, d), v = blank(ROWS, d), q = blank(ROWS, d), out[2], ck[2], cv[2];
    struct ints si = ints(slot, ROWS), pi = ints(pos, ROWS), ti = ints(tok, ROWS);
    struct attn_shape s = {
        .heads = heads / pair, .head_dim = e, .cu_mul = pair, .window = window, .scale = 0.3f
    };
    float freq[32];

    snprintf(label, sizeof label, "rows apart H=%d E=%d paired=%d offset=%d window=%d table=%d",
             heads, e, paired, (int)offset, window, table);
    for (int m = 0; m < e / 4; m++)
        freq[m] = powf(1024, -(float)m / (float)(e / 4 - 1));
    ck[0] = drawn(2 * capacity, d, 1), cv[0] = drawn(2 * capacity, d, 1);
    ck[1] = copy_of(ck[0]), cv[1] = copy_of(cv[0]);
    gpu->rows_apart = true;
    for (int n = 0; n < 2; n++) {
        out[n] = blank(ROWS, d);
        ON_BOTH
        {
            bool is_cpu = o == cpu;
            struct rope r = { ON(rope, o) };
            struct kv_cache c = { .k = ON(ck[n], o),
                                  .v = ON(cv[n], o),
                                  .capacity = capacity,
                                  .key_offset = offset,
                                  .slot = is_cpu ? si.c : si.g,
                                  .pos = is_cpu ? pi.c : pi.g };
            struct qkv_shape qs = { heads, e, paired, KEY_OFFSET_NONE, split, &c, NULL, 0, NULL };
            struct batch b = { .tokens = ROWS,
                               .token = { .tokens = ROWS, .row = is_cpu ? ti.c : ti.g },
                               .pos = c.pos,
                               .apart = n };
            o->rope_table(o, r, freq, 0, false);
            o->qkv(o, ON(q, o), ON(k, o), ON(v, o), NO_TENSOR, ON(raw, o), ON(x, o), ON(w, o), NULL,
                   NO_TENSOR, &qs, r, ON(y, o), ON(gate, o), table ? ON(rows, o) : NO_TENSOR, &b);
            o->attention_cached(o, ON(out[n], o), ON(q, o), ON(y, o), ON(out_gate, o), NO_TENSOR,
                                &c, &s);
        }
        /* Few keys have most of the weight, and which moves with the roundings of q, by 0.3 sqrt(E) 2^-9: four times
         * that. In 120 draws on the emulated GPU at most 1.05e-2, 3.7e-3 in the middle. */
        same("out", out[n], fmax(bf16_tolerance, 4 * 0.3 * sqrt(e) / 512), 0);
        same_bf16("keys", ck[n]);
        same_bf16("values", cv[n]);
    }
    gpu->rows_apart = false;
    CHECK(same_bits(out[0], out[1]) && same_bits(ck[0], ck[1]) && same_bits(cv[0], cv[1]));
}

/* How many of the tokens differ: where a draw falls between two of them, the devices' exponentials
 * may part; a thousandth of the draws is far more than these errors of 1e-6 do. */
static void test_choose(int rows, int cols, struct choice c)
{
    struct both z = draw(blank_as(DT_F32, DT_F32, rows, cols), 3);
    int32_t *from = calloc((size_t)rows * 4, sizeof *from), *got = malloc((size_t)rows * 16);
    uint64_t *stream = malloc((size_t)rows * sizeof *stream);
    int differ = 0;
    for (int t = 0; t < rows; t++) {
        from[t] = t % cols, from[rows + t] = -1, from[2 * rows + t] = t % 5,
        stream[t] = (uint64_t)t;
    }
    struct ints state = ints(from, 4 * rows), streams = ints((int32_t *)stream, 2 * rows);
    snprintf(label, sizeof label, "choose T=%d V=%d temperature %g top_k %d top_p %g", rows, cols,
             c.temperature, c.top_k, c.top_p);
    ON_BOTH
    {
        int32_t *at = o == cpu ? state.c : state.g;
        struct next_rows n = { at, at + rows, at + 2 * rows, at + 3 * rows, 97 };
        c.classes = cols - 1;
        c.stream = (uint64_t *)(o == cpu ? streams.c : streams.g);
        o->choose(o, &n, ON(z, o), &c);
    }
    gpu->download(gpu, got, state.g, (size_t)rows * 16);
    for (int t = 0; t < rows; t++) {
        differ += got[t] != state.c[t];
        for (int i = 1; i < 4 && got[t] == state.c[t]; i++)
            CHECK_EQ(got[i * rows + t], state.c[i * rows + t]);
    }
    check_that(c.temperature > 0 ? differ <= 1 + rows / 1000 : !differ, __FILE__, __LINE__,
               "%s: %d tokens differ", label, differ);
    free(from), free(got), free(stream);
}

/* -- the model -------------------------------------------------------------------------- */

/* LAST tokens by the cache, one at a time. */
enum { LAST = 5, MOST = 128, SLOTS = 2 };
static const struct small_size sizes[] = { { .tokens = 75,
                                             .heads = 2,
                                             .head_dim = 32,
                                             .mlp_width = 128,
                                             .vocab = 120,
                                             .rows = 257,
                                             .document = 80 },
                                           { .tokens = 75,
                                             .heads = 4,
                                             .head_dim = 128,
                                             .mlp_width = 1024,
                                             .vocab = 1000,
                                             .rows = 5000,
                                             .document = 80 } },
                               emulated = { .tokens = 27,
                                            .heads = 2,
                                            .head_dim = 32,
                                            .mlp_width = 128,
                                            .vocab = 120,
                                            .rows = 257,
                                            .document = 28 };

struct side {
    struct small s;
    struct model m;
    struct decoder d;
    float *full, *steps; /* logits of the last LAST tokens */
    int32_t *tok;
    int tokens;
};

static void decode(struct side *x, int slot, int from, int n, bool logits)
{
    struct decode_row row[MOST];
    for (int i = 0; i < n; i++)
        row[i] = (struct decode_row){ .slot = slot,
                                      .pos = from + i,
                                      .token = x->tok[from + i],
                                      .before = from + i ? x->tok[from + i - 1] : 0 };
    decoder_rows(&x->d, row, n);
    (logits ? decoder_logits : decoder_fill)(&x->d);
}

static void full_logits(struct side *x)
{
    struct ops *o = x->s.o;
    struct batch b = x->s.batch;
    struct head_loss h = model_head(&x->s.m, &b);
    struct tensor z = tensor_of(NULL, DT_F32, LAST, x->s.r->model.vocab);
    int32_t *cu = o->alloc(o, 8, "cu");

    z.data = o->alloc(o, tensor_bytes(z), "logits");
    o->upload(o, cu, (int32_t[]){ 0, x->tokens }, 8);
    b.cu = cu, b.ncu = 2;
    struct acts *a = model_acts(&x->s.m, x->tokens, false);
    model_forward(&x->s.m, a, &b);
    o->logits(o, z, tensor_rows(a->head, x->tokens - LAST, LAST), x->s.m.p.lm_head->w, &h);
    x->full = floats_of(o, z);
    x->tok = malloc((size_t)x->tokens * sizeof *x->tok);
    o->download(o, x->tok, b.token.row, (size_t)x->tokens * sizeof *x->tok);
}

static void step_logits(struct side *x)
{
    size_t row = (size_t)x->s.r->model.vocab * sizeof(float);
    int filled = x->tokens - LAST;
    x->steps = malloc(LAST * row);
    decode(x, 0, 0, filled, false);
    for (int i = 0; i < LAST; i++) {
        decode(x, 0, filled + i, 1, true);
        x->s.o->download(x->s.o, (char *)x->steps + (size_t)i * row, x->d.logits.data, row);
    }
}

/* The last token beside another sequence's, filled in other pieces: the same bits. */
static void check_apart(struct side *x)
{
    int vocab = x->s.r->model.vocab, last = x->tokens - 1, piece = last > 64 ? 64 : 16;
    float *z;
    for (int at = 0; at < last; at += piece)
        decode(x, 1, at, last - at < piece ? last - at : piece, false);
    struct decode_row two[] = {
        { .slot = 0, .pos = 0, .token = 3 },
        { .slot = 1, .pos = last, .token = x->tok[last], .before = x->tok[last - 1] }
    };
    decoder_rows(&x->d, two, 2);
    decoder_logits(&x->d);
    z = floats_of(x->s.o, tensor_rows(x->d.logits, 0, 2));
    CHECK(!memcmp(z + vocab, x->steps + (LAST - 1) * vocab, (size_t)vocab * sizeof *z));
    free(z);
}

static bool open_side(struct side *x, struct ops *o, const struct small_form *f,
                      const struct small_size *size)
{
    enum dtype weights = o->act == DT_F32 ? DT_F32 : DT_BF16;
    if (!CHECK_OK(small_open(&x->s, o, f, weights, size, 11)))
        return false;
    x->tokens = size->tokens;
    full_logits(x);
    o->rows_apart = true;
    if (!CHECK_OK(model_init_to(&x->m, &x->s.b, 0, MOST, x->tokens)))
        return false;
    model_set(&x->m, &x->s.m.schedule);
    if (!CHECK_OK(decoder_init(&x->d, &x->m, SLOTS, MOST, x->tokens)))
        return false;
    step_logits(x);
    return true;
}

/* Of the differences from the rows' means: the softcap makes these large. */
static double error_of(const float *a, const float *b, int rows, int cols)
{
    double off = 0, size = 0;
    for (int t = 0; t < rows; t++) {
        double mean = 0;
        for (int v = 0; v < cols; v++)
            mean += (double)b[t * cols + v] / cols;
        for (int v = 0; v < cols; v++) {
            double d = (double)a[t * cols + v] - b[t * cols + v], s = b[t * cols + v] - mean;
            off += d * d, size += s * s;
        }
    }
    return sqrt(off / size);
}

static void check_form(const struct small_form *f, const struct small_size *size)
{
    struct side side[2] = { 0 };
    struct ops *o[2];
    if (!CHECK_OK(ops_cpu_new(&o[0])) || !CHECK_OK(ops_cuda_new(&o[1], 0)))
        return;
    ops_cpu_threads(o[0], check_threads());
    for (int i = 0; i < 2; i++) {
        if (!open_side(&side[i], o[i], f, size))
            return;
        if (recipe_cpu_alone(side[0].s.r)) { /* heads of q and k that no GPU computes */
            decoder_release(&side[0].d);
            CHECK_OK(small_close(&side[0].s));
            o[1]->free(o[1]);
            return;
        }
    }
    check_apart(&side[1]);
    double full = error_of(side[1].full, side[0].full, LAST, size->vocab);
    double steps = error_of(side[1].steps, side[0].full, LAST, size->vocab);
    printf("%-50s heads of %3d: full %.1e, by cache %.1e\n", side[0].s.label, size->head_dim, full,
           steps);
    CHECK(full < 0.1);
    CHECK(steps <= 2 * full);
    for (int i = 0; i < 2; i++) {
        decoder_release(&side[i].d);
        CHECK_OK(small_close(&side[i].s));
        free(side[i].full), free(side[i].steps), free(side[i].tok);
    }
}

static void test_few_rows(void)
{
    for (int rows = 1; rows <= 70; rows = rows * 3 + (rows > 1))
        test_products(rows, 40 * rows % 96 + 64, 24 + 8 * (rows % 5), rows % 2, rows > 1);
    test_products(17, 72, check_small() ? 16400 : 50304, false, false);
    test_products(3, 16384, 16, true, true); /* more rows of w than shared memory holds */
    for (int rows = 1; rows <= 8; rows += 7)
        for (int terms = 1; terms <= 2; terms++)
            test_mixed(rows + 1, rows, 64 + 8 * rows, terms > 1 ? 16400 : 56, terms);
    for (int v = 1; v <= 4; v++) { /* the widths and lengths that products of one row tell apart */
        test_mixed(2, 1, 256 * v - 16, v % 2 ? 2120 : 16400, 1 + v % 2);
        test_mixed(2, 1, 256 * v - 16, 40, 2 - v % 2);
        test_alone(2, 1024 * v - 16, 72);
    }
    test_alone(17, 576, 16392);
    test_alone(50, 72, 16400);
    test_alone(70, 576, 72);
    if (!check_small()) {
        test_alone(17, 1600, 50304);
        test_alone(2, 768, 50304);
        test_products(1, 768, 3072, true, true);
        test_products(64, 3072, 768, true, true);
        test_products(300, 768, 2304, true, false);
    }
    test_embed_before(7, 64);
    test_embed_before(64, 768);
}

static void test_caches(void)
{
    test_cache(2, 32, false, KEY_OFFSET_NONE, 20, false);
    test_cache(2, 64, true, KEY_OFFSET_NONE, 63, false);
    test_cache(2, 128, false, KEY_OFFSET_QUARTERS, 64, true);
    test_cache(4, 32, true, KEY_OFFSET_HALF, 100, true);
    test_cache_of(4, 64, 32, true, KEY_OFFSET_NONE, 63, true);
    test_cache_of(2, 128, 96, false, KEY_OFFSET_HALF, 64, false);
    test_cache_of(3, 128, 64, false, KEY_OFFSET_QUARTERS, 100, true);
    test_cache(2, 64, false, KEY_OFFSET_QUARTERS, 1100,
               false); /* more keys than are read at once */
    test_rows_apart(2, 32, true, KEY_OFFSET_NONE, 40, true, false);
    test_rows_apart(4, 128, true, KEY_OFFSET_NONE, 250, false, false);
    test_rows_apart(2, 64, false, KEY_OFFSET_HALF, 150, true, true);
    test_rows_apart(1, 128, false, KEY_OFFSET_QUARTERS, 600, true, false);
}

static void test_choices(void)
{
    test_choose(9, 1000, (struct choice){ .top_p = 1 });
    test_choose(9, 5000, (struct choice){ .temperature = 0.8f, .top_p = 1, .seed = 3 });
    test_choose(6, 780, (struct choice){ .temperature = 1, .top_k = 5, .top_p = 1, .seed = 4 });
    test_choose(6, 780, (struct choice){ .temperature = 2, .top_k = 40, .top_p = 0.7f });
    if (!check_small())
        test_choose(1000, 50304, (struct choice){ .temperature = 1, .top_p = 0.9f, .seed = 5 });
}

static void test_decoding(void)
{
    for (int i = 0; i < n_small_forms; i++)
        if (!check_small() || i % 4 == 0 || !small_forms[i].set[0])
            check_form(&small_forms[i], check_small() ? &emulated : &sizes[0]);
    for (int i = 0; i < n_small_forms && !check_small(); i += 2)
        check_form(&small_forms[i], &sizes[1]);
}

int main(int argc, char **argv)
{
    if (!both_begin(argc, argv))
        return check_skip("gpu");
    fresh();
    if (check_of("few_rows linear linear_relu2 logits mix_norm embed"))
        test_few_rows();
    if (check_of("attention_cached attention cache_values qkv"))
        test_caches();
    fresh();
    if (check_of("choose"))
        test_choices();
    if (check_of("decode"))
        test_decoding();
    return both_end();
}
