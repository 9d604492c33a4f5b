/* gpu.h - the launchers: each op NAME of op_list.h is gpu_NAME in kernels/NAME.cu, a backward
 * beside its forward. The comment at the top of each file describes the kernels.
 */
#ifndef KERNELS_GPU_H
#define KERNELS_GPU_H

#include "host/device.h"

#define OP(name, ...) void gpu_##name(struct ops *o, __VA_ARGS__)
#include "ops/op_list.h"

#endif
