/* store.c - the weight in all its forms (optimizers.md 3.2), and numbers with scales (3.3). */
#include "ops/store.h"

#include "ops/cpu.h"

enum { PART = 64 * FP8_BLOCK }; /* elements for a thread */

/* -- stored numbers --------------------------------------------------------------------------- */

void scaled_read(real *x, struct tensor t, int64_t at, int n, real scale)
{
    if (t.dtype == DT_E4M3)
        for (int i = 0; i < n; i++)
            x[i] = e4m3_to_f32(((const uint8_t *)t.data)[at + i]);
    else
        real_read(x, t, at, n);
    if (t.dtype == DT_E4M3 || t.dtype == DT_F16)
        for (int i = 0; i < n; i++)
            x[i] *= scale;
}

/* The code of finite x, without sign, in a format of mbits mantissa bits from 2^emin on: what is cut off
 * carries with (draw + 1/2) 2^-16 of a unit. */
static uint32_t encode_drawn(float x, int mbits, int emin, uint32_t draw)
{
    uint32_t u = f32_bits(x) & 0x7fffffff, mantissa = u & 0x7fffff;
    int e = u >> 23 ? (int)(u >> 23) - 127 : -126, shift = 23 - mbits;

    mantissa |= u >> 23 ? 0x800000 : 0;
    if (e < emin) {
        shift += emin - e;
        e = emin;
    }
    if (shift > 41) /* below any carry */
        return 0;
    uint64_t sum = mantissa + ((uint64_t)(2 * draw + 1) << shift >> 17);
    return ((uint32_t)(e - emin) << mbits) + (uint32_t)(sum >> shift);
}

static uint32_t at_most(uint32_t code, uint32_t most) { return code < most ? code : most; }

/* x rounded to t: to nearest even, or as draw decides. */
static uint32_t code_of(enum dtype t, float x, const uint32_t *draw)
{
    uint32_t sign = f32_bits(x) >> 31;
    if (!draw || !isfinite(x))
        return t == DT_E4M3 ? e4m3_from_f32(x) : t == DT_F16 ? f16_from_f32(x) : bf16_from_f32(x);
    if (t == DT_E4M3)
        return sign << 7 | at_most(encode_drawn(x, 3, -6, *draw), 0x7e);
    if (t == DT_F16)
        return sign << 15 | at_most(encode_drawn(x, 10, -14, *draw), 0x7bff);
    return sign << 15 | at_most(encode_drawn(x, 7, -126, *draw), 0x7f7f);
}

/* Returns the 16 bits drawn for element i, from the words' first on; the second moment's have their bytes exchanged. */
static uint32_t drawn_bits(const uint32_t *words, uint64_t i, bool second)
{
    uint32_t bits = words[i / 2] >> 16 * (i % 2) & 0xffff;
    return second ? (bits >> 8 | bits << 8) & 0xffff : bits;
}

void scaled_write(struct tensor t, int64_t at, const real *x, int n, real scale,
                  const uint32_t *draw, uint64_t from, bool second)
{
    bool scaled = t.dtype == DT_E4M3 || t.dtype == DT_F16;

    if (t.dtype == DT_REAL || (t.dtype == DT_BF16 && !draw)) {
        real_write(t, at, x, n, false);
        return;
    }
    for (int i = 0; i < n; i++) {
        float y = (float)(scaled ? x[i] / scale : x[i]);
        uint32_t bits = draw ? drawn_bits(draw, from + (uint64_t)i, second) : 0;
        uint32_t c = code_of(t.dtype, y, draw ? &bits : NULL);
        if (second && scaled && c == 0 && x[i] > 0)
            c = 1;
        if (t.dtype == DT_E4M3)
            ((uint8_t *)t.data)[at + i] = (uint8_t)c;
        else
            ((uint16_t *)t.data)[at + i] = (uint16_t)c;
    }
}

/* -- the weight and its master ------------------------------------------------------------------ */

static bool has_remainder(const struct adam_param *q) { return q->master.t.dtype == DT_U16; }

void weight_read(real *x, const struct adam_param *q, int64_t at, int n,
                 const struct weight_scales *s)
{
    if (has_remainder(q)) {
        const uint16_t *hi = (const uint16_t *)q->w.data + at;
        const uint16_t *lo = (const uint16_t *)q->master.t.data + at;
        for (int i = 0; i < n; i++)
            x[i] = f32_from_bits(((uint32_t)hi[i] << 16) +
                                 (q->truncate ? lo[i] : (uint32_t)(int16_t)lo[i]));
    } else if (has(q->master.t)) {
        scaled_read(x, q->master.t, at, n, s->p);
    } else if (has(q->w)) {
        real_read(x, q->w, at, n);
    } else {
        scaled_read(x, q->copy->codes, at, n, s->w);
    }
}

static void write_value(const struct adam_param *q, int64_t at, const real *x, int n, real scale)
{
    uint16_t *hi = q->w.data, *lo = q->master.t.data;

    if (has_remainder(q)) {
        hi += at, lo += at;
        for (int i = 0; i < n; i++) {
            hi[i] = q->truncate ? (uint16_t)(f32_bits((float)x[i]) >> 16)
                                : bf16_from_f32_away((float)x[i]);
            lo[i] = (uint16_t)f32_bits((float)x[i]);
        }
        return;
    }
    if (has(q->master.t))
        scaled_write(q->master.t, at, x, n, scale, NULL, 0, false);
    if (q->w.dtype == DT_BF16 && q->master.t.dtype == DT_F32)
        for (int i = 0; i < n; i++)
            hi[at + i] = bf16_from_f32_away((float)x[i]);
    else if (has(q->w))
        real_write(q->w, at, x, n, false);
}

/* For products that have none in the weight's type. */
static void write_compute(const struct adam_param *q, int64_t at, int n, real scale)
{
    real x[FP8_BLOCK];
    if (has(q->w))
        real_read(x, q->w, at, n);
    else
        scaled_read(x, q->copy->codes, at, n, scale);
    real_write(q->compute, at, x, n, false);
}

void weight_write(const struct adam_param *q, int64_t at, const real *x, int n,
                  const struct weight_scales *s)
{
    write_value(q, at, x, n, s->p);
    if (q->copy && has(q->w)) {
        cpu_fp8_write(q->copy, q->w, at, n);
    } else if (q->copy) {
        struct fp8_copy part = *q->copy;
        part.scale_inv = s->w;
        part.codes = tensor_of((uint8_t *)part.codes.data + at, DT_E4M3, 1, n);
        cpu_fp8_write(&part, tensor_of((real *)x, DT_REAL, 1, n), 0, n);
    }
    if (has(q->compute))
        write_compute(q, at, n, s->w);
}

/* -- scales --------------------------------------------------------------------------------------- */

real largest_of(real most, const real *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        real size = x[i] < 0 ? -x[i] : x[i];
        most = most == most && !(size <= most) ? size : most;
    }
    return most;
}

real scale_of(enum dtype t, const real *top, real most)
{
    return dtype_scale(t, (float)(top ? *top : most));
}

struct weight_scales weight_scales_of(const struct adam_param *q, int64_t row)
{
    return (struct weight_scales){ q->master.scale ? q->master.scale[row] : 1,
                                   weight_code_rows(q) ? q->copy->rows[row]
                                   : q->copy           ? q->copy->scale_inv
                                                       : 1 };
}

struct weight_scales weight_new_scales(const struct adam_param *q, real most)
{
    struct weight_scales s = { scale_of(q->master.t.dtype, q->master.top, most),
                               q->copy ? q->copy->scale_inv : 1 };
    const real *top = q->copy ? q->copy->top : NULL;
    if (weight_code_rows(q))
        s.w = top && *top == 0 ? 1 : scale_of(DT_E4M3, top, most);
    return s;
}

void weight_put_scales(const struct adam_param *q, int64_t row, const struct weight_scales *s)
{
    if (weight_code_rows(q))
        q->copy->rows[row] = s->w;
    if (q->master.scale)
        q->master.scale[row] = s->p;
}

/* -- the op --------------------------------------------------------------------------------------- */

struct job {
    const struct adam_param *q;
    struct tensor x;
};

static void rows(void *arg, int64_t first, int64_t count, int thread)
{
    const struct job *j = arg;
    bool scaled = j->q->master.scale || weight_code_rows(j->q);
    int64_t cols = j->x.cols;

    (void)thread;
    for (int64_t r = first; r < first + count; r++) {
        const real *x = (const real *)j->x.data + r * cols;
        struct weight_scales s = weight_new_scales(j->q, scaled ? largest_of(0, x, cols) : 0);
        for (int64_t c = 0; c < cols; c += FP8_BLOCK) {
            int n = cols - c < FP8_BLOCK ? (int)(cols - c) : FP8_BLOCK;
            weight_write(j->q, r * cols + c, x + c, n, &s);
        }
        weight_put_scales(j->q, r, &s);
    }
}

void weight_store(const struct adam_param *q, struct tensor x)
{
    struct job j = { q, x };

    assert(is_real(x));
    if (q->copy)
        *q->copy->amax = 0;
    rows(&j, 0, x.rows, 0);
}

void cpu_store(struct ops *o, const struct adam_param *p, struct tensor x)
{
    struct job j = { p, x };

    assert(is_real(x));
    if (cpu_failed(o) || tensor_count(x) == 0 || (p->gate && p->gate->skip))
        return;
    if (p->copy)
        *p->copy->amax = 0;
    /* amax is one number: with a copy, all in one part. */
    cpu_split(o, x.rows, p->copy ? x.rows : x.cols < PART ? PART / x.cols : 1, rows, &j);
}
