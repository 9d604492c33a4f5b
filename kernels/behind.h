/* behind.h - a kernel whose blocks may start while the last ones of the kernel before it in the
 * stream run: the first permits it, the second waits before it touches memory that anything before
 * it writes. From compute capability 9.0 on; below, both are nothing, and launches must not ask for
 * it (cudaLaunchAttributeProgrammaticStreamSerialization). Source: PTX ISA 9.0, griddepcontrol.
 */
#ifndef KERNELS_BEHIND_H
#define KERNELS_BEHIND_H

/* Absent: the host's pass, and the emulation of a GPU. */
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define KERNELS_OVERLAP 1
#endif

/* The kernel behind may start, as far as it does not wait. */
__device__ __forceinline__ void start_kernel_behind()
{
#ifdef KERNELS_OVERLAP
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
/* Until the kernel before is done and its writes are seen. */
__device__ __forceinline__ void wait_for_kernel_before()
{
#ifdef KERNELS_OVERLAP
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

#endif
