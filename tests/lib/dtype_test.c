/* Element types against their definitions: every code is decoded by the formula
 * of its format, and rounding is held against a search of all codes for the
 * nearest, ties to the even code. */
#include <math.h>
#include <stdbool.h>
#include "types/dtype.h"
#include "check.h"

enum kind { IEEE, IEEE_SATURATING, NO_INFINITY };

struct format {
    const char *name;
    enum kind kind;
    int bits, mbits, bias;
    float (*decode)(unsigned code);
    unsigned (*encode)(float x);
};

static float bf16_d(unsigned c) { return bf16_to_f32((uint16_t)c); }
static float f16_d(unsigned c) { return f16_to_f32((uint16_t)c); }
static float e4m3_d(unsigned c) { return e4m3_to_f32((uint8_t)c); }
static float e5m2_d(unsigned c) { return e5m2_to_f32((uint8_t)c); }
static unsigned bf16_e(float x) { return bf16_from_f32(x); }
static unsigned f16_e(float x) { return f16_from_f32(x); }
static unsigned e4m3_e(float x) { return e4m3_from_f32(x); }
static unsigned e5m2_e(float x) { return e5m2_from_f32(x); }

static const struct format formats[] = {
    { "bf16", IEEE, 16, 7, 127, bf16_d, bf16_e },
    { "f16", IEEE, 16, 10, 15, f16_d, f16_e },
    { "e4m3", NO_INFINITY, 8, 3, 7, e4m3_d, e4m3_e },
    { "e5m2", IEEE_SATURATING, 8, 2, 15, e5m2_d, e5m2_e },
};

static unsigned sign_bit(const struct format *f) { return 1u << (f->bits - 1); }

/* First code that is not finite: infinity, or NaN where there is none. */
static unsigned first_special(const struct format *f)
{
    unsigned all = sign_bit(f) - 1;
    return f->kind == NO_INFINITY ? all : all & ~((1u << f->mbits) - 1);
}

/* The definition, in double: also of the code after the last finite one. */
static double value(const struct format *f, unsigned code)
{
    unsigned e = code >> f->mbits, m = code & ((1u << f->mbits) - 1);
    return e ? (1 + m / pow(2, f->mbits)) * pow(2, (int)e - f->bias)
             : m / pow(2, f->mbits) * pow(2, 1 - f->bias);
}

static bool is_nan_code(const struct format *f, unsigned code)
{
    unsigned magnitude = code & (sign_bit(f) - 1);
    return f->kind == NO_INFINITY ? magnitude == first_special(f) : magnitude > first_special(f);
}

/* Nearest code of |x| by bisection over the values; ties to even. */
static unsigned nearest(const struct format *f, double x)
{
    unsigned special = first_special(f), lo = 0, hi = special;
    if (f->kind != IEEE && x >= value(f, special - 1))
        return special - 1; /* saturates */
    if (x >= value(f, special))
        return special;
    while (hi - lo > 1) {
        unsigned mid = (lo + hi) / 2;
        if (value(f, mid) <= x)
            lo = mid;
        else
            hi = mid;
    }
    double below = x - value(f, lo), above = value(f, hi) - x;
    return below < above || (below == above && lo % 2 == 0) ? lo : hi;
}

static void check_encode(const struct format *f, float x)
{
    unsigned sign = signbit(x) ? sign_bit(f) : 0;
    unsigned got = f->encode(x), want = nearest(f, fabs((double)x)) | sign;
    check_that(got == want, __FILE__, __LINE__, "%s of %a: 0x%x, expected 0x%x", f->name, x, got,
               want);
}

static void check_both_signs(const struct format *f, float x)
{
    check_encode(f, x);
    check_encode(f, -x);
}

static void test_decode(const struct format *f)
{
    for (unsigned c = 0; c < 1u << f->bits; c++) {
        float got = f->decode(c);
        unsigned magnitude = c & (sign_bit(f) - 1);
        double want = is_nan_code(f, c)               ? NAN
                      : magnitude == first_special(f) ? INFINITY
                                                      : value(f, magnitude);
        bool same = isnan(want) ? isnan(got) : (double)got == (c & sign_bit(f) ? -want : want);
        bool sign = isnan(want) || !!signbit(got) == !!(c & sign_bit(f));
        check_that(same && sign, __FILE__, __LINE__, "%s 0x%x is %a, expected %a", f->name, c, got,
                   want);
    }
}

/* Every value, every tie and its two neighbours in fp32. */
static void test_encode_all(const struct format *f)
{
    for (unsigned c = 0; c < first_special(f); c++) {
        check_both_signs(f, (float)value(f, c));
        double tie = (value(f, c) + value(f, c + 1)) / 2;
        float t = (float)tie;
        if (!isfinite(t) || (double)t != tie)
            continue; /* bf16's smallest: its half is no float */
        check_both_signs(f, t);
        check_both_signs(f, nextafterf(t, 0));
        check_both_signs(f, nextafterf(t, INFINITY));
    }
}

static void test_encode_random(const struct format *f)
{
    unsigned seed = 12345;
    for (int i = 0; i < 200000; i++) {
        seed = seed * 1664525 + 1013904223;
        float x = f32_from_bits(seed ^ seed >> 15);
        if (isfinite(x))
            check_encode(f, x);
    }
}

static void test_special(const struct format *f)
{
    unsigned inf = f->kind == IEEE ? first_special(f) : first_special(f) - 1;
    CHECK_EQ(f->encode(INFINITY), inf);
    CHECK_EQ(f->encode(-INFINITY), inf | sign_bit(f));
    CHECK_EQ(f->encode(3e38f), f->kind == IEEE ? nearest(f, 3e38f) : inf);
    /* NaN stays NaN whatever its payload: one that rounding would carry into
     * infinity, and one all of whose bits rounding would drop. */
    static const uint32_t nans[] = { 0x7fc00000, 0x7f800001, 0x7fffffff,
                                     0xffc00000, 0xff800001, 0xffffffff };
    for (size_t i = 0; i < sizeof nans / sizeof nans[0]; i++)
        CHECK(is_nan_code(f, f->encode(f32_from_bits(nans[i]))));
    CHECK_EQ(f->encode(-0.0f), sign_bit(f));
}

static void test_names(void)
{
    static const struct {
        enum dtype t;
        const char *name;
        size_t size;
    } want[] = {
        { DT_F64, "f64", 8 },   { DT_F32, "f32", 4 },   { DT_BF16, "bf16", 2 },
        { DT_F16, "f16", 2 },   { DT_E4M3, "e4m3", 1 }, { DT_E5M2, "e5m2", 1 },
        { DT_I64, "i64", 8 },   { DT_I32, "i32", 4 },   { DT_I16, "i16", 2 },
        { DT_U16, "u16", 2 },   { DT_I8, "i8", 1 },     { DT_U8, "u8", 1 },
        { DT_BOOL, "bool", 1 },
    };
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        CHECK_STR(dtype_name(want[i].t), want[i].name);
        CHECK_EQ(dtype_parse(want[i].name), want[i].t);
        CHECK_EQ(dtype_size(want[i].t), want[i].size);
    }
    CHECK_EQ(dtype_size(DT_NONE), 0);
    CHECK_EQ(dtype_size((enum dtype)99), 0);
    CHECK_EQ(dtype_parse("f33"), DT_NONE);
    CHECK_EQ(dtype_parse("none"), DT_NONE);
    CHECK_EQ(dtype_parse(""), DT_NONE);
}

int main(void)
{
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        test_decode(&formats[i]);
        test_encode_all(&formats[i]);
        test_encode_random(&formats[i]);
        test_special(&formats[i]);
    }
    /* The limits that users know by number. */
    CHECK(e4m3_to_f32(0x7e) == 448 && e5m2_to_f32(0x7b) == 57344 && f16_to_f32(0x7bff) == 65504);
    CHECK(bf16_round(1.00390625f) == 1 && bf16_round(1.01171875f) == 1.015625f); /* two ties */
    test_names();
    return check_done();
}
