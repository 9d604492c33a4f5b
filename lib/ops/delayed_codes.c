/* delayed_codes.c - codes of the MLP's hidden layer by a scale of earlier ones (fp8.md 5). */
#include "ops/cpu.h"

void cpu_delayed_codes(struct ops *o, struct tensor x8, struct tensor x, real *scale, real *most)
{
    int64_t n = tensor_count(x);
    const real *p = real_ptr(x);
    uint8_t *codes = x8.data;

    if (cpu_failed(o) || DT_REAL != DT_F32)
        return;
    assert(x8.dtype == DT_E4M3 && tensor_count(x8) == n);
    *scale = *scale == 0 ? 1 : *scale;
    real inverse = 1 / *scale;
    for (int64_t i = 0; i < n; i++)
        codes[i] = e4m3_from_f32((float)(p[i] * inverse));
    *most = cpu_amax(p, n, *most);
}

void cpu_delayed_scales(struct ops *o, real *scale, real *most, int n, real headroom)
{
    if (cpu_failed(o) || DT_REAL != DT_F32)
        return;
    for (int i = 0; i < n; i++) {
        scale[i] = headroom * (most[i] < (real)1e-12 ? (real)1e-12 : most[i]) / 448;
        most[i] = 0;
    }
}
