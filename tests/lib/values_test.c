/* What stored bits stand for: every type, low halves, scales; slices, statistics, differences. */
#include <float.h>
#include <stdlib.h>
#include <time.h>
#include "base/file.h"
#include "base/rng.h"
#include "check.h"
#include "scratch.h"
#include "inspect/cat.h"
#include "inspect/diff.h"
#include "inspect/show.h"
#include "inspect/tensor_stats.h"

struct item {
    const char *name;
    enum dtype t;
    int rank;
    uint64_t shape[3];
    const void *data;
};

static void write_file(const char *path, const struct item *v, int n)
{
    struct output o;
    struct st_writer *w;
    CHECK_OK(output_open(&o, path, true));
    CHECK_OK(st_writer_new(&w, o.f, path, 0));
    for (int i = 0; i < n; i++)
        CHECK_OK(st_declare(w, v[i].name, v[i].t, v[i].rank, v[i].shape));
    for (int i = 0; i < n; i++) {
        size_t bytes = dtype_size(v[i].t);
        for (int k = 0; k < v[i].rank; k++)
            bytes *= v[i].shape[k];
        CHECK_OK(st_write(w, v[i].data, bytes));
    }
    CHECK_OK(st_writer_finish(w));
    st_writer_free(w);
    CHECK_OK(output_commit(&o));
}

/* All values of a tensor, NULL on failure; caller frees. */
static double *values_of(struct tensors *s, const char *name)
{
    const struct stored *t = tensors_find(s, name);
    CHECK(t != NULL);
    double *x = malloc((t->elements + 1) * sizeof *x);
    CHECK_OK(values_load(s, t, 0, x, t->elements));
    return x;
}

/* An fp8 or fp16 number by its definition: e exponent bits, m mantissa bits, bias. */
static double by_definition(unsigned bits, int e, int m, int bias)
{
    unsigned sign = bits >> (e + m), exponent = bits >> m & ((1u << e) - 1);
    unsigned mantissa = bits & ((1u << m) - 1);
    double x = exponent ? ldexp(1 + mantissa / ldexp(1, m), (int)exponent - bias)
                        : ldexp(mantissa / ldexp(1, m), 1 - bias);
    return sign ? -x : x;
}

static void test_types(void)
{
    static uint8_t bytes[256];
    static uint16_t halves[2048];
    for (int i = 0; i < 256; i++)
        bytes[i] = (uint8_t)i;
    for (int i = 0; i < 2048; i++)
        halves[i] = (uint16_t)(i * 31);
    const double d[2] = { M_PI, -1e300 };
    const float f[2] = { 1.5f, -FLT_MIN };
    const int64_t i64[2] = { -5, 1ll << 40 };
    const int32_t i32[2] = { -5, 1 << 30 };
    const uint64_t u64[2] = { 5, UINT64_C(1) << 63 };
    const uint32_t u32[2] = { 5, 0xffffffff };
    const struct item v[] = {
        { "f64", DT_F64, 1, { 2 }, d },         { "i64", DT_I64, 1, { 2 }, i64 },
        { "f32", DT_F32, 1, { 2 }, f },         { "i32", DT_I32, 1, { 2 }, i32 },
        { "f16", DT_F16, 1, { 2048 }, halves }, { "bf16", DT_BF16, 1, { 2048 }, halves },
        { "i16", DT_I16, 1, { 2048 }, halves }, { "u16", DT_U16, 1, { 2048 }, halves },
        { "e4m3", DT_E4M3, 1, { 256 }, bytes }, { "e5m2", DT_E5M2, 1, { 256 }, bytes },
        { "i8", DT_I8, 1, { 256 }, bytes },     { "u8", DT_U8, 1, { 256 }, bytes },
        { "bool", DT_BOOL, 1, { 2 }, bytes },   { "u64", DT_U64, 1, { 2 }, u64 },
        { "u32", DT_U32, 1, { 2 }, u32 }
    };
    enum { TYPES = sizeof v / sizeof v[0] };
    struct tensors *s;
    double *x[TYPES];
    write_file(scratch("types"), v, TYPES);
    CHECK_OK(tensors_open(&s, scratch("types")));
    for (int i = 0; i < TYPES; i++)
        x[i] = values_of(s, v[i].name);
    CHECK(x[0][0] == M_PI && x[0][1] == -1e300 && x[1][0] == -5 && x[1][1] == (double)(1ll << 40));
    CHECK(x[2][0] == 1.5 && x[2][1] == -FLT_MIN && x[3][0] == -5 && x[3][1] == 1 << 30);
    CHECK(x[12][0] == 0 && x[12][1] == 1);
    CHECK(x[13][0] == 5 && x[13][1] == ldexp(1, 63) && x[14][0] == 5 && x[14][1] == 4294967295.0);
    int wrong = 0;
    for (int i = 0; i < 2048; i++) {
        unsigned b = (uint16_t)(i * 31);
        if ((b & 0x7c00) != 0x7c00)
            wrong += x[4][i] != by_definition(b, 5, 10, 15);
        if ((b & 0x7f80) != 0x7f80)
            wrong += x[5][i] != by_definition(b, 8, 7, 127);
        wrong += x[6][i] != (double)(int16_t)b;
        wrong += x[7][i] != (double)b;
    }
    for (int i = 0; i < 256; i++) {
        if ((i & 0x7f) != 0x7f) /* the only NaN of e4m3 */
            wrong += x[8][i] != by_definition((unsigned)i, 4, 3, 7);
        if ((i & 0x7c) != 0x7c)
            wrong += x[9][i] != by_definition((unsigned)i, 5, 2, 15);
        wrong += x[10][i] != (double)(int8_t)i;
        wrong += x[11][i] != i;
    }
    CHECK_EQ(wrong, 0);
    CHECK(isnan(x[8][127]) && isnan(x[8][255]) && isinf(x[9][0x7c]));
    for (int i = 0; i < TYPES; i++)
        free(x[i]);
    tensors_close(s);
}

/* bf16 with its low half: cut (ours), and rounded half away from zero (TransformerEngine's). */
static void test_masters(void)
{
    enum { N = 20000 }; /* more than a buffer of the reader */
    struct rng r = rng_make(3, 3);
    static float master[N];
    static uint16_t cut[N], low[N], rounded[N];
    for (int i = 0; i < N; i++) {
        master[i] = rng_normal(&r, (uint64_t)i) * 0.02f;
        uint32_t bits = f32_bits(master[i]);
        cut[i] = (uint16_t)(bits >> 16);
        low[i] = (uint16_t)bits;
        rounded[i] = (uint16_t)(cut[i] + (low[i] >> 15));
    }
    const struct item v[] = { { "a.weight", DT_BF16, 1, { N }, cut },
                              { "a.mantissa", DT_U16, 1, { N }, low },
                              { "b.weight", DT_BF16, 1, { N }, rounded },
                              { "b.remainder", DT_I16, 1, { N }, low },
                              { "c.weight", DT_BF16, 1, { N }, cut } };
    struct tensors *s;
    write_file(scratch("masters"), v, 5);
    CHECK_OK(tensors_open(&s, scratch("masters")));
    double *a = values_of(s, "a.weight"), *b = values_of(s, "b.weight");
    double *c = values_of(s, "c.weight");
    int wrong = 0;
    for (int i = 0; i < N; i++)
        wrong += a[i] != (double)master[i] || b[i] != (double)master[i] ||
                 c[i] != (double)bf16_to_f32(cut[i]);
    CHECK_EQ(wrong, 0);
    CHECK(tensors_find(s, "a.mantissa")->is_part && !tensors_find(s, "c.weight")->low);
    struct values part; /* from the middle */
    double x[3];
    CHECK_OK(values_open(&part, s, tensors_find(s, "a.weight"), 12345));
    CHECK_OK(values_read(&part, x, 3));
    CHECK(x[0] == a[12345] && x[2] == a[12347]);
    values_close(&part);
    free(a);
    free(b);
    free(c);
    tensors_close(s);
}

/* Of a weight with a master of its own the values are the master's, in f32 or in f16 with a scale a row;
 * of an exact one those of the master, too, in files as they were exported once. What the forward pass
 * reads is the weight, or a tensor `rounded` beside it. */
static void test_own_masters(void)
{
    static const float full[6] = { 1.0000001f, -3, 0.1f, 7, 8, 9 }, scale[2] = { 0.25f, 8 };
    static const float exact[6] = { 1, 2, 3, 4, 5, 6.5f };
    uint16_t half[6], read[6], f16[6];
    uint8_t e4m3[6];
    for (int i = 0; i < 6; i++) {
        half[i] = bf16_from_f32(full[i]);
        read[i] = bf16_from_f32(full[i] + 1);
        f16[i] = f16_from_f32((float)(i + 1));
        e4m3[i] = (uint8_t)(8 * i + 1);
    }
    const struct item v[] = {
        { "a.weight", DT_BF16, 2, { 2, 3 }, half },
        { "a.master", DT_F32, 2, { 2, 3 }, full },
        { "b.weight", DT_E4M3, 2, { 2, 3 }, e4m3 },
        { "b.weight.scale", DT_F32, 2, { 2, 1 }, scale },
        { "b.master", DT_F16, 2, { 2, 3 }, f16 },
        { "b.master.scale", DT_F32, 2, { 2, 1 }, scale },
        { "c.weight", DT_F32, 2, { 2, 3 }, exact },
        { "c.rounded", DT_BF16, 2, { 2, 3 }, read },
        { "d.weight", DT_F32, 2, { 2, 3 }, exact },
        { "d.master", DT_F32, 2, { 2, 3 }, full },
        { "e.weight", DT_BF16, 2, { 2, 3 }, half },
        { "e.master", DT_F32, 1, { 3 }, full },
    };
    struct tensors *s;
    char type[64];
    write_file(scratch("own"), v, sizeof v / sizeof v[0]);
    CHECK_OK(tensors_open(&s, scratch("own")));
    int wrong = 0;
    for (const char *name = "abcde"; *name; name++) {
        const struct stored *t =
            tensors_find(s, (char[]){ *name, '.', 'w', 'e', 'i', 'g', 'h', 't', 0 });
        struct stored forward = stored_forward(t);
        double x[6], y[6];
        CHECK_OK(values_load(s, t, 0, x, 6));
        CHECK_OK(values_load(s, &forward, 0, y, 6));
        for (int i = 0; i < 6; i++) {
            double row = scale[i / 3], rounded = bf16_to_f32(half[i]);
            double value = *name == 'a' || *name == 'd' ? full[i]
                           : *name == 'b'               ? row * (i + 1)
                           : *name == 'c'               ? exact[i]
                                                        : rounded;
            double reads = *name == 'b'   ? row * by_definition((unsigned)(8 * i + 1), 4, 3, 7)
                           : *name == 'c' ? bf16_to_f32(read[i])
                           : *name == 'd' ? exact[i]
                                          : rounded;
            wrong += !(x[i] == value) + !(y[i] == reads);
        }
    }
    CHECK_EQ(wrong, 0);
    CHECK(tensors_find(s, "b.master")->is_part && tensors_find(s, "c.rounded")->is_part);
    CHECK(!tensors_find(s, "e.master")->is_part); /* of another size */
    CHECK_STR(values_type(tensors_find(s, "b.weight"), type), "f16 x scale (e4m3 + master)");
    CHECK_STR(values_type(tensors_find(s, "a.weight"), type), "f32 (bf16 + master)");
    tensors_close(s);
}

/* Fused Adam's states in fp16 and fp8 with a scale, fp8 weights with scale_inv; a scale for a
 * tensor, for each row, for each 128x128 block. */
static void test_scales(void)
{
    static uint8_t e4m3[300 * 200];
    static uint16_t f16[12];
    static float blocks[3 * 2] = { 1, 2, 4, 8, 16, 32 };
    const float one = 0.375f, rows[3] = { 1, 10, 100 };
    for (int i = 0; i < 300 * 200; i++)
        e4m3[i] = (uint8_t)(i % 127);
    for (int i = 0; i < 12; i++)
        f16[i] = f16_from_f32((float)(i + 1));
    const struct item v[] = { { "p.exp_avg", DT_F16, 2, { 3, 4 }, f16 },
                              { "p.exp_avg.scale", DT_F32, 1, { 1 }, &one },
                              { "p.exp_avg_sq", DT_E4M3, 2, { 3, 4 }, e4m3 },
                              { "p.exp_avg_sq.scale", DT_F32, 1, { 3 }, rows },
                              { "w.weight", DT_E4M3, 2, { 300, 200 }, e4m3 },
                              { "w.weight_scale_inv", DT_F32, 2, { 3, 2 }, blocks },
                              { "x.weight", DT_E5M2, 1, { 12 }, e4m3 },
                              { "x.scale_inv", DT_F32, 0, { 0 }, &one },
                              { "y", DT_E5M2, 1, { 5 }, e4m3 },
                              { "y_scale", DT_F32, 1, { 2 }, rows } };
    struct tensors *s;
    struct values bad;
    write_file(scratch("scales"), v, 10);
    CHECK_OK(tensors_open(&s, scratch("scales")));
    double *m = values_of(s, "p.exp_avg"), *q = values_of(s, "p.exp_avg_sq");
    double *w = values_of(s, "w.weight"), *x = values_of(s, "x.weight");
    int wrong = 0;
    for (int i = 0; i < 12; i++) {
        wrong += m[i] != 0.375 * (i + 1);
        wrong += q[i] != (double)(float)(by_definition((unsigned)i, 4, 3, 7) * rows[i / 4]);
        wrong += x[i] != 0.375 * by_definition((unsigned)i, 5, 2, 15);
    }
    for (int i = 0; i < 300 * 200; i++)
        wrong += w[i] != blocks[i / 200 / 128 * 2 + i % 200 / 128] *
                             by_definition((unsigned)i % 127, 4, 3, 7);
    CHECK_EQ(wrong, 0);
    CHECK_ERR(values_open(&bad, s, tensors_find(s, "y"), 0), GPT_INPUT,
              "tensor 'y_scale': expected one number, one a row or one a 128x128 block of 'y'");
    values_close(&bad);
    free(m);
    free(q);
    free(w);
    free(x);
    tensors_close(s);
}

static void test_stat(void)
{
    const float x[10] = { 0, -0.0f, 1, -3, 0.5f, FLT_MIN / 4, NAN, INFINITY, -INFINITY, 2 };
    const struct item v[] = { { "x", DT_F32, 1, { 10 }, x }, { "n", DT_F32, 1, { 1 }, x + 6 } };
    struct tensors *s;
    struct views views;
    struct tensor_stats r[2];
    write_file(scratch("stat"), v, 2);
    CHECK_OK(tensors_open(&s, scratch("stat")));
    CHECK_OK(views_make(&views, s, NULL, NULL, 0));
    CHECK_OK(tensor_stats_views(s, &views, NULL, r));
    CHECK_EQ(r[0].elements, 10);
    CHECK_EQ(r[0].zeros, 2);
    CHECK_EQ(r[0].nonfinite, 3);
    CHECK_EQ(r[0].underflow, 1);
    CHECK_NEAR(r[0].min, -3, 0);
    CHECK_NEAR(r[0].max, 2, 0);
    CHECK_NEAR(r[0].mean, 0.5 / 7, 1e-16); /* over the seven finite ones */
    CHECK_NEAR(r[0].rms, sqrt(14.25 / 7), 1e-15);
    CHECK_EQ(r[0].exponents[0 - STAT_EXPONENT_0], 1); /* 1 */
    CHECK_EQ(r[0].exponents[1 - STAT_EXPONENT_0], 2); /* -3 and 2 */
    CHECK_EQ(r[0].exponents[-1 - STAT_EXPONENT_0], 1); /* 0.5 */
    CHECK_EQ(r[0].exponents[-128 - STAT_EXPONENT_0], 1); /* 2^-126 / 4 */
    CHECK(isnan(r[1].min) && isnan(r[1].mean) && isnan(r[1].rms) && r[1].nonfinite == 1);
    CHECK(isnan(r[0].update));
    views_release(&views);
    CHECK_ERR(views_make(&views, s, NULL, "z*", 0), GPT_INPUT, "no tensor matches 'z*'");
    tensors_close(s);
}

static void test_diff(void)
{
    const float a[4] = { 3, 4, 0, 0 }, b[4] = { 3, 4.5f, 0, 0 }, zero[2] = { 0, 0 };
    const float minus[2] = { -0.0f, 0 }, nan_a[2] = { NAN, 1 }, nan_b[2] = { 1, 1 };
    uint16_t half[4];
    for (int i = 0; i < 4; i++)
        half[i] = bf16_from_f32(a[i]);
    const struct item left[] = {
        { "same", DT_F32, 1, { 4 }, a },    { "type", DT_F32, 1, { 4 }, a },
        { "moved", DT_F32, 1, { 4 }, a },   { "left", DT_F32, 1, { 4 }, a },
        { "shape", DT_F32, 1, { 4 }, a },   { "zero", DT_F32, 1, { 2 }, zero },
        { "nan", DT_F32, 1, { 2 }, nan_a }, { "both", DT_F32, 1, { 2 }, nan_a }
    };
    const struct item right[] = {
        { "same", DT_F32, 1, { 4 }, a },     { "type", DT_BF16, 1, { 4 }, half },
        { "moved", DT_F32, 1, { 4 }, b },    { "right", DT_F32, 1, { 4 }, a },
        { "shape", DT_F32, 2, { 2, 2 }, a }, { "zero", DT_F32, 1, { 2 }, minus },
        { "nan", DT_F32, 1, { 2 }, nan_b },  { "both", DT_F32, 1, { 2 }, nan_a }
    };
    struct tensors *s, *t;
    struct diff_row *r;
    int n;
    bool equal;
    write_file(scratch("left"), left, 8);
    write_file(scratch("right"), right, 8);
    CHECK_OK(tensors_open(&s, scratch("left")));
    CHECK_OK(tensors_open(&t, scratch("right")));
    CHECK_OK(diff_tensors(s, t, NULL, NULL, 0, false, &r, &n, &equal));
    CHECK(!equal && n == 9);
    static const enum diff_what want[9] = { DIFF_SAME,    DIFF_EQUAL, DIFF_DIFFERS,
                                            DIFF_ONLY_A,  DIFF_SHAPE, DIFF_DIFFERS,
                                            DIFF_DIFFERS, DIFF_SAME,  DIFF_ONLY_B };
    for (int i = 0; i < n && i < 9; i++)
        CHECK_EQ(r[i].what, want[i]);
    CHECK_STR(r[8].name, "right");
    CHECK_EQ(r[2].bits, 1);
    CHECK_NEAR(r[2].max, 0.5, 0);
    CHECK_NEAR(r[2].rms, 0.25, 0);
    CHECK_NEAR(r[2].relative, 0.1, 1e-16);
    CHECK_NEAR(r[2].cosine, 27 / (5 * sqrt(29.25)), 1e-15);
    CHECK_NEAR(r[2].along, 27 / 25.0, 1e-15);
    CHECK(r[5].bits == 1 && r[5].max == 0); /* -0 is another zero */
    CHECK(isinf(r[6].max) && isinf(r[6].relative));
    diff_free(r, n);
    CHECK_OK(diff_tensors(s, t, NULL, "moved", 0.1000001, false, &r, &n, &equal));
    CHECK(equal && n == 1 && r[0].what == DIFF_WITHIN);
    diff_free(r, n);
    CHECK_OK(diff_tensors(s, t, NULL, "moved", 0.0999999, false, &r, &n, &equal));
    CHECK(!equal);
    diff_free(r, n);
    CHECK_OK(
        diff_tensors(s, t, NULL, "[ms]*", 0, true, &r, &n, &equal)); /* with one of another shape */
    CHECK(!equal && n == 4 && r[3].total && !r[2].total && r[3].what == DIFF_DIFFERS);
    CHECK(r[3].elements == 8 && r[3].bits == 1);
    CHECK_NEAR(r[3].rms, 0.5 / sqrt(8), 1e-15);
    CHECK_NEAR(r[3].relative, 0.5 / sqrt(50), 1e-15);
    CHECK_NEAR(r[3].cosine, 52 / sqrt(50 * 54.25), 1e-15);
    CHECK_NEAR(r[3].along, 52 / 50.0, 1e-15);
    diff_free(r, n);
    CHECK_OK(diff_tensors(s, s, NULL, NULL, 0, false, &r, &n, &equal));
    CHECK(equal && n == 8);
    diff_free(r, n);
    tensors_close(s);
    tensors_close(t);
}

/* One master kept in four ways, and a fifth weight that is another by its low halves alone. */
static void test_diff_of_masters(void)
{
    enum { N = 600 };
    struct rng r = rng_make(5, 5);
    static float full[N];
    static uint16_t cut[N], low[N], away[N], other[N];
    for (int i = 0; i < N; i++) {
        full[i] = rng_normal(&r, (uint64_t)i);
        cut[i] = (uint16_t)(f32_bits(full[i]) >> 16);
        low[i] = (uint16_t)f32_bits(full[i]);
        away[i] = (uint16_t)((f32_bits(full[i]) + 0x8000) >> 16);
        other[i] = (uint16_t)(low[i] ^ (i == 7));
    }
    const struct item kept[5][2] = {
        { { "w.weight", DT_F32, 2, { 2, 300 }, full }, { "x", DT_F32, 1, { 1 }, full } },
        { { "w.weight", DT_BF16, 2, { 2, 300 }, away },
          { "w.master", DT_F32, 2, { 2, 300 }, full } },
        { { "w.weight", DT_BF16, 2, { 2, 300 }, away },
          { "w.remainder", DT_U16, 2, { 2, 300 }, low } },
        { { "w.weight", DT_BF16, 2, { 2, 300 }, cut },
          { "w.mantissa", DT_U16, 2, { 2, 300 }, low } },
        { { "w.weight", DT_BF16, 2, { 2, 300 }, away },
          { "w.remainder", DT_U16, 2, { 2, 300 }, other } },
    };
    struct tensors *s[5];
    for (int i = 0; i < 5; i++) {
        write_file(scratch("kept"), kept[i], 2);
        CHECK_OK(tensors_open(&s[i], scratch("kept")));
    }
    for (int i = 0; i < 5; i++)
        for (int k = 0; k < 5; k++) {
            struct diff_row *row;
            bool same;
            int n;
            CHECK_OK(diff_tensors(s[i], s[k], NULL, "w.*", 0, false, &row, &n, &same));
            CHECK_EQ(n, 1);
            CHECK_EQ(row[0].what, i == k                 ? DIFF_SAME
                                  : (i == 4) != (k == 4) ? DIFF_DIFFERS
                                                         : DIFF_EQUAL);
            if ((i == 2 && k == 4) || (i == 4 && k == 2))
                CHECK_EQ(row[0].bits, 1);
            diff_free(row, n);
        }
    for (int i = 0; i < 5; i++)
        tensors_close(s[i]);
}

static int cat(struct tensors *s, const char *what, bool raw, char *text, size_t room)
{
    memset(text, 0, room);
    FILE *f = fmemopen(text, room - 1, "w");
    int rc = cat_tensor(s, NULL, what, raw, f);
    fclose(f);
    return rc;
}

static void test_cat(void)
{
    static float x[2 * 3 * 4];
    char text[512];
    struct tensors *s;
    for (int i = 0; i < 24; i++)
        x[i] = (float)i + 0.1f;
    const int64_t i64[2] = { INT64_MIN, (INT64_C(1) << 53) + 1 }; /* which no double is */
    const uint64_t u64[2] = { UINT64_MAX, 0 };
    const uint16_t tenth = f16_from_f32(0.1f);
    const float scale = 0.7f;
    const struct item v[] = {
        { "x", DT_F32, 3, { 2, 3, 4 }, x }, { "s", DT_F32, 0, { 0 }, x + 5 },
        { "i", DT_I64, 1, { 2 }, i64 },     { "u", DT_U64, 1, { 2 }, u64 },
        { "h", DT_F16, 1, { 1 }, &tenth },  { "h.scale", DT_F32, 1, { 1 }, &scale },
    };
    write_file(scratch("cat"), v, 6);
    CHECK_OK(tensors_open(&s, scratch("cat")));
    CHECK_OK(cat(s, "x[1,2,3]", false, text, sizeof text));
    CHECK_NEAR(strtof(text, NULL), x[23], 0); /* nine digits give the float again */
    CHECK_OK(cat(s, "x[0,1:3,:2]", false, text, sizeof text));
    CHECK_STR(text, "4.0999999\t5.0999999\n8.10000038\t9.10000038\n");
    CHECK_OK(cat(s, "x[-1,-1,-2:]", false, text, sizeof text));
    CHECK_STR(text, "22.1000004\t23.1000004\n");
    CHECK_OK(cat(s, "x[1:1]", false, text, sizeof text));
    CHECK_STR(text, "");
    CHECK_OK(cat(s, "s", false, text, sizeof text));
    CHECK_STR(text, "5.0999999\n");
    CHECK_OK(cat(s, "i", false, text, sizeof text));
    CHECK_STR(text, "-9223372036854775808\t9007199254740993\n");
    CHECK_OK(cat(s, "u", false, text, sizeof text));
    CHECK_STR(text, "18446744073709551615\t0\n");
    CHECK_OK(cat(s, "h", false, text, sizeof text));
    CHECK_NEAR(strtof(text, NULL), f16_to_f32(tenth) * scale, 0);
    CHECK_OK(cat(s, "x[1,0,1:3]", true, text, sizeof text));
    CHECK(!memcmp(text, &x[13], 8));
    CHECK_ERR(cat(s, "x[2]", false, text, sizeof text), GPT_USAGE, "expected i or a:b within 0:2");
    CHECK_ERR(cat(s, "x[0,2:1]", false, text, sizeof text), GPT_USAGE, "axis 1");
    CHECK_ERR(cat(s, "x[0,0,0,0]", false, text, sizeof text), GPT_USAGE, "has 3 axes");
    CHECK_ERR(cat(s, "x[0", false, text, sizeof text), GPT_USAGE, "axis 0");
    CHECK_ERR(cat(s, "x[a]", false, text, sizeof text), GPT_USAGE, "axis 0");
    CHECK_ERR(cat(s, "x[0]y", false, text, sizeof text), GPT_USAGE, "nothing after ']'");
    CHECK_ERR(cat(s, "y", false, text, sizeof text), GPT_INPUT, "holds no tensor 'y'");
    tensors_close(s);
}

/* Names and metadata of any length and any bytes that JSON allows: whole in JSON, and nothing in a
 * table that moves a terminal's cursor or a row's end. */
static void test_show(void)
{
    static const char name[] = "a\033[31m\tb\302\205c";
    static char value[1800], text[8192];
    static const enum report_format format[] = { REPORT_JSON, REPORT_TSV, REPORT_TEXT };
    struct output o;
    struct st_writer *w;
    struct tensors *s;
    struct views v;
    for (int i = 0; i < 800; i++)
        strcat(value, "\303\251");
    CHECK_OK(output_open(&o, scratch("show"), true));
    CHECK_OK(st_writer_new(&w, o.f, "show", 0));
    CHECK_OK(st_declare(w, name, DT_U8, 0, NULL));
    CHECK_OK(st_note(w, "long", value));
    CHECK_OK(st_write(w, "x", 1));
    CHECK_OK(st_writer_finish(w));
    st_writer_free(w);
    CHECK_OK(output_commit(&o));
    CHECK_OK(tensors_open(&s, scratch("show")));
    CHECK_OK(views_make(&v, s, NULL, NULL, 0));
    for (int i = 0; i < 3; i++) {
        FILE *f = fmemopen(text, sizeof text, "w");
        CHECK_OK(show_info(f, format[i], s, NULL));
        CHECK_OK(show_list(f, format[i], s, &v));
        CHECK(!fclose(f) && strstr(text, value) && !strchr(text, 033));
        CHECK(strstr(text, i ? "a?[31m?b?c" : "\"a\\u001b[31m\\u0009b\302\205c\""));
    }
    double sigma[] = { 1 };
    struct spectrum sp = { .n = 1, .sigma = sigma, .frobenius = 1 };
    FILE *f = fmemopen(text, sizeof text, "w");
    CHECK_OK(show_plot(f, &v, &sp, "<&>"));
    CHECK(!fclose(f) && strstr(text, ">a?[31m?b?c</title>") && strstr(text, ">&lt;&amp;&gt;<"));
    views_release(&v);
    tensors_close(s);
}

/* Names are found by halving: thirty thousand take a tenth of a second, where each against each
 * took a minute. */
static void test_many(void)
{
    enum { MANY = 30000 };
    static struct item v[MANY];
    static char names[MANY][40];
    static uint16_t data[4];
    struct tensors *s;
    struct views views;
    struct diff_row *rows;
    bool same;
    int n;
    for (int i = 0; i < MANY; i++) {
        snprintf(names[i], sizeof names[i], i % 2 ? "l.%d.mantissa" : "l.%d.weight", i / 2);
        v[i] = (struct item){ names[i], i % 2 ? DT_U16 : DT_BF16, 1, { 2 }, data };
    }
    write_file(scratch("many"), v, MANY);
    clock_t start = clock();
    CHECK_OK(tensors_open(&s, scratch("many")));
    long joined = 0;
    for (int i = 0; i < MANY; i += 2) {
        const struct stored *t = tensors_find(s, names[i]);
        joined += t && t->low && !strcmp(t->low->name, names[i + 1]);
    }
    CHECK_EQ(joined, MANY / 2);
    CHECK(!tensors_find(s, "l.") && !tensors_find(s, "l.7.weights") && !tensors_find(s, "z"));
    CHECK_OK(views_make(&views, s, NULL, NULL, 0));
    CHECK(views_find(&views, names[MANY - 2]) == &views.v[views.n - 1]);
    views_release(&views);
    CHECK_OK(diff_tensors(s, s, NULL, NULL, 0, false, &rows, &n, &same));
    CHECK(same && n == MANY / 2);
    diff_free(rows, n);
    CHECK((double)(clock() - start) / CLOCKS_PER_SEC < 10); /* also on a slow machine */
    tensors_close(s);
}

int main(void)
{
    test_types();
    test_masters();
    test_own_masters();
    test_scales();
    test_stat();
    test_diff();
    test_diff_of_masters();
    test_cat();
    test_show();
    test_many();
    return check_done();
}
