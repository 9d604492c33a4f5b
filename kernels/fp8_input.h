/* fp8_input.h - an activation in e4m3, or a gradient in e5m2, scaled by its greatest magnitude
 * (fp8.md 2 and 4; fp8_input.cu). */
#ifndef KERNELS_FP8_INPUT_H
#define KERNELS_FP8_INPUT_H

#include "host/device.h"

struct fp8_input {
    struct tensor codes;
    /* Device: what a product of codes and weight's codes is multiplied by; of a gradient, what the
     * one that follows from it is multiplied by to have codes, and these to be it again. */
    const float *factor, *follow, *back;
};

/* Bytes of workspace for x. */
size_t fp8_input_bytes(struct tensor x);
/* x (T,K) bf16, K a multiple of 16; type: DT_E4M3 or DT_E5M2. at: in the workspace; it advances. */
struct fp8_input fp8_input_make(struct cuda_ops *c, char **at, struct tensor x, enum dtype type,
                                const float *w_scale);

#endif
