/* few_rows.h - products of few rows with a weight matrix: what a decoding step is made of.
 *
 *     few_rows(c, { .out = y, .x = x, .w = w, .scale = scale, .add = residual });
 */
#ifndef KERNELS_FEW_ROWS_H
#define KERNELS_FEW_ROWS_H

#include "host/device.h"

/* A mix (device.h) that has not been launched is made by the product that reads it: of so many
 * terms and rows at most. */
enum { FEW_MIX_TERMS = 2, FEW_MIX_ROWS = 8 };

enum few_rows_end { FEW_PLAIN, FEW_RELU2, FEW_SOFTCAP, FEW_ROOT_CAP };

struct few_rows {
    struct tensor out, x, w; /* x (T,I) bf16; w (O,I) bf16, or (I,O) when in_out */
    bool in_out;
    const float *scale; /* device, or NULL */
    struct tensor add; /* bf16 (T,O) added to the f32 sum, or none; may be out */
    /* The sum is stored as bf16; max(., 0)^2 in bf16; or a s(u), a u / sqrt(1 + u^2) in f32, u = (. + b) / c. */
    enum few_rows_end end;
    float cap_a, cap_b, cap_c;
    struct tensor bias; /* (1,O) added to a capped sum; or none */
};
void few_rows(struct cuda_ops *c, const struct few_rows &p);

#endif
