/* normuon_test.c - normuon against plain loops in double. */
#include "cpu_tensors.h"
#include "op_test.h"

static double master(struct tensor w, struct tensor mant, int64_t i)
{
    if (w.dtype == DT_F32)
        return get(w, i);
    return f32_from_bits((uint32_t)((uint16_t *)w.data)[i] << 16 | ((uint16_t *)mant.data)[i]);
}

/* bare: without row variance. how: of the decay. */
static void test_decay(enum dtype tw, enum dtype tx, int64_t rows, int64_t cols, bool bare,
                       unsigned how)
{
    enum { N = 2 };
    const float mul[N] = { 2, 4 };
    struct muon_step m = { .lr = 0.023f, .decay = 0.0276f };
    real blend = (real)(1 - 0.95);
    int64_t count = N * rows * cols;
    struct tensor w = drawn(tw, N * rows, cols, 0.05), x = drawn(tx, N * rows, cols, 0.1);
    int64_t each = rows < cols ? cols : rows; /* statistics of a matrix: of its longer side */
    struct tensor q = drawn(DT_F32, N * each, 1, 0.01), mant = NO_TENSOR;
    double *want = malloc((size_t)count * sizeof *want), *second = as_double(q);

    if (tw == DT_BF16) {
        mant = blank(DT_U16, N * rows, cols);
        for (int64_t i = 0; i < count; i++)
            ((uint16_t *)mant.data)[i] = (uint16_t)(normal() * 20000);
    }
    for (int64_t i = 0; i < N * each; i++) {
        second[i] = fabs(second[i]);
        set(q, i, second[i]);
    }
    for (int k = 0; k < N; k++) {
        double old = 0, new = 0;
        double *mean = calloc((size_t)each, sizeof *mean);
        for (int64_t i = 0; i < rows * cols; i++)
            mean[rows < cols ? i % cols : i / cols] += pow(get(x, k * rows * cols + i), 2);
        for (int64_t i = 0; i < each; i++) {
            double *s = &second[k * each + i];
            mean[i] /= (double)(rows < cols ? rows : cols);
            *s += 0.05 * (mean[i] - *s);
            old += mean[i];
            new += mean[i] / fmax(*s, 1e-10);
        }
        free(mean);
        for (int64_t i = k * rows * cols; i < (k + 1) * rows * cols; i++) {
            double p = master(w, mant, i), lr = (double)m.lr * mul[k];
            int64_t in = i - k * rows * cols, at = k * each + (rows < cols ? in % cols : in / cols);
            double u = get(x, i) / sqrt(fmax(second[at], 1e-10)) * sqrt(old / new);
            u = bare ? get(x, i) : u;
            if (tx == DT_BF16)
                u = bf16_round((float)u);
            bool shrinks = how & MUON_PLAIN || (how & MUON_STRICT ? u * p > 0 : u * p >= 0);
            double left = shrinks ? 1 - m.decay * lr : 1;
            want[i] = how & MUON_BEHIND ? (p - u * lr) * left : p * left - u * lr;
        }
    }
    o->normuon(o, w, mant, bare ? NO_TENSOR : q, x, N, mul, &blend, NULL, how, &m, NULL);
    double d = 0, norm = 0;
    for (int64_t i = 0; i < count; i++) {
        d += (master(w, mant, i) - want[i]) * (master(w, mant, i) - want[i]);
        norm += want[i] * want[i];
    }
    /* f32 roundings, and some cancellation; a u that lies between two bf16 neighbours may take
     * the other one, which is 2^-8 of a step, itself some tenths of a weight. */
    CHECK_NEAR(sqrt(d / norm), 0, tx == DT_BF16 ? 1e-3 : 1e-5);
    if (!bare)
        CHECK_NEAR(distance(q, second), 0, 1e-6);
    free(want), free(second);
}

/* bare: and plain decays. */
static void test_normuon(enum dtype tw, enum dtype tx, int64_t rows, int64_t cols, bool bare)
{
    for (unsigned how = 0; how < 8; how += 2)
        test_decay(tw, tx, rows, cols, bare, how | (bare ? MUON_PLAIN : 0));
}

/* A zero update: only what is not strict decays. */
static void test_strict(void)
{
    struct tensor w = blank(DT_F32, 1, 1), x = blank(DT_F32, 1, 1);
    struct muon_step m = { .lr = 0.5f, .decay = 0.5f };
    const float one = 1;
    for (unsigned how = 0; how < 8; how++) {
        set(w, 0, 1), set(x, 0, 0);
        o->normuon(o, w, NO_TENSOR, NO_TENSOR, x, 1, &one, NULL, NULL, how, &m, NULL);
        CHECK(get(w, 0) == (how & MUON_STRICT && !(how & MUON_PLAIN) ? 1 : 0.75));
    }
}

/* A weight of 1 loses 2^-20 a step: bf16 alone would not move. And decay leaves 0 alone. */
static void test_low_halves(void)
{
    struct tensor w = blank(DT_BF16, 2, 1), mant = blank(DT_U16, 2, 1), q = blank(DT_F32, 2, 1);
    struct tensor x = blank(DT_F32, 2, 1);
    struct muon_step m = { .lr = 0x1p-20f, .decay = 0 };
    real blend = (real)(1 - 0.95);
    const float one = 1;

    set(w, 0, 1);
    set(w, 1, 0);
    o->zero(o, mant);
    for (int step = 1; step <= 3; step++) {
        set(x, 0, 1);
        set(x, 1, 1);
        set(q, 0, 1);
        set(q, 1, 1);
        o->normuon(o, w, mant, q, x, 1, &one, &blend, NULL, false, &m, NULL);
        CHECK(master(w, mant, 0) == 1 - step * 0x1p-20);
        CHECK(master(w, mant, 1) == -step * 0x1p-20);
    }
    /* The high half is cut, not rounded. */
    CHECK(get(w, 0) == 1 - 0x1p-8);
}

static void by_hand(void)
{
    cpu_begin();
    each_ragged(test_normuon);
    test_low_halves();
    test_strict();
    cpu_end();
}

const struct op_test normuon_test = {
    .name = "normuon",
    .by_hand = by_hand,
};
