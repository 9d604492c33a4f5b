/* gpu_optim_test.c - the optimizer's kernels, without Polar Express, against the plain C ops, on
 * fresh random inputs.
 *
 * Real and ragged shapes; outputs hold NaN before. Tolerances, as |gpu - cpu| / |cpu|:
 * - what is elementwise has equal bits: transpose, Adam, a weight's fp8 copy, the momentum, and the
 *   mantissa update when the sums before it are exact in any order;
 * - f32 sums in another order: 1e-5 (a few thousand terms of 2^-24);
 * - bf16 results whose inputs went through such sums: 1e-3 (few roundings fall the other way; one
 *   such is 2^-8 of its element).
 * Exit 77 without a GPU.
 */
#include "adam_call.h"
#include "adam_case.h"
#include "gpu_pair.h"

/* -- transpose ---------------------------------------------------------------------------- */

static void test_transpose(enum dtype td, enum dtype ts, int64_t rows, int64_t cols, float mix,
                           int sms)
{
    struct both src = drawn(ts, rows, cols, 1), dst = blank(td, cols, rows);
    if (mix != 0)
        dst = drawn(td, cols, rows, 1);
    void *c, *g;
    numbers(&mix, sizeof mix, &c, &g);
    gpu->transpose_sms = sms;
    cpu->transpose(cpu, dst.c, src.c, mix != 0 ? c : NULL);
    gpu->transpose(gpu, dst.g, src.g, mix != 0 ? g : NULL);
    gpu->transpose_sms = 0;
    CHECK_EQ(different_bytes(dst), 0);
}

/* u16, and u8 of the same bits. */
static void test_transpose_bits(int64_t rows, int64_t cols)
{
    struct both src = drawn_u16(rows, cols), dst = blank(DT_U16, cols, rows);
    cpu->transpose(cpu, dst.c, src.c, NULL);
    gpu->transpose(gpu, dst.g, src.g, NULL);
    CHECK_EQ(different_bytes(dst), 0);
    dst = blank(DT_U8, cols, rows);
    src.c.dtype = src.g.dtype = DT_U8;
    cpu->transpose(cpu, dst.c, src.c, NULL);
    gpu->transpose(gpu, dst.g, src.g, NULL);
    CHECK_EQ(different_bytes(dst), 0);
}

static void test_transposes(void)
{
    static const int64_t shape[][2] = { { 1, 1 },   { 8, 8 },    { 5, 300 },
                                        { 300, 7 }, { 72, 200 }, { 768, 1048 } };
    for (int s = 0; s < 6; s++)
        test_transpose_bits(shape[s][0], shape[s][1]);
    for (int s = 0; s < 6; s++)
        for (int k = 0; k < 12; k++)
            test_transpose(k & 1 ? DT_BF16 : DT_F32, k & 2 ? DT_BF16 : DT_F32, shape[s][0],
                           shape[s][1],
                           k & 8   ? -0.3f
                           : k & 4 ? 1
                                   : 0,
                           s == 5 ? 1 + k % 3 : 0);
    if (!check_small()) {
        test_transpose(DT_BF16, DT_BF16, 768, 50304, 1, 0);
        test_transpose(DT_BF16, DT_BF16, 50304, 768, 0, 48);
    }
    clear();
}

/* -- Adam ------------------------------------------------------------------------------------ */

static void test_adam(enum dtype tw, enum dtype tg, enum dtype tm, int64_t n)
{
    struct both w = drawn(tw, 1, n, 1), g = drawn(tg, 1, n, 0.1), m = drawn(tm, 1, n, 0.1);
    struct both v = drawn(tm, 1, n, 0.1);
    struct adam_step a = { .step_size = 0.013f, .decay = 0.0007f, .eps = 1e-10f };
    void *ca, *ga;
    numbers(&a, sizeof a, &ca, &ga);
    for (int64_t i = 0; i < n; i++)
        set(v.c, i, fabs(get(v.c, i)));
    for (int64_t i = 0; i < n; i += 7) { /* a row that never had a gradient */
        set(g.c, i, 0), set(m.c, i, 0), set(v.c, i, 0);
    }
    for (int64_t i = 3; i < n; i += 11) /* subnormal squares */
        set(g.c, i, 1e-21 * normal()), set(v.c, i, 0), set(w.c, i, 0);
    to_gpu(g), to_gpu(m), to_gpu(v), to_gpu(w);
    for (int step = 0; step < 3; step++) {
        adam_call(cpu, w.c, g.c, m.c, v.c, 0.5, 0.95, ca, NULL);
        adam_call(gpu, w.g, g.g, m.g, v.g, 0.5, 0.95, ga, NULL);
    }
    CHECK_EQ(different_bytes(w) + different_bytes(m) + different_bytes(v), 0);
}

/* Copies on both devices: codes and amax have equal bits, but of a NaN, which has many. */
static void compare_copies(const struct fp8_copy *c, const struct fp8_copy *g, bool nan)
{
    struct both codes = { c->codes, g->codes };
    float amax;
    gpu->download(gpu, &amax, g->amax, sizeof amax);
    CHECK_EQ(different_bytes(codes), 0);
    CHECK(nan ? isnan(amax) && isnan(*c->amax) : amax == *c->amax);
}

/* lead: elements before the codes, so that they begin at an odd place. The scale cuts some off. */
static void test_fp8_copy(enum dtype tw, enum dtype tm, int64_t n, int64_t lead, bool nan)
{
    struct both w = drawn(tw, 1, n, 1), g = drawn(DT_BF16, 1, n, 0.1), m = drawn(tm, 1, n, 0.1);
    struct both v = blank(tm, 1, n), codes = blank(DT_E4M3, 1, n + lead);
    struct both amax = blank(DT_F32, 1, 1);
    struct adam_step a = { .step_size = 0.013f, .decay = 0.0007f, .eps = 1e-10f };
    void *ca, *ga;
    numbers(&a, sizeof a, &ca, &ga);
    for (int64_t i = 0; i < n; i++)
        set(v.c, i, fabs(normal()));
    if (nan)
        set(w.c, n - 1, NAN);
    to_gpu(v), to_gpu(w);
    codes.c.data = (char *)codes.c.data + lead, codes.c.cols = n;
    codes.g.data = (char *)codes.g.data + lead, codes.g.cols = n;
    struct fp8_copy c = { codes.c, 1.6f / 448, amax.c.data, NULL, NULL };
    struct fp8_copy d = { codes.g, 1.6f / 448, amax.g.data, NULL, NULL };
    cpu->quantize(cpu, &c, w.c);
    gpu->quantize(gpu, &d, w.g);
    compare_copies(&c, &d, nan);
    for (int step = 0; step < 2; step++) {
        adam_call(cpu, w.c, g.c, m.c, v.c, 0.5, 0.95, ca, &c);
        adam_call(gpu, w.g, g.g, m.g, v.g, 0.5, 0.95, ga, &d);
        compare_copies(&c, &d, nan);
    }
    if (!nan)
        CHECK_EQ(different_bytes(w) + different_bytes(m) + different_bytes(v), 0);
}

/* A head that is given its weight's codes has the bits of one that makes them, and reads no other
 * weight. */
static void test_head_copy(int tokens, int width, int vocab)
{
    struct both x = drawn(DT_BF16, tokens, width, 1), w = drawn(DT_BF16, width, vocab, 0.5);
    struct both codes = blank(DT_E4M3, width, vocab), junk = blank(DT_BF16, width, vocab);
    struct tensor got[2][3];
    int32_t *tgt = (int32_t *)malloc((size_t)tokens * sizeof *tgt);
    float mtp[2] = { 1, 0.5f }, zero = 0;
    void *unused, *gtgt, *gmtp, *amax, *loss;

    for (int i = 0; i < tokens; i++)
        tgt[i] = (int32_t)(fabs(normal()) * 1e6) % vocab;
    numbers(tgt, (size_t)tokens * sizeof *tgt, &unused, &gtgt);
    numbers(mtp, sizeof mtp, &unused, &gmtp);
    numbers(&zero, sizeof zero, &unused, &amax);
    struct fp8_copy copy = { codes.g, 1.6f / 448, (real *)amax, NULL, NULL };
    gpu->quantize(gpu, &copy, w.g);
    for (int given = 0; given < 2; given++) {
        struct both dx = blank(DT_BF16, tokens, width), dw = blank(DT_BF16, width, vocab);
        struct head_loss h = { .tgt = (const int32_t *)gtgt,
                               .mtp = (const real *)gmtp,
                               .n_mtp = 2,
                               .seed = 0.5f,
                               .fp8 = true,
                               .x_scale = 100 / 448.f,
                               .w_scale = copy.scale_inv,
                               .g_scale = 0.75f / 448,
                               .cap_a = 23,
                               .cap_b = 5,
                               .cap_c = 7.5f };
        if (given)
            h.w8 = codes.g;
        numbers(&zero, sizeof zero, &unused, &loss);
        gpu->head_loss(gpu, (real *)loss, dx.g, dw.g, false, x.g, given ? junk.g : w.g, &h);
        got[given][0] = fetched(tensor_of(loss, DT_F32, 1, 1));
        got[given][1] = fetched(dx.g), got[given][2] = fetched(dw.g);
    }
    for (int i = 0; i < 3; i++) {
        CHECK(!memcmp(got[0][i].data, got[1][i].data, tensor_bytes(got[0][i])));
        CHECK(get(got[0][i], 0) == get(got[0][i], 0)); /* written: no NaN */
        free(got[0][i].data), free(got[1][i].data);
    }
    free(tgt);
}

static void test_fp8_copies(void)
{
    static const int64_t size[] = { 1, 7, 8, 1003, 40960 };
    for (int s = 0; s < 5; s++)
        for (int k = 0; k < 8; k++) {
            test_fp8_copy(k & 1 ? DT_BF16 : DT_F32, k & 2 ? DT_BF16 : DT_F32, size[s], 0, k & 4);
            test_fp8_copy(k & 1 ? DT_BF16 : DT_F32, k & 2 ? DT_BF16 : DT_F32, size[s], 3, k & 4);
        }
    if (!check_small())
        test_fp8_copy(DT_BF16, DT_F32, 6288 * 768, 0, false);
    clear();
    test_head_copy(1, 16, 32);
    test_head_copy(2, 64, 48);
    test_head_copy(263, 256, 4112);
    if (!check_small())
        test_head_copy(528, 768, 50304);
    clear();
}

static void test_adams(void)
{
    static const int64_t size[] = { 1, 7, 8, 1003, 40960 };
    for (int s = 0; s < 5; s++)
        for (int k = 0; k < 8; k++)
            test_adam(k & 1 ? DT_BF16 : DT_F32, k & 2 ? DT_BF16 : DT_F32, k & 4 ? DT_BF16 : DT_F32,
                      size[s]);
    for (int k = 0; k < 2 && !check_small(); k++)
        test_adam(DT_BF16, DT_BF16, k ? DT_BF16 : DT_F32, 6288 * 768);
    clear();
}

/* Every form of Adam's numbers, several parameters in one launch: equal bits. */
static void to_device(struct tensor *t, size_t lead)
{
    size_t bytes = lead + tensor_bytes(*t);
    char *p = (char *)gpu->alloc(gpu, bytes, "test");
    gpu->upload(gpu, p, (char *)t->data - lead, bytes);
    t->data = p + lead;
}

static void held_on_device(struct adam_held *d)
{
    d->copy.codes = d->t[H_CODES], d->copy.amax = (real *)d->t[H_AMAX].data;
    d->copy.rows = (real *)d->t[H_W_SCALE].data;
}

static bool equal_on_both(const struct adam_held *h, const struct adam_held *d)
{
    bool equal = true;
    for (int i = 0; i < H_N; i++) {
        struct both b = { h->t[i], d->t[i] };
        equal &= !h->t[i].data || named(i == H_V   ? "v"
                                        : i == H_M ? "m"
                                                   : "others",
                                        different_bytes(b) == 0);
    }
    return equal;
}

/* Two steps of n parameters, of which the second may be skipped. */
static void test_cases(const struct adam_case *c, int n, bool skip)
{
    struct adam_held h[ADAM_MAX], d[ADAM_MAX];
    struct adam_param p[ADAM_MAX], q[ADAM_MAX];

    for (int step = 1; step <= 2; step++)
        for (int i = 0; i < n; i++) {
            struct adam_step a[2] = { { NAN, NAN, NAN, 0 }, { NAN, NAN, NAN, 0 } };
            struct step_gate gate = { NAN, skip && step == 2, i % 2, NAN };
            void *ca, *ga, *cg, *gg;
            if (step == 1) {
                h[i] = d[i] = adam_held_new(&c[i], &seed);
                for (int k = 0; k < H_N; k++)
                    if (h[i].t[k].data)
                        to_device(&d[i].t[k], adam_lead_of(&c[i], &h[i], k));
                held_on_device(&d[i]);
            }
            gate.factor = c[i].factor;
            a[gate.late] = (struct adam_step){ 0.013f, 0.0007f, 1e-6f, (uint32_t)step };
            numbers(a, sizeof a, &ca, &ga), numbers(&gate, sizeof gate, &cg, &gg);
            p[i] = adam_param_of(&c[i], &h[i], (struct adam_step *)ca);
            q[i] = adam_param_of(&c[i], &d[i], (struct adam_step *)ga);
            p[i].gate = (struct step_gate *)cg, q[i].gate = (struct step_gate *)gg;
            if (i < n - 1)
                continue;
            cpu->adam_largest(cpu, p, n), cpu->adam(cpu, p, n);
            gpu->adam_largest(gpu, q, n), gpu->adam(gpu, q, n);
        }
    for (int i = 0; i < n; i++) {
        CHECK(named(c[i].name, equal_on_both(&h[i], &d[i])));
        adam_held_free(&c[i], &h[i]);
    }
}

/* A weight's forms from numbers x, and in a skipped step. */
static void test_store(bool frequent)
{
    struct adam_case c = adam_case_drawn(&seed, frequent);
    struct adam_held h = adam_held_new(&c, &seed), d = h;
    struct both x = drawn(DT_F32, c.rows, c.cols, 1);
    struct adam_param p, q;

    for (int k = 0; k < H_N; k++)
        if (h.t[k].data)
            to_device(&d.t[k], adam_lead_of(&c, &h, k));
    held_on_device(&d);
    p = adam_param_of(&c, &h, NULL), q = adam_param_of(&c, &d, NULL);
    for (int skip = 0; skip < 2; skip++) {
        struct step_gate gate = { .skip = skip };
        void *cg, *gg;
        numbers(&gate, sizeof gate, &cg, &gg);
        p.gate = (struct step_gate *)cg, q.gate = (struct step_gate *)gg;
        cpu->store(cpu, &p, x.c), gpu->store(gpu, &q, x.g);
        CHECK(named(c.name, equal_on_both(&h, &d)));
    }
    adam_held_free(&c, &h);
}

static void test_forms(int n, bool frequent, bool skip)
{
    struct adam_case c[ADAM_MAX];
    for (int i = 0; i < n; i++)
        c[i] = adam_case_drawn(&seed, frequent);
    test_cases(c, n, skip);
}

/* Between small parameters one of 2^22 elements, which has a launch of its own. */
static void test_alone(bool whole)
{
    struct adam_case c[3];
    for (int i = 0; i < 3; i++)
        c[i] = adam_case_drawn(&seed, i == 1);
    c[1].m = c[1].v = DT_E4M3, c[1].rows = 5462, c[1].cols = 768, c[1].whole = whole;
    test_cases(c, 3, false);
    clear();
}

/* Greatest numbers are exact; a skipped step moves nothing. */
static void test_amax_history(int64_t n, int64_t k, int64_t ranks)
{
    struct both history = drawn(DT_F32, n, k, 1), each = drawn(DT_F32, ranks, k, 1),
                top = blank(DT_F32, 1, k);
    void *cg, *gg;
    for (int64_t i = 0; i < tensor_count(history.c); i++)
        ((float *)history.c.data)[i] = fabsf(((float *)history.c.data)[i]);
    for (int64_t i = 0; i < tensor_count(each.c); i++)
        ((float *)each.c.data)[i] = fabsf(((float *)each.c.data)[i]);
    gpu->upload(gpu, history.g.data, history.c.data, tensor_bytes(history.c));
    gpu->upload(gpu, each.g.data, each.c.data, tensor_bytes(each.c));
    for (int skip = 0; skip < 2; skip++) {
        numbers(&(struct step_gate){ .skip = skip }, sizeof(struct step_gate), &cg, &gg);
        cpu->amax_history(cpu, (real *)top.c.data, history.c, each.c, (struct step_gate *)cg);
        gpu->amax_history(gpu, (real *)top.g.data, history.g, each.g, (struct step_gate *)gg);
        CHECK_EQ(different_bytes(top), 0);
        CHECK_EQ(different_bytes(history), 0);
    }
}

/* Rows that kernels compute at once beside those which they leave to another: of usual numbers (0, 4, 5),
 * of zeros (1), without a gradient and with a first moment of zeros (2), of large numbers (3), with numbers near
 * the ends of f16 and e4m3 (4, 5), a v that stays 0 (6), whole threads of zeros (7) and a large weight (0). */
static void odd_rows(const struct adam_case *c, struct adam_held *h)
{
    for (int64_t i = 0; i < c->rows * c->cols; i++) {
        int64_t r = i / c->cols, col = i % c->cols;
        bool one = col == 5 % c->cols;
        for (int k = 0; k < 3; k++) {
            struct tensor t = h->t[(int[]){ H_G, H_M, H_V }[k]];
            bool zero =
                r == 1 || (r == 2 && k < 2) || (r == 6 && one) || (r == 7 && col / 8 % 32 == 0);
            if (zero || adam_get(t, i) == 0)
                adam_set(t, i, zero ? 0 : 0.03);
        }
        if (one && r == 3 && !c->whole)
            adam_set(h->t[H_G], i, 1e15);
        if (one && (r == 4 || r == 5))
            adam_set(h->t[H_G], i, -1e-9), adam_set(h->t[H_M], i, 0);
        if (one && r == 5)
            adam_set(h->t[H_V], i, 0);
        for (int k = H_W; one && r == 0 && k <= H_MASTER; k++)
            if (k != H_G && (h->t[k].dtype == DT_F32 || h->t[k].dtype == DT_BF16))
                adam_set(h->t[k], i, 1e25);
    }
    for (int k = H_M_SCALE; k <= H_V_SCALE; k++)
        if (h->t[k].data)
            adam_set(h->t[k], 1, k == H_M_SCALE ? 0 : 0x1p-126);
}

/* Three steps: the first without a gate, the third with an update that is 0. */
static void test_rows(const struct adam_case *c)
{
    struct adam_held h = adam_held_new(c, &seed), d = h;
    odd_rows(c, &h);
    for (int i = 0; i < H_N; i++)
        if (h.t[i].data)
            to_device(&d.t[i], adam_lead_of(c, &h, i));
    held_on_device(&d);
    for (uint32_t step = 1; step <= 3; step++) {
        struct adam_step a = { step == 3 ? 0 : 0.013f, 0.0007f, 1e-10f, step };
        struct step_gate gate = { .factor = 0.37f };
        void *ca, *ga, *cg, *gg;
        numbers(&a, sizeof a, &ca, &ga), numbers(&gate, sizeof gate, &cg, &gg);
        struct adam_param p = adam_param_of(c, &h, (struct adam_step *)ca),
                          q = adam_param_of(c, &d, (struct adam_step *)ga);
        if (step == 2)
            p.gate = (struct step_gate *)cg, q.gate = (struct step_gate *)gg;
        cpu->adam_largest(cpu, &p, 1), cpu->adam(cpu, &p, 1);
        gpu->adam_largest(gpu, &q, 1), gpu->adam(gpu, &q, 1);
        CHECK(named(c->name, equal_on_both(&h, &d)));
    }
    adam_held_free(c, &h);
}

static const int64_t row_cols[] = { 8, 768, 1040, 8192, 8200 };

static void test_record_rows(void)
{
    static const enum dtype master[] = { DT_NONE, DT_F32, DT_U16, DT_F16 },
                            moments[] = { DT_BF16, DT_F16, DT_E4M3 };
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 3; j++)
            for (int k = 0; k < 8; k++) {
                struct adam_case c = { .w = DT_BF16,
                                       .g = DT_BF16,
                                       .m = moments[j],
                                       .v = moments[j],
                                       .master = master[i],
                                       .truncate = k & 1,
                                       .decay = DECAY_CAUTIOUS,
                                       .rounding = k & 2 ? ROUND_STOCHASTIC : ROUND_NEAREST,
                                       .whole = k & 4,
                                       .rows = 8,
                                       .cols = row_cols[k < 4 ? 1 : adam_below(&seed, 4)],
                                       .first = ((int64_t)1 << 36) + 8 };
                snprintf(c.name, sizeof c.name, "master %s, %s", dtype_name(c.master),
                         dtype_name(c.m));
                test_rows(&c);
            }
    clear();
}

/* The same rows in forms of any types. */
static void test_any_rows(void)
{
    for (int k = 0; k < 64; k++) {
        struct adam_case c = adam_case_drawn(&seed, false);
        c.rows = 8, c.cols = row_cols[k % 2 ? 1 : adam_below(&seed, 5)];
        c.lead = 0, c.first &= ~(int64_t)7;
        test_rows(&c);
        if (k % 16 == 15)
            clear();
    }
    clear();
}

/* More than 2^31 elements: what the CPU makes of some rows at its start, around 2^31 and at its end. All others
 * are zeros. */
static void test_window(struct tensor *large, struct adam_held *h, int64_t row, bool load)
{
    for (int i = 0; i < H_N; i++) {
        struct tensor part = h->t[i];
        if (!part.data)
            continue;
        void *at = tensor_rows(large[i], row, part.rows).data;
        if (load)
            gpu->upload(gpu, at, part.data, tensor_bytes(part));
        else
            CHECK(
                named("large", different_bytes((struct both){
                                   part, tensor_of(at, part.dtype, part.rows, part.cols) }) == 0));
    }
}

static void test_large(enum dtype w, enum dtype m, enum dtype v, enum adam_rounding rounding)
{
    enum { COLS = 768, WINDOWS = 3 };
    const int64_t rows = ((int64_t)1 << 31) / COLS + 100;
    const int64_t from[WINDOWS] = { 0, ((int64_t)1 << 31) / COLS - 4, rows - 8 };
    struct adam_case c = {
        .w = w, .g = DT_BF16, .m = m, .v = v, .rounding = rounding, .rows = 8, .cols = COLS
    };
    struct adam_step a = { 0.013f, 0.0007f, 1e-10f, 3 };
    struct adam_held h[WINDOWS], all = { 0 };
    void *ca, *ga;
    numbers(&a, sizeof a, &ca, &ga);
    for (int k = 0; k < WINDOWS; k++)
        h[k] = adam_held_new(&c, &seed);
    for (int i = 0; i < H_N; i++)
        if (h[0].t[i].data) {
            all.t[i] = tensor_of(NULL, h[0].t[i].dtype, rows, h[0].t[i].cols);
            all.t[i].data = gpu->alloc(gpu, tensor_bytes(all.t[i]), "large");
            gpu->zero(gpu, all.t[i]);
        }
    for (int k = 0; k < WINDOWS; k++)
        test_window(all.t, &h[k], from[k], true);
    c.rows = rows;
    struct adam_param q = adam_param_of(&c, &all, (struct adam_step *)ga);
    gpu->adam(gpu, &q, 1);
    CHECK_OK(gpu->sync(gpu));
    for (int k = 0; k < WINDOWS; k++) {
        struct adam_param p = adam_param_of(&c, &h[k], (struct adam_step *)ca);
        p.first = from[k] * COLS;
        cpu->adam(cpu, &p, 1);
        test_window(all.t, &h[k], from[k], false);
    }
    c.rows = 8;
    for (int k = 0; k < WINDOWS; k++)
        adam_held_free(&c, &h[k]);
    clear();
}

/* Where the GPU has 20 GB free. */
static void test_large_ones(void)
{
    double room;
    if (check_small() || !CHECK_OK(ops_cuda_available(&room, 0)) || room < 20e9)
        return;
    test_large(DT_BF16, DT_E4M3, DT_E4M3, ROUND_STOCHASTIC);
    test_large(DT_BF16, DT_BF16, DT_F16, ROUND_NEAREST);
    test_large(DT_F16, DT_BF16, DT_BF16, ROUND_STOCHASTIC);
}

static void test_all_forms(void)
{
    for (int64_t n = 1; n <= 1024; n = 3 * n + 1) {
        test_amax_history(n, 1, 5);
        test_amax_history(n, 2, 1 + n);
    }
    clear();
    for (int k = 0; k < 260; k++) {
        test_forms(1, k % 2, k % 8 >= 6);
        if (k % 16 == 15)
            test_forms(ADAM_MAX, false, false);
        if (k % 16 == 15)
            clear();
    }
    clear();
}

/* Numbers of a bank's ops in one step. */
struct bank_step {
    struct muon_step write;
    real momentum, variance; /* 1 - beta */
};

/* -- momentum ---------------------------------------------------------------------------- */

static void test_muon_input(int n, int64_t rows, int64_t cols, enum dtype tg, enum dtype tx,
                            bool raw)
{
    struct both g = drawn(tg, n * rows, cols, 0.01), mom = drawn(DT_F32, n * rows, cols, 0.02);
    struct both x = blank(tx, n * rows, cols);
    real blend = 0.07f;
    void *cm, *gm;
    numbers(&blend, sizeof blend, &cm, &gm);
    for (int step = 0; step < 2; step++) {
        cpu->muon_input(cpu, x.c, mom.c, g.c, n, raw, cm, NULL);
        gpu->muon_input(gpu, x.g, mom.g, g.g, n, raw, gm, NULL);
    }
    CHECK_EQ(different_bytes(mom), 0);
    /* the norms may differ in their last bit, which turns few bf16 roundings */
    CHECK(!raw || different_bytes(x) == 0);
    CHECK(distance(x) <= (tx == DT_BF16 ? 1e-3 : 1e-6));
}

/* Matrix 0 zero, 1 with a norm that overflows, 2 with a NaN, 3 ordinary. */
static void test_muon_input_odd(void)
{
    enum { N = 4, ROWS = 40, COLS = 24, COUNT = ROWS * COLS };
    struct both g = drawn(DT_F32, N * ROWS, COLS, 1), x = blank(DT_BF16, N * ROWS, COLS);
    struct both mom = blank(DT_F32, N * ROWS, COLS);
    real blend = 0.05f;
    void *cm, *gm;
    numbers(&blend, sizeof blend, &cm, &gm);
    memset(mom.c.data, 0, tensor_bytes(mom.c));
    for (int64_t i = 0; i < COUNT; i++) {
        set(g.c, i, 0);
        set(g.c, COUNT + i, 1e30 * normal());
    }
    set(g.c, 2 * COUNT + 5, NAN);
    to_gpu(mom), to_gpu(g);
    cpu->muon_input(cpu, x.c, mom.c, g.c, N, false, cm, NULL);
    gpu->muon_input(gpu, x.g, mom.g, g.g, N, false, gm, NULL);
    struct tensor got = fetched(x.g);
    long bad = 0;
    for (int64_t i = 0; i < 3 * COUNT; i++)
        bad += !(get(got, i) == 0);
    CHECK_EQ(bad, 0);
    CHECK(distance(x) <= 1e-3);
    free(got.data);
}

static void test_muon_inputs(void)
{
    static const int64_t shape[][3] = { { 1, 1, 1 },    { 2, 33, 17 },   { 3, 40, 24 },
                                        { 2, 90, 500 }, { 5, 768, 768 }, { 3, 3072, 768 } };
    for (int s = 0; s < (check_small() ? 4 : 6); s++)
        for (int k = 0; k < 8; k++)
            test_muon_input((int)shape[s][0], shape[s][1], shape[s][2], k & 1 ? DT_F32 : DT_BF16,
                            k & 2 ? DT_F32 : DT_BF16, k & 4);
    test_muon_input_odd();
    clear();
}

/* -- skipped steps ------------------------------------------------------------------------ */

/* A matrix of NorMuon and a parameter of Adam, moved as the gate decides. */
struct gated {
    struct tensor g, x, mom, q, w, mant, ag, am, av, aw, gate, sum;
    struct adam_step *adam;
    struct bank_step *muon;
};

static void gated_step(struct ops *o, const struct gated *s, float limit)
{
    static const float one = 1;
    struct tensor all[3] = { s->g, tensor_rows(s->g, 0, 0), s->ag };
    struct step_gate *gate = (struct step_gate *)s->gate.data;
    struct adam_param p = { 0 };

    p.w = s->aw, p.g = s->ag, p.m.t = s->am, p.v.t = s->av;
    p.beta1 = 0.9, p.beta2 = 0.99, p.step = s->adam, p.gate = gate;
    o->squares(o, (real *)s->sum.data, all, 3);
    o->step_gate(o, gate, (real *)s->sum.data, 2, limit, 0.25f);
    o->muon_input(o, s->x, s->mom, s->g, 1, false, &s->muon->momentum, gate);
    o->normuon(o, s->w, s->mant, s->q, s->x, 1, &one, &s->muon->variance, NULL, false,
               &s->muon->write, gate);
    o->adam(o, &p, 1);
}

/* Bytes of GPU memory, to see that a skipped step leaves them. */
static uint64_t gpu_bytes(const struct both *b, int n)
{
    uint64_t sum = 0;
    for (int i = 0; i < n; i++) {
        struct tensor t = fetched(b[i].g);
        for (size_t k = 0; k < tensor_bytes(t.data ? t : NO_TENSOR); k++)
            sum = sum * 0x9e3779b97f4a7c15 + ((uint8_t *)t.data)[k] + 1;
        free(t.data);
    }
    return sum;
}

/* Four steps, with an infinity in the second and a NaN in the third; captured, replays decide on
 * what memory holds then. limit 0: the factor is exact, and so is what hangs on no norm. */
static void test_gate(int64_t rows, int64_t cols, int64_t n, float limit, bool graph)
{
    struct both w = drawn(DT_BF16, rows, cols, 1), mant = drawn_u16(rows, cols);
    struct both mom = drawn(DT_F32, rows, cols, 1);
    struct both q = drawn(DT_F32, rows < cols ? cols : rows, 1, 0); /* normuon's variances */
    struct both am = drawn(DT_F32, 1, n, 0.1), av = drawn(DT_F32, 1, n, 0);
    struct both aw = drawn(DT_BF16, 1, n, 1), x = blank(DT_BF16, rows, cols);
    struct both g = drawn(DT_BF16, rows, cols, 1), ag = drawn(DT_F32, 1, n, 0.1);
    struct both gate = blank(DT_F32, 1, 4), sum = blank(DT_F32, 1, 1);
    struct both states[] = { w, mant, mom, q, am, av, aw };
    struct adam_step a[2] = { { 0.013f, 0.0007f, 1e-6f, 2 }, { 0.02f, 0.0007f, 1e-6f, 1 } };
    struct bank_step m = { { 0.02f, 0.01f }, 0.07f, 0.05f };
    void *ca, *ga, *cm, *gm, *replay = NULL;

    cpu->zero(cpu, gate.c), gpu->zero(gpu, gate.g);

    numbers(a, sizeof a, &ca, &ga), numbers(&m, sizeof m, &cm, &gm);
    struct gated on_cpu = { g.c,
                            x.c,
                            mom.c,
                            q.c,
                            w.c,
                            mant.c,
                            ag.c,
                            am.c,
                            av.c,
                            aw.c,
                            gate.c,
                            sum.c,
                            (struct adam_step *)ca,
                            (struct bank_step *)cm };
    struct gated on_gpu = { g.g,
                            x.g,
                            mom.g,
                            q.g,
                            w.g,
                            mant.g,
                            ag.g,
                            am.g,
                            av.g,
                            aw.g,
                            gate.g,
                            sum.g,
                            (struct adam_step *)ga,
                            (struct bank_step *)gm };
    for (int step = 0; step < 4; step++) {
        bool bad = step == 1 || step == 2;
        for (int64_t i = 0; i < rows * cols; i++)
            set(g.c, i, normal());
        for (int64_t i = 0; i < n; i++)
            set(ag.c, i, 0.1 * normal());
        if (step == 1)
            set(g.c, rows * cols - 1, INFINITY);
        if (step == 2)
            set(ag.c, n - 1, NAN);
        to_gpu(g), to_gpu(ag);
        uint64_t before = gpu_bytes(states, 7);
        if (graph && step == 0) {
            CHECK_OK(ops_cuda_capture(gpu));
            gated_step(gpu, &on_gpu, limit);
            CHECK_OK(ops_cuda_capture_end(gpu, &replay));
        }
        if (graph)
            ops_cuda_launch(gpu, replay);
        else
            gated_step(gpu, &on_gpu, limit);
        gated_step(cpu, &on_cpu, limit);
        struct tensor got = fetched(gate.g);
        struct step_gate *y = (struct step_gate *)got.data, *z = (struct step_gate *)gate.c.data;
        CHECK(y->skip == bad && z->skip == bad);
        CHECK(y->late == (step > 1) && z->late == (step > 1));
        if (!bad) { /* sums in f64 and one rounding: the last bit of squares, root and quotient */
            CHECK(fabsf(y->norm - z->norm) <= 0x1p-22f * z->norm);
            CHECK(fabsf(y->factor - z->factor) <= 0x1p-21f * z->factor);
        }
        CHECK((gpu_bytes(states, 7) == before) == bad);
        if (limit == 0)
            CHECK_EQ(different_bytes(mom) + different_bytes(am) + different_bytes(av) +
                         different_bytes(aw),
                     0);
        free(got.data);
    }
    CHECK_OK(gpu->sync(gpu));
    if (replay)
        ops_cuda_graph_free(replay);
}

static void test_gates(void)
{
    for (int k = 0; k < 4; k++) {
        test_gate(1, 1, 1, k & 1 ? 0.5f : 0, k & 2);
        test_gate(24, 40, 1000, k & 1 ? 0.5f : 0, k & 2);
        test_gate(67, 61, 50001, k & 1 ? 0.5f : 0, k & 2);
    }
    clear();
}

/* -- the update ------------------------------------------------------------------------------ */

/* exact: |x| is one power of two in each row and q near its square, so that all sums are exact
 * and no bit may differ; else x is random. bare: without q, so exact with any x. how: of the decay. */
static void test_normuon(int n, int64_t rows, int64_t cols, enum dtype tw, bool exact, bool bare,
                         unsigned how)
{
    struct both x = drawn(DT_BF16, n * rows, cols, 0.03), w = drawn(tw, n * rows, cols, 0.05);
    bool wide = rows < cols; /* then q is of columns */
    int64_t each = wide ? cols : rows;
    struct both q = drawn(DT_F32, n * each, 1, 1), mant = { NO_TENSOR, NO_TENSOR };
    struct both old = { w.c, w.c };
    struct bank_step m = { { 0.023f, 0.0276f }, 0, 0.05f }, *on_cpu, *on_gpu;
    float lr_mul[8] = { 1, 2, 4, 1, 2, 4, 1, 2 };
    void *cm, *gm;
    numbers(&m, sizeof m, &cm, &gm);
    on_cpu = cm, on_gpu = gm;
    if (tw == DT_BF16)
        mant = drawn_u16(n * rows, cols);
    for (int64_t i = 0; i < n * each; i++) {
        double size = exact ? ldexp(1, -4 - (int)(i % 3)) : 0.03;
        set(q.c, i, size * size * (1 + 0.5 * sin(normal())));
    }
    for (int64_t i = 0; exact && i < n * rows * cols; i++) {
        int64_t at = wide ? i / (rows * cols) * cols + i % cols : i / cols;
        set(x.c, i, copysign(ldexp(1, -4 - (int)(at % 3)), normal()));
    }
    to_gpu(x), to_gpu(q);
    old.c.data = malloc(tensor_bytes(w.c));
    memcpy(old.c.data, w.c.data, tensor_bytes(w.c));
    cpu->normuon(cpu, w.c, mant.c, bare ? NO_TENSOR : q.c, x.c, n, lr_mul, &on_cpu->variance, NULL,
                 how, &on_cpu->write, NULL);
    gpu->normuon(gpu, w.g, mant.g, bare ? NO_TENSOR : q.g, x.g, n, lr_mul, &on_gpu->variance, NULL,
                 how, &on_gpu->write, NULL);
    if (exact || bare) {
        CHECK_EQ(different_bytes(w) + different_bytes(q), 0);
        if (tw == DT_BF16)
            CHECK_EQ(different_bytes(mant), 0);
    } else {
        struct tensor gw = fetched(w.g), gmant = mant.c.data ? fetched(mant.g) : NO_TENSOR;
        double d = 0, moved = 0;
        for (int64_t i = 0; i < n * rows * cols; i++) { /* of the whole f32 master */
            double a = get(w.c, i), b = get(gw, i), before = get(old.c, i);
            if (tw == DT_BF16) {
                a = f32_from_bits((uint32_t)((uint16_t *)w.c.data)[i] << 16 |
                                  ((uint16_t *)mant.c.data)[i]);
                b = f32_from_bits((uint32_t)((uint16_t *)gw.data)[i] << 16 |
                                  ((uint16_t *)gmant.data)[i]);
            }
            d += (a - b) * (a - b);
            moved += (a - before) * (a - before);
        }
        CHECK(distance(q) <= 1e-5);
        CHECK(sqrt(d / moved) <= 1e-3); /* of the update itself: few roundings of x turn */
        free(gw.data), free(gmant.data);
    }
    free(old.c.data);
}

static void test_normuons(void)
{
    static const int64_t shape[][3] = { { 1, 1, 1 },      { 2, 33, 17 },  { 3, 40, 24 },
                                        { 2, 90, 520 },   { 3, 16, 32 },  { 5, 768, 768 },
                                        { 3, 3072, 768 }, { 7, 256, 768 } };
    for (int s = 0; s < (check_small() ? 5 : 8); s++)
        for (int k = 0; k < 6; k++)
            test_normuon((int)shape[s][0], shape[s][1], shape[s][2], k & 1 ? DT_F32 : DT_BF16,
                         k & 2, k & 4, (unsigned)(k >> 2) | (unsigned)((s + k) % 4) << 1);
    clear();
}

/* -- stages of a chain -------------------------------------------------------------------- */

/* The stages that have ops of their own, one after the other in place; the same bits but where a sum over
 * a matrix is between, whose order of f32 and f64 sums differs. */
/* All that a running mean can be, of a gradient and of X. */
static void test_means(int n, int64_t rows, int64_t cols, enum dtype tg)
{
    static const unsigned how[] = { 0,
                                    MEAN_NESTEROV,
                                    MEAN_SUM,
                                    MEAN_SUM | MEAN_NESTEROV,
                                    MEAN_LION,
                                    MEAN_TERM,
                                    MEAN_TERM | MEAN_ADD,
                                    MEAN_TERM | MEAN_NESTEROV };
    struct both g = drawn(tg, n * rows, cols, 1), mom = drawn(DT_F32, n * rows, cols, 1);
    struct both x = blank(DT_F32, n * rows, cols), v = drawn(DT_F32, n * rows, cols, 0);
    real number[4] = { 0.07f, 0.3f, 0.2f, 0.6f };
    struct step_gate gate = { 0.25f, 0, 0, 1 };
    void *ca, *ga, *cg, *gg;

    numbers(number, sizeof number, &ca, &ga);
    numbers(&gate, sizeof gate, &cg, &gg);
    const real *c = ca, *d = ga;
    for (int k = 0; k < 32; k++) {
        unsigned flags = how[k % 8] | (k & 8 ? MEAN_GRADIENT : 0);
        bool of_x = k >= 24 && !(flags & MEAN_ADD), aged = k & 16;
        cpu->momentum(cpu, x.c, mom.c, of_x ? x.c : g.c, flags, c, aged ? c + 3 : NULL, cg);
        gpu->momentum(gpu, x.g, mom.g, of_x ? x.g : g.g, flags, d, aged ? d + 3 : NULL, gg);
        CHECK_EQ(different_bytes(x) + different_bytes(mom), 0);
    }
    cpu->momentum(cpu, x.c, NO_TENSOR, g.c, MEAN_GRADIENT, NULL, NULL, cg);
    gpu->momentum(gpu, x.g, NO_TENSOR, g.g, MEAN_GRADIENT, NULL, NULL, gg);
    cpu->momentum(cpu, NO_TENSOR, mom.c, g.c, 0, c, NULL, NULL);
    gpu->momentum(gpu, NO_TENSOR, mom.g, g.g, 0, d, NULL, NULL);
    CHECK_EQ(different_bytes(x) + different_bytes(mom), 0);
    for (int k = 0; k < 2; k++) {
        cpu->second(cpu, x.c, v.c, g.c, c, k ? c + 3 : NULL, k ? cg : NULL);
        gpu->second(gpu, x.g, v.g, g.g, d, k ? d + 3 : NULL, k ? gg : NULL);
        CHECK_EQ(different_bytes(x) + different_bytes(v), 0);
    }
}

/* Norms and products of a matrix, and the write that keeps to them. */
static void test_fits(int n, int64_t rows, int64_t cols, enum dtype tw)
{
    static const float lr_mul[8] = { 1, 2, 0, 1, 2, 4, 1, 2 };
    static const bool turned[8] = { false, true, true, false, true, false, false, true };
    struct both x = drawn(DT_F32, n * rows, cols, 1), w = drawn(tw, n * rows, cols, 1);
    struct both mant = tw == DT_BF16 ? drawn_u16(n * rows, cols) : (struct both){ 0 };
    struct both other = drawn(DT_F32, n * rows, cols, 1), out = blank(DT_F32, n, 2);
    real number[4] = { 0.8f, 0.05f, 0.3f, 0 };
    real each[8] = { 3, 4, 5, 6, 7, 8, 9, 1e-12f };
    void *ca, *ga, *ce, *ge;

    numbers(number, sizeof number, &ca, &ga);
    numbers(each, sizeof each, &ce, &ge);
    for (int to = FIT_ROWS; to <= FIT_BLEND; to++) {
        bool write = to == FIT_HYPERBALL || to == FIT_PIN;
        bool own = to == FIT_NORM || to == FIT_CONTRA || to >= FIT_RATIO;
        struct norm_fit f = { .to = (enum fit_to)to, .turned = turned, .lr_mul = lr_mul }, g;
        f.least = 1e-7, g = f;
        f.y = own ? other.c : w.c, g.y = own ? other.g : w.g;
        f.low = own ? NO_TENSOR : mant.c, g.low = own ? NO_TENSOR : mant.g;
        f.number = ca, g.number = ga, f.each = f.over = ce, g.each = g.over = ge;
        f.how = g.how = to & 1 ? MUON_STRICT : MUON_BEHIND;
        f.m = (struct muon_step *)((real *)ca + 1), g.m = (struct muon_step *)((real *)ga + 1);
        if (write)
            f.out = out.c.data, g.out = out.g.data;
        cpu->norm_fit(cpu, x.c, n, &f), gpu->norm_fit(gpu, x.g, n, &g);
        CHECK(distance(write ? out : x) <= 1e-6);
        if (!write)
            continue;
        cpu->normuon(cpu, w.c, mant.c, NO_TENSOR, x.c, n, lr_mul, NULL, f.out, f.how, f.m, NULL);
        gpu->normuon(gpu, w.g, mant.g, NO_TENSOR, x.g, n, lr_mul, NULL, g.out, g.how, g.m, NULL);
        CHECK(distance(w) <= 1e-4); /* a bit of the factor turns few cuts to bf16 */
    }
}

/* Tests what reads a whole matrix by products, lines or powers, whose f32 sums are in another order. */
static void test_wholes(int n, int64_t rows, int64_t cols)
{
    static const bool turned[8] = { false, true, true, false, true, false, false, true };
    static const double cubic[3][3] = { { 2, -1.5, 0.5 }, { 2, -1.5, 0.5 }, { 2, -1.5, 0.5 } };
    int64_t most = rows > cols ? rows : cols;
    struct both x = drawn(DT_F32, n * rows, cols, 1), g = drawn(DT_F32, n * rows, cols, 1);
    struct both mom = drawn(DT_F32, n * rows, cols, 1), out = blank(DT_F32, n, 1);
    struct both d = blank(DT_F32, n, most);
    real number[3] = { -0.2f, 0.3f, 0.9f };
    void *c, *v;

    numbers(number, sizeof number, &c, &v);
    cpu->spectral_norm(cpu, out.c.data, x.c, n, turned);
    gpu->spectral_norm(gpu, out.g.data, x.g, n, turned);
    CHECK(distance(out) <= 1e-6);
    cpu->schatten4(cpu, out.c.data, x.c, n), gpu->schatten4(gpu, out.g.data, x.g, n);
    CHECK(distance(out) <= 1e-6);
    for (int k = 0; k < 2 && rows != cols; k++) {
        cpu->balance(cpu, x.c, g.c, d.c, n, k == 0, 0.5);
        gpu->balance(gpu, x.g, g.g, d.g, n, k == 0, 0.5);
        CHECK(distance(x) <= 1e-6 && distance(d) <= 1e-6);
    }
    cpu->polar_input(cpu, x.c, g.c, n, false, 1, 1e-7);
    gpu->polar_input(gpu, x.g, g.g, n, false, 1, 1e-7);
    cpu->polar(cpu, x.c, n, cubic, 3, 0), gpu->polar(gpu, x.g, n, cubic, 3, 0);
    CHECK(distance(x) <= 1e-5);
    cpu->polar(cpu, x.c, n, cubic, 2, 0), gpu->polar(gpu, x.g, n, cubic, 2, 0);
    CHECK(distance(x) <= 1e-5);
    cpu->power(cpu, x.c, g.c, n, c), gpu->power(gpu, x.g, g.g, n, v);
    CHECK(distance(x) <= 1e-5);
    cpu->select(cpu, x.c, mom.c, n, turned, (real *)c + 1, NULL);
    gpu->select(gpu, x.g, mom.g, n, turned, (real *)v + 1, NULL);
    CHECK(distance(x) <= 1e-5);
    CHECK_EQ(different_bytes(mom), 0);
}

/* Gains and directions of rows, in two updates. */
static void test_weightnorm(int n, int64_t rows, int64_t cols, enum dtype tw)
{
    static const float lr_mul[8] = { 1, 2, 0, 1, 2, 4, 1, 2 };
    static const bool turned[8] = { false, true, true, false, true, false, false, true };
    int64_t most = rows > cols ? rows : cols;
    struct both w = drawn(tw, n * rows, cols, 1), g = drawn(tw, n * rows, cols, 1);
    struct both low = tw == DT_BF16 ? drawn_u16(n * rows, cols) : (struct both){ 0 };
    struct both x = blank(DT_F32, n * rows, cols), mom = drawn(DT_F32, n * rows, cols, 0);
    struct both state[6], updates = drawn(DT_F32, n, 1, 0);
    real number[5] = { 2.5f, 5, 1.2f, 0.02f, 0 };
    struct weightnorm s[2] = { { .turned = turned, .lr_mul = lr_mul } };
    void *c, *d;

    numbers(number, sizeof number, &c, &d);
    for (int k = 0; k < 6; k++)
        state[k] = drawn(DT_F32, n, most, 0);
    s[1] = s[0];
    for (int k = 0; k < 2; k++) {
        real *p[6];
        for (int i = 0; i < 6; i++)
            p[i] = k ? state[i].g.data : state[i].c.data;
        s[k].w = k ? w.g : w.c, s[k].low = k ? low.g : low.c, s[k].g = k ? g.g : g.c;
        s[k].mom = k ? mom.g.data : mom.c.data, s[k].updates = k ? updates.g.data : updates.c.data;
        s[k].gain = p[0], s[k].gain_mean = p[1], s[k].gain_second = p[2];
        s[k].norm = p[3], s[k].first = p[4], s[k].slope = p[5];
        s[k].number = k ? d : c, s[k].m = (struct muon_step *)((real *)(k ? d : c) + 3);
    }
    for (int step = 0; step < 2; step++) {
        cpu->weightnorm_input(cpu, x.c, n, &s[0]), gpu->weightnorm_input(gpu, x.g, n, &s[1]);
        CHECK(distance(x) <= 1e-5 && distance(mom) <= 1e-5);
        cpu->weightnorm(cpu, x.c, n, &s[0]), gpu->weightnorm(gpu, x.g, n, &s[1]);
        CHECK(distance(w) <= 1e-4); /* a bit of a factor turns few cuts to bf16 */
        for (int k = 0; k < 6; k++)
            CHECK(distance(state[k]) <= 1e-5);
        CHECK_EQ(different_bytes(updates), 0);
    }
}

/* A weight in f32, in bf16 with its low halves, and in bf16 alone. */
static void test_around(int64_t rows, int64_t cols)
{
    real number[3] = { 0.3f, 0.6f, 1 }, off[3] = { 0.3f, 0.6f, 0 };
    void *c, *d, *c0, *d0;
    numbers(number, sizeof number, &c, &d);
    numbers(off, sizeof off, &c0, &d0);
    for (int type = 0; type < 3; type++) {
        struct both w = drawn(type ? DT_BF16 : DT_F32, rows, cols, 1);
        struct both low = type == 1 ? drawn_u16(rows, cols) : (struct both){ 0 };
        struct both mean = drawn(DT_F32, rows, cols, 1), before = blank(DT_F32, rows, cols);
        static const enum around_how hows[] = { AROUND_BEGIN,    AROUND_AHEAD, AROUND_OUTWARDS,
                                                AROUND_OUTWARDS, AROUND_TAIL,  AROUND_TAIL,
                                                AROUND_APART,    AROUND_APART };
        for (int k = 0; k < 8; k++) {
            enum around_how h = hows[k];
            /* 3: a step in which nothing is done; 5: in which a mean begins */
            const real *nc = k == 3 ? c0 : (real *)c + (k == 5 ? 2 : 0);
            const real *nd = k == 3 ? d0 : (real *)d + (k == 5 ? 2 : 0);
            cpu->around(cpu, w.c, low.c, mean.c, before.c, h, nc, NULL);
            gpu->around(gpu, w.g, low.g, mean.g, before.g, h, nd, NULL);
            CHECK_EQ(different_bytes(w) + different_bytes(mean) + different_bytes(before), 0);
            if (type == 1)
                CHECK_EQ(different_bytes(low), 0);
        }
        for (int k = 0; k < 4;
             k++) { /* what is read: in bf16, or f32, a part of the mean, or all */
            struct both out = blank(k % 2 ? DT_F32 : DT_BF16, rows, cols);
            const real *nc = (real *)c + (k < 2 ? 1 : 2), *nd = (real *)d + (k < 2 ? 1 : 2);
            cpu->around(cpu, w.c, low.c, mean.c, out.c, AROUND_READ, nc, NULL);
            gpu->around(gpu, w.g, low.g, mean.g, out.g, AROUND_READ, nd, NULL);
            CHECK_EQ(different_bytes(out), 0);
        }
    }
}

static void test_stages(int n, int64_t rows, int64_t cols, enum dtype tg)
{
    struct both g = drawn(tg, n * rows, cols, 1), mom = drawn(DT_F32, n * rows, cols, 1);
    struct both x = blank(DT_F32, n * rows, cols), y = blank(DT_BF16, n * rows, cols);
    struct both q = drawn(DT_F32, n * (rows < cols ? cols : rows), 1, 0);
    real number[2] = { 0.07f, 0.3f };
    float each[8] = { 1, 0.5f, 3, 1, 0.7f, 1, 2, 1 };
    void *ca, *ga;

    numbers(number, sizeof number, &ca, &ga);
    const real *c = ca, *d = ga;
    cpu->momentum(cpu, x.c, mom.c, g.c, 0, c, NULL, NULL);
    gpu->momentum(gpu, x.g, mom.g, g.g, 0, d, NULL, NULL);
    cpu->scale(cpu, x.c, n, each, c + 1), gpu->scale(gpu, x.g, n, each, d + 1);
    CHECK_EQ(different_bytes(x), 0);
    cpu->scale(cpu, x.c, n, NULL, c + 1), gpu->scale(gpu, x.g, n, NULL, d + 1);
    CHECK_EQ(different_bytes(x), 0);
    cpu->polar_input(cpu, y.c, x.c, n, true, 0, 0), gpu->polar_input(gpu, y.g, x.g, n, true, 0, 0);
    CHECK_EQ(different_bytes(y), 0);
    cpu->polar_input(cpu, y.c, x.c, n, false, 1.01, 1e-6);
    gpu->polar_input(gpu, y.g, x.g, n, false, 1.01, 1e-6);
    CHECK(distance(y) <= 1e-3); /* the norm's last bit turns few roundings to bf16 */
    cpu->variance(cpu, x.c, q.c, n, 0, c, NULL), gpu->variance(gpu, x.g, q.g, n, 0, d, NULL);
    CHECK(distance(x) <= 1e-5);
    CHECK(distance(q) <= 1e-5);
    cpu->variance(cpu, x.c, q.c, n, VARIANCE_FREE, c, NULL);
    gpu->variance(gpu, x.g, q.g, n, VARIANCE_FREE, d, NULL);
    CHECK(distance(x) <= 1e-5);
    cpu->variance(cpu, x.c, q.c, n, VARIANCE_ROUND, c, NULL),
        gpu->variance(gpu, x.g, q.g, n, VARIANCE_ROUND, d, NULL);
    CHECK(distance(x) <= 1e-3);
    cpu->sign(cpu, x.c), gpu->sign(gpu, x.g);
    CHECK_EQ(different_bytes(x), 0);
    cpu->polar_input(cpu, x.c, x.c, n, false, 1, 1e-7); /* in place */
    gpu->polar_input(gpu, x.g, x.g, n, false, 1, 1e-7);
    CHECK(distance(x) <= 1e-3);
}

/* The stages of a rule in one op, to the bits of the CPU's, which are those of the ops alone. */
static void test_each(int n, int64_t rows, int64_t cols, enum dtype tg, bool halves)
{
    /* b, second and third numbers; eps; age; the write's rate and decay */
    real number[] = { 0.07f, 0.3f, 0.6f, 0.05f, 1e-3f, 0.9f, 0.4f, 0.02f, 0.1f };
    static const float shape[8] = { 1, 0.5f, 3, 1, 0.7f, 1, 2, 1 }, rate[8] = { 1, 2, 0, 1, 0.5f };
    static const unsigned means[][2] = { { MEAN_NESTEROV, 0 },
                                         { MEAN_LION, 0 },
                                         { MEAN_SUM | MEAN_NESTEROV, 0 },
                                         { MEAN_TERM, MEAN_TERM | MEAN_ADD | MEAN_NESTEROV },
                                         { 0, MEAN_NESTEROV } };
    void *at[2];
    numbers(number, sizeof number, &at[0], &at[1]);
    for (int k = 0; k < 15; k++) {
        bool begins = k % 3 != 2, writes = k % 3 != 1;
        struct both g = drawn(tg, n * rows, cols, 1), x = drawn(DT_F32, n * rows, cols, 1);
        struct both mom[2] = { drawn(DT_F32, n * rows, cols, 1), drawn(DT_F32, n * rows, cols, 1) };
        struct both v = drawn(DT_F32, n * rows, cols, 0), low = { 0 };
        struct both w = drawn(halves ? DT_BF16 : DT_F32, n * rows, cols, 1);
        struct each_stage s[2][MAX_EACH] = { 0 };
        int count = 0;
        if (halves)
            low = drawn_u16(n * rows, cols);
        for (int d = 0; d < 2; d++) {
            const real *p = at[d];
            struct each_stage *t = s[d];
#define OF(b) (d ? (b).g : (b).c)
            for (int i = 0; i < 2 && (i == 0 || means[k / 3][1]); i++)
                *t++ = (struct each_stage){ .what = EACH_MEAN,
                                            .state = OF(mom[i]),
                                            .how = means[k / 3][i],
                                            .number = p,
                                            .age = k % 2 ? p + 5 : NULL };
            if (k % 4 < 2)
                *t++ = (struct each_stage){ .what = EACH_SECOND,
                                            .state = OF(v),
                                            .number = p + 3,
                                            .age = k % 2 ? p + 6 : NULL };
            *t++ = (struct each_stage){ .what = EACH_SCALE,
                                        .each = k % 2 ? shape : NULL,
                                        .number = p + 1 };
            if (k % 5 == 0)
                *t++ = (struct each_stage){ .what = EACH_SIGN };
            if (writes)
                *t++ = (struct each_stage){ .what = EACH_WRITE,
                                            .state = OF(w),
                                            .low = OF(low),
                                            .each = rate,
                                            .how = (unsigned)k % 8,
                                            .m = (struct muon_step *)(p + 7) };
            count = (int)(t - s[d]);
        }
#undef OF
        cpu->each(cpu, x.c, g.c, n, s[0], count, begins, NULL);
        gpu->each(gpu, x.g, g.g, n, s[1], count, begins, NULL);
        CHECK_EQ(different_bytes(w) + different_bytes(v) + different_bytes(mom[0]) +
                     different_bytes(mom[1]) + (writes ? 0 : different_bytes(x)) +
                     (halves ? different_bytes(low) : 0),
                 0);
    }
}

static void test_chains(void)
{
    static const int64_t shape[][3] = { { 1, 1, 1 },    { 2, 33, 17 },   { 3, 40, 24 },
                                        { 2, 90, 520 }, { 5, 768, 768 }, { 3, 3072, 768 } };
    for (int s = 0; s < (check_small() ? 4 : 6); s++) {
        int n = (int)shape[s][0];
        int64_t rows = shape[s][1], cols = shape[s][2];
        test_around(n * rows, cols);
        test_wholes(n, rows, cols);
        for (int k = 0; k < 2; k++) {
            enum dtype t = k ? DT_F32 : DT_BF16;
            test_stages(n, rows, cols, t);
            test_means(n, rows, cols, t);
            test_each(n, rows, cols, t, s % 2);
            test_fits(n, rows, cols, t);
            test_weightnorm(n, rows, cols, t);
        }
    }
    clear();
}

/* -- branches -------------------------------------------------------------------------------- */

enum { BANKS = 3 };

/* All on the GPU. out: the weight, copied when all is done. */
struct bank {
    int n;
    struct tensor given, g, mom, x, w, mant, q, out;
};
struct branched {
    struct bank bank[BANKS];
    struct adam_param adam;
    void *muon; /* struct bank_step */
};

static struct tensor twin(struct tensor t)
{
    struct tensor u = t;
    u.data = gpu->alloc(gpu, tensor_bytes(t), "test");
    gpu->copy(gpu, u, t);
    return u;
}

static bool same_on_gpu(struct tensor a, struct tensor b)
{
    struct tensor x = fetched(a), y = fetched(b);
    bool same = !memcmp(x.data, y.data, tensor_bytes(a));
    free(x.data), free(y.data);
    return same;
}

/* Banks in branches or one after the other, from gradients that the trunk writes before; Adam in
 * the trunk. */
static void queue_banks(const struct branched *s, bool branches)
{
    static const double coef[3][3] = { { 2, -1.5, 0.5 },
                                       { 2, -1.5, 0.5 },
                                       { 1.875, -1.25, 0.375 } };
    static const float lr_mul[8] = { 1, 2, 4, 1, 2, 4, 1, 2 };

    for (int i = 0; i < BANKS; i++)
        gpu->copy(gpu, s->bank[i].g, s->bank[i].given);
    for (int i = 0; i < BANKS; i++) {
        const struct bank *b = &s->bank[i];
        const struct bank_step *m = s->muon;
        if (branches)
            gpu->branch(gpu, i);
        gpu->muon_input(gpu, b->x, b->mom, b->g, b->n, false, &m->momentum, NULL);
        gpu->polar(gpu, b->x, b->n, coef, 3, 0);
        gpu->normuon(gpu, b->w, b->mant, b->q, b->x, b->n, lr_mul, &m->variance, NULL, false,
                     &m->write, NULL);
        if (branches)
            gpu->branch(gpu, TRUNK);
    }
    gpu->adam(gpu, &s->adam, 1);
    gpu->join(gpu);
    for (int i = 0; i < BANKS; i++)
        gpu->copy(gpu, s->bank[i].out, s->bank[i].w);
}

static void fill_banks(struct branched *s)
{
    const int64_t shape[BANKS][3] = { { 2, 130, check_small() ? 264 : 520 },
                                      { 3, 40, 24 },
                                      { 1, 300, 136 } };
    struct adam_step a = { 0.013f, 0.0007f, 1e-10f, 1 };
    struct bank_step m = { { 0.02f, 0.01f }, 0.07f, 0.05f };
    void *unused, *step;

    numbers(&m, sizeof m, &unused, &s->muon);
    for (int i = 0; i < BANKS; i++) {
        int64_t n = shape[i][0], rows = n * shape[i][1], cols = shape[i][2];
        bool wide = shape[i][1] < cols;
        s->bank[i] = (struct bank){ .n = (int)n,
                                    .given = drawn(DT_BF16, rows, cols, 1).g,
                                    .g = blank(DT_BF16, rows, cols).g,
                                    .mom = drawn(DT_F32, rows, cols, 1).g,
                                    .x = blank(DT_BF16, rows, cols).g,
                                    .w = drawn(DT_BF16, rows, cols, 1).g,
                                    .mant = drawn_u16(rows, cols).g,
                                    .q = drawn(DT_F32, wide ? n * cols : rows, 1, 0).g,
                                    .out = blank(DT_BF16, rows, cols).g };
    }
    numbers(&a, sizeof a, &unused, &step);
    s->adam.w = drawn(DT_BF16, 7, 1000, 1).g, s->adam.g = drawn(DT_BF16, 7, 1000, 1).g;
    s->adam.m.t = drawn(DT_F32, 7, 1000, 0).g, s->adam.v.t = drawn(DT_F32, 7, 1000, 0).g;
    s->adam.beta1 = 0.9, s->adam.beta2 = 0.99, s->adam.step = step;
}

/* Two steps in branches, launched or as a graph, have the bits of two in the order of the calls:
 * with both sides of a matrix an odd number of blocks of 64. In the trunk, not in branches, polar
 * sums an even number in two halves. */
static void test_branches(bool graph)
{
    struct branched one = { 0 }, other;
    void *replay = NULL;

    fill_banks(&one);
    other = one;
    for (int i = 0; i < BANKS; i++) {
        struct bank *b = &other.bank[i];
        b->g = twin(b->g), b->mom = twin(b->mom), b->x = twin(b->x), b->w = twin(b->w);
        b->mant = twin(b->mant), b->q = twin(b->q), b->out = twin(b->out);
    }
    other.adam.w = twin(one.adam.w), other.adam.m.t = twin(one.adam.m.t);
    other.adam.v.t = twin(one.adam.v.t);
    if (graph) {
        CHECK_OK(ops_cuda_capture(gpu));
        queue_banks(&other, true);
        CHECK_OK(ops_cuda_capture_end(gpu, &replay));
    }
    for (int step = 0; step < 2; step++) {
        queue_banks(&one, false);
        if (graph)
            ops_cuda_launch(gpu, replay);
        else
            queue_banks(&other, true);
    }
    for (int i = 0; i < BANKS; i++) {
        const struct bank *a = &one.bank[i], *b = &other.bank[i];
        CHECK(same_on_gpu(a->out, b->out) && same_on_gpu(a->mant, b->mant));
        CHECK(same_on_gpu(a->mom, b->mom) && same_on_gpu(a->q, b->q));
    }
    CHECK(same_on_gpu(one.adam.w, other.adam.w) && same_on_gpu(one.adam.v.t, other.adam.v.t));
    CHECK_OK(gpu->sync(gpu));
    if (replay)
        ops_cuda_graph_free(replay);
}

/* -- rows that ranks sent ------------------------------------------------------------------- */

/* Both add in the order of ranks in f32 and divide: equal bits. Every second rank sends a third of
 * the rows. */
static void test_merge_rows(enum dtype dtype, int world, int rank, int64_t n, int64_t cols)
{
    int32_t *start = (int32_t *)calloc((size_t)world + 1, sizeof *start), one = 0;
    int32_t *index = (int32_t *)calloc((size_t)(world * n), sizeof *index);
    struct row_merge on_cpu = { .rank = rank, .world = world, .first = rank * n }, on_gpu = on_cpu;
    void *ci, *gi, *cs, *gs;

    for (int r = 0; r < world; r++) {
        start[r + 1] = start[r];
        for (int64_t i = 0; i < n && r % 2 && r != rank; i++)
            if (fabs(normal()) < 0.43)
                index[start[r + 1]++] = (int32_t)(rank * n + i);
    }
    struct both g = drawn(dtype, n, cols, 1), rows = drawn(dtype, start[world] + 1, cols, 1);
    numbers(start[world] ? index : &one, (start[world] ? start[world] : 1) * sizeof *index, &ci,
            &gi);
    numbers(start, ((size_t)world + 1) * sizeof *start, &cs, &gs);
    on_cpu.index = (const int32_t *)ci, on_cpu.start = (const int32_t *)cs;
    on_gpu.index = (const int32_t *)gi, on_gpu.start = (const int32_t *)gs;
    cpu->merge_rows(cpu, g.c, rows.c, &on_cpu);
    gpu->merge_rows(gpu, g.g, rows.g, &on_gpu);
    CHECK_EQ(different_bytes(g), 0);
    free(start), free(index);
}

/* Rows move as bits. */
static void test_gather(int64_t rows, int64_t cols, int n)
{
    struct both table = drawn(DT_BF16, rows, cols, 1), out = blank(DT_BF16, n, cols);
    int32_t *row = (int32_t *)calloc((size_t)n, sizeof *row);
    void *c, *g;

    for (int i = 0; i < n; i++)
        row[i] = (int32_t)(fabs(normal()) * 1e6) % (int32_t)rows;
    numbers(row, (size_t)n * sizeof *row, &c, &g);
    struct lookup on_cpu = { .tokens = n, .row = (const int32_t *)c }, on_gpu = on_cpu;
    on_gpu.row = (const int32_t *)g;
    cpu->gather(cpu, out.c, table.c, &on_cpu);
    gpu->gather(gpu, out.g, table.g, &on_gpu);
    CHECK_EQ(different_bytes(out), 0);
    free(row);
}

static void test_exchanged_rows(void)
{
    static const int64_t cols[] = { 8, 264, 768, 2048 };
    for (int k = 0; k < 4; k++)
        for (int t = 0; t < 2; t++) {
            enum dtype dtype = t ? DT_F32 : DT_BF16;
            test_merge_rows(dtype, 1, 0, 5, cols[k]);
            test_merge_rows(dtype, 2, 0, 129, cols[k]);
            test_merge_rows(dtype, 8, 5, 67, cols[k]);
            test_merge_rows(dtype, 40, 33, 9, cols[k]);
        }
    test_merge_rows(DT_BF16, 8, 2, check_small() ? 401 : 4001, 768);
    test_gather(1, 8, 1);
    test_gather(997, 768, 3001);
    test_gather(61, 1536, 100); /* f32 rows of 768 */
    clear();
}

/* What a kernel for the records' form, which the portable path has not, may take. */
static void test_record_adams(void)
{
    test_adams();
    test_record_rows();
    test_any_rows();
}

static void test_other_adams(void)
{
    test_alone(false);
    test_alone(true);
    test_large_ones();
    test_all_forms();
}

int main(void)
{
    if (!pair_begin())
        return pair_end();
    if (check_of("transpose"))
        test_transposes();
    if (check_of("adam"))
        test_record_adams();
    if (check_of("adam amax_history"))
        test_other_adams();
    if (check_of("quantize adam"))
        test_fp8_copies();
    if (check_of("muon_input"))
        test_muon_inputs();
    if (check_of("step_gate finite"))
        test_gates();
    if (check_of("normuon"))
        test_normuons();
    if (check_of("momentum each scale polar_input variance"))
        test_chains();
    for (int k = 0; k < 8 && check_of("device"); k++)
        test_branches(k & 1);
    clear();
    for (int k = 0; k < 40 && check_of("store"); k++)
        test_store(k % 2);
    clear();
    if (check_of("merge_rows embed"))
        test_exchanged_rows();
    return pair_end();
}
