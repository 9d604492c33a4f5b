/* coeffs_test.c - the greedy minimax tables, the published sets, and the files they come in. */
#include <stdlib.h>
#include <unistd.h>
#include "base/rng.h"
#include "check.h"
#include "coeffs/minimax.h"
#include "coeffs/sets.h"
#include "coeffs/svals.h"

/* -- 113 bits --------------------------------------------------------------------------- */

static void test_quad(void)
{
    char text[64];
    struct rng r = rng_make(1, 0);
    CHECK_STR(quad_text(text, sizeof text, (quad)1 / 3, 20), "0.33333333333333333333");
    CHECK_STR(quad_text(text, sizeof text, (quad)-2 / 3, 5), "-0.66667");
    CHECK_STR(quad_text(text, sizeof text, 999999, 3), "1.00e+06");
    CHECK_STR(quad_text(text, sizeof text, 99.95, 3), "100"); /* the double is above */
    CHECK_STR(quad_text(text, sizeof text, 0.0001, 2), "0.00010");
    CHECK_STR(quad_text(text, sizeof text, 1e-7, 2), "1.0e-07");
    CHECK_STR(quad_text(text, sizeof text, 1e-5, 2), "0.000010");
    CHECK_STR(quad_text(text, sizeof text, 1e-7, 17), "9.9999999999999995e-08"); /* the double */
    CHECK_STR(quad_text(text, sizeof text, 0, 9), "0");
    /* 30 digits of the square root of two, from tables. */
    CHECK_STR(quad_text(text, sizeof text, quad_sqrt(2), 30), "1.41421356237309504880168872421");
    int bad = 0;
    for (int i = 0; i < 20000; i++) { /* 17 digits give the double again */
        double x =
            ldexp(rng_normal(&r, (uint64_t)i) + 1e-9, (int)rng_below(&r, (uint64_t)i, 120) - 60);
        bad += strtod(quad_text(text, sizeof text, x, 17), NULL) != x;
    }
    CHECK_EQ(bad, 0);
}

/* -- one polynomial --------------------------------------------------------------------- */

/* p oscillates between 1 - E and 1 + E at its points, and nowhere goes further. */
static void check_equioscillation(const struct minimax *m, quad lower, quad upper)
{
    quad worst = 0;
    for (int i = 0; i <= m->terms; i++) {
        quad off = 1 - odd_value(m->coef, m->terms, m->point[i]);
        quad want = i % 2 ? -m->error : m->error;
        CHECK((double)quad_abs(off - want) <= 1e-28); /* some hundred roundings of 2^-113 */
        CHECK(i == 0 || m->point[i] > m->point[i - 1]);
    }
    CHECK(m->point[0] == lower && m->point[m->terms] == upper);
    for (int i = 0; i <= 400; i++) {
        quad x = lower + (upper - lower) * i / 400;
        quad e = quad_abs(1 - odd_value(m->coef, m->terms, x));
        worst = e > worst ? e : worst;
    }
    CHECK((double)worst <= (double)m->error * (1 + 1e-12) + 1e-28);
}

/* The other way to the same polynomial, Remez' exchange with its linear system, as the paper's
 * program does it but in quad: for intervals that are not close, all agree. */
static void remez(quad l, quad u, quad coef[3])
{
    quad q = (3 * l + u) / 4, r = (l + 3 * u) / 4;
    for (int round = 0; round < 30; round++) {
        quad x[4] = { l, q, r, u }, a[4][5];
        for (int i = 0; i < 4; i++) {
            a[i][0] = x[i];
            a[i][1] = x[i] * x[i] * x[i];
            a[i][2] = a[i][1] * x[i] * x[i];
            a[i][3] = i % 2 ? -1 : 1;
            a[i][4] = 1;
        }
        for (int c = 0; c < 4; c++) {
            int best = c;
            for (int i = c; i < 4; i++)
                best = quad_abs(a[i][c]) > quad_abs(a[best][c]) ? i : best;
            for (int j = 0; j < 5; j++) {
                quad s = a[c][j];
                a[c][j] = a[best][j];
                a[best][j] = s;
            }
            for (int i = 0; i < 4; i++)
                if (i != c)
                    for (int j = 4; j >= c; j--)
                        a[i][j] -= a[i][c] / a[c][c] * a[c][j];
        }
        for (int i = 0; i < 3; i++)
            coef[i] = a[i][4] / a[i][i];
        quad root = quad_sqrt(9 * coef[1] * coef[1] - 20 * coef[0] * coef[2]);
        q = quad_sqrt((-3 * coef[1] - root) / (10 * coef[2]));
        r = quad_sqrt((-3 * coef[1] + root) / (10 * coef[2]));
    }
}

static void test_minimax(void)
{
    struct rng r = rng_make(2, 0);
    struct minimax m;
    for (int i = 0; i < 150; i++) { /* from wide open to nearly closed */
        double upper = exp(rng_normal(&r, 3 * (uint64_t)i));
        double u = rng_uniform(&r, 3 * (uint64_t)i + 1);
        double lower = i % 2 ? upper * pow(10, -12 * u) : upper * (1 - pow(10, -13 * u));
        int degree = 3 + 2 * (i % 3);
        if (!(lower < upper) || !(lower > 0) || !CHECK_OK(minimax_odd(&m, degree, lower, upper)))
            continue;
        check_equioscillation(&m, lower, upper);
    }
    static const double ends[][2] = { { 1e-3, 1 }, { 0.02, 1 }, { 0.4, 1.6 }, { 0.9, 1.1 } };
    for (int i = 0; i < 4; i++) {
        quad c[3];
        remez(ends[i][0], ends[i][1], c);
        CHECK_OK(minimax_odd(&m, 5, ends[i][0], ends[i][1]));
        for (int k = 0; k < 3; k++) /* the system's condition costs a few digits */
            CHECK((double)quad_abs(m.coef[k] / c[k] - 1) < 1e-24);
        /* The cubic has a closed form (arXiv 2505.16932, appendix). */
        quad l = ends[i][0], u = ends[i][1], alpha = quad_sqrt(3 / (u * u + l * u + l * l));
        quad beta = 4 / (2 + l * u * (l + u) * alpha * alpha * alpha);
        CHECK_OK(minimax_odd(&m, 3, ends[i][0], ends[i][1]));
        CHECK((double)quad_abs(m.coef[0] / (3 * alpha * beta / 2) - 1) < 1e-29);
        CHECK((double)quad_abs(m.coef[1] / (-alpha * alpha * alpha * beta / 2) - 1) < 1e-29);
    }
    /* As the interval closes: p(1) = 1 and two derivatives zero there, errors of its square. */
    CHECK_OK(minimax_odd(&m, 5, 1 - (quad)1e-12, 1 + (quad)1e-12));
    CHECK((double)quad_abs(m.coef[0] - (quad)15 / 8) < 1e-22);
    CHECK((double)quad_abs(m.coef[1] + (quad)10 / 8) < 1e-22);
    CHECK((double)quad_abs(m.coef[2] - (quad)3 / 8) < 1e-22);
    /* 1 - p is then 5/2 (x-1)^3, whose best on [-d, d] is d^3 / 4 of Chebyshev's. */
    CHECK_NEAR((double)m.error / (2.5 * 1e-36 / 4), 1, 1e-9);

    CHECK_ERR(minimax_odd(&m, 4, 0.1, 1), GPT_INPUT, "degree 4");
    CHECK_ERR(minimax_odd(&m, 5, 1, 1), GPT_INPUT, "0 < lower < upper");
    CHECK_ERR(minimax_odd(&m, 5, 0, 1), GPT_INPUT, "0 < lower < upper");
    CHECK_ERR(minimax_odd(&m, 5, -1, 1), GPT_INPUT, "0 < lower < upper");
    CHECK_ERR(minimax_odd(&m, 5, NAN, 1), GPT_INPUT, "0 < lower < upper");
}

/* -- tables ------------------------------------------------------------------------------- */

/* Every row of a table equioscillates, on the image of the rows before it or what the cushion
 * leaves of that. */
static struct greedy derived(struct greedy_options o)
{
    static struct greedy g;
    quad l = o.lower, u = o.upper;
    CHECK_OK(greedy_derive(&g, &o));
    for (int t = 0; t < g.n; t++) {
        quad from = (quad)o.cushion * u > l ? (quad)o.cushion * u : l;
        if ((double)(u - from) > 1e-27) /* else row 8 of the paper: closed */
            check_equioscillation(&g.row[t].minimax, from, u);
        l = g.row[t].lower;
        u = 2 - l;
    }
    return g;
}

/* Largest relative difference of a row from published numbers. */
static double apart(const struct greedy *g, const double *row, int t)
{
    double worst = 0;
    for (int i = 0; i < 3; i++)
        worst = fmax(worst, (double)quad_abs(g->row[t].coef[i] / (quad)row[i] - 1));
    return worst;
}

static void test_record(void)
{
    static const double lower[5] = { 0.00815653204163, 0.0329747633283, 0.128227438111,
                                     0.416347027877, 0.858872643527 };
    struct greedy g = derived((struct greedy_options)GREEDY_DEFAULT);
    const struct coeffs_set *s = coeffs_set_find("record-61");
    struct coeffs c;
    for (int t = 0; t < 5; t++) {
        CHECK_NEAR(apart(&g, s->row[t], t), 0, 1e-14); /* theirs is double arithmetic */
        CHECK_NEAR((double)g.row[t].lower / lower[t], 1, 2e-12); /* given to 12 digits */
        CHECK_EQ(g.row[t].digits, 17);
    }
    greedy_coeffs(&g, &c);
    double slope = 1;
    for (int t = 0; t < 5; t++)
        slope *= c.row[t][0];
    CHECK_NEAR(slope, 989.47, 0.005); /* orthogonalisation.md 4.2 */
    CHECK_NEAR(coeffs_value(&c, 1), 0.859129, 5e-7);
    CHECK_NEAR(coeffs_value(&c, 1.02), 1.13664, 5e-6);
    CHECK_NEAR(coeffs_value(&c, 1.022), 3.6e6, 5e4);
}

static void test_paper(void)
{
    struct greedy_options o = GREEDY_DEFAULT;
    o.iters = 8;
    o.safety = 0;
    o.cushion = 0.02407327424182761;
    struct greedy g = derived(o);
    const struct coeffs_set *s = coeffs_set_find("paper");
    for (int t = 0; t < 6; t++)
        CHECK_NEAR(apart(&g, s->row[t], t), 0, 1e-14);
    CHECK_NEAR(apart(&g, s->row[7], 7), 0, 1e-12);
    /* Row 7 as published has ten right digits. Remez' way in quad decides for ours. */
    double published = apart(&g, s->row[6], 6);
    CHECK(published > 1e-12 && published < 1e-10);
    quad c[3];
    remez(g.row[5].lower, g.row[5].upper, c);
    for (int k = 0; k < 3; k++)
        CHECK((double)quad_abs(g.row[6].coef[k] / c[k] - 1) < 1e-18);
}

/* Random parameters: no NaN; l rises once it rises; one more row never makes the error larger. */
static void test_properties(void)
{
    struct rng r = rng_make(3, 0);
    for (int i = 0; i < 40; i++) {
        struct greedy_options o = GREEDY_DEFAULT;
        double last = INFINITY;
        o.degree = 3 + 2 * (i % 3);
        o.lower = pow(10, -0.3 - 6 * rng_uniform(&r, 4 * (uint64_t)i));
        o.upper = i % 4 ? 1 : 1 + rng_uniform(&r, 4 * (uint64_t)i + 1);
        o.safety = i % 5 ? 0.05 * rng_uniform(&r, 4 * (uint64_t)i + 2) : 0;
        o.cushion = i % 6 ? 0.1 * rng_uniform(&r, 4 * (uint64_t)i + 3) : 0;
        for (o.iters = 1; o.iters <= 12; o.iters += 1 + o.iters / 4) {
            static struct greedy g;
            if (!CHECK_OK(greedy_derive(&g, &o)))
                break;
            quad l = o.lower;
            for (int t = 0; t < g.n; t++) {
                for (int k = 0; k < g.terms; k++)
                    CHECK(isfinite((double)g.row[t].coef[k]));
                /* The safety may hold l below 1 for good; there it rests, to rounding. */
                CHECK(g.row[t].lower >= l - (quad)1e-30);
                l = g.row[t].lower;
            }
            struct coeffs c;
            const struct greedy_row *end = &g.row[g.n - 1];
            long outside = 0;
            greedy_coeffs(&g, &c);
            /* The image is what it says; but doubles at the upper end, where without safety f is
             * steep as 1e8, miss it by that times 1e-16. */
            for (int k = 0; k <= 500; k++) {
                double f = coeffs_value(&c, o.lower + (o.upper - o.lower) * pow(k / 500.0, 3));
                outside += !(f >= (double)end->lower - 1e-6 && f <= (double)end->upper + 1e-6);
            }
            CHECK_EQ(outside, 0);
            double error = (double)(1 - g.row[g.n - 1].lower);
            CHECK(error <= last + 1e-30 && error < 1);
            last = error;
        }
    }
}

static void test_options(void)
{
    struct greedy g;
    struct greedy_options d = GREEDY_DEFAULT, o = d;
    o.iters = 0;
    CHECK_ERR(greedy_derive(&g, &o), GPT_USAGE, "iters");
    o = d;
    o.lower = 0;
    CHECK_ERR(greedy_derive(&g, &o), GPT_USAGE, "lower");
    o.lower = NAN;
    CHECK_ERR(greedy_derive(&g, &o), GPT_USAGE, "lower");
    o.lower = 2;
    CHECK_ERR(greedy_derive(&g, &o), GPT_USAGE, "upper");
    o = d;
    o.degree = 6;
    CHECK_ERR(greedy_derive(&g, &o), GPT_USAGE, "degree");
    o = d;
    o.cushion = 1;
    CHECK_ERR(greedy_derive(&g, &o), GPT_USAGE, "cushion");
    o = d;
    o.safety = -0.1;
    CHECK_ERR(greedy_derive(&g, &o), GPT_USAGE, "safety");

    /* A last row on which the cushion acts is recentred, p(l) + p(u) = 2, or left alone. */
    o = d;
    o.iters = 2;
    CHECK_OK(greedy_derive(&g, &o));
    quad u = g.row[0].upper, l = g.row[0].lower;
    CHECK(g.row[1].cushioned);
    CHECK((double)quad_abs(odd_value(g.row[1].coef, 3, l) + odd_value(g.row[1].coef, 3, u) - 2) <
          1e-30);
    o.no_rescale_last = true;
    CHECK_OK(greedy_derive(&g, &o));
    for (int i = 0; i < 3; i++)
        CHECK(g.row[1].coef[i] == g.row[1].minimax.coef[i]);
}

/* -- files ---------------------------------------------------------------------------------- */

static const char *written(const char *text)
{
    static char path[64];
    snprintf(path, sizeof path, "/tmp/polar_test.%ld", (long)getpid());
    FILE *f = fopen(path, "w");
    if (!f || fputs(text, f) < 0 || fclose(f))
        CHECK(!"a temporary file could not be written");
    return path;
}

static void test_tables(void)
{
    double row[4][3];
    int n;
    bool aol;
    struct coeffs c;
    CHECK_OK(coeffs_load(written("# a\n\n 1 2 3 # b\n\t-4.5e-1 5 6\r\n"), row, 4, &n, &aol));
    CHECK_EQ(n, 2);
    CHECK(!aol);
    CHECK_OK(coeffs_load(written("# for\n# input: aol \n1 2 3\n"), row, 4, &n, &aol));
    CHECK(n == 1 && aol);
    CHECK_OK(coeffs_load(written("# input: aolx\n1 2 3 # input: aol\n"), row, 4, &n, &aol));
    CHECK(!aol);
    CHECK_NEAR(row[1][0], -0.45, 0);
    CHECK_ERR(coeffs_load(written("1 2 3\n1 2\n"), row, 4, &n, &aol), GPT_INPUT,
              ":2: expected three");
    CHECK_ERR(coeffs_load(written("1 2 3 4\n"), row, 4, &n, &aol), GPT_INPUT, ":1: expected three");
    CHECK_ERR(coeffs_load(written("1 nan 3\n"), row, 4, &n, &aol), GPT_INPUT,
              ":1: expected a number");
    CHECK_ERR(coeffs_load(written("\n1 2 inf\n"), row, 4, &n, &aol), GPT_INPUT,
              ":2: expected a number");
    CHECK_ERR(coeffs_load(written("1 2 3x\n"), row, 4, &n, &aol), GPT_INPUT, "found '3x'");
    CHECK_ERR(coeffs_load(written("# none\n"), row, 4, &n, &aol), GPT_INPUT, "no row");
    CHECK_ERR(coeffs_load(written("1 2 3\n1 2 3\n"), row, 1, &n, &aol), GPT_INPUT,
              ":2: more than 1 row");
    CHECK_OK(coeffs_read(&c, written("1 2 3\n1 2 3 4\n")));
    CHECK_EQ(c.terms, 4);
    CHECK_NEAR(c.row[0][3], 0, 0);
    CHECK_ERR(coeffs_read(&c, written("1 2 3 4 5\n")), GPT_INPUT, "three or four");
    CHECK_ERR(coeffs_read(&c, "/nonexistent"), GPT_SYSTEM, "/nonexistent");
    for (int i = 0; i < coeffs_set_count(); i++) { /* written and read: the same doubles */
        struct coeffs again = { .n = 0 };
        const char *path = written("");
        FILE *f = fopen(path, "w");
        CHECK_OK(coeffs_set_get(&c, coeffs_set_at(i)->name));
        if (f) {
            coeffs_write(&c, f);
            fclose(f);
        }
        CHECK_OK(coeffs_read(&again, path));
        CHECK(again.n == c.n && again.input == c.input && c.input == coeffs_set_at(i)->input);
        CHECK(!memcmp(again.row, c.row, (size_t)c.n * sizeof c.row[0]));
    }
    CHECK_ERR(coeffs_set_get(&c, "none"), GPT_USAGE, "no set 'none'");
}

/* Reads, writes and drops rows of tables that say what input they are made for. */
static void test_input(void)
{
    double row[4][3];
    struct coeffs c;
    bool aol;
    int n;
    CHECK_OK(coeffs_read(&c, written("# input: spectral \r\n1 2 3\n")));
    CHECK_EQ(c.input, INPUT_SPECTRAL);
    CHECK_OK(coeffs_read(&c, written("# input: aolx\n# input: \n1 2 3\n")));
    CHECK_EQ(c.input, INPUT_NORM);
    CHECK_ERR(coeffs_load(written("# input: spectral\n1 2 3\n"), row, 4, &n, &aol), GPT_INPUT,
              "no optimizer scales so");
    CHECK_EQ(coeffs_input_parse("aol"), INPUT_AOL);
    CHECK_EQ(coeffs_input_parse("none"), COEFFS_INPUTS);
    CHECK_OK(coeffs_read(&c, written("1 2 3\n4 5 6\n7 8 9\n")));
    CHECK_OK(coeffs_drop(&c, true));
    CHECK(c.n == 2 && c.row[0][0] == 1 && c.row[1][2] == 6 && c.input == INPUT_NORM);
    CHECK_OK(coeffs_drop(&c, false));
    CHECK(c.n == 1 && c.row[0][0] == 4 && c.input == INPUT_AOL);
    CHECK(strstr(c.name, " without its last without its first") != NULL);
    CHECK_ERR(coeffs_drop(&c, false), GPT_USAGE, "two rows or more");
    CHECK_EQ(c.n, 1);
}

static void test_svals(void)
{
    struct svals_list l;
    CHECK_OK(svals_read(&l, written("# a.b 4x3\n3\n2\n0\n# c is 2x9\n5\n\n7e-1\n0.5\n")));
    CHECK_EQ(l.n, 3);
    CHECK_STR(l.v[0].name, "a.b");
    CHECK(l.v[0].rows == 4 && l.v[0].cols == 3 && l.v[0].n == 2 && l.v[0].zeros == 1);
    CHECK(l.v[1].rows == 2 && l.v[1].cols == 9 && l.v[1].n == 1);
    CHECK(l.v[2].rows == 0 && l.v[2].n == 2 && l.v[2].sigma[0] == 0.7);
    svals_release(&l);
    CHECK_OK(svals_read(&l, written("# a 2x2 is zero\n# b\n1\n")));
    CHECK_EQ(l.n, 1);
    CHECK_STR(l.v[0].name, "b");
    svals_release(&l);
    CHECK_ERR(svals_read(&l, written("")), GPT_INPUT, "found none");
    CHECK_ERR(svals_read(&l, written("# a\n0\n0\n")), GPT_INPUT, "only zeros");
    CHECK_ERR(svals_read(&l, written("1\nnan\n")), GPT_INPUT, ":2: expected one singular value");
    CHECK_ERR(svals_read(&l, written("inf\n")), GPT_INPUT, ":1: expected one singular value");
    CHECK_ERR(svals_read(&l, written("1\n-1\n")), GPT_INPUT, ":2: a singular value is not neg");
    CHECK_ERR(svals_read(&l, written("1\n2\n")), GPT_INPUT, ":2: expected at most 1 (descending");
    CHECK_ERR(svals_read(&l, written("2\n0\n1\n")), GPT_INPUT, ":3: expected at most 0");
    CHECK_ERR(svals_read(&l, written("2 1\n")), GPT_INPUT, ":1: expected one singular value");
    CHECK_ERR(svals_read(&l, written("# 1x3\n2\n1\n")), GPT_INPUT, ":3: a matrix of 1x3 has 1");
    static const char *const none[] = { "4294967297x3",
                                        "4294967295x4",
                                        "3x4294967297",
                                        "0x3",
                                        "3x0",
                                        "3",
                                        "3x",
                                        "x3",
                                        "3x4x",
                                        "-3x4",
                                        "+3x4",
                                        " 3x4",
                                        "3x 4",
                                        "1048577x1",
                                        "99999999999999999999x1",
                                        "" };
    int rows = 5, cols = 6;
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++)
        check_that(!shape_parse(none[i], &rows, &cols) && rows == 5 && cols == 6, __FILE__,
                   __LINE__, "'%s' is a shape of %d x %d", none[i], rows, cols);
    CHECK(shape_parse("1048576x007", &rows, &cols) && rows == 1048576 && cols == 7);
    CHECK_ERR(svals_read(&l, "/nonexistent"), GPT_SYSTEM, "/nonexistent");
    unlink(written(""));
}

int main(void)
{
    test_quad();
    test_minimax();
    test_record();
    test_paper();
    test_properties();
    test_options();
    test_tables();
    test_input();
    test_svals();
    return check_done();
}
