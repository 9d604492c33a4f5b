/* finite.c - is there a NaN or an infinity? Such numbers have all exponent bits set, and in e4m3,
 * which has no infinity, those of the mantissa. */
#include "ops/cpu.h"

void cpu_finite(struct ops *o, int32_t *bad, struct tensor t)
{
    int64_t n = tensor_count(t);
    int32_t found = 0;

    if (cpu_failed(o))
        return;
    if (t.dtype == DT_BF16 || t.dtype == DT_F16) {
        const uint16_t *x = t.data, mask = t.dtype == DT_BF16 ? 0x7f80 : 0x7c00;
        for (int64_t i = 0; i < n; i++)
            found |= (x[i] & mask) == mask;
    } else if (t.dtype == DT_E4M3) {
        const uint8_t *x = t.data;
        for (int64_t i = 0; i < n; i++)
            found |= (x[i] & 0x7f) == 0x7f;
    } else if (t.dtype == DT_F32) {
        const float *x = t.data;
        for (int64_t i = 0; i < n; i++)
            found |= (f32_bits(x[i]) & 0x7f800000u) == 0x7f800000u;
    } else {
        for (int64_t i = 0; i < n; i++)
            found |= !isfinite(real_get(t, i));
    }
    *bad |= found;
}
