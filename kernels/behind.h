/* behind.h - a kernel whose blocks may start while the last ones of the kernel before it in the
 * stream run: the first permits it, the second waits before it touches memory that anything before
 * it writes. From compute capability 9.0 on; below, both are nothing, and launches must not ask for
 * it (cudaLaunchAttributeProgrammaticStreamSerialization). Source: PTX ISA 9.0, griddepcontrol.
 */
#ifndef KERNELS_BEHIND_H
#define KERNELS_BEHIND_H

#include "host/device.h"
#include "host/launch.h"

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

/* A kernel of a decoding step, whose launch is launch_step: a step is some hundred kernels of a
 * microsecond each, one behind the other. Elsewhere, where grids are large, the kernel behind is
 * not permitted to start. */
__device__ __forceinline__ void start_step_behind()
{
    enum { SMALL = 64 };
    if (gridDim.x <= SMALL)
        start_kernel_behind();
}
__device__ __forceinline__ void begin_step()
{
    start_step_behind();
    wait_for_kernel_before();
}
/* The first kernel of a step: those behind it start when all before it is done, so that before
 * their wait they may read what the step before wrote (past the L1, with __ldcg). */
__device__ __forceinline__ void begin_first_of_step()
{
    wait_for_kernel_before();
    start_step_behind();
}

/* Launches a kernel with so much shared memory, in clusters of so many CTAs, so that it may start
 * while the one before it ends, where it can. All have the same partition of shared memory and L1:
 * an SM changes it only when it is empty. */
template <typename... P, typename... A>
static inline void launch_behind_clusters(struct cuda_ops *c, int cluster, int shared,
                                          void (*kernel)(P...), dim3 grid, int threads, A... args)
{
    if (cuda_waiting(c))
        cuda_launch_waiting(c);
    if (CUDA_TRY(c, cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                         cudaSharedmemCarveoutMaxShared)))
        CUDA_TRY(c, launch_kernel({ grid, threads, c->stream, shared, c->portable ? 1 : cluster,
                                    !c->portable },
                                  kernel, args...));
}
template <typename... P, typename... A>
static inline void launch_behind_with(struct cuda_ops *c, int shared, void (*kernel)(P...),
                                      dim3 grid, int threads, A... args)
{
    launch_behind_clusters(c, 1, shared, kernel, grid, threads, args...);
}
template <typename... P, typename... A>
static inline void launch_behind(struct cuda_ops *c, void (*kernel)(P...), dim3 grid, int threads,
                                 A... args)
{
    launch_behind_with(c, 0, kernel, grid, threads, args...);
}
template <typename... P, typename... A>
static inline void launch_step(struct cuda_ops *c, void (*kernel)(P...), dim3 grid, int threads,
                               A... args)
{
    if (c->ops.rows_apart) {
        launch_behind(c, kernel, grid, threads, args...);
        return;
    }
    kernel<<<grid, threads, 0, c->stream>>>(P(args)...);
    CUDA_LAUNCHED(c);
}

#endif
