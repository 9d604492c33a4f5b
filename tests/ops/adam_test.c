/* adam_test.c - Adam in every form of its numbers (optimizers.md 3) against the formulas in double.
 *
 * Forms are drawn afresh in each run (the seed is printed): weight, master, moments, update, shape.
 * Tolerances: f32's own error is a few roundings of 2^-24 of each term, 1e-6 of the terms' sizes;
 * on top a stored number is off by half a unit of its type, or a whole one where the rounding is
 * drawn or cut: 2^-(bits of mantissa), or one step of the subnormals times the scale.
 */
#include "adam_call.h"
#include "adam_case.h"
#include "cpu_tensors.h"
#include "op_test.h"

static uint64_t seed;

/* -- one update in double ------------------------------------------------------------------- */

struct one {
    double p, m, v;
};

static double code_scale(const struct adam_case *c, const struct adam_held *h, int64_t i)
{
    return c->code_rows ? adam_get(h->t[H_W_SCALE], i / c->cols) : (double)h->copy.scale_inv;
}

static double value_of(const struct adam_case *c, const struct adam_held *h, int64_t i)
{
    int64_t r = i / c->cols;
    if (c->master == DT_U16) {
        uint16_t hi = ((uint16_t *)h->t[H_W].data)[i], lo = ((uint16_t *)h->t[H_MASTER].data)[i];
        return f32_from_bits(((uint32_t)hi << 16) + (c->truncate ? lo : (uint32_t)(int16_t)lo));
    }
    if (c->master != DT_NONE)
        return adam_get(h->t[H_MASTER], i) *
               (c->master == DT_F16 ? adam_get(h->t[H_MASTER_SCALE], r) : 1);
    return c->w != DT_NONE ? adam_get(h->t[H_W], i)
                           : adam_get(h->t[H_CODES], i) * code_scale(c, h, i);
}

static double moment_of(const struct adam_held *h, int which, int scales, int64_t r, int64_t i)
{
    return adam_get(h->t[which], i) * (h->t[scales].data ? adam_get(h->t[scales], r) : 1);
}

static struct one updated(const struct adam_case *c, const struct adam_held *h, int64_t i,
                          const struct adam_step *a)
{
    struct one x = { value_of(c, h, i), moment_of(h, H_M, H_M_SCALE, i / c->cols, i),
                     moment_of(h, H_V, H_V_SCALE, i / c->cols, i) };
    double g = adam_get(h->t[H_G], i) * (double)c->factor, eps = (double)a->eps;
    if (c->decay == DECAY_L2)
        g += (double)a->decay * x.p;
    x.m = 0.9 * x.m + (1 - 0.9) * g;
    x.v = 0.99 * x.v + (1 - 0.99) * g * g;
    double delta = x.m / (c->eps_inside ? sqrt(x.v + eps) : sqrt(x.v) + eps) * (double)a->step_size;
    if (c->decay == DECAY_ADAMW || (c->decay == DECAY_CAUTIOUS && delta * x.p > 0))
        delta += (double)a->decay * x.p;
    x.p -= delta;
    return x;
}

/* -- what may be off ---------------------------------------------------------------------------- */

/* A whole unit of the type at x, stored in steps of scale. */
static double unit(enum dtype t, double x, double scale)
{
    int bits = t == DT_E4M3 ? 3 : t == DT_F16 ? 10 : t == DT_BF16 ? 7 : 23;
    int emin = t == DT_E4M3 ? -6 : t == DT_F16 ? -14 : -126, e;
    frexp(x / scale, &e);
    return scale * ldexp(1, (e - 1 < emin ? emin : e - 1) - bits);
}

/* The least number above 0. */
static double least(enum dtype t) { return t == DT_E4M3 ? 0x1p-9 : 0x1p-24; }

static bool near(double got, double want, double within)
{
    return fabs(got - want) <= within; /* false with a NaN */
}

static bool moment_near(const struct adam_case *c, const struct adam_held *h, int which, int scales,
                        int64_t i, double want, double terms)
{
    struct tensor s = h->t[scales];
    double scale = s.data ? adam_get(s, i / c->cols) : 1;
    double got = moment_of(h, which, scales, i / c->cols, i), error = 1e-6 * terms;
    double u = unit(h->t[which].dtype, fabs(want) + error, scale); /* f32 may pass a power of two */
    bool drawn = c->rounding == ROUND_STOCHASTIC && h->t[which].dtype != DT_F32;
    if (which == H_V && s.data && want > 0 && want < least(h->t[which].dtype) * scale)
        return got == least(h->t[which].dtype) * scale; /* v > 0 does not become 0 */
    return near(got, want, (drawn ? 1 : 0.5) * 1.0001 * u + error);
}

/* Is it the least power of two with which numbers up to top, as they are stored, do not overflow? */
static bool scale_fits(double s, double top, double most)
{
    int e;
    return frexp(s, &e) == 0.5 && top <= most && (s == 0x1p-126 || top >= most / 2 * 0.99);
}

/* A scale is of its row, or of all rows. */
static bool scales_fit(const struct adam_case *c, const struct adam_held *h, int which, int scales,
                       bool whole)
{
    double most = h->t[which].dtype == DT_E4M3 ? 448 : 65504, top = 0;
    bool ok = true;
    for (int64_t r = 0; h->t[scales].data && r < c->rows; r++) {
        double s = adam_get(h->t[scales], r);
        for (int64_t i = 0; i < c->cols; i++)
            top = fmax(top, fabs(adam_get(h->t[which], r * c->cols + i)));
        ok &= !whole || s == adam_get(h->t[scales], 0);
        ok &= (whole && r < c->rows - 1) || scale_fits(s, top, most);
        top = whole ? top : 0;
    }
    return ok;
}

/* The scale of codes that follow the updates before: the least power of two for their largest number. */
static bool delayed_fits(const struct adam_case *c, const struct adam_held *h)
{
    double top = adam_get(h->t[H_TOP], 2), want = 1;
    bool ok = true;
    if (top > 0)
        want = exp2(ceil(log2(top / 448)));
    for (int64_t r = 0; r < c->rows; r++)
        ok &= adam_get(h->t[H_W_SCALE], r) == want;
    return ok;
}

/* adam_largest's, of numbers that are in f32. */
static bool tops_near(const struct one *x, int64_t n, const struct adam_held *h)
{
    double m = 0, v = 0;
    for (int64_t i = 0; i < n; i++)
        m = fmax(m, fabs(x[i].m)), v = fmax(v, x[i].v);
    return near(adam_get(h->t[H_TOP], 0), m, 1e-5 * m) &&
           near(adam_get(h->t[H_TOP], 1), v, 1e-5 * v);
}

static void test_case(const struct adam_case *c)
{
    struct adam_step a = { 0.013f, 0.0007f, 1e-6f, 5 };
    struct step_gate gate = { .factor = c->factor };
    struct adam_held h = adam_held_new(c, &seed);
    struct adam_param p = adam_param_of(c, &h, &a);
    int64_t n = c->rows * c->cols;
    struct one *want = malloc((size_t)n * sizeof *want + 1);
    double *before = malloc((size_t)n * sizeof *before + 1);
    long bad[5] = { 0 };

    for (int64_t i = 0; i < n; i++) {
        before[i] = value_of(c, &h, i);
        want[i] = updated(c, &h, i, &a);
    }
    p.gate = &gate;
    o->adam_largest(o, &p, 1);
    o->adam(o, &p, 1);
    for (int64_t i = 0; i < n; i++) {
        const struct one *x = &want[i];
        double g = fabs(adam_get(h.t[H_G], i)) + fabs(before[i]), got = value_of(c, &h, i);
        double scale = h.t[H_MASTER_SCALE].data ? adam_get(h.t[H_MASTER_SCALE], i / c->cols) : 1;
        enum dtype t = c->master == DT_U16    ? DT_F32
                       : c->master != DT_NONE ? c->master
                       : c->w != DT_NONE      ? c->w
                                              : DT_E4M3;
        if (t == DT_E4M3)
            scale = code_scale(c, &h, i);
        double limit = t == DT_E4M3 ? 448 * scale : INFINITY;
        double held = fmax(-limit, fmin(limit, x->p));
        double below = c->eps_inside ? sqrt(x->v + (double)a.eps) : sqrt(x->v) + (double)a.eps;
        double terms = fabs(before[i]) + (fabs(x->m) + g) / below * (double)a.step_size;
        double within = 1e-5 * terms;
        if (c->decay == DECAY_CAUTIOUS && fabs(x->m) <= 1e-6 * g) /* its sign may be another */
            within += (double)a.decay * fabs(before[i]);
        bad[0] += !near(got, held, 0.5001 * unit(t, held, scale) + within);
        bad[1] += !moment_near(c, &h, H_M, H_M_SCALE, i, x->m, fabs(x->m) + g);
        bad[2] += !moment_near(c, &h, H_V, H_V_SCALE, i, x->v, x->v + g * g);
        if (c->compute) /* the bf16 that is nearest to the weight as stored */
            bad[4] += adam_get(h.t[H_COMPUTE], i) !=
                      bf16_round(c->w == DT_F16 ? (float)adam_get(h.t[H_W], i)
                                                : (float)adam_get(h.t[H_CODES], i) *
                                                      (float)code_scale(c, &h, i));
        if (c->master != DT_NONE && c->w != DT_NONE)
            bad[3] += !near(adam_get(h.t[H_W], i), x->p,
                            (c->truncate ? 1.0001 : 0.5001) * unit(c->w, x->p, 1) + within);
    }
    if (!CHECK(bad[0] + bad[1] + bad[2] + bad[3] + bad[4] == 0) ||
        !CHECK(scales_fit(c, &h, H_M, H_M_SCALE, c->whole) &&
               scales_fit(c, &h, H_V, H_V_SCALE, c->whole)) ||
        !CHECK(scales_fit(c, &h, H_MASTER, H_MASTER_SCALE, false)) ||
        !CHECK(c->whole && c->code_rows
                   ? delayed_fits(c, &h)
                   : c->master != DT_NONE || scales_fit(c, &h, H_CODES, H_W_SCALE, false)) ||
        !CHECK(!c->whole || tops_near(want, n, &h)))
        printf("  %s: %ld %ld %ld %ld %ld of %lld off\n", c->name, bad[0], bad[1], bad[2], bad[3],
               bad[4], (long long)n);
    free(want), free(before);
    adam_held_free(c, &h);
}

/* -- what holds exactly -------------------------------------------------------------------------- */

/* A remainder beside a rounded bf16 weight is an f32 master: equal masters, equal weights. */
static void test_remainder(bool truncate)
{
    struct adam_case c = { .w = DT_BF16,
                           .g = DT_BF16,
                           .m = DT_F32,
                           .v = DT_F32,
                           .rows = 3,
                           .cols = 1003,
                           .factor = 1,
                           .truncate = truncate,
                           .master = DT_U16 };
    struct adam_case d = c;
    struct adam_step a = { 0.013f, 0.0007f, 1e-10f, 1 };
    uint64_t again = seed;
    struct adam_held h = adam_held_new(&c, &seed), f;
    long masters = 0, weights = 0;

    d.master = DT_F32;
    f = adam_held_new(&d, &again); /* the same gradients, moments and weights */
    for (int64_t i = 0; i < c.rows * c.cols; i++)
        adam_set(f.t[H_MASTER], i, value_of(&c, &h, i));
    struct adam_param p = adam_param_of(&c, &h, &a), q = adam_param_of(&d, &f, &a);
    for (int step = 0; step < 200; step++) {
        o->adam(o, &p, 1);
        o->adam(o, &q, 1);
        adam_fill(h.t[H_G], &seed, 0.1, false);
        memcpy(f.t[H_G].data, h.t[H_G].data, tensor_bytes(h.t[H_G]));
    }
    for (int64_t i = 0; i < c.rows * c.cols; i++) {
        masters += value_of(&c, &h, i) != value_of(&d, &f, i);
        weights += adam_get(h.t[H_W], i) != adam_get(f.t[H_W], i);
    }
    CHECK_EQ(masters, 0);
    CHECK(truncate ? weights > 0 : weights == 0);
    adam_held_free(&c, &h);
    adam_held_free(&d, &f);
}

/* A skipped step changes no byte. */
static void test_skip(void)
{
    for (int k = 0; k < 40; k++) {
        struct adam_case c = adam_case_drawn(&seed, false);
        struct adam_step a = { 0.013f, 0.0007f, 1e-10f, 1 };
        struct step_gate gate = { .factor = NAN, .skip = 1 };
        uint64_t from = seed;
        struct adam_held h = adam_held_new(&c, &seed), same = adam_held_new(&c, &from);
        struct adam_param p = adam_param_of(&c, &h, &a);
        p.gate = &gate;
        o->adam_largest(o, &p, 1);
        o->adam(o, &p, 1);
        for (int i = 0; i < H_N; i++)
            CHECK(!h.t[i].data || !memcmp(h.t[i].data, same.t[i].data, tensor_bytes(h.t[i])));
        adam_held_free(&c, &h);
        adam_held_free(&c, &same);
    }
}

/* Drawn roundings: of many, the mean is the number itself, within five standard errors; another
 * part of the same parameter draws the same words. */
static void test_stochastic(enum dtype t)
{
    struct adam_case c = { .w = DT_F32,
                           .g = DT_F32,
                           .m = t,
                           .v = DT_F32,
                           .rows = 1,
                           .cols = 40000,
                           .factor = 1,
                           .rounding = ROUND_STOCHASTIC,
                           .first = 11 };
    struct adam_step a = { 0, 0, 1e-10f, 9 };
    struct adam_held h = adam_held_new(&c, &seed), part = h;
    struct adam_param p = adam_param_of(&c, &h, &a), q;
    double want = (double)(float)(1 - 0.9) * 1.2345f, mean = 0, squares = 0;
    uint8_t *whole;

    for (int64_t i = 0; i < c.cols; i++) {
        adam_set(h.t[H_G], i, i ? 1.2345 : 1.5); /* the largest gives the scale */
        adam_set(h.t[H_M], i, 0);
    }
    o->adam(o, &p, 1);
    double scale = h.t[H_M_SCALE].data ? adam_get(h.t[H_M_SCALE], 0) : 1;
    for (int64_t i = 1; i < c.cols; i++) {
        double x = adam_get(h.t[H_M], i) * scale - want;
        mean += x / (double)(c.cols - 1), squares += x * x / (double)(c.cols - 1);
    }
    CHECK(squares > 0 && fabs(mean) <= 5 * sqrt(squares / (double)c.cols) + 1e-7);

    size_t size = dtype_size(t), cut = 1234;
    whole = malloc((size_t)c.cols * size);
    memcpy(whole, h.t[H_M].data, (size_t)c.cols * size);
    memset(h.t[H_M].data, 0, (size_t)c.cols * size);
    adam_set(h.t[H_G], 0, 1.2345), adam_set(h.t[H_G], (int64_t)cut, 1.5);
    for (int k = 0; k < 5; k++)
        part.t[k] = h.t[k];
    for (int k = 0; k < 5; k++)
        if (part.t[k].data) {
            part.t[k].data = (char *)part.t[k].data + cut * dtype_size(part.t[k].dtype);
            part.t[k].cols -= (int64_t)cut;
        }
    q = adam_param_of(&c, &part, &a);
    q.first += (int64_t)cut;
    o->adam(o, &q, 1);
    CHECK(!memcmp(whole + (cut + 1) * size, (char *)h.t[H_M].data + (cut + 1) * size,
                  ((size_t)c.cols - cut - 1) * size));
    free(whole);
    adam_held_free(&c, &h);
}

/* -- the records' form, to the bit ------------------------------------------------------------ */

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

static void test_record_form(enum dtype tw, enum dtype tm, int64_t n, double beta1, double beta2)
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

static void by_hand(void)
{
    cpu_begin();
    seed = op_test_seed();
    for (int k = 0; k < (check_small() ? 100 : 600); k++) {
        struct adam_case c = adam_case_drawn(&seed, false);
        test_case(&c);
    }
    test_remainder(false);
    test_remainder(true);
    test_skip();
    test_stochastic(DT_BF16);
    test_stochastic(DT_F16);
    test_stochastic(DT_E4M3);
    for (int64_t n = 1; n <= 1031; n = n < 511 ? n * 8 - 1 : n + 260)
        for (int t = 0; t < 4; t++)
            test_record_form(t & 1 ? DT_BF16 : DT_F32, t >> 1 ? DT_BF16 : DT_F32, n,
                             t & 1 ? 0.9 : 0.5, t & 1 ? 0.99 : 0.95);
    cpu_end();
}

const struct op_test adam_test = {
    .name = "adam",
    .by_hand = by_hand,
};
