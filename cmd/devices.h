/* devices.h - what programs that compute can compute on; the one place of cmd/ that knows whether
 * there are kernels for GPUs. */
#ifndef CMD_DEVICES_H
#define CMD_DEVICES_H

#include <stdio.h>
#include <string.h>
#include "base/opt.h"
#include "device/backend.h"
#include "ops/gemm.h"
#ifdef HAVE_CUDA
#include "../kernels/host/backend_cuda.h"
#include "../kernels/ops_cuda.h"
#endif

/* Rows of an option table, as all of these programs have them. */
#define DEVICES_NAME(to) \
    { \
        .name = "device", .arg = "NAME", .kind = OPT_CHOICE, .value = to, \
        .help = "where to compute (cpu)", .choices = "cpu|cuda" \
    }
#define DEVICES_PATH(to) \
    { \
        .name = "gpu-path", .arg = "PATH", .kind = OPT_CHOICE, .value = to, \
        .help = "kernels: native (Hopper's own) or portable (what the GPU has)", \
        .choices = "native|portable" \
    }

/* Returns versions for --version (opt_version_extra): the CPU's kernels, and CUDA's. */
static inline const char *device_versions(void)
{
    static char text[256];
    bool slow;
    const char *cpu = gemm_kernels(&slow), *cuda = "";
#ifdef HAVE_CUDA
    cuda = ops_cuda_version();
#endif
    snprintf(text, sizeof text, "CPU products: own kernels, %s\n%s", cpu, cuda);
    return text;
}

static inline int devices_gpus(void)
{
#ifdef HAVE_CUDA
    return ops_cuda_count();
#else
    return 0;
#endif
}

/* device: "cpu" or "cuda". */
static inline int devices_choose(struct backend *b, const char *device,
                                 const struct backend_wants *w)
{
    if (!strcmp(device, "cpu"))
        return backend_cpu(b, w);
#ifdef HAVE_CUDA
    return backend_cuda(b, w);
#else
    return err_set(GPT_DEVICE, "this program was built without CUDA: --device cpu is all it has "
                               "(with nvcc on the path, make builds the other)");
#endif
}

#endif
