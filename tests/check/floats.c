/* floats.c - see floats.h. */
#include "floats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

float *floats_of(struct ops *o, struct tensor t)
{
    int64_t n = tensor_count(t);
    float *x = malloc((size_t)n * sizeof *x);
    uint16_t *h = malloc(tensor_bytes(t));
    o->download(o, h, t.data, tensor_bytes(t));
    if (t.dtype == DT_F32)
        memcpy(x, h, tensor_bytes(t));
    else
        for (int64_t i = 0; i < n; i++)
            x[i] = t.dtype == DT_BF16 ? bf16_to_f32(h[i]) : (float)h[i];
    free(h);
    return x;
}

void floats_to(struct ops *o, struct tensor t, const float *x)
{
    int64_t n = tensor_count(t);
    uint16_t *h = malloc((size_t)n * sizeof *h);
    for (int64_t i = 0; i < n; i++)
        h[i] = bf16_from_f32(x[i]);
    o->upload(o, t.data, t.dtype == DT_BF16 ? (void *)h : (void *)x, tensor_bytes(t));
    free(h);
}

double relative_error(const float *got, const float *want, int64_t n)
{
    double d = 0, w = 0;
    for (int64_t i = 0; i < n; i++) {
        d += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        w += (double)want[i] * want[i];
    }
    return w > 0 ? sqrt(d / w) : sqrt(d);
}
