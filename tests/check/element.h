/* element.h - one number of a tensor in host memory, whatever its type: bf16, f32; u16 is
 * read by value.
 *
 *     set(x, i, 0.5);
 *     double v = get(x, i);
 */
#ifndef TESTS_ELEMENT_H
#define TESTS_ELEMENT_H

#include "types/tensor.h"

static inline double get(struct tensor t, int64_t i)
{
    return t.dtype == DT_BF16   ? bf16_to_f32(((uint16_t *)t.data)[i])
           : t.dtype == DT_U16  ? ((uint16_t *)t.data)[i]
           : t.dtype == DT_E4M3 ? e4m3_to_f32(((uint8_t *)t.data)[i])
                                : ((float *)t.data)[i];
}

static inline void set(struct tensor t, int64_t i, double x)
{
    if (t.dtype == DT_BF16)
        ((uint16_t *)t.data)[i] = bf16_from_f32((float)x);
    else if (t.dtype == DT_E4M3)
        ((uint8_t *)t.data)[i] = e4m3_from_f32((float)x);
    else
        ((float *)t.data)[i] = (float)x;
}

#endif
