/* optim_ops_test.c - the optimizer's ops against plain loops in double, on ragged shapes.
 *
 * Inputs are fresh in each run (the seed is printed); outputs are NaN before.
 */
#include <time.h>
#include "adam_call.h"
#include "cpu_tensors.h"

static double *as_double(struct tensor t)
{
    double *x = malloc((size_t)tensor_count(t) * sizeof *x + 1);
    for (int64_t i = 0; i < tensor_count(t); i++)
        x[i] = get(t, i);
    return x;
}

/* |t - want| / |want|; NaN when t has one. */
static double distance(struct tensor t, const double *want)
{
    double d = 0, w = 0;
    for (int64_t i = 0; i < tensor_count(t); i++) {
        d += (get(t, i) - want[i]) * (get(t, i) - want[i]);
        w += want[i] * want[i];
    }
    return sqrt(w > 0 ? d / w : d);
}

/* -- transpose ------------------------------------------------------------------------------- */

static void test_transpose_bits(int64_t rows, int64_t cols)
{
    struct tensor src = blank(DT_U16, rows, cols), dst = blank(DT_U16, cols, rows);
    long bad = 0;
    for (int64_t i = 0; i < rows * cols; i++)
        ((uint16_t *)src.data)[i] = (uint16_t)(65536 * rng_uniform(&rng, draws++));
    o->transpose(o, dst, src, NULL);
    for (int64_t i = 0; i < rows * cols; i++)
        bad += get(dst, i % cols * rows + i / cols) != get(src, i);
    CHECK_EQ(bad, 0);
    src.dtype = DT_U8, dst = blank(DT_U8, cols, rows);
    o->transpose(o, dst, src, NULL);
    for (int64_t i = 0; i < rows * cols; i++)
        bad += ((uint8_t *)dst.data)[i % cols * rows + i / cols] != ((uint8_t *)src.data)[i];
    CHECK_EQ(bad, 0);
}

static void test_transpose(enum dtype t, int64_t rows, int64_t cols, float mix)
{
    struct tensor src = drawn(t, rows, cols, 1), dst = blank(t, cols, rows);
    double *before;
    long bad = 0;

    o->transpose(o, dst, src, NULL);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++)
            bad += !(get(dst, j * rows + i) == get(src, i * cols + j));
    CHECK_EQ(bad, 0);
    before = as_double(dst);
    struct tensor more = drawn(t, rows, cols, 3);
    o->transpose(o, dst, more, &(real){ (real)mix });
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) {
            float term = (float)((double)mix * get(more, i * cols + j));
            float sum = (float)(before[j * rows + i] + term);
            bad += !(get(dst, j * rows + i) == (t == DT_BF16 ? bf16_round(sum) : sum));
        }
    CHECK_EQ(bad, 0);
    free(before);
}

/* -- Adam ------------------------------------------------------------------------------------ */

/* One f32 operation: of two f32 numbers the sum, difference, product, quotient and root in
 * double, rounded to f32, are the f32 operation's own result. So nothing here depends on how
 * the compiler treats float, and the op must give the same bits. */
static float f(double x) { return (float)x; }

static void adam_by_hand(float *w, float g, float *m, float *v, double beta1, double beta2,
                         double eps, float step, float decay)
{
    *m = f((double)f((double)f(beta1) * *m) + f((double)f(1 - beta1) * g));
    *v = f((double)f((double)f(beta2) * *v) + f((double)f(1 - beta2) * f((double)g * g)));
    float root = f((double)f(sqrt((double)*v)) + f(eps));
    float delta = f((double)f((double)*m / root) * step);
    if (f((double)delta * *w) > 0)
        delta = f((double)delta + f((double)decay * *w));
    *w = f((double)*w - delta);
}

static void test_adam(enum dtype tw, enum dtype tm, int64_t n, double beta1, double beta2)
{
    struct tensor w = drawn(tw, 1, n, 1), g = drawn(tw, 1, n, 0.1), m = drawn(tm, 1, n, 0.1);
    struct tensor v = drawn(tm, 1, n, 0.1);
    struct adam_step a = { .step_size = 0.013f, .decay = 0.0007f, .eps = 1e-10f };
    long bad = 0;

    for (int64_t i = 0; i < n; i++)
        set(v, i, fabs(get(v, i)));
    for (int64_t i = 0; i < n; i += 7) { /* a row that never had a gradient */
        set(g, i, 0);
        set(m, i, 0);
        set(v, i, 0);
    }
    set(w, n / 2, 0);
    double *w0 = as_double(w), *m0 = as_double(m), *v0 = as_double(v);
    adam_call(o, w, g, m, v, beta1, beta2, &a, NULL);
    for (int64_t i = 0; i < n; i++) {
        float x = (float)w0[i], mi = (float)m0[i], vi = (float)v0[i];
        adam_by_hand(&x, (float)get(g, i), &mi, &vi, beta1, beta2, 1e-10, a.step_size, a.decay);
        bad += !(get(w, i) == (tw == DT_BF16 ? bf16_round(x) : x));
        bad += !(get(m, i) == (tm == DT_BF16 ? bf16_round(mi) : mi));
        bad += !(get(v, i) == (tm == DT_BF16 ? bf16_round(vi) : vi));
    }
    CHECK_EQ(bad, 0);
    free(w0), free(m0), free(v0);
}

/* -- Muon input ------------------------------------------------------------------------------ */

/* Three matrices: an ordinary one, one of zeros, one whose gradient is not finite, which is left as it
 * is where nothing is scaled. */
static void test_muon_input(enum dtype tx, enum dtype tg, int64_t rows, int64_t cols, bool raw)
{
    int64_t count = rows * cols;
    struct tensor x = blank(tx, 3 * rows, cols), mom = drawn(DT_F32, 3 * rows, cols, 1);
    struct tensor g = drawn(tg, 3 * rows, cols, 1);
    real blend = 0.15f;
    double *u = malloc((size_t)count * sizeof *u), *after = malloc((size_t)count * sizeof *u);
    double squares = 0, terms = 0;
    long bad = 0;

    for (int64_t i = 0; i < count; i++) {
        set(mom, count + i, 0);
        set(g, count + i, 0);
    }
    set(g, 3 * count - 1, rows & 1 ? NAN : -INFINITY);
    for (int64_t i = 0; i < count; i++) {
        after[i] = get(mom, i) + (double)blend * (get(g, i) - get(mom, i));
        double one = (double)blend * get(g, i), other = (1 - (double)blend) * after[i];
        u[i] = one + other;
        squares += u[i] * u[i];
        terms += one * one + other * other;
    }
    for (int64_t i = 0; i < count && !raw; i++)
        u[i] /= 1.02 * sqrt(squares) + 1e-6;
    o->muon_input(o, x, mom, g, 3, raw, &blend, NULL);
    /* A few f32 roundings of the terms, whose sum may cancel (of one element it does); bf16 adds one
     * of 2^-8 of the sum at most. */
    double wrong = 0;
    for (int64_t i = 0; i < count; i++)
        wrong += fabs(get(mom, i) - after[i]);
    CHECK_NEAR(wrong, 0, 5e-7 * (double)count);
    CHECK(distance(tensor_rows(x, 0, rows), u) <=
          5e-7 * sqrt(terms / squares) + (tx == DT_BF16 ? 0x1p-8 : 0));
    for (int64_t i = count; i < (raw ? 2 : 3) * count; i++)
        bad += !(get(x, i) == 0);
    CHECK_EQ(bad, 0);
    CHECK(!raw || !isfinite(get(x, 3 * count - 1)));
    free(u), free(after);
}

/* -- Polar Express --------------------------------------------------------------------------- */

static const double coef[5][3] = {
    { 8.156554524902461, -22.48329292557795, 15.878769915207462 },
    { 4.042929935166739, -2.808917465908714, 0.5000178451051316 },
    { 3.8916678022926607, -2.772484153217685, 0.5060648178503393 },
    { 3.285753657755655, -2.3681294933425376, 0.46449024233003106 },
    { 2.3465413258596377, -1.7097828382687081, 0.42323551169305323 },
};

/* c (rows,cols) = a (rows,k) b (k,cols). */
static void times(double *c, const double *a, const double *b, int64_t rows, int64_t k,
                  int64_t cols)
{
    memset(c, 0, (size_t)(rows * cols) * sizeof *c);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t l = 0; l < k; l++)
            for (int64_t j = 0; j < cols; j++)
                c[i * cols + j] += a[i * k + l] * b[l * cols + j];
}

static double *turned(const double *x, int64_t rows, int64_t cols)
{
    double *t = malloc((size_t)(rows * cols) * sizeof *t);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++)
            t[j * rows + i] = x[i * cols + j];
    return t;
}

static void rounded(enum dtype t, double *x, int64_t n)
{
    for (int64_t i = 0; i < n && t == DT_BF16; i++)
        x[i] = bf16_round((float)x[i]);
}

/* Almost orthogonal: rows by the absolute sums of the Gram matrix a, which follows. */
static void aol_by_hand(enum dtype t, double *x, double *a, int64_t k, int64_t cols)
{
    double *s = malloc((size_t)k * sizeof *s);

    for (int64_t i = 0; i < k; i++) {
        double sum = 0;
        for (int64_t j = 0; j < k; j++)
            sum += fabs(a[i * k + j]);
        s[i] = 1 / sqrt(fmax(sum, 1e-7));
    }
    for (int64_t i = 0; i < k * cols; i++)
        x[i] *= s[i / cols];
    for (int64_t i = 0; i < k * k; i++)
        a[i] *= s[i / k] * s[i % k];
    rounded(t, x, k * cols);
    rounded(t, a, k * k);
    free(s);
}

/* Of a wide matrix (k,cols): x <- a x + (b A + c A A) x with A = x x^T, rounded where the op's
 * contract rounds. */
static void polar_by_hand(enum dtype type, double *x, int64_t k, int64_t cols, bool twice, bool aol)
{
    double *y = malloc((size_t)(k * cols) * sizeof *y), *a = malloc((size_t)(k * k) * sizeof *a);
    double *b = malloc((size_t)(k * k) * sizeof *b);

    for (int it = 0; it < 5; it++) {
        double *t = turned(x, k, cols);
        times(a, x, t, k, cols, k);
        rounded(type, a, k * k);
        if (aol && it == 0)
            aol_by_hand(type, x, a, k, cols);
        times(b, a, a, k, k, k);
        for (int64_t i = 0; i < k * k; i++)
            b[i] = coef[it][1] * a[i] + coef[it][2] * b[i];
        rounded(type, b, k * k);
        times(y, b, x, k, k, cols);
        if (twice)
            rounded(type, y, k * cols);
        for (int64_t i = 0; i < k * cols; i++)
            x[i] = coef[it][0] * x[i] + y[i];
        rounded(type, x, k * cols);
        free(t);
    }
    free(y), free(a), free(b);
}

/* Small matrices of the Gram form: of x in bf16 they are f16, the matrix times `scale`. */
static void small_rounded(enum dtype type, double scale, double *x, int64_t n)
{
    for (int64_t i = 0; i < n && type == DT_BF16; i++)
        x[i] = f16_to_f32(f16_from_f32((float)(scale * x[i]))) / scale;
}

/* The Gram form of the same, anew after rows 2 and 3: R = x x^T, Q = I; W = a I + b R + c R R, Q <-
 * Q W, R <- W (R W); at last x <- Q x. Rounded where the contract rounds. */
static void gram_by_hand(enum dtype type, double *x, int64_t k, int64_t cols)
{
    double *r = malloc((size_t)(k * k) * sizeof *r), *w = malloc((size_t)(k * k) * sizeof *w);
    double *q = malloc((size_t)(k * k) * sizeof *q), *p = malloc((size_t)(k * k) * sizeof *p);
    double *y = malloc((size_t)(k * cols) * sizeof *y);

    for (int it = 0; it < 5; it++) {
        bool first = it == 0 || it == 2 || it == 3, last = it == 1 || it == 2 || it == 4;
        if (first) {
            double *t = turned(x, k, cols);
            times(r, x, t, k, cols, k);
            small_rounded(type, 1024, r, k * k);
            free(t);
        }
        times(w, r, r, k, k, k);
        for (int64_t i = 0; i < k * k; i++)
            w[i] = (i % (k + 1) ? 0 : coef[it][0]) + coef[it][1] * r[i] + coef[it][2] * w[i];
        small_rounded(type, 1, w, k * k);
        if (first) {
            memcpy(q, w, (size_t)(k * k) * sizeof *q);
        } else {
            times(p, q, w, k, k, k);
            small_rounded(type, 1, p, k * k);
            memcpy(q, p, (size_t)(k * k) * sizeof *q);
        }
        times(p, r, w, k, k, k);
        small_rounded(type, 1024, p, k * k);
        times(r, w, p, k, k, k);
        small_rounded(type, 1024, r, k * k);
        if (last) {
            rounded(type, q, k * k);
            times(y, q, x, k, k, cols);
            memcpy(x, y, (size_t)(k * cols) * sizeof *x);
            rounded(type, x, k * cols);
        }
    }
    free(r), free(w), free(q), free(p), free(y);
}

/* f32: some 10^2 roundings of 2^-24, magnified at most by the slope at zero, 989. bf16: both
 * sides round at the same places, but a sum in f32 may fall to the other side of a tie: one
 * rounding in some 10^4 differs by 2^-8, and what follows magnifies it, to 2e-2 in the worst of
 * many draws. A matrix of rank one has its singular value at 1/1.02, where the composed slope
 * is steepest: a single such tie shows whole there. */
static double polar_tolerance(enum dtype t, bool rank_one)
{
    return t == DT_F32 ? 1e-4 : rank_one ? 0.5 : 5e-2;
}

/* The middle one of three comes out as zero: it is, or with AOL, which takes input of any size, one
 * number of it is not finite. */
static void test_polar(enum dtype t, int64_t rows, int64_t cols, unsigned how)
{
    enum { N = 3 };
    bool aol = how & POLAR_AOL;
    int64_t count = rows * cols;
    struct tensor x = drawn(t, N * rows, cols, 1);
    double norm[N] = { 0 };
    long bad = 0;

    for (int64_t i = 0; i < N * count; i++)
        norm[i / count] += get(x, i) * get(x, i);
    for (int64_t i = 0; i < N * count; i++)
        set(x, i,
            aol              ? 40 * get(x, i)
            : i / count == 1 ? 0
                             : get(x, i) / (1.02 * sqrt(norm[i / count])));
    if (aol)
        set(x, count + count / 2, rows % 2 ? INFINITY : NAN);
    double *before = as_double(x);
    o->polar(o, x, N, coef, 5, how);
    for (int m = 0; m < N; m += 2) {
        bool tall = rows > cols;
        double *wide = tall ? turned(before + m * count, rows, cols) : before + m * count;
        if (how & POLAR_GRAM)
            gram_by_hand(t, wide, tall ? cols : rows, tall ? rows : cols);
        else
            polar_by_hand(t, wide, tall ? cols : rows, tall ? rows : cols, rows > 1024, aol);
        double *want = tall ? turned(wide, cols, rows) : wide;
        double apart = distance(tensor_rows(x, m * rows, rows), want);
        CHECK_NEAR(apart, 0, polar_tolerance(t, rows == 1 || cols == 1));
        if (tall)
            free(wide), free(want);
    }
    for (int64_t i = count; i < 2 * count; i++)
        bad += !(get(x, i) == 0);
    CHECK_EQ(bad, 0);
    free(before);
}

/* Momenta of a run's first steps have one singular value of 0.95 of their norm, then 0.2, 0.04 and
 * a tail: R then has negative eigenvalues by rounding, which the next rows magnify: to 1e6 in one
 * such matrix of twenty when small matrices are bf16. The rows make 1.14 at most
 * of any singular value; 1.5 leaves room for rounding, not for that. */
static void test_gram_dominated(unsigned how)
{
    enum { K = 64, N = 60 };
    struct tensor x = drawn(DT_BF16, N * K, K, 1);
    double worst = 0;

    for (int m = 0; m < N; m++) {
        struct tensor u = drawn(DT_F32, 3, K, 0.125), v = drawn(DT_F32, 3, K, 0.125);
        double norm = 0;
        for (int64_t i = 0; i < K * K; i++) {
            double sum = 3e-5 * get(x, m * K * K + i);
            for (int j = 0; j < 3; j++)
                sum += (j == 0   ? 0.96
                        : j == 1 ? 0.21
                                 : 0.04) *
                       get(u, j * K + i / K) * get(v, j * K + i % K);
            set(x, m * K * K + i, sum);
            norm += sum * sum;
        }
        for (int64_t i = 0; i < K * K; i++)
            set(x, m * K * K + i, get(x, m * K * K + i) / (1.02 * sqrt(norm)));
    }
    o->polar(o, x, N, coef, 5, how);
    for (int m = 0; m < N; m++) {
        struct tensor start = drawn(DT_F32, 1, K, 1);
        double y[K], z[K], length = 0; /* the largest singular value, by powers */
        for (int i = 0; i < K; i++)
            y[i] = get(start, i);
        for (int turn = 0; turn < 30; turn++) {
            double before = sqrt(length);
            memset(z, 0, sizeof z);
            for (int64_t i = 0; i < K * K; i++)
                z[i / K] += get(x, m * K * K + i) * y[i % K] / (before > 0 ? before : 1);
            memset(y, 0, sizeof y);
            for (int64_t i = 0; i < K * K; i++)
                y[i % K] += get(x, m * K * K + i) * z[i / K];
            length = 0;
            for (int i = 0; i < K; i++)
                length += y[i] * y[i];
        }
        worst = !(sqrt(sqrt(length)) <= worst) ? sqrt(sqrt(length)) : worst;
    }
    printf("dominated matrices, form %u: largest singular value %.3g\n", how, worst);
    CHECK(worst <= 1.5);
}

/* -- NorMuon ----------------------------------------------------------------------------------- */

static double master(struct tensor w, struct tensor mant, int64_t i)
{
    if (w.dtype == DT_F32)
        return get(w, i);
    return f32_from_bits((uint32_t)((uint16_t *)w.data)[i] << 16 | ((uint16_t *)mant.data)[i]);
}

/* bare: without row variance, and a plain decay. */
static void test_normuon(enum dtype tw, enum dtype tx, int64_t rows, int64_t cols, bool bare)
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
            want[i] = p - (bare || u * p >= 0 ? p * m.decay * lr : 0) - u * lr;
        }
    }
    o->normuon(o, w, mant, bare ? NO_TENSOR : q, x, N, mul, &blend, bare, &m, NULL);
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
        o->normuon(o, w, mant, q, x, 1, &one, &blend, false, &m, NULL);
        CHECK(master(w, mant, 0) == 1 - step * 0x1p-20);
        CHECK(master(w, mant, 1) == -step * 0x1p-20);
    }
    /* The high half is cut, not rounded. */
    CHECK(get(w, 0) == 1 - 0x1p-8);
}

/* -- rows that ranks sent ------------------------------------------------------------------- */

/* Ranks 0, 3, 6 ... send nothing; others a third of the rows. Each sum has at most `world` terms of
 * about 1: that many roundings of f32, and one to dtype. */
static void test_merge_rows(enum dtype dtype, int world, int rank, int64_t n, int64_t cols)
{
    int32_t *start = calloc((size_t)world + 1, sizeof *start);
    int32_t *index = calloc((size_t)(world * n), sizeof *index);
    struct row_merge m = {
        .rank = rank, .world = world, .first = rank * n, .index = index, .start = start
    };
    struct tensor g = drawn(dtype, n, cols, 1), rows;
    double *want = as_double(g), *size = as_double(g), tol = dtype == DT_BF16 ? 0x1p-8 : 0x1p-23;
    int bad = 0;

    for (int r = 0; r < world; r++) {
        start[r + 1] = start[r];
        for (int64_t i = 0; i < n && r % 3 && r != rank; i++)
            if (rng_below(&rng, draws++, 3) == 0)
                index[start[r + 1]++] = (int32_t)(m.first + i);
    }
    rows = drawn(dtype, start[world] ? start[world] : 1, cols, 1);
    for (int64_t k = 0; k < start[world] * cols; k++) {
        int64_t at = (index[k / cols] - m.first) * cols + k % cols;
        want[at] += get(rows, k);
        size[at] = fabs(size[at]) + fabs(get(rows, k));
    }
    o->merge_rows(o, g, rows, &m);
    for (int64_t i = 0; i < n * cols; i++)
        bad += !(fabs(get(g, i) - want[i] / world) <=
                 tol * fabs(want[i]) / world + world * 0x1p-24 * fabs(size[i]) / world);
    CHECK_EQ(bad, 0);
    free(start), free(index), free(want), free(size);
}

/* Rows of a table in its own dtype: the same bits. */
static void test_gather(enum dtype dtype, int64_t rows, int64_t cols)
{
    struct tensor table = drawn(dtype, rows, cols, 1), out = blank(dtype, 2 * rows, cols);
    int32_t *row = calloc((size_t)(2 * rows), sizeof *row);
    struct lookup l = { .tokens = (int)(2 * rows), .row = row };
    int bad = 0;

    for (int64_t i = 0; i < 2 * rows; i++)
        row[i] = (int32_t)rng_below(&rng, draws++, (uint64_t)rows);
    o->gather(o, out, table, &l);
    for (int64_t i = 0; i < 2 * rows; i++)
        bad += memcmp(tensor_rows(out, i, 1).data, tensor_rows(table, row[i], 1).data,
                      tensor_bytes(tensor_rows(table, 0, 1))) != 0;
    CHECK_EQ(bad, 0);
    free(row);
}

/* The sum in double, whose result is rounded once. limit is of the norm times unscale. */
static void test_gate(enum dtype t, int64_t rows, int64_t cols, double limit)
{
    struct tensor g[3] = { drawn(t, rows, cols, 1), drawn(DT_F32, 0, cols, 1),
                           drawn(DT_F32, 7, 3, 0.1) };
    struct step_gate gate = { NAN, 0, 7, NAN };
    double want = 0;
    real sum = NAN;

    for (int k = 0; k < 3; k++)
        for (int64_t i = 0; i < tensor_count(g[k]); i++)
            want += get(g[k], i) * get(g[k], i);
    o->squares(o, &sum, g, 3);
    CHECK(fabs(sum - want) <= 0x1p-21 * want); /* f32 sums of 512 in real_dot */
    double norm = sqrt(4 * want) * 0.5, factor = 0.5 * (limit > 0 ? fmin(1, limit / norm) : 1);
    o->step_gate(o, &gate, &sum, 4, (real)limit, 0.5f);
    CHECK(!gate.skip && !gate.late && fabs(gate.norm - norm) <= 0x1p-20 * norm);
    CHECK(fabs(gate.factor - factor) <= 0x1p-20 * factor);
    for (int k = 0; k < 3; k++) { /* and a step whose last one is not finite */
        set(g[2], 20, k == 0 ? NAN : k == 1 ? INFINITY : 1e30);
        o->squares(o, &sum, g, 3);
        o->step_gate(o, &gate, &sum, 4, (real)limit, 0.5f);
        CHECK(gate.skip == 1 && gate.late == (k > 0));
    }
}

/* A window over numbers, newest first: its greatest, and NaN while one is in it. */
static void test_amax_history(int64_t n, int64_t ranks)
{
    struct tensor history = drawn(DT_F32, n, 2, 1), each = drawn(DT_F32, ranks, 2, 1);
    double past[2][20] = { { 0 } };
    real top[2];

    memset(history.data, 0, tensor_bytes(history));
    for (int step = 0; step < 20; step++) {
        for (int64_t i = 0; i < 2 * ranks; i++) {
            set(each, i, step == 7 && i == 1 ? NAN : rng_uniform(&rng, draws++));
            past[i % 2][step] = i < 2 || !(get(each, i) <= past[i % 2][step])
                                    ? isnan(past[i % 2][step]) && i >= 2 ? NAN : get(each, i)
                                    : past[i % 2][step];
        }
        o->amax_history(o, top, history, each, NULL);
        for (int k = 0; k < 2; k++) {
            double want = 0;
            for (int s = step; s >= 0 && s > step - n; s--)
                want = isnan(past[k][s]) || past[k][s] > want ? past[k][s] : want;
            CHECK(isnan(want) ? isnan(top[k]) : top[k] == (real)want);
            want = past[k][step];
            CHECK(isnan(want) ? isnan(get(history, k)) : get(history, k) == want);
        }
    }
}

int main(int argc, char **argv) /* optim_ops_test [SEED] */
{
    static const int64_t shape[][2] = { { 1, 1 },   { 1, 13 },  { 17, 1 }, { 31, 31 },
                                        { 24, 96 }, { 96, 24 }, { 61, 67 } };
    static const enum dtype types[] = { DT_F32, DT_BF16 };
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t seed = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
    rng = rng_make(argc > 1 ? strtoull(argv[1], NULL, 10) : seed, 0);
    printf("seed %llu\n", (unsigned long long)rng.seed);
    if (!CHECK_OK(ops_cpu_new(&o)))
        return check_done();
    test_amax_history(1, 1);
    test_amax_history(3, 4);
    test_amax_history(30, 2);
    test_gram_dominated(0);
    test_gram_dominated(POLAR_GRAM | POLAR_RESTART << 2 | POLAR_RESTART << 3);
    test_gram_dominated(POLAR_GRAM | POLAR_RESTART << 2);
    for (size_t s = 0; s < sizeof shape / sizeof *shape; s++)
        for (int t = 0; t < 2; t++) {
            int64_t rows = shape[s][0], cols = shape[s][1];
            test_transpose_bits(rows, cols);
            test_transpose(types[t], rows, cols, 1);
            test_transpose(types[t], rows, cols, -0.3f);
            for (int k = 0; k < 2; k++) {
                test_muon_input(types[t], types[k], rows, cols, false);
                test_muon_input(types[t], types[k], rows, cols, true);
                test_normuon(types[t], types[k], rows, cols, false);
                test_normuon(types[t], types[k], rows, cols, true);
            }
            test_polar(types[t], rows, cols, false);
            test_polar(types[t], rows, cols, true);
            test_polar(types[t], rows, cols, POLAR_GRAM | POLAR_RESTART << 2 | POLAR_RESTART << 3);
            test_gate(types[t], rows, cols, 0);
            test_gate(types[t], rows, cols, 3);
            test_gather(types[t], rows, cols);
            test_merge_rows(types[t], 1, 0, rows, cols);
            test_merge_rows(types[t], 3, 2, rows, cols);
            test_merge_rows(types[t], 40, 35, rows, cols);
        }
    test_polar(DT_BF16, 1031, 8, false); /* above 1024 rows a product rounds twice */
    test_low_halves();
    for (int64_t n = 1; n <= 1031; n = n < 511 ? n * 8 - 1 : n + 260)
        for (int t = 0; t < 4; t++)
            test_adam(types[t & 1], types[t >> 1], n, t & 1 ? 0.9 : 0.5, t & 1 ? 0.99 : 0.95);
    CHECK_OK(o->status(o));
    o->free(o);
    return check_done();
}
