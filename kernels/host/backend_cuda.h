/* backend_cuda.h - NVIDIA GPUs as a backend: one thread a GPU in one process. */
#ifndef KERNELS_HOST_BACKEND_CUDA_H
#define KERNELS_HOST_BACKEND_CUDA_H

#ifdef __cplusplus
extern "C" {
#endif
#include "device/backend.h"

/* Ranks are the GPUs that are visible, from 0 on; one rank alone needs no NCCL. GPT_DEVICE: there are
 * fewer GPUs than ranks, they differ, or have no fp8 where it is required. Counting needs no GPU: where
 * there is none, one of Hopper is counted on. */
int backend_cuda(struct backend *b, const struct backend_wants *w) MUST_CHECK;

#ifdef __cplusplus
}
#endif
#endif
