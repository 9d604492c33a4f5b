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
#include "gpu_both.h"

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
    ON_BOTH
    {
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

/* Rows of a table whose readers are few or, with `shared` rows only, many. */
static void test_table(int tokens, int width, int rows, int shared, enum dtype dtype, bool add,
                       bool twice)
{
    struct tokens tk = tokens_make(tokens, shared);
    struct both table = weight(rows, width, 1), out = blank(tokens, width);
    struct both dx = drawn(tokens, width, 1), dx2 = twice ? drawn(tokens, width, 1) : none;
    struct both dtable = draw(blank_as(dtype, dtype, rows, width), 1);
    int32_t *start = malloc(((size_t)rows + 1) * sizeof *start);
    struct ints starts;

    snprintf(label, sizeof label, "table T=%d D=%d rows=%d, %d of them read, %s add=%d two=%d",
             tokens, width, rows, shared, dtype_name(dtype), add, twice);
    memcpy(start, tk.start.c, ((size_t)shared + 1) * sizeof *start);
    for (int v = shared; v < rows; v++)
        start[v + 1] = tokens;
    starts = ints(start, rows + 1);
    free(start);
    ON_BOTH
    {
        struct lookup l = tokens_on(o, &tk).token;
        l.start = o == cpu ? starts.c : starts.g;
        o->gather(o, ON(out, o), ON(table, o), &l);
        o->table_grad(o, ON(dtable, o), ON(dx, o), ON(dx2, o), &l, add);
    }
    same("out", out, 0, 0);
    same_bf16("dtable", dtable);
}

/* paired: attention counted two rows a token, of half the heads. */
static void test_out_gate(int tokens, int heads, int size, bool in_place, bool paired, bool xsa)
{
    int width = heads * size, rows = paired ? 2 * tokens : tokens;
    struct both delta = blank_as(DT_F32, DT_F32, paired ? heads / 2 : heads, rows);
    struct both x = drawn(tokens, width, 1), y = drawn(tokens, width, 1);
    struct both gate = weight(heads, GATE_WIDTH, 0.5), out = blank(tokens, width);
    struct both dout = drawn(tokens, width, 1), dx = in_place ? dout : blank(tokens, width);
    struct both dgate = weight(heads, GATE_WIDTH, 1), dy12 = blank(tokens, GATE_WIDTH);

    struct both v = xsa ? drawn(tokens, width, 1) : none, dv = xsa ? blank(tokens, width) : none;
    struct both alpha = none, dalpha = none;

    snprintf(label, sizeof label, "out_gate T=%d H=%d E=%d in_place=%d paired=%d xsa=%d", tokens,
             heads, size, in_place, paired, xsa);
    if (xsa) {
        alpha = draw(blank_as(DT_F32, DT_F32, 1, heads), 0.8);
        dalpha = draw(blank_as(DT_F32, DT_F32, 1, heads), 1);
        for (int i = 0; i < size && in_place; i++) /* a value shorter than the least length */
            set(v.c, i, bf16_round(i ? 0 : 1e-5f));
        send(v);
    }
    ON_BOTH
    {
        struct xsa a = { ON(v, o), ON(alpha, o), ON(dv, o), ON(dalpha, o) };
        o->out_gate(o, ON(out, o), ON(x, o), ON(y, o), ON(gate, o), heads, xsa ? &a : NULL);
        o->out_gate_bwd(o, ON(dx, o), ON(delta, o), ON(dgate, o), ON(dy12, o), ON(dout, o),
                        ON(x, o), ON(y, o), ON(gate, o), heads, xsa ? &a : NULL);
    }
    if (xsa) {
        same_bf16("dv", dv);
        same("dalpha", dalpha, f32_tolerance, sqrt((double)tokens * width));
    }
    same_bf16("out", out);
    same_bf16("dx", dx);
    same("delta", delta, f32_tolerance, 0);
    same_bf16("dgate", dgate);
    same_bf16("dy12", dy12);
}

static void test_head_coefs(int tokens, int heads, int size, bool in_place, bool gates, bool alphas)
{
    int width = heads * size;
    struct both x = drawn(tokens, width, 1), own = drawn(tokens, width, 1);
    struct both v = drawn(tokens, width, 1), out = blank(tokens, width), dv = blank(tokens, width);
    struct both gate = draw(blank_as(DT_F32, DT_F32, tokens, heads), 1);
    struct both alpha = draw(blank_as(DT_F32, DT_F32, tokens, heads), 1);
    struct both dgate = blank_as(DT_F32, DT_F32, tokens, heads);
    struct both dalpha = blank_as(DT_F32, DT_F32, tokens, heads);
    struct both dout = drawn(tokens, width, 1), dx = in_place ? dout : blank(tokens, width);
    struct both delta = blank_as(DT_F32, DT_F32, heads, tokens);

    snprintf(label, sizeof label, "head_coefs T=%d H=%d E=%d in_place=%d gates=%d alphas=%d",
             tokens, heads, size, in_place, gates, alphas);
    for (int i = 0; i < size && in_place; i++) /* a value too small to divide by */
        set(v.c, i, bf16_round(i ? 0 : 5e-5f));
    send(v);
    ON_BOTH
    {
        struct head_coefs c = { .v = ON(v, o), .dv = ON(dv, o) };
        if (gates)
            c.gate = (struct token_numbers){ REAL(gate, o), REAL(dgate, o), heads };
        if (alphas)
            c.alpha = (struct token_numbers){ REAL(alpha, o), REAL(dalpha, o), heads };
        o->head_coefs(o, ON(out, o), ON(x, o), heads, &c);
        o->head_coefs_bwd(o, ON(dx, o), ON(delta, o), ON(dout, o), ON(x, o),
                          in_place ? ON(x, o) : ON(own, o), heads, &c);
    }
    same_bf16("out", out);
    same_bf16("dx", dx);
    same("delta", delta, f32_tolerance, sqrt((double)tokens * width));
    if (alphas)
        same_bf16("dv", dv);
    if (alphas)
        same("dalpha", dalpha, f32_tolerance, sqrt((double)tokens * width));
    if (gates)
        same("dgate", dgate, f32_tolerance, sqrt((double)tokens * width));
}

/* w2 Z and dS are rounded to bf16 on a GPU: results of f32 have the tolerance of bf16, too. */
static void test_compose(int tokens, int heads, int size, int window, enum key_offset key_offset)
{
    int width = heads * size;
    bool offset = key_offset != KEY_OFFSET_NONE;
    struct qkv_shape s = { heads, size, false, key_offset, false, NULL, NULL, 0, NULL };
    struct both q = drawn(tokens, width, 1), k = drawn(tokens + offset, width, 1);
    struct both v = drawn(tokens, width, 1), x = drawn(tokens, width, 1);
    struct both out = blank(tokens, width), dout = drawn(tokens, width, 1);
    struct both lse = blank_as(DT_F32, DT_F32, heads, tokens);
    struct both w1 = draw(blank_as(DT_F32, DT_F32, tokens, heads), 1);
    struct both w2 = draw(blank_as(DT_F32, DT_F32, tokens, heads), 1);
    struct both dw1 = blank_as(DT_F32, DT_F32, tokens, heads);
    struct both dw2 = blank_as(DT_F32, DT_F32, tokens, heads);
    struct both factor = draw(blank_as(DT_F32, DT_F32, 2 * heads, tokens), 0.5);
    struct both rope = blank_as(DT_BF16, DT_BF16, tokens, size / 2);
    struct both dqkv = drawn(tokens, 3 * width, 0.1), dv = drawn(tokens, width, 0.1);
    struct both dq = blank(tokens, width), dk = blank(tokens, width);
    struct ints cu =
        ints((int32_t[]){ 0, tokens / 3, tokens / 3, tokens - tokens / 4, tokens, tokens }, 6);
    float freq[32];

    snprintf(label, sizeof label, "compose T=%d H=%d E=%d window=%d key_offset=%d", tokens, heads,
             size, window, key_offset);
    for (int m = 0; m < size / 4; m++)
        freq[m] = powf(1024, -(float)m / (float)(size / 4 - 1));
    ON_BOTH
    {
        struct compose c = { .w1 = { REAL(w1, o), REAL(dw1, o), heads },
                             .w2 = { REAL(w2, o), REAL(dw2, o), heads },
                             .heads = heads,
                             .head_dim = size,
                             .window = window,
                             .cu = o == cpu ? cu.c : cu.g,
                             .ncu = 6,
                             .scale = 0.3f };
        struct qk_made m = { s, { ON(rope, o) }, ON(factor, o) };
        o->rope_table(o, m.rope, freq, 0, false);
        o->compose(o, ON(out, o), ON(lse, o), ON(x, o), ON(q, o), ON(k, o), ON(v, o), &c);
        o->compose_bwd(o, ON(dqkv, o), ON(dq, o), ON(dk, o), ON(dv, o), ON(dout, o), ON(q, o),
                       ON(k, o), ON(v, o), ON(lse, o), &c, &m);
    }
    same_bf16("out", out);
    same("lse", lse, f32_tolerance, sqrt((double)tokens * heads));
    same_bf16("dqkv", dqkv);
    same_bf16("dv", dv);
    /* The norm of one head's number is its sign: the two parts of dw1, of order 1, leave 1e-6 of themselves. */
    if (heads == 1)
        same("dw1", dw1, f32_tolerance, sqrt((double)tokens));
    else
        same_bf16("dw1", dw1);
    same_bf16("dw2", dw2);
}

static void test_norm(int tokens, int width, enum dtype gains, bool add)
{
    struct both x = drawn(tokens, width, 2), y = blank(tokens, width);
    struct both gain = gains == DT_NONE ? none : draw(blank_as(gains, gains, 1, width), 1);
    struct both dgain = gains == DT_NONE ? none : draw(blank_as(DT_F32, DT_F32, 1, width), 1);
    struct both dy = drawn(tokens, width, 1);
    struct both dx = add ? drawn(tokens, width, 1) : blank(tokens, width);

    snprintf(label, sizeof label, "norm T=%d D=%d gains=%s add=%d", tokens, width,
             dtype_name(gains), add);
    ON_BOTH
    {
        o->norm(o, ON(y, o), ON(x, o), ON(gain, o));
        o->norm_bwd(o, ON(dx, o), add, ON(dgain, o), ON(dy, o), ON(x, o), ON(gain, o));
    }
    same_bf16("y", y);
    same_bf16("dx", dx);
    if (gains != DT_NONE)
        same("dgain", dgain, f32_tolerance, sqrt((double)tokens * width));
}

static void test_pair_rows(int rows, int width, int head_dim)
{
    struct both from = draw(blank_as(DT_F32, DT_F32, rows, width), 1);
    struct both w = blank_as(DT_BF16, DT_BF16, rows, width);
    struct both back = blank_as(DT_F32, DT_F32, rows, width);

    snprintf(label, sizeof label, "pair_rows R=%d D=%d E=%d", rows, width, head_dim);
    ON_BOTH
    {
        o->pair_rows(o, ON(w, o), ON(from, o), head_dim, false);
        o->pair_rows(o, ON(back, o), ON(w, o), head_dim, true);
    }
    same("w", w, 0, 0);
    same("back", back, 0, 0);
}

/* Deltas without a gate; products and tables whose parts are rounded before they are added. */
static void test_parts(int tokens, int heads, int size)
{
    int width = heads * size;
    struct tokens tk = tokens_make(tokens, 9);
    struct both x = drawn(tokens, width, 1), dout = drawn(tokens, width, 1);
    struct both delta = blank_as(DT_F32, DT_F32, heads, tokens);
    struct both dw = draw(blank_as(DT_F32, DT_F32, width, width), 1);
    struct both dtable = draw(blank_as(DT_F32, DT_F32, 9, width), 1);

    snprintf(label, sizeof label, "parts T=%d H=%d E=%d", tokens, heads, size);
    ON_BOTH
    {
        struct batch b = tokens_on(o, &tk);
        o->bf16_grads = true;
        o->out_gate_bwd(o, ON(dout, o), ON(delta, o), NO_TENSOR, NO_TENSOR, ON(dout, o), ON(x, o),
                        NO_TENSOR, NO_TENSOR, heads, NULL);
        o->linear_bwd_w(o, ON(dw, o), NULL, ON(dout, o), ON(x, o), NO_TENSOR, NULL, false);
        o->table_grad(o, ON(dtable, o), ON(x, o), NO_TENSOR, &b.token, false);
        o->bf16_grads = false;
    }
    same("delta", delta, f32_tolerance, sqrt((double)tokens * width));
    /* Sums that lie between two bf16 go to either: some units of 2^-9, of few. */
    same("dw", dw, 1e-3, 0);
    same("dtable", dtable, 1e-3, 0);
    for (struct both *b = (struct both[]){ dw, dtable, none }; b->g.data; b++) {
        struct tensor h = fetched(b->g);
        int wide = 0;
        for (int64_t i = 0; i < tensor_count(h); i++)
            wide += get(h, i) != bf16_round((float)get(h, i));
        CHECK_EQ(wide, 0);
        free(h.data);
    }
}

/* A head with a bias whose cap is a root; block: as test_head. */
static void test_root_head(int tokens, int width, int vocab, enum dtype type, bool add, int block)
{
    struct tokens tk = tokens_make(tokens, vocab);
    struct both x = drawn(tokens, width, 4), w = weight(width, vocab, 1 / sqrt((double)width));
    struct both loss = number(2), eval = number(3), dx = blank(tokens, width), mtp = number(1);
    struct both dw = draw(blank_as(DT_F32, DT_F32, width, vocab), 0.01);
    struct both bias = draw(blank_as(type, type, 1, vocab), 1);
    struct both dbias = draw(blank_as(DT_F32, DT_F32, 1, vocab), 1);
    struct both z = blank_as(DT_F32, DT_F32, 3, vocab);

    snprintf(label, sizeof label, "root head T=%d D=%d V=%d %s add=%d block=%d", tokens, width,
             vocab, dtype_name(type), add, block);
    ON_BOTH
    {
        struct head_loss h = { .tgt = o == cpu ? tk.tok.c : tk.tok.g,
                               .mtp = REAL(mtp, o),
                               .n_mtp = 1,
                               .seed = 1,
                               .block = block,
                               .cap_a = 15,
                               .cap_c = 15,
                               .cap_root = true,
                               .bias = ON(bias, o),
                               .dbias = ON(dbias, o) };
        o->head_loss(o, REAL(loss, o), ON(dx, o), ON(dw, o), add, ON(x, o), ON(w, o), &h);
        o->head_eval(o, REAL(eval, o), ON(x, o), ON(w, o), &h);
        o->logits(o, tensor_rows(ON(z, o), 0, tokens < 3 ? tokens : 3),
                  tensor_rows(ON(x, o), 0, tokens < 3 ? tokens : 3), ON(w, o), &h);
    }
    /* A GPU rounds a logit l to bf16, by 2^-8 l at most; times the slope that is at most 2^-8 5.8, and a
     * token's loss has two such: 0.045 of the 16 here. */
    same("loss", loss, 3e-3, 16 * sqrt(tokens));
    same("eval", eval, 3e-3, 16 * sqrt(tokens));
    same_bf16("dx", dx);
    same_bf16("dw", dw);
    same_bf16("dbias", dbias);
    if (tokens >= 3)
        same("logits", z, 1e-4, 0);
}

static void test_token_coefs(int tokens, int width, int m, bool in_place, bool learned)
{
    struct both factor = number(0.12f), dfactor = number(0.5f);
    struct both pre = drawn(tokens, width, 1.5), w = weight(m, width, 0.3), b = weight(1, m, 1);
    struct both dw = weight(m, width, 1), db = weight(1, m, 1);
    struct both out = blank_as(DT_F32, DT_F32, tokens, m),
                dpre = in_place ? pre : blank(tokens, width);
    struct both dout = draw(blank_as(DT_F32, DT_F32, tokens, m), 1);

    snprintf(label, sizeof label, "token_coefs T=%d K=%d m=%d in_place=%d learned=%d", tokens,
             width, m, in_place, learned);
    ON_BOTH
    {
        const real *by = learned ? REAL(factor, o) : NULL;
        o->token_coefs(o, ON(out, o), ON(pre, o), ON(w, o), ON(b, o), by);
        o->token_coefs_bwd(o, ON(dpre, o), ON(dw, o), ON(db, o), REAL(dfactor, o), ON(dout, o),
                           ON(pre, o), ON(w, o), ON(b, o), by);
    }
    same("out", out, f32_tolerance, 0);
    same_bf16("dpre", dpre);
    same_bf16("dw", dw);
    same_bf16("db", db);
    same("dfactor", dfactor, f32_tolerance, sqrt((double)tokens * m * width));
}

static void test_logits(int tokens, int heads, int width, int more, bool add)
{
    struct both y = drawn(tokens, width, 1), e = drawn(tokens, more, 1);
    struct both gate = weight(heads, GATE_WIDTH + more, 0.5), z = blank(tokens, GATE_LOGITS);
    struct both dz = drawn(tokens, GATE_WIDTH, 1), de = drawn(tokens, more, 1);
    struct both dgate = weight(heads, GATE_WIDTH + more, 1);
    struct both dy12 = add ? drawn(tokens, GATE_WIDTH, 1) : blank(tokens, GATE_WIDTH);

    snprintf(label, sizeof label, "gate_logits T=%d H=%d D=%d n=%d add=%d", tokens, heads, width,
             more, add);
    ON_BOTH
    {
        o->gate_logits(o, ON(z, o), ON(y, o), ON(e, o), ON(gate, o));
        o->gate_logits_bwd(o, ON(dy12, o), add, ON(de, o), ON(dgate, o), ON(dz, o), ON(y, o),
                           ON(e, o), ON(gate, o));
    }
    same_bf16("z", z);
    same_bf16("dy12", dy12);
    same_bf16("de", de);
    same_bf16("dgate", dgate);
}

static void test_pair_signs(int tokens, int width, int rows, bool f32)
{
    struct tokens tk = tokens_make(tokens, 50);
    struct both x = drawn(tokens, width, 1);
    struct both signs = blank_as(f32 ? DT_F32 : DT_BF16, f32 ? DT_F32 : DT_BF16, rows, width);

    snprintf(label, sizeof label, "pair_signs T=%d P=%d R=%d", tokens, width, rows);
    for (int64_t i = 0; i < tensor_count(signs.c); i++)
        set(signs.c, i, normal() > 0 ? 1 : -1);
    send(signs);
    ON_BOTH
    {
        struct batch b = tokens_on(o, &tk);
        o->pair_signs(o, ON(x, o), ON(signs, o), &b);
    }
    same("x", x, 0, 0);
}

/* Codes g8 are those of g (T,3D), that device's own gradient of raw. */
static void same_codes(struct ops *o, struct tensor g8, struct tensor g, float unit)
{
    struct tensor want = tensor_of(NULL, DT_E4M3, g.rows, g.cols), one = g8, two;

    want.data = o->alloc(o, tensor_bytes(want), "test");
    o->input_codes(o, want, g, unit);
    two = want;
    if (o == gpu)
        one = fetched(g8), two = fetched(want);
    int64_t bad = 0;
    for (int64_t i = 0; i < tensor_count(g); i++)
        bad += ((uint8_t *)one.data)[i] != ((uint8_t *)two.data)[i];
    check_that(!bad, __FILE__, __LINE__, "%s: %lld codes on the %s are not those of bf16", label,
               (long long)bad, o == gpu ? "GPU" : "CPU");
    if (o == gpu)
        free(one.data), free(two.data);
}

/* Attention's input and its gradients, from and to a layer's input. exact: angles in f32 of rows of 17
 * tokens, and a bias. */
static void test_qkv_of(int tokens, int heads, int size, bool paired, enum key_offset key_offset,
                        bool table, bool split, enum values_grad values, bool exact, int qk_size,
                        int turned)
{
    int width = heads * size, pair = paired ? 2 : 1, rows = pair * tokens, qk = heads * qk_size;
    enum dtype angles = exact ? DT_F32 : DT_BF16;
    struct both bias = exact ? weight(1, 2 * qk + width, 1) : none;
    struct qkv_shape s = { heads, size, paired, key_offset, split, NULL, NULL, qk_size, NULL };
    struct tokens tk = tokens_make(tokens, 50);
    struct both x = drawn(tokens, width, 1);
    struct both w = weight(2 * qk + width, width, 1 / sqrt((double)width));
    struct both scale = number(0.7f), y = drawn(tokens, width, 1);
    struct both raw = blank(tokens, 2 * qk + width), rope = blank_as(angles, angles, rows, turned);
    struct both gate = weight(heads, GATE_WIDTH, 0.5), e = weight(50, width, 1);
    struct both q = blank(tokens, qk), v = blank(tokens, width), out = blank(tokens, width);
    struct both k = blank(tokens + (key_offset != KEY_OFFSET_NONE), qk);
    struct both factor = blank_as(DT_F32, DT_F32, 2 * heads, tokens);
    struct both lse = blank_as(DT_F32, DT_F32, heads / pair, rows);
    struct both delta = blank_as(DT_F32, DT_F32, heads / pair, rows);
    struct both dout = drawn(tokens, width, 1), dqkv = blank(tokens, 2 * qk + width);
    struct both dq = blank(tokens, qk), dk = blank(tokens, qk), dv = drawn(tokens, width, 1);
    struct both drows = blank(tokens, width), dgate = weight(heads, GATE_WIDTH, 1);
    struct both dy12 = drawn(tokens, GATE_WIDTH, 1), unit = weight(heads, GATE_WIDTH, 0);
    struct both d12 = blank(tokens, GATE_WIDTH), gated = blank(tokens, width);
    struct ints cu = ints((int32_t[]){ 0, tokens / 3, tokens, tokens }, 4);
    float freq[64];

    snprintf(label, sizeof label,
             "qkv T=%d H=%d E=%d Eq=%d turned=%d paired=%d key_offset=%d table=%d split=%d "
             "values=%d exact=%d",
             tokens, heads, size, qk_size, turned, paired, key_offset, table, split, values, exact);
    for (int m = 0; m < turned / 2; m++)
        freq[m] = powf(1024, -(float)m / (float)(turned / 2 - 1));
    ON_BOTH
    {
        struct batch b = tokens_on(o, &tk);
        struct rope r = { ON(rope, o) };
        o->rope_table(o, r, freq, exact ? 17 : 0, exact);
        if (key_offset) /* of whose last row only some channels are written */
            o->zero(o, ON(k, o));
        o->qkv(o, ON(q, o), ON(k, o), ON(v, o), ON(factor, o), ON(raw, o), ON(x, o), ON(w, o),
               REAL(scale, o), ON(bias, o), &s, r, ON(y, o), ON(gate, o),
               table ? ON(e, o) : NO_TENSOR, &b);
    }
    same("rope", rope, 0, 0);
    same_bf16("q", q);
    same_bf16("k", k);
    same_bf16("v", v);
    same_bf16("factor", factor);
    take_over(q), take_over(k), take_over(v), take_over(factor);
    ON_BOTH
    {
        struct attn_shape as = { rows, heads / pair, size, qk_size, o == cpu ? cu.c : cu.g,
                                 4,    pair,         24,   0.1f,    NULL };
        o->attention(o, ON(out, o), ON(lse, o), ON(q, o), ON(k, o), ON(v, o), &as);
        o->out_gate_bwd(o, ON(gated, o), ON(delta, o), ON(unit, o), ON(d12, o), ON(dout, o),
                        ON(out, o), ON(y, o), ON(gate, o), heads, NULL);
    }
    same_bf16("out", out);
    take_over(gated), take_over(delta), take_over(lse);
    ON_BOTH
    {
        struct batch b = tokens_on(o, &tk);
        struct attn_shape as = { rows, heads / pair, size, qk_size, o == cpu ? cu.c : cu.g,
                                 4,    pair,         24,   0.1f,    NULL };
        struct qk_made m = { s, { ON(rope, o) }, ON(factor, o) };
        o->attention_bwd(o, ON(dqkv, o), ON(dq, o), ON(dk, o), ON(dv, o), values, ON(gated, o),
                         ON(q, o), ON(k, o), ON(v, o), ON(lse, o), ON(delta, o), &as, &m);
        if (table || values != VALUES_JOINED)
            o->value_bwd(o, ON(dqkv, o), table ? ON(drows, o) : NO_TENSOR, ON(dgate, o),
                         ON(dy12, o), values == VALUES_JOINED ? NO_TENSOR : ON(dv, o), &s, ON(y, o),
                         ON(gate, o), table ? ON(e, o) : NO_TENSOR, &b);
    }
    same_bf16("dqkv", dqkv);
    same_bf16("dgate", dgate);
    same_bf16("dy12", dy12);
    if (table)
        same_bf16("drows", drows);
    if (values == VALUES_ADDED || (table && values == VALUES_JOINED))
        return;
    struct both over = blank(tokens, 2 * qk + width), dv2 = blank(tokens, width);
    ON_BOTH
    {
        struct batch b = tokens_on(o, &tk);
        struct attn_shape as = { rows, heads / pair, size, qk_size, o == cpu ? cu.c : cu.g,
                                 4,    pair,         24,   0.1f,    NULL };
        struct tensor raw = ON(over, o);
        struct fp8_gradient g8 = { tensor_of(raw.data, DT_E4M3, raw.rows, raw.cols),
                                   0.0371f / 448 };
        struct qk_made m = { s, { ON(rope, o) }, ON(factor, o) };
        m.shape.dqkv8 = &g8;
        o->attention_bwd(o, raw, ON(dq, o), ON(dk, o), ON(dv2, o), values, ON(gated, o), ON(q, o),
                         ON(k, o), ON(v, o), ON(lse, o), ON(delta, o), &as, &m);
        if (values == VALUES_APART)
            o->value_bwd(o, raw, table ? ON(drows, o) : NO_TENSOR, ON(dgate, o), ON(dy12, o),
                         ON(dv2, o), &m.shape, ON(y, o), ON(gate, o), table ? ON(e, o) : NO_TENSOR,
                         &b);
        same_codes(o, g8.codes, ON(dqkv, o), g8.scale);
    }
    if (table)
        same_bf16("drows beside codes", drows);
}

static void test_qkv(int tokens, int heads, int size, bool paired, enum key_offset key_offset,
                     bool table, bool split, enum values_grad values, bool exact)
{
    test_qkv_of(tokens, heads, size, paired, key_offset, table, split, values, exact, size,
                size / 2);
}

static const double fp8_tolerance = 5e-2;

/* later: as record 84 has it, and tokens' prefixes. A sigmoid near the middle of two bf16 is rounded up on one device and down on
 * the other, as logits and tanh differ by up to 2^-9: then its number is off by exp(23 2^-9), 5%. */
static void test_head(int tokens, int width, int vocab, int n_mtp, bool fp8, bool add, int block,
                      bool later)
{
    static const float mtp_weights[] = { 1, 0.5f, 0.25f, 0.125f, 0.0625f };
    struct tokens tk = tokens_make(tokens, vocab);
    struct both x = drawn(tokens, width, 1), w = weight(width, vocab, 1 / sqrt((double)width));
    struct both loss = blank_as(DT_F32, DT_F32, 1, 2), eval = number(3), dx = blank(tokens, width);
    struct both dw = weight(width, vocab, 0.01), mtp = blank_as(DT_F32, DT_F32, 1, n_mtp + 1);
    /* Most of the norm is the targets' numbers. One that falls to the next e5m2 code is off by a quarter: nine
     * of n that do are 0.75 / sqrt(n), and of few numbers one may be most of the norm. */
    double few = 0.75 / sqrt((double)tokens * n_mtp), most = few < 0.25 ? few : 0.25;
    double fp8_allowed = most > fp8_tolerance ? most : fp8_tolerance;
    int32_t *of = malloc((size_t)vocab * sizeof *of);

    snprintf(label, sizeof label, "head T=%d D=%d V=%d n_mtp=%d fp8=%d add=%d block=%d later=%d",
             tokens, width, vocab, n_mtp, fp8, add, block, later);
    memcpy(mtp.c.data, mtp_weights, (size_t)(n_mtp + 1) * sizeof(float));
    send(mtp);
    memcpy(loss.c.data, (float[]){ 2, 4 }, 2 * sizeof(float)); /* the op adds to them */
    send(loss);
    for (int v = 0; v < vocab; v++)
        of[v] = v % 3 ? v / 2 : -1;
    struct ints prefix = ints(of, vocab);
    for (int v = 0; v < vocab; v++)
        of[v] = v % 2;
    struct ints row = ints(of, vocab);
    free(of);
    int words = (vocab + 31) / 32; /* of a mask of two rows, the second all but empty of words */
    int32_t *bits = calloc(2 * (size_t)words, sizeof *bits);
    for (int i = 0; i < vocab; i++)
        bits[i / 32] |= (int32_t)((uint32_t)(i % 7 < 3) << i % 32);
    bits[words] = 6;
    struct ints barred = ints(bits, 2 * words);
    free(bits);
    ON_BOTH
    {
        struct head_loss h = { .mtp = REAL(mtp, o),
                               .n_mtp = n_mtp,
                               .seed = 0.5f,
                               .block = block,
                               .fp8 = fp8,
                               .x_scale = 100 / 448.f,
                               .w_scale = 1.6f / 448,
                               .g_scale = (add ? 0.5f : 1) * 0.75f / 448,
                               .cap_a = 23,
                               .cap_b = 5,
                               .cap_c = 7.5f,
                               .whole = later,
                               .prefix = !later     ? NULL
                                         : o == cpu ? prefix.c
                                                    : prefix.g,
                               .bf16_sigmoid = later,
                               .next = later };
        h.tgt = h.before = o == cpu ? tk.tok.c : tk.tok.g;
        if (later)
            h.never = (struct token_mask){ vocab, 2, words, o == cpu ? row.c : row.g,
                                           (uint32_t *)(o == cpu ? barred.c : barred.g) };
        o->head_loss(o, REAL(loss, o), ON(dx, o), ON(dw, o), add, ON(x, o), ON(w, o), &h);
        o->head_eval(o, REAL(eval, o), ON(x, o), ON(w, o), &h);
    }
    /* Each row's loss moves with the bf16 of its target's logit, which may be the next one, 23 2^-8 further, where
     * the logit lies between two; that adds up as roundings do. */
    same("loss", loss, 1e-3, 1e3 * 23 / 256 * sqrt(tokens));
    same("eval", eval, 1e-3, 1e3 * 23 / 256 * sqrt(tokens));
    same("dx", dx, fp8 || later ? fp8_allowed : bf16_tolerance, 0);
    same("dw", dw, fp8 || later ? fp8_allowed : bf16_tolerance, 0);
}

static void test_finite(void)
{
    static const int64_t sizes[] = { 1, 7, 8, 1001, 70001 };
    int32_t got, clean = 0;
    int32_t *bad = gpu->alloc(gpu, 4, "test");

    for (int i = 0; i < 5; i++)
        for (int t = 0; t < 2; t++)
            for (int where = 0; where < 3; where++) { /* nowhere, first, last */
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

/* Codes of f16 and e4m3: the largest number, then what is none. */
static void test_finite_codes(enum dtype t, uint32_t largest, uint32_t none)
{
    int32_t *bad = gpu->alloc(gpu, 4, "test"), got, clean = 0;
    size_t size = dtype_size(t);

    for (int64_t n = 1; n < 40; n++)
        for (int64_t at = 0; at <= n; at++) { /* n: nowhere */
            uint8_t code[80];
            struct tensor x = tensor_of(gpu->alloc(gpu, sizeof code, "test"), t, 1, n);
            for (int64_t i = 0; i < n; i++)
                memcpy(code + (size_t)i * size, i == at ? &none : &largest, size);
            gpu->upload(gpu, x.data, code, (size_t)n * size);
            gpu->upload(gpu, bad, &clean, 4);
            gpu->finite(gpu, bad, x);
            gpu->download(gpu, &got, bad, 4);
            CHECK_EQ(got, at < n);
        }
}

static void test_copy(void)
{
    struct both a = drawn(3, 333, 1), b = blank_as(DT_F32, DT_F32, 3, 333), z = drawn(5, 5, 1);

    /* Halfway between two bf16, which is the even one's. */
    struct both wide = blank_as(DT_F32, DT_F32, 1, 8), narrow = blank_as(DT_BF16, DT_BF16, 1, 8);
    for (int i = 0; i < 8; i++)
        set(wide.c, i, (i % 2 ? -1 : 1) * (1 + (2 * i + 1) * 0x1p-8));
    send(wide);

    snprintf(label, sizeof label, "copy, zero");
    ON_BOTH
    {
        o->copy(o, ON(narrow, o), ON(wide, o));
        o->copy(o, ON(b, o), ON(a, o));
        o->zero(o, ON(z, o));
    }
    same("f32", b, 0, 0);
    same("bf16", narrow, 0, 0);
    same("zero", z, 0, 0);
}

/* Uploads run through rings of a few MB: more than that, in odd pieces, by both ways. */
static void test_upload(void)
{
    size_t n = (size_t)37 << 20, step = 1234567;
    unsigned char *a = malloc(n), *b = malloc(n), *d = gpu->alloc(gpu, n, "test");

    for (size_t i = 0; i < n; i++)
        a[i] = (unsigned char)(i * 2654435761u >> 13);
    CHECK_OK(gpu->sync(gpu)); /* d is filled */
    for (size_t at = 0, i = 0; at < n; at += step, i++)
        (i % 3 ? gpu->upload_ahead : gpu->upload)(gpu, d + at, a + at,
                                                  n - at < step ? n - at : step);
    gpu->download(gpu, b, d, n);
    CHECK(!memcmp(a, b, n));
    free(a), free(b);
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

static void test_small(void)
{
    fresh();
    if (check_of("embed table_grad")) {
        test_embed(1, 32, 3, false, false);
        test_embed(2, 40, 1, true, true);
        test_embed(37, 96, 7, false, true);
        test_embed(37, 96, 1000, false, true);
        test_embed(37, 264, 7, false, true);
        test_embed(15, 136, 300, false, true);
        test_embed(130, 24, 300, false, true);
        test_embed(300, 264, 50, true, false);
    }
    if (check_of("table_grad embed")) {
        test_table(1, 8, 1, 1, DT_BF16, false, false);
        test_table(3, 40, 70, 2, DT_F32, true, true);
        test_table(24, 24, 100, 1, DT_BF16, true, false);
        test_table(25, 24, 31, 1, DT_BF16, false, true);
        test_table(200, 264, 33, 7, DT_F32, false, false);
        test_table(1001, 136, 5000, 5000, DT_BF16, true, true);
        test_table(1500, 1032, 90, 60, DT_BF16, true, false);
    }
    if (check_of("out_gate")) {
        test_out_gate(1, 1, 32, false, false, false);
        test_out_gate(13, 3, 64, true, false, false);
        test_out_gate(13, 4, 64, true, true, false);
        test_out_gate(29, 5, 32, false, false, false);
        test_out_gate(300, 7, 128, true, false, false);
        test_out_gate(1, 1, 32, false, false, true);
        test_out_gate(13, 3, 64, true, false, true);
        test_out_gate(300, 6, 128, false, false, true);
    }
    if (check_of("token_coefs")) {
        test_token_coefs(1, 8, 1, false, false);
        test_token_coefs(5, 16, 3, true, true);
        test_token_coefs(200, 32, 16, false, false);
        test_token_coefs(check_small() ? 300 : 30000, 64, 14, true, false);
        test_token_coefs(check_small() ? 100 : 30000, 64, 41, true, true);
        test_token_coefs(70, 16, 17, false, false);
    }
    if (check_of("head_coefs")) {
        test_head_coefs(1, 1, 32, false, true, false);
        test_head_coefs(13, 3, 64, true, true, true);
        test_head_coefs(29, 5, 32, false, false, true);
        test_head_coefs(check_small() ? 20 : 300, 6, 128, false, true, false);
        test_head_coefs(9, 6, 128, true, true, true);
    }
    if (check_of("compose")) {
        test_compose(1, 1, 32, 4, KEY_OFFSET_NONE);
        test_compose(13, 2, 32, 5, KEY_OFFSET_HALF);
        test_compose(150, 2, 64, 112, KEY_OFFSET_HALF);
        test_compose(check_small() ? 70 : 1000, 6, 128, 112, KEY_OFFSET_QUARTERS);
    }
    if (check_of("gate_logits")) {
        test_logits(1, 1, 64, 8, false);
        test_logits(300, 7, 384, 8, true);
        test_logits(17, 12, 384, 32, true);
    }
    if (check_of("qkv rope_table")) {
        test_qkv(1, 1, 32, false, KEY_OFFSET_QUARTERS, false, false, VALUES_JOINED, false);
        test_qkv(1, 2, 64, true, KEY_OFFSET_NONE, true, false, VALUES_APART, false);
        test_qkv(2, 3, 32, false, KEY_OFFSET_QUARTERS, true, false, VALUES_ADDED, false);
        test_qkv(13, 4, 64, true, KEY_OFFSET_NONE, true, false, VALUES_JOINED, false);
        test_qkv(50, 5, 128, false, KEY_OFFSET_QUARTERS, true, false, VALUES_APART, false);
        test_qkv(31, 2, 128, true, KEY_OFFSET_QUARTERS, false, false, VALUES_ADDED, false);
        test_qkv(1, 1, 32, false, KEY_OFFSET_HALF, true, true, VALUES_JOINED, false);
        test_qkv(2, 5, 64, false, KEY_OFFSET_HALF, true, true, VALUES_APART, false);
        test_qkv(61, 16, 128, false, KEY_OFFSET_HALF, true, true, VALUES_ADDED, false);
        test_qkv(31, 4, 32, true, KEY_OFFSET_HALF, true, true, VALUES_JOINED, false);
        test_qkv(40, 7, 128, false, KEY_OFFSET_HALF, false, false, VALUES_APART, false);
        test_qkv(40, 3, 128, false, KEY_OFFSET_NONE, false, false, VALUES_JOINED, true);
        test_qkv(61, 4, 32, false, KEY_OFFSET_NONE, true, false, VALUES_APART, true);
        test_qkv(77, 2, 128, true, KEY_OFFSET_NONE, false, false, VALUES_JOINED, false);
        test_qkv_of(13, 4, 64, true, KEY_OFFSET_NONE, true, false, VALUES_JOINED, false, 32, 32);
        test_qkv_of(50, 3, 128, false, KEY_OFFSET_HALF, true, true, VALUES_ADDED, false, 96, 48);
        test_qkv_of(61, 2, 128, false, KEY_OFFSET_QUARTERS, false, false, VALUES_APART, false, 64,
                    64);
        test_qkv_of(50, 4, 128, true, KEY_OFFSET_NONE, true, true, VALUES_JOINED, false, 64, 64);
        test_qkv_of(70, 6, 128, false, KEY_OFFSET_HALF, true, true, VALUES_JOINED, false, 64, 64);
        test_qkv_of(40, 2, 128, true, KEY_OFFSET_NONE, false, false, VALUES_JOINED, false, 96, 48);
        test_qkv_of(31, 2, 64, false, KEY_OFFSET_HALF, true, false, VALUES_JOINED, false, 64, 64);
    }
    if (check_of("head_loss")) {
        test_head(1, 16, 32, 3, false, false, 0, false);
        test_head(13, 24, 40, 1, false, true, 0, false);
        test_head(31, 64, 512, 2, false, false, 0, false);
        test_head(1, 16, 32, 3, true, false, 0, false);
        test_head(2, 64, 48, 3, true, true, 0, false);
        test_head(31, 64, 512, 4, true, false, 0, false);
        test_head(1, 16, 32, 3, false, false, 0, true);
        test_head(31, 64, 512, 3, false, true, 0, true);
        test_head(31, 64, 512, 4, true, false, 0, true);
        test_head(263, 256, 4096, 2, true, true, 0, false);
        /* spans of 16 rows, the last of them short; predictions that look into the next one */
        test_head(31, 64, 512, 2, false, false, 1, false);
        test_head(33, 64, 512, 3, false, true, 16, false);
        test_head(33, 64, 512, 3, true, false, 16, false);
        test_head(263, 256, 4096, 2, true, true, 100, false);
    }
    if (check_of("norm")) {
        test_norm(1, 8, DT_F32, false);
        test_norm(13, 264, DT_BF16, true);
        test_norm(300, 768, DT_F32, true);
        test_norm(37, 1024, DT_NONE, false);
    }
    if (check_of("pair_rows")) {
        test_pair_rows(4, 3, 4);
        test_pair_rows(256, 40, 128);
    }
    if (check_of("out_gate linear table_grad")) {
        test_parts(1, 1, 32);
        test_parts(300, 3, 64);
    }
    if (check_of("head_loss")) {
        test_root_head(1, 16, 32, DT_F32, false, 0);
        test_root_head(31, 64, 512, DT_BF16, true, 0);
        test_root_head(33, 64, 512, DT_F32, true, 16);
    }
    if (check_of("pair_signs")) {
        test_pair_signs(1, 8, 3, false);
        test_pair_signs(37, 24, 11, true);
        test_pair_signs(300, 192, 97, false);
    }
    if (check_of("finite")) {
        test_finite();
        test_finite_codes(DT_F16, 0x7bff, 0xfc00);
        test_finite_codes(DT_E4M3, 0xfe, 0xff);
    }
    if (check_of("device")) {
        test_copy();
        test_upload();
        test_graph();
    }
}

static void test_real(void)
{
    fresh();
    if (check_of("embed table_grad")) {
        test_embed(2048, 768, 50304, false, false);
        test_embed(2048, 768, 50304, true, true);
    }
    fresh();
    if (check_of("table_grad embed")) {
        test_table(4096, 64, 251520, 251520, DT_BF16, false, false);
        test_table(4096, 64, 251520, 251520, DT_BF16, true, false);
        test_table(4096, 768, 2000, 2000, DT_BF16, true, true);
    }
    fresh();
    if (check_of("out_gate"))
        test_out_gate(2048, 6, 128, true, true, false);
    fresh();
    if (check_of("qkv rope_table")) {
        test_qkv(2048, 6, 128, false, KEY_OFFSET_QUARTERS, true, false, VALUES_ADDED, false);
        test_qkv(2048, 6, 128, true, KEY_OFFSET_NONE, true, false, VALUES_JOINED, false);
        test_qkv(2048, 6, 128, false, KEY_OFFSET_NONE, false, false, VALUES_APART, false);
        test_qkv(2048, 6, 128, false, KEY_OFFSET_NONE, false, false, VALUES_JOINED, false);
        test_qkv(2048, 6, 128, false, KEY_OFFSET_HALF, true, true, VALUES_ADDED, false);
    }
    fresh();
    if (check_of("head_loss")) {
        test_head(528, 768, 50304, 3, true, false, 0, false);
        test_head(528, 768, 50304, 1, false, true, 0, false);
    }
}

/* gpu_ops_test [SEED [small]]: that seed again; the small shapes only, for compute-sanitizer. */
int main(int argc, char **argv)
{
    if (!both_begin(argc, argv))
        return check_skip("gpu");
    if (check_of("device"))
        test_failures();
    test_small();
    if (argc < 3 && !check_small())
        test_real();
    return both_end();
}
