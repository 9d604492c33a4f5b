/* quantize.c - copies of weights in e4m3: at a fixed scale with the greatest magnitude, or matrices
 * with a scale each (fp8.md 1).
 */
#include "ops/cpu.h"

real cpu_amax(const real *x, int64_t n, real most)
{
    for (int64_t i = 0; i < n; i++) {
        real size = x[i] < 0 ? -x[i] : x[i];
        most = most == most && !(size <= most) ? size : most; /* a NaN stays */
    }
    return most;
}

const real *cpu_code_view(struct ops *o, int slot, struct tensor codes)
{
    int64_t n = tensor_count(codes);
    const uint8_t *code = codes.data;
    real *q = cpu_scratch(o, slot, n), number[256];

    if (!q)
        return NULL;
    for (int i = 0; i < 256; i++)
        number[i] = e4m3_to_f32((uint8_t)i) + 0.0f;
    for (int64_t i = 0; i < n; i++)
        q[i] = number[code[i]];
    return q;
}

void cpu_fp8_write(const struct fp8_copy *copy, struct tensor w, int64_t first, int n)
{
    uint8_t *codes = (uint8_t *)copy->codes.data + first;
    real x[FP8_BLOCK];

    assert(copy->codes.dtype == DT_E4M3 && tensor_count(copy->codes) == tensor_count(w));
    real_read(x, w, first, n);
    for (int i = 0; i < n; i++)
        codes[i] = e4m3_from_f32((float)(x[i] / copy->scale_inv));
    *copy->amax = cpu_amax(x, n, *copy->amax);
}

void cpu_quantize(struct ops *o, const struct fp8_copy *copy, struct tensor w)
{
    int64_t count = tensor_count(w);

    if (cpu_failed(o))
        return;
    *copy->amax = 0;
    for (int64_t at = 0; at < count; at += FP8_BLOCK)
        cpu_fp8_write(copy, w, at, count - at < FP8_BLOCK ? (int)(count - at) : FP8_BLOCK);
}

/* Copies matrices as q says. d: with scales of the refresh before, and codes rounded once; or NULL. */
static void copy_matrices(struct ops *o, const struct fp8_matrices *q, const struct fp8_delay *d,
                          struct tensor w)
{
    int64_t n = q->rows * w.cols;
    real *x = cpu_scratch(o, 0, n);

    assert(q->codes.dtype == DT_E4M3 && q->codes.cols == w.cols);
    if (cpu_failed(o))
        return;
    for (int64_t m = 0; m * q->rows < q->codes.rows; m++) {
        uint8_t *codes = (uint8_t *)q->codes.data + m * n;
        real_read(x, w, (q->first + m * q->stride) * w.cols, n);
        real most = cpu_amax(x, n, (real)1e-12);
        bool own = !d || *d->first != 0 || d->next[m] == 0;
        float fit = (float)most / E4M3_MAX;
        q->scale[m] = !own ? d->next[m] : q->exact ? fit : bf16_round(fit);
        if (d)
            d->next[m] = d->headroom * most / E4M3_MAX;
        for (int64_t i = 0; i < n; i++) {
            float code = (float)(x[i] / q->scale[m]);
            codes[i] = e4m3_from_f32(d || q->exact ? code : bf16_round(code));
        }
        if (!has(q->turned))
            continue;
        uint8_t *turned = (uint8_t *)q->turned.data + m * n;
        for (int64_t i = 0; i < n; i++)
            turned[i % w.cols * q->rows + i / w.cols] = codes[i];
    }
}

void cpu_input_codes(struct ops *o, struct tensor x8, struct tensor x, real scale)
{
    const real *from = real_ptr(x);
    uint8_t *codes = x8.data;

    assert(x8.dtype == DT_E4M3 && tensor_count(x8) == tensor_count(x));
    if (DT_REAL != DT_F32 || cpu_failed(o))
        return;
    for (int64_t i = 0; i < tensor_count(x); i++)
        codes[i] = e4m3_from_f32((float)(from[i] / scale));
}

void cpu_quantize_matrices(struct ops *o, const struct fp8_matrices *q, struct tensor w)
{
    copy_matrices(o, q, NULL, w);
}

void cpu_quantize_delayed(struct ops *o, const struct fp8_matrices *q, const struct fp8_delay *d,
                          struct tensor w)
{
    copy_matrices(o, q, d, w);
}
