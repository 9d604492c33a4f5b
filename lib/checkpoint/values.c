/* Decodes stored bits to numbers. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "checkpoint/tensors.h"

enum { CHUNK = 8192 }; /* elements decoded at a time */
#define SCALES_MAX (64u << 20) /* bytes of scales that are held */

/* n elements of type t at p, to doubles. */
static void decode(enum dtype t, const void *p, double *dst, size_t n)
{
    const unsigned char *b = p;
#define EACH(type, expr) \
    for (size_t i = 0; i < n; i++) { \
        type x; \
        memcpy(&x, b + i * sizeof x, sizeof x); \
        dst[i] = (expr); \
    } \
    break
    switch (t) {
    case DT_F64: EACH(double, x);
    case DT_F32: EACH(float, (double)x);
    case DT_BF16: EACH(uint16_t, (double)bf16_to_f32(x));
    case DT_F16: EACH(uint16_t, (double)f16_to_f32(x));
    case DT_E4M3: EACH(uint8_t, (double)e4m3_to_f32(x));
    case DT_E5M2: EACH(uint8_t, (double)e5m2_to_f32(x));
    case DT_I64: EACH(int64_t, (double)x);
    case DT_I32: EACH(int32_t, (double)x);
    case DT_I16: EACH(int16_t, (double)x);
    case DT_U64: EACH(uint64_t, (double)x);
    case DT_U32: EACH(uint32_t, (double)x);
    case DT_U16: EACH(uint16_t, (double)x);
    case DT_I8: EACH(int8_t, (double)x);
    case DT_U8:
    case DT_BOOL: EACH(uint8_t, (double)x);
    case DT_NONE: break;
    }
#undef EACH
}

/* fp32 masters from bf16 weights and their low halves. Rounded ones (half away
 * from zero, as TransformerEngine keeps them) were rounded up where the low half
 * is negative as a signed number. */
static void join(const uint16_t *high, const uint16_t *low, bool away, double *dst, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t h = high[i];
        if (away && (low[i] & 0x8000))
            h--;
        dst[i] = (double)f32_from_bits((uint32_t)h << 16 | low[i]);
    }
}

/* True if scale has one number, one a row of t, or one a 128x128 block. */
static bool scales_fit(const struct stored *t, const struct stored *scale)
{
    uint64_t rows = t->rank ? t->shape[0] : 1;
    uint64_t cols = rows ? t->elements / rows : 0;
    uint64_t last = t->rank ? t->shape[t->rank - 1] : 1;
    return scale->elements == 1 || scale->elements == rows ||
           (last && scale->elements == t->elements / last) ||
           (t->rank == 2 && scale->rank == 2 && scale->shape[0] == (rows + 127) / 128 &&
            scale->shape[1] == (cols + 127) / 128);
}

static bool scales_known(const struct stored *scale)
{
    return scale->dtype != DT_NONE && scale->bytes <= SCALES_MAX;
}

bool values_known(const struct stored *t)
{
    t = t->master ? t->master : t;
    return t->dtype != DT_NONE &&
           (!t->scale || (scales_known(t->scale) && scales_fit(t, t->scale)));
}

struct stored stored_forward(const struct stored *t)
{
    struct stored forward = t->forward ? *t->forward : *t;
    forward.master = forward.low = NULL;
    return forward;
}

static int read_scales(struct values *v, struct tensors *s, const struct stored *t)
{
    const struct stored *x = t->scale;
    struct tensor_bytes b;
    if (!x)
        return 0;
    if (!scales_fit(t, x))
        return err_set(GPT_INPUT,
                       "%s: tensor '%s': expected one number, one a row or one a "
                       "128x128 block of '%s', found %" PRIu64,
                       tensors_path(s), x->name, t->name, x->elements);
    if (!scales_known(x))
        return err_set(GPT_INPUT, "%s: tensor '%s': %" PRIu64 " scales of type %s cannot be used",
                       tensors_path(s), x->name, x->elements, x->type);
    v->nscales = x->elements;
    v->scales = malloc((x->elements + 1) * sizeof *v->scales);
    unsigned char *raw = malloc(x->bytes + 1);
    int rc = v->scales && raw ? bytes_open(&b, s, x, 0) : err_memory();
    if (!rc)
        rc = bytes_read(&b, raw, x->bytes);
    if (v->scales && raw)
        bytes_close(&b);
    if (!rc)
        decode(x->dtype, raw, v->scales, x->elements);
    free(raw);
    return rc;
}

int values_open(struct values *v, struct tensors *s, const struct stored *t, uint64_t first)
{
    memset(v, 0, sizeof *v);
    v->main.s = v->low.s = s;
    v->t = t = t->master ? t->master : t;
    if (t->dtype == DT_NONE)
        return err_set(GPT_INPUT, "%s: tensor '%s': type %s cannot be decoded", tensors_path(s),
                       t->name, t->type);
    v->at = first;
    if (!(v->buf = malloc(2 * CHUNK * sizeof(double))))
        return err_memory();
    int rc = read_scales(v, s, t);
    if (!rc)
        rc = bytes_open(&v->main, s, t, first * dtype_size(t->dtype));
    if (!rc && t->low)
        rc = bytes_open(&v->low, s, t->low, first * 2);
    return rc;
}

static double scale_at(const struct values *v, const struct stored *t, uint64_t i)
{
    if (v->nscales == 1)
        return v->scales[0];
    uint64_t cols = t->elements / t->shape[0], row = i / cols;
    if (v->nscales == t->shape[0])
        return v->scales[row];
    if (v->nscales == t->elements / t->shape[t->rank - 1]) /* of each matrix of a bank */
        return v->scales[i / t->shape[t->rank - 1]];
    return v->scales[row / 128 * t->scale->shape[1] + i % cols / 128];
}

/* Products are rounded to fp32, the type that the optimizer works in. */
static void apply_scales(const struct values *v, const struct stored *t, double *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (double)(float)(x[i] * scale_at(v, t, v->at + i));
}

int values_read(struct values *v, double *dst, size_t n)
{
    const struct stored *t = v->t;
    unsigned char *low = (unsigned char *)v->buf + CHUNK * sizeof(double);
    size_t size = dtype_size(t->dtype);
    for (size_t k; n > 0; n -= k, dst += k, v->at += k) {
        k = n < CHUNK ? n : CHUNK;
        int rc = bytes_read(&v->main, v->buf, k * size);
        if (!rc && t->low)
            rc = bytes_read(&v->low, low, 2 * k);
        if (rc)
            return rc;
        if (t->low)
            join(v->buf, (uint16_t *)low, t->away, dst, k);
        else
            decode(t->dtype, v->buf, dst, k);
        if (v->scales)
            apply_scales(v, t, dst, k);
    }
    return 0;
}

void values_close(struct values *v)
{
    bytes_close(&v->main);
    bytes_close(&v->low);
    free(v->scales);
    free(v->buf);
    v->scales = NULL;
    v->buf = NULL;
}

int values_load(struct tensors *s, const struct stored *t, uint64_t first, double *dst, size_t n)
{
    struct values v;
    int rc = values_open(&v, s, t, first);
    if (!rc)
        rc = values_read(&v, dst, n);
    values_close(&v);
    return rc;
}

const char *values_type(const struct stored *t, char *buf)
{
    const struct stored *x = t->master ? t->master : t;
    const char *scaled = x->scale ? " x scale" : "";
    if (x->dtype == DT_NONE)
        snprintf(buf, 64, "%s", x->type);
    else if (t->master)
        snprintf(buf, 64, "%s%s (%s + master)", dtype_name(x->dtype), scaled, dtype_name(t->dtype));
    else if (t->low)
        snprintf(buf, 64, "f32 (bf16 + %s)", t->low->kind);
    else
        snprintf(buf, 64, "%s%s", dtype_name(x->dtype), scaled);
    return buf;
}
