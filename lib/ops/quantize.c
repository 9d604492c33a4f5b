/* quantize.c - a weight's copy in e4m3, with its greatest magnitude. */
#include "ops/cpu.h"

void cpu_fp8_write(const struct fp8_copy *copy, struct tensor w, int64_t first, int n)
{
    uint8_t *codes = (uint8_t *)copy->codes.data + first;
    real x[FP8_BLOCK], most = *copy->amax;

    assert(copy->codes.dtype == DT_E4M3 && tensor_count(copy->codes) == tensor_count(w));
    real_read(x, w, first, n);
    for (int i = 0; i < n; i++) {
        real size = x[i] < 0 ? -x[i] : x[i];
        codes[i] = e4m3_from_f32((float)(x[i] / copy->scale_inv));
        most = most == most && !(size <= most) ? size : most; /* a NaN stays */
    }
    *copy->amax = most;
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
