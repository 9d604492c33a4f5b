/* store_test.c - the weight in all its forms against its exact value and the definitions of the types. */
#include <string.h>
#include "cpu_tensors.h"
#include "op_test.h"

/* Forms: of w; what is beside it. */
struct form {
    enum dtype w, master; /* w: DT_NONE where the weight is its codes alone */
    bool truncate, copy, compute;
    enum { FIXED, ROWS, DELAYED } scale;
};
static const struct form forms[] = {
    { .w = DT_F32 },
    { .w = DT_F32, .copy = true },
    { .w = DT_BF16, .master = DT_U16, .truncate = true },
    { .w = DT_BF16, .master = DT_U16, .copy = true },
    { .w = DT_BF16, .master = DT_F32 },
    { .w = DT_BF16, .master = DT_F16 },
    { .w = DT_F16, .compute = true },
    { .w = DT_F16, .master = DT_F16, .compute = true },
    { .copy = true, .compute = true },
    { .copy = true, .compute = true, .scale = ROWS },
    { .copy = true, .compute = true, .scale = DELAYED },
    { .copy = true, .master = DT_F32, .compute = true, .scale = ROWS },
};

/* Returns the scale of row r: a power of two, the least with which `most` is at most `top`. */
static bool is_least_scale(double scale, double most, double top)
{
    int e;
    return frexp(scale, &e) == 0.5 && most <= top * scale &&
           (2 * most > top * scale || scale <= 0x1p-126);
}

/* The largest |x| of row r; r < 0: of all. */
static double most_of(struct tensor x, int64_t r)
{
    double most = 0;
    for (int64_t i = 0; i < tensor_count(x); i++)
        if (r < 0 || i / x.cols == r)
            most = fmax(most, fabs(get(x, i)));
    return most;
}

/* Element i as stored, in x's place off by half a unit at most. */
static double check_weight(const struct form *f, const struct adam_param *p, struct tensor x,
                           int64_t i, const struct fp8_copy *c)
{
    double v = get(x, i), scale = c->rows ? (double)c->rows[i / x.cols] : (double)c->scale_inv;
    if (f->w == DT_F32)
        return CHECK(get(p->w, i) == v), v;
    if (f->w == DT_BF16 && f->truncate)
        return CHECK(bf16_to_f32((uint16_t)(f32_bits((float)v) >> 16)) == get(p->w, i)),
               get(p->w, i);
    if (f->w == DT_BF16)
        return CHECK(fabs(get(p->w, i) - v) <= 0x1p-8 * fabs(v)), get(p->w, i);
    if (f->w == DT_F16) {
        double w = f16_to_f32(((uint16_t *)p->w.data)[i]);
        return CHECK(fabs(w - v) <= 0x1p-11 * fabs(v) + 0x1p-25), w;
    }
    double w = (double)e4m3_to_f32(((uint8_t *)c->codes.data)[i]) * scale;
    bool fits = fabs(v) <= 448 * scale;
    return CHECK(fits ? fabs(w - v) <= 0x1p-4 * fabs(v) + 0x1p-10 * scale : fabs(w) == 448 * scale),
           w;
}

static void check_master(const struct form *f, const struct adam_param *p, struct tensor x,
                         int64_t i)
{
    struct tensor m = p->master.t;
    double v = get(x, i);
    if (f->master == DT_F32)
        CHECK(get(m, i) == v);
    if (f->master == DT_F16) {
        double scale = (double)p->master.scale[i / x.cols];
        CHECK(is_least_scale(scale, most_of(x, i / x.cols), 65504));
        CHECK(fabs(f16_to_f32(((uint16_t *)m.data)[i]) * scale - v) <=
              0x1p-11 * fabs(v) + scale * 0x1p-25);
    }
    if (f->master == DT_U16) {
        uint32_t high = (uint32_t)((uint16_t *)p->w.data)[i] << 16, low = ((uint16_t *)m.data)[i];
        CHECK(high + (f->truncate ? low : (uint32_t)(int16_t)low) == f32_bits((float)v));
    }
}

static void check_form(const struct form *f, const struct adam_param *p, struct tensor x,
                       const struct fp8_copy *c, real top)
{
    bool apart = f->w == DT_NONE; /* the codes are the weight */
    double most = 0;
    for (int64_t i = 0; i < tensor_count(x); i++) {
        double w = check_weight(f, p, x, i, c), of = apart ? get(x, i) : w;
        check_master(f, p, x, i);
        if (f->compute)
            CHECK(get(p->compute, i) == bf16_round((float)w));
        if (f->copy && !apart)
            CHECK(((uint8_t *)c->codes.data)[i] == e4m3_from_f32((float)w / c->scale_inv));
        if (c->rows)
            CHECK(is_least_scale((double)c->rows[i / x.cols],
                                 f->scale == ROWS ? most_of(x, i / x.cols) : (double)top, 448));
        most = fmax(most, fabs(of));
    }
    if (f->copy)
        CHECK(*c->amax == (real)most);
}

static void test_form(const struct form *f, int64_t rows, int64_t cols)
{
    struct tensor x = drawn(DT_F32, rows, cols, 1), amax = blank(DT_F32, 1, 1);
    real top = 2;
    struct fp8_copy c = { .codes = blank(DT_E4M3, rows, cols),
                          .scale_inv = 0x1p-8f,
                          .amax = amax.data,
                          .rows = f->scale == FIXED ? NULL : blank(DT_F32, rows, 1).data,
                          .top = f->scale == DELAYED ? &top : NULL };
    struct adam_param p = { .truncate = f->truncate, .copy = f->copy ? &c : NULL };
    struct step_gate gate = { .skip = 1 };

    if (f->w != DT_NONE)
        p.w = blank(f->w, rows, cols);
    if (f->compute)
        p.compute = blank(DT_BF16, rows, cols);
    if (f->master != DT_NONE)
        p.master.t = blank(f->master, rows, cols);
    if (f->master == DT_F16)
        p.master.scale = blank(DT_F32, rows, 1).data;
    struct tensor of = f->w == DT_NONE ? c.codes : p.w;
    char *before = malloc(tensor_bytes(of));
    memcpy(before, of.data, tensor_bytes(of));
    p.gate = &gate;
    o->store(o, &p, x);
    CHECK(!memcmp(before, of.data, tensor_bytes(of)));
    gate.skip = 0;
    o->store(o, &p, x);
    check_form(f, &p, x, &c, top);
    free(before);
}

static void by_hand(void)
{
    cpu_begin();
    for (int s = 0; s < N_RAGGED; s++)
        for (int i = 0; i < COUNT(forms); i++)
            test_form(&forms[i], ragged[s][0], ragged[s][1]);
    test_form(&forms[COUNT(forms) - 1], 3, 1030); /* rows in blocks */
    cpu_end();
}

const struct op_test store_test = {
    .name = "store",
    .by_hand = by_hand,
};
