/* fp8_input.h - an activation in e4m3, scaled by its greatest magnitude (fp8.md 2; fp8_input.cu). */
#ifndef KERNELS_FP8_INPUT_H
#define KERNELS_FP8_INPUT_H

#include "host/device.h"

struct fp8_input {
    struct tensor codes;
    const float *factor; /* device: what a product of codes and weight's codes is multiplied by */
};

/* Bytes of workspace for x. */
size_t fp8_input_bytes(struct tensor x);
/* x (T,K) bf16, K a multiple of 16. at: in the workspace; it advances. */
struct fp8_input fp8_input_make(struct cuda_ops *c, char **at, struct tensor x,
                                const float *w_scale);

#endif
