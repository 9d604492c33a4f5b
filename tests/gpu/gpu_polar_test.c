/* gpu_polar_test.c - Polar Express on the GPU against the plain C op, on fresh random inputs of
 * real and ragged shapes; and the three ops of a bank in a graph.
 *
 * One iteration is compared number by number: 1e-3 of the largest term (few bf16 roundings, 2^-8
 * each, fall the other way). Of several, the errors against f32 arithmetic are compared.
 * Exit 77 without a GPU.
 */
#include "../kernels/polar.h"
#include "gpu_pair.h"

/* -- polar --------------------------------------------------------------------------------- */

static const unsigned gram = POLAR_GRAM_FORM;

/* orthogonalisation.md 4.2, then rows near the fixed point, so that tables have up to ten. */
static const double table[10][3] = {
    { 8.156554524902461, -22.48329292557795, 15.878769915207462 },
    { 4.042929935166739, -2.808917465908714, 0.5000178451051316 },
    { 3.8916678022926607, -2.772484153217685, 0.5060648178503393 },
    { 3.285753657755655, -2.3681294933425376, 0.46449024233003106 },
    { 2.3465413258596377, -1.7097828382687081, 0.42323551169305323 },
    { 1.891, -1.268, 0.3768 },
    { 1.875, -1.25, 0.375 },
    { 1.875, -1.25, 0.375 },
    { 1.875, -1.25, 0.375 },
    { 1.875, -1.25, 0.375 },
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
                       int iters, unsigned how)
{
    memcpy(x.c.data, start.data, tensor_bytes(start));
    to_gpu(x);
    cpu->polar(cpu, x.c, n, rows, iters, how);
    gpu->polar(gpu, x.g, n, rows, iters, how);
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
static void test_polar(int n, int64_t rows, int64_t cols, int iters, unsigned how)
{
    bool aol = how & POLAR_AOL;
    struct both start = unit_matrices(n, rows, cols), x = blank(DT_BF16, n * rows, cols);
    struct both exact = blank(DT_F32, n * rows, cols);
    double c, g, one;
    char label[200];

    polar_both(x, start.c, n, table, 1, how);
    one = aol ? distance(x) : step_distance(x, start.c, table[0]);
    polar_both(x, start.c, n, table, iters, how);
    for (int64_t i = 0; i < tensor_count(exact.c); i++)
        set(exact.c, i, get(start.c, i));
    cpu->polar(cpu, exact.c, n, table, iters, how);
    polar_errors(x, exact.c, &c, &g);
    snprintf(label, sizeof label,
             "polar %d x %d x %d, %d rows%s%s: first row %.2g apart; error of "
             "the reference %.3g, of the GPU %.3g",
             n, (int)rows, (int)cols, iters, aol ? ", aol" : "", how & POLAR_GRAM ? ", gram" : "",
             one, c, g);
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

/* One part of five rows that are near their fixed point, where rounding does not grow: one to
 * bf16 (2^-8) of Q and of Q x each, those to f16 before. */
static void test_gram_part(int n, int64_t rows, int64_t cols)
{
    struct both start = unit_matrices(n, rows, cols), x = blank(DT_BF16, n * rows, cols);
    char label[80];

    polar_both(x, start.c, n, table + 5, 5, POLAR_GRAM);
    snprintf(label, sizeof label, "Gram form in one part, %d x %d x %d: %.3g", n, (int)rows,
             (int)cols, distance(x));
    named(label, CHECK(distance(x) <= 1e-2));
}

/* Every way to cut the products, on the same input: one row directly, or three near their fixed
 * point in two parts of the Gram form. */
static void test_polar_plans(int n, int64_t rows, int64_t cols, unsigned how)
{
    struct both x = unit_matrices(n, rows, cols), start = blank(DT_BF16, n * rows, cols);
    int first = how & POLAR_GRAM ? 5 : 0, iters = how & POLAR_GRAM ? 3 : 1;
    memcpy(start.c.data, x.c.data, tensor_bytes(x.c));
    cpu->polar(cpu, x.c, n, table + first, iters, how);
    for (int k = 0; k < 2 * 3 * 2; k++) {
        struct polar_plan plan = { k % 2, k % 2, 128 + 64 * (k / 2 % 3), k / 6 };
        char label[80];
        gpu->upload(gpu, x.g.data, start.c.data, tensor_bytes(x.c));
        gpu_polar_planned(gpu, x.g, n, table + first, iters, how, &plan);
        double d = distance(x);
        snprintf(label, sizeof label, "plan %d of %d x %d x %d%s: %.3g", k, n, (int)rows, (int)cols,
                 how & POLAR_GRAM ? ", gram" : "", d);
        named(label, CHECK(d <= (how & POLAR_GRAM ? 1e-2 : 1e-3)));
    }
}

static void test_polars_real(void)
{
    clear();
    test_polar(5, 768, 768, 5, false);
    test_polar(3, 3072, 768, 5, false);
    test_polar(3, 3072, 768, 4, true);
    test_polar(2, 768, 3072, 5, false);
    test_polar(3, 3072, 768, 5, gram);
    test_polar(2, 768, 3072, 5, gram);
    test_polar(5, 768, 768, 5, gram);
    test_polar(3, 3072, 768, 4, gram | POLAR_AOL);
    clear();
    test_polar_steps(2, 768, 768);
    test_polar_steps(1, 3072, 768);
    clear();
    test_polar_plans(2, 768, 768, 0);
    test_polar_plans(1, 1100, 640, 0);
    test_polar_plans(2, 264, 648, 0);
    test_polar_plans(9, 640, 512, 0); /* more tiles than multiprocessors */
    test_polar_plans(9, 512, 648, 0);
    test_polar_plans(40, 768, 768, POLAR_GRAM | POLAR_RESTART << 2);
    test_polar_plans(3, 3072, 768, POLAR_GRAM | POLAR_RESTART << 2);
}

static void test_polars(void)
{
    bool small = check_small();
    static const int64_t shape[][3] = {
        { 1, 1, 1 },      { 1, 5, 300 },   { 1, 33, 17 },    { 2, 17, 33 },
        { 2, 100, 60 },   { 2, 60, 100 },  { 3, 128, 128 },  { 2, 200, 136 },
        { 1, 136, 1304 }, { 1, 1100, 72 }, { 2, 512, 1408 },
    };
    for (int s = 0; s < (small ? 8 : 11); s++) {
        int n = (int)shape[s][0];
        for (int iters = 1; iters <= (small ? 2 : 10); iters += iters < 5 ? 1 : 5)
            test_polar(n, shape[s][1], shape[s][2], iters, iters % 2);
        test_polar(n, shape[s][1], shape[s][2], small ? 3 : 5, false);
        test_polar(n, shape[s][1], shape[s][2], small ? 4 : 5, gram);
        if (s % 2)
            test_polar(n, shape[s][1], shape[s][2], 4, gram | POLAR_AOL);
        test_gram_part(n, shape[s][1], shape[s][2]);
    }
    clear();
    test_polar_plans(1, 264, 200, 0);
    test_polar_plans(1, 136, 264, 0);
    test_polar_plans(1, 136, 264, POLAR_GRAM | POLAR_RESTART << 2);
    if (!small)
        test_polars_real();
    clear();
    struct both zero = blank(DT_BF16, 2 * 256, 128);
    memset(zero.c.data, 0, tensor_bytes(zero.c));
    for (int aol = 0; aol < 2; aol++) {
        to_gpu(zero);
        gpu->polar(gpu, zero.g, 2, table, 5, aol);
        CHECK_EQ(different_bytes(zero), 0);
    }
    /* AOL makes zero of a matrix that holds a number which is not finite. */
    struct both bad = unit_matrices(2, 256, 128);
    for (int m = 0; m < 2; m++)
        set(bad.c, m * 256 * 128 + 77, m ? INFINITY : NAN);
    to_gpu(bad);
    gpu->polar(gpu, bad.g, 2, table, 5, true);
    struct both result = { zero.c, bad.g };
    CHECK_EQ(different_bytes(result), 0);
}

/* -- in a graph ------------------------------------------------------------------------------ */

/* Numbers of a bank's ops in one step. */
struct bank_step {
    struct muon_step write;
    real momentum, variance; /* 1 - beta */
};

/* The three ops of a bank, captured and replayed, leave the bits that they leave eagerly. */
static void test_graph(int n, int64_t rows, int64_t cols)
{
    struct both g = drawn(DT_BF16, n * rows, cols, 0.01), mom[2], w[2], mant[2], q[2];
    struct tensor x =
        tensor_of(gpu->alloc(gpu, (size_t)(n * rows * cols) * 2, "x"), DT_BF16, n * rows, cols);
    struct bank_step m = { { 0.02f, 0.01f }, 0.05f, 0.05f };
    const struct bank_step *step;
    float lr_mul[8] = { 1, 1, 1, 1, 1, 1, 1, 1 };
    void *cm, *gm, *graph;
    numbers(&m, sizeof m, &cm, &gm);
    step = gm;
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
            gpu->muon_input(gpu, x, mom[k].g, g.g, n, false, &step->momentum, NULL);
            gpu->polar(gpu, x, n, table, 5, false);
            gpu->normuon(gpu, w[k].g, mant[k].g, q[k].g, x, n, lr_mul, &step->variance, NULL, false,
                         &step->write, NULL);
        }
    }
    CHECK_OK(ops_cuda_capture_end(gpu, &graph));
    ops_cuda_launch(gpu, graph);
    ops_cuda_launch(gpu, graph);
    CHECK_OK(gpu->sync(gpu));
    struct both both[3] = { { fetched(w[0].g), w[1].g },
                            { fetched(mant[0].g), mant[1].g },
                            { fetched(mom[0].g), mom[1].g } };
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(different_bytes(both[i]), 0);
        free(both[i].c.data);
    }
    ops_cuda_graph_free(graph);
}

int main(int argc, char **argv)
{
    if (!pair_begin())
        return pair_end();
    if (!check_of("polar"))
        return pair_end();
    if (argc < 2 || strcmp(argv[1], "graph")) /* "graph": that alone, for sanitizers */
        test_polars();
    if (check_small()) {
        test_graph(2, 136, 72);
        return pair_end();
    }
    test_graph(5, 768, 768);
    test_graph(3, 3072, 768);
    return pair_end();
}
