/* gpu_optim_test.c - the optimizer's kernels against the plain C ops, on fresh random inputs.
 *
 * Real and ragged shapes; outputs hold NaN before. Tolerances, as |gpu - cpu| / |cpu|:
 * - what is elementwise has equal bits: transpose, Adam, the momentum, and the mantissa update
 *   when the sums before it are exact in any order;
 * - f32 sums in another order: 1e-5 (a few thousand terms of 2^-24);
 * - bf16 results whose inputs went through such sums: 1e-3 (few roundings fall the other way; one
 *   such is 2^-8 of its element).
 * Exit 77 without a GPU.
 */
#include <stdlib.h>
#include <time.h>
#include "../kernels/adam.h"
#include "../kernels/ops_cuda.h"
#include "../kernels/polar.h"
#include "../kernels/transpose.h"
#include "check.h"
#include "ops/ops.h"

static struct ops *cpu, *gpu;
static uint64_t seed, draws;

/* The same tensor on both devices. */
struct both { struct tensor c, g; };

/* Four uniforms of 16 bits: near enough to a normal number, and quick for banks of millions. */
static double normal(void)
{
    uint64_t z = (seed + ++draws) * 0x9e3779b97f4a7c15u;
    int sum = 0;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    for (int i = 0; i < 4; i++)
        sum += (int)(z >> 16 * i & 0xffff);
    return (sum - 2 * 65535) * (1.7320508 / 65536);
}

static struct both blank(enum dtype t, int64_t rows, int64_t cols)
{
    struct both b = { tensor_of(NULL, t, rows, cols), tensor_of(NULL, t, rows, cols) };
    b.c.data = cpu->alloc(cpu, tensor_bytes(b.c), "test");
    b.g.data = gpu->alloc(gpu, tensor_bytes(b.g), "test");
    return b;
}

static void to_gpu(struct both b) { gpu->upload(gpu, b.g.data, b.c.data, tensor_bytes(b.c)); }

static double get(struct tensor t, int64_t i)
{
    return t.dtype == DT_BF16 ? bf16_to_f32(((uint16_t *)t.data)[i]) : ((float *)t.data)[i];
}
static void set(struct tensor t, int64_t i, double x)
{
    if (t.dtype == DT_BF16)
        ((uint16_t *)t.data)[i] = bf16_from_f32((float)x);
    else
        ((float *)t.data)[i] = (float)x;
}

static struct both drawn(enum dtype t, int64_t rows, int64_t cols, double scale)
{
    struct both b = blank(t, rows, cols);
    for (int64_t i = 0; i < rows * cols; i++)
        set(b.c, i, scale * normal());
    to_gpu(b);
    return b;
}

/* Random bits: mantissas. */
static struct both drawn_u16(int64_t rows, int64_t cols)
{
    struct both b = blank(DT_U16, rows, cols);
    for (int64_t i = 0; i < rows * cols; i++)
        ((uint16_t *)b.c.data)[i] = (uint16_t)(65536 * fabs(normal()));
    to_gpu(b);
    return b;
}

/* Per-step numbers, in the memory of each device. */
static void numbers(const void *x, size_t bytes, void **c, void **g)
{
    *c = cpu->alloc(cpu, bytes, "test");
    *g = gpu->alloc(gpu, bytes, "test");
    memcpy(*c, x, bytes);
    gpu->upload(gpu, *g, x, bytes);
}

/* The GPU's tensor in host memory; the caller frees its data. */
static struct tensor fetched(struct tensor t)
{
    void *host = malloc(tensor_bytes(t) + 1);
    memset(host, 0xff, tensor_bytes(t));
    gpu->download(gpu, host, t.data, tensor_bytes(t));
    t.data = host;
    return t;
}

static long different_bytes(struct both b)
{
    struct tensor g = fetched(b.g);
    long n = 0;
    for (size_t i = 0; i < tensor_bytes(b.c); i++)
        n += ((uint8_t *)g.data)[i] != ((uint8_t *)b.c.data)[i];
    free(g.data);
    return n;
}

/* |gpu - cpu| / |cpu|; NaN when either has one. */
static double distance(struct both b)
{
    struct tensor g = fetched(b.g);
    double d = 0, w = 0;
    for (int64_t i = 0; i < tensor_count(b.c); i++) {
        double x = get(b.c, i), y = get(g, i);
        d += (y - x) * (y - x);
        w += x * x;
    }
    free(g.data);
    return sqrt(w > 0 ? d / w : d);
}

static void clear(void)                 /* both devices anew: memory of a case goes back */
{
    CHECK_OK(gpu->sync(gpu));
    gpu->free(gpu);
    cpu->free(cpu);
    CHECK_OK(ops_cpu_new(&cpu));
    CHECK_OK(ops_cuda_new(&gpu, 0));
}

static bool named(const char *what, bool ok)
{
    if (!ok)
        printf("  in %s\n", what);
    return ok;
}

/* -- transpose ---------------------------------------------------------------------------- */

static void test_transpose(enum dtype td, enum dtype ts, int64_t rows, int64_t cols, bool add,
                           int sms)
{
    struct both src = drawn(ts, rows, cols, 1), dst = blank(td, cols, rows);
    if (add)
        dst = drawn(td, cols, rows, 1);
    cpu->transpose(cpu, dst.c, src.c, add);
    if (sms)
        gpu_transpose_sms(gpu, dst.g, src.g, add, sms);
    else
        gpu->transpose(gpu, dst.g, src.g, add);
    CHECK_EQ(different_bytes(dst), 0);
}

static void test_transposes(void)
{
    static const int64_t shape[][2] = { { 1, 1 }, { 8, 8 }, { 5, 300 }, { 300, 7 }, { 72, 200 },
                                        { 768, 1048 } };
    for (int s = 0; s < 6; s++)
        for (int k = 0; k < 8; k++)
            test_transpose(k & 1 ? DT_BF16 : DT_F32, k & 2 ? DT_BF16 : DT_F32, shape[s][0],
                           shape[s][1], k & 4, 0);
    test_transpose(DT_BF16, DT_BF16, 768, 50304, true, 0);
    test_transpose(DT_BF16, DT_BF16, 50304, 768, false, 48);
    clear();
}

/* -- Adam ------------------------------------------------------------------------------------ */

static void test_adam(enum dtype tw, enum dtype tg, enum dtype tm, int64_t n, bool fp8)
{
    struct both w = drawn(tw, 1, n, 1), g = drawn(tg, 1, n, 0.1), m = drawn(tm, 1, n, 0.1);
    struct both v = drawn(tm, 1, n, 0.1);
    struct adam_step a = { .step_size = 0.013f, .decay = 0.0007f };
    float scale = (float)(1.6 / 448), found[2];
    uint8_t *w8 = malloc((size_t)n);
    void *ca, *ga, *gscale, *gfound, *gw8 = gpu->alloc(gpu, (size_t)n, "test"), *unused;
    numbers(&a, sizeof a, &ca, &ga);
    numbers(&scale, sizeof scale, &unused, &gscale);
    gfound = gpu->alloc(gpu, sizeof found, "test");
    for (int64_t i = 0; i < n; i++)
        set(v.c, i, fabs(get(v.c, i)));
    for (int64_t i = 0; i < n; i += 7) {            /* a row that never had a gradient */
        set(g.c, i, 0), set(m.c, i, 0), set(v.c, i, 0);
    }
    for (int64_t i = 3; i < n; i += 11)             /* subnormal squares */
        set(g.c, i, 1e-21 * normal()), set(v.c, i, 0), set(w.c, i, 0);
    to_gpu(g), to_gpu(m), to_gpu(v), to_gpu(w);
    for (int step = 0; step < 3; step++) {
        cpu->adam(cpu, w.c, g.c, m.c, v.c, 0.5, 0.95, 1e-10, ca);
        if (fp8)
            gpu_adam_fp8(gpu, w.g, g.g, m.g, v.g, 0.5, 0.95, 1e-10, ga,
                         tensor_of(gw8, DT_E4M3, 1, n), gscale, gfound, (float *)gfound + 1);
        else
            gpu->adam(gpu, w.g, g.g, m.g, v.g, 0.5, 0.95, 1e-10, ga);
    }
    CHECK_EQ(different_bytes(w) + different_bytes(m) + different_bytes(v), 0);
    if (fp8) {
        float most = 0;
        long bad = 0;
        gpu->download(gpu, found, gfound, sizeof found);
        gpu->download(gpu, w8, gw8, (size_t)n);
        for (int64_t i = 0; i < n; i++) {
            float x = (float)get(w.c, i);
            most = fabsf(x) > most ? fabsf(x) : most;
            bad += w8[i] != e4m3_from_f32(x / scale);
        }
        CHECK_EQ(bad, 0);
        CHECK(found[0] == 1 / scale);
        CHECK(found[1] == most);
    }
    free(w8);
}

static void test_adams(void)
{
    static const int64_t size[] = { 1, 7, 8, 1003, 40960 };
    for (int s = 0; s < 5; s++)
        for (int k = 0; k < 16; k++)
            test_adam(k & 1 ? DT_BF16 : DT_F32, k & 2 ? DT_BF16 : DT_F32,
                      k & 4 ? DT_BF16 : DT_F32, size[s], k & 8);
    test_adam(DT_BF16, DT_BF16, DT_F32, 6288 * 768, false);
    test_adam(DT_BF16, DT_BF16, DT_F32, 6288 * 768, true);
    clear();
}

/* -- momentum ---------------------------------------------------------------------------- */

static void test_muon_input(int n, int64_t rows, int64_t cols, enum dtype tg, enum dtype tx)
{
    struct both g = drawn(tg, n * rows, cols, 0.01), mom = drawn(DT_F32, n * rows, cols, 0.02);
    struct both x = blank(tx, n * rows, cols);
    struct muon_step m = { .blend = 0.07f };
    void *cm, *gm;
    numbers(&m, sizeof m, &cm, &gm);
    for (int step = 0; step < 2; step++) {
        cpu->muon_input(cpu, x.c, mom.c, g.c, n, cm);
        gpu->muon_input(gpu, x.g, mom.g, g.g, n, gm);
    }
    CHECK_EQ(different_bytes(mom), 0);
    /* the norms may differ in their last bit, which turns few bf16 roundings */
    CHECK(distance(x) <= (tx == DT_BF16 ? 1e-3 : 1e-6));
}

/* Matrix 0 zero, 1 with a norm that overflows, 2 with a NaN, 3 ordinary. */
static void test_muon_input_odd(void)
{
    enum { N = 4, ROWS = 40, COLS = 24, COUNT = ROWS * COLS };
    struct both g = drawn(DT_F32, N * ROWS, COLS, 1), x = blank(DT_BF16, N * ROWS, COLS);
    struct both mom = blank(DT_F32, N * ROWS, COLS);
    struct muon_step m = { .blend = 0.05f };
    void *cm, *gm;
    numbers(&m, sizeof m, &cm, &gm);
    memset(mom.c.data, 0, tensor_bytes(mom.c));
    for (int64_t i = 0; i < COUNT; i++) {
        set(g.c, i, 0);
        set(g.c, COUNT + i, 1e30 * normal());
    }
    set(g.c, 2 * COUNT + 5, NAN);
    to_gpu(mom), to_gpu(g);
    cpu->muon_input(cpu, x.c, mom.c, g.c, N, cm);
    gpu->muon_input(gpu, x.g, mom.g, g.g, N, gm);
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
    static const int64_t shape[][3] = { { 1, 1, 1 }, { 2, 33, 17 }, { 3, 40, 24 }, { 2, 90, 500 },
                                        { 5, 768, 768 }, { 3, 3072, 768 } };
    for (int s = 0; s < 6; s++)
        for (int k = 0; k < 4; k++)
            test_muon_input((int)shape[s][0], shape[s][1], shape[s][2], k & 1 ? DT_F32 : DT_BF16,
                            k & 2 ? DT_F32 : DT_BF16);
    test_muon_input_odd();
    clear();
}

/* -- polar --------------------------------------------------------------------------------- */

/* record-61.md 4.6, then further rows near the fixed point, so that tables have up to ten. */
static const double table[10][3] = {
    { 8.156554524902461, -22.48329292557795, 15.878769915207462 },
    { 4.042929935166739, -2.808917465908714, 0.5000178451051316 },
    { 3.8916678022926607, -2.772484153217685, 0.5060648178503393 },
    { 3.285753657755655, -2.3681294933425376, 0.46449024233003106 },
    { 2.3465413258596377, -1.7097828382687081, 0.42323551169305323 },
    { 1.891, -1.268, 0.3768 }, { 1.875, -1.25, 0.375 }, { 1.875, -1.25, 0.375 },
    { 1.875, -1.25, 0.375 }, { 1.875, -1.25, 0.375 },
};

/* Matrices of Frobenius norm 1/1.02, as muon_input leaves them. */
static struct both unit_matrices(int n, int64_t rows, int64_t cols)
{
    struct both x = drawn(DT_BF16, n * rows, cols, 1);
    for (int64_t m = 0; m < n; m++) {
        double squares = 0;
        for (int64_t i = m * rows * cols; i < (m + 1) * rows * cols; i++)
            squares += get(x.c, i) * get(x.c, i);
        for (int64_t i = m * rows * cols; i < (m + 1) * rows * cols; i++)
            set(x.c, i, get(x.c, i) / (1.02 * sqrt(squares) + 1e-6));
    }
    to_gpu(x);
    return x;
}

/* From the same x: what each device makes of it in the given rows. */
static void polar_both(struct both x, struct tensor start, int n, const double (*rows)[3],
                       int iters, bool aol)
{
    memcpy(x.c.data, start.data, tensor_bytes(start));
    to_gpu(x);
    cpu->polar(cpu, x.c, n, rows, iters, aol);
    gpu->polar(gpu, x.g, n, rows, iters, aol);
}

/* |x - exact| / |exact| on either device; exact: f32 throughout. */
static void polar_errors(struct both x, struct tensor exact, double *c, double *g)
{
    struct both to_exact = { exact, x.g };
    double d = 0, w = 0;
    for (int64_t i = 0; i < tensor_count(exact); i++) {
        d += (get(x.c, i) - get(exact, i)) * (get(x.c, i) - get(exact, i));
        w += get(exact, i) * get(exact, i);
    }
    *c = sqrt(d / w);
    *g = distance(to_exact);
}

/* |gpu - cpu| after one row (a,b,c) from start, over |a start|: a x and B x may cancel, and what a
 * rounding of theirs leaves is then no part of the result's size. */
static double step_distance(struct both x, struct tensor start, const double row[3])
{
    double before = 0, after = 0;
    for (int64_t i = 0; i < tensor_count(start); i++) {
        before += get(start, i) * get(start, i);
        after += get(x.c, i) * get(x.c, i);
    }
    return distance(x) * sqrt(after / before) / row[0];
}

/* One iteration is compared number by number. Over several, roundings that fall differently grow
 * (two references that add in another order are 2% apart after four rows on 3072 x 768), so what
 * is compared is the error: the GPU's must be no worse than the reference's. */
static void test_polar(int n, int64_t rows, int64_t cols, int iters, bool aol)
{
    struct both start = unit_matrices(n, rows, cols), x = blank(DT_BF16, n * rows, cols);
    struct both exact = blank(DT_F32, n * rows, cols);
    double c, g, one;
    char label[200];

    polar_both(x, start.c, n, table, 1, aol);
    one = aol ? distance(x) : step_distance(x, start.c, table[0]);
    polar_both(x, start.c, n, table, iters, aol);
    for (int64_t i = 0; i < tensor_count(exact.c); i++)
        set(exact.c, i, get(start.c, i));
    cpu->polar(cpu, exact.c, n, table, iters, aol);
    polar_errors(x, exact.c, &c, &g);
    snprintf(label, sizeof label, "polar %d x %d x %d, %d rows%s: first row %.2g apart; error of "
             "the reference %.3g, of the GPU %.3g", n, (int)rows, (int)cols, iters,
             aol ? ", aol" : "", one, c, g);
    if (rows >= 768 || cols >= 768)
        printf("%s\n", label);
    named(label, CHECK(one <= (aol ? 1e-2 : 1e-3)));
    /* errors of many numbers are alike, those of few are a draw */
    named(label, CHECK(g <= (n * rows * cols > 100000 ? 1.25 : 3) * c + 1e-4));
}

/* The record's five iterations one by one, each from the reference's state. */
static void test_polar_steps(int n, int64_t rows, int64_t cols)
{
    struct both state = unit_matrices(n, rows, cols), x = blank(DT_BF16, n * rows, cols);
    for (int t = 0; t < 5; t++) {
        char label[80];
        polar_both(x, state.c, n, table + t, 1, false);
        double d = step_distance(x, state.c, table[t]);
        snprintf(label, sizeof label, "row %d of polar %d x %d x %d: %.2g", t, n, (int)rows,
                 (int)cols, d);
        named(label, CHECK(d <= 1e-3));
        memcpy(state.c.data, x.c.data, tensor_bytes(x.c));
    }
}

/* Every way to cut the products, on the same input. */
static void test_polar_plans(int n, int64_t rows, int64_t cols)
{
    struct both x = unit_matrices(n, rows, cols), start = blank(DT_BF16, n * rows, cols);
    memcpy(start.c.data, x.c.data, tensor_bytes(x.c));
    cpu->polar(cpu, x.c, n, table, 1, false);
    for (int k = 0; k < 2 * 3 * 2; k++) {
        struct polar_plan plan = { k % 2, k % 2, 128 + 64 * (k / 2 % 3), k / 6 };
        char label[80];
        gpu->upload(gpu, x.g.data, start.c.data, tensor_bytes(x.c));
        gpu_polar_planned(gpu, x.g, n, table, 1, false, &plan);
        double d = distance(x);
        snprintf(label, sizeof label, "plan %d of %d x %d x %d: %.3g", k, n, (int)rows, (int)cols,
                 d);
        named(label, CHECK(d <= 1e-3));
    }
}

static void test_polars(void)
{
    static const int64_t shape[][3] = {
        { 1, 1, 1 }, { 1, 5, 300 }, { 1, 33, 17 }, { 2, 17, 33 }, { 2, 100, 60 }, { 2, 60, 100 },
        { 3, 128, 128 }, { 2, 200, 136 }, { 1, 136, 1304 }, { 1, 1100, 72 }, { 2, 512, 1408 },
    };
    for (int s = 0; s < 11; s++) {
        int n = (int)shape[s][0];
        for (int iters = 1; iters <= 10; iters += iters < 5 ? 1 : 5)
            test_polar(n, shape[s][1], shape[s][2], iters, iters % 2);
        test_polar(n, shape[s][1], shape[s][2], 5, false);
    }
    clear();
    test_polar(5, 768, 768, 5, false);
    test_polar(3, 3072, 768, 5, false);
    test_polar(3, 3072, 768, 4, true);
    test_polar(2, 768, 3072, 5, false);
    clear();
    test_polar_steps(2, 768, 768);
    test_polar_steps(1, 3072, 768);
    clear();
    test_polar_plans(2, 768, 768);
    test_polar_plans(1, 1280, 640);
    test_polar_plans(2, 264, 648);
    test_polar_plans(9, 640, 512);          /* more tiles than multiprocessors */
    test_polar_plans(9, 512, 648);
    clear();
    struct both zero = blank(DT_BF16, 2 * 256, 128);
    memset(zero.c.data, 0, tensor_bytes(zero.c));
    for (int aol = 0; aol < 2; aol++) {
        to_gpu(zero);
        gpu->polar(gpu, zero.g, 2, table, 5, aol);
        CHECK_EQ(different_bytes(zero), 0);
    }
}

/* -- the update ------------------------------------------------------------------------------ */

/* exact: |x| is one power of two in each row and q near its square, so that all sums are exact
 * and no bit may differ; else x is random. */
static void test_normuon(int n, int64_t rows, int64_t cols, enum dtype tw, bool exact)
{
    struct both x = drawn(DT_BF16, n * rows, cols, 0.03), w = drawn(tw, n * rows, cols, 0.05);
    struct both q = drawn(DT_F32, n * rows, 1, 1), mant = { NO_TENSOR, NO_TENSOR };
    struct both old = { w.c, w.c };
    struct muon_step m = { .lr = 0.023f, .decay = 0.0276f };
    float lr_mul[8] = { 1, 2, 4, 1, 2, 4, 1, 2 };
    void *cm, *gm;
    numbers(&m, sizeof m, &cm, &gm);
    if (tw == DT_BF16)
        mant = drawn_u16(n * rows, cols);
    for (int64_t r = 0; r < n * rows; r++) {
        double size = exact ? ldexp(1, -4 - (int)(r % 3)) : 0.03;
        set(q.c, r, size * size * (1 + 0.5 * sin(normal())));
        for (int64_t j = 0; exact && j < cols; j++)
            set(x.c, r * cols + j, copysign(size, normal()));
    }
    to_gpu(x), to_gpu(q);
    old.c.data = malloc(tensor_bytes(w.c));
    memcpy(old.c.data, w.c.data, tensor_bytes(w.c));
    cpu->normuon(cpu, w.c, mant.c, q.c, x.c, n, lr_mul, 0.95, cm);
    gpu->normuon(gpu, w.g, mant.g, q.g, x.g, n, lr_mul, 0.95, gm);
    if (exact) {
        CHECK_EQ(different_bytes(w) + different_bytes(q), 0);
        if (tw == DT_BF16)
            CHECK_EQ(different_bytes(mant), 0);
    } else {
        struct tensor gw = fetched(w.g), gmant = mant.c.data ? fetched(mant.g) : NO_TENSOR;
        double d = 0, moved = 0;
        for (int64_t i = 0; i < n * rows * cols; i++) {     /* of the whole f32 master */
            double a = get(w.c, i), b = get(gw, i), before = get(old.c, i);
            if (tw == DT_BF16) {
                a = f32_from_bits((uint32_t)((uint16_t *)w.c.data)[i] << 16
                                  | ((uint16_t *)mant.c.data)[i]);
                b = f32_from_bits((uint32_t)((uint16_t *)gw.data)[i] << 16
                                  | ((uint16_t *)gmant.data)[i]);
            }
            d += (a - b) * (a - b);
            moved += (a - before) * (a - before);
        }
        CHECK(distance(q) <= 1e-5);
        CHECK(sqrt(d / moved) <= 1e-3);     /* of the update itself: few roundings of x turn */
        free(gw.data), free(gmant.data);
    }
    free(old.c.data);
}

static void test_normuons(void)
{
    static const int64_t shape[][3] = { { 1, 1, 1 }, { 2, 33, 17 }, { 3, 40, 24 }, { 2, 90, 520 },
                                        { 5, 768, 768 }, { 3, 3072, 768 } };
    for (int s = 0; s < 6; s++)
        for (int k = 0; k < 4; k++)
            test_normuon((int)shape[s][0], shape[s][1], shape[s][2], k & 1 ? DT_F32 : DT_BF16,
                         k & 2);
    clear();
}

/* -- in a graph ------------------------------------------------------------------------------ */

/* The three ops of a bank, captured and replayed, leave the bits that they leave eagerly. */
static void test_graph(int n, int64_t rows, int64_t cols)
{
    struct both g = drawn(DT_BF16, n * rows, cols, 0.01), mom[2], w[2], mant[2], q[2];
    struct tensor x = tensor_of(gpu->alloc(gpu, (size_t)(n * rows * cols) * 2, "x"), DT_BF16,
                                n * rows, cols);
    struct muon_step m = { .blend = 0.05f, .lr = 0.02f, .decay = 0.01f };
    float lr_mul[8] = { 1, 1, 1, 1, 1, 1, 1, 1 };
    void *cm, *gm, *graph;
    numbers(&m, sizeof m, &cm, &gm);
    mom[0] = drawn(DT_F32, n * rows, cols, 0.01), w[0] = drawn(DT_BF16, n * rows, cols, 0.05);
    mant[0] = drawn_u16(n * rows, cols), q[0] = drawn(DT_F32, n * rows, 1, 0);
    for (int k = 0; k < 2; k++) {
        if (k == 1) {
            mom[1] = blank(DT_F32, n * rows, cols), w[1] = blank(DT_BF16, n * rows, cols);
            mant[1] = blank(DT_U16, n * rows, cols), q[1] = blank(DT_F32, n * rows, 1);
            memcpy(mom[1].c.data, mom[0].c.data, tensor_bytes(mom[0].c));
            memcpy(w[1].c.data, w[0].c.data, tensor_bytes(w[0].c));
            memcpy(mant[1].c.data, mant[0].c.data, tensor_bytes(mant[0].c));
            memcpy(q[1].c.data, q[0].c.data, tensor_bytes(q[0].c));
            to_gpu(mom[1]), to_gpu(w[1]), to_gpu(mant[1]), to_gpu(q[1]);
            CHECK_OK(ops_cuda_capture(gpu));
        }
        for (int twice = 0; twice < 2 - k; twice++) {
            gpu->muon_input(gpu, x, mom[k].g, g.g, n, gm);
            gpu->polar(gpu, x, n, table, 5, false);
            gpu->normuon(gpu, w[k].g, mant[k].g, q[k].g, x, n, lr_mul, 0.95, gm);
        }
    }
    CHECK_OK(ops_cuda_capture_end(gpu, &graph));
    ops_cuda_launch(gpu, graph);
    ops_cuda_launch(gpu, graph);
    CHECK_OK(gpu->sync(gpu));
    struct both both[3] = { { fetched(w[0].g), w[1].g }, { fetched(mant[0].g), mant[1].g },
                            { fetched(mom[0].g), mom[1].g } };
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(different_bytes(both[i]), 0);
        free(both[i].c.data);
    }
    ops_cuda_graph_free(graph);
}

static void test_graphs(void)
{
    test_graph(5, 768, 768);
    test_graph(3, 3072, 768);
}

/* Arguments name the parts to run; none: all. */
int main(int argc, char **argv)
{
    static const struct { const char *name; void (*run)(void); } part[] = {
        { "transpose", test_transposes }, { "adam", test_adams }, { "momentum", test_muon_inputs },
        { "normuon", test_normuons }, { "polar", test_polars }, { "graph", test_graphs },
    };
    if (ops_cuda_count() == 0)
        return check_skip("no GPU");
    seed = (uint64_t)time(NULL) << 32;
    printf("seed %llu\n", (unsigned long long)seed);
    CHECK_OK(ops_cpu_new(&cpu));
    if (!CHECK_OK(ops_cuda_new(&gpu, 0)))
        return check_done();
    for (size_t i = 0; i < sizeof part / sizeof *part; i++)
        for (int a = argc > 1 ? 1 : 0; a < argc; a++)
            if (argc == 1 || !strcmp(argv[a], part[i].name)) {
                printf("%s\n", part[i].name);
                fflush(stdout);
                part[i].run();
            }
    CHECK_OK(gpu->sync(gpu));
    gpu->free(gpu);
    cpu->free(cpu);
    return check_done();
}
