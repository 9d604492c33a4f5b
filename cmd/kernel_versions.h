/* kernel_versions.h - what --version says of programs that compute: the CPU's kernels, and CUDA. */
#ifndef CMD_KERNEL_VERSIONS_H
#define CMD_KERNEL_VERSIONS_H

#include <stdio.h>
#include "ops/gemm.h"
#ifdef HAVE_CUDA
#include "../kernels/ops_cuda.h"
#endif

/* For opt_version_extra. */
static const char *kernel_versions(void)
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

#endif
