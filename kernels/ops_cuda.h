/* ops_cuda.h - struct ops on an NVIDIA GPU of compute capability 8.0 or newer, for C callers.
 *
 *     struct ops *o;
 *     if ((rc = ops_cuda_new(&o, rank))) return rc;       // GPT_DEVICE and one message
 *     ... memory with o->alloc, one step eagerly or at once:
 *     void *graph = NULL;
 *     if ((rc = ops_cuda_capture(o))) ...
 *     step(o);                                            // queued into the graph, does not run
 *     if ((rc = ops_cuda_capture_end(o, &graph))) ...
 *     ops_cuda_launch(o, graph);                          // as often as wanted
 *     ops_cuda_graph_free(graph);
 *     o->free(o);
 *
 * While capturing, alloc, uploads, downloads and sync are errors: what
 * differs between launches of a graph is in device memory, uploaded before.
 *
 * Threads: as ops.h. The thread that calls ops_cuda_new must make all later calls.
 */
#ifndef KERNELS_OPS_CUDA_H
#define KERNELS_OPS_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include "base/err.h"

struct ops;

#ifdef __cplusplus
extern "C" {
#endif

/* Device `device` of those visible. GPT_DEVICE with one message: no driver, driver too old,
 * no such GPU, compute capability below 8.0, no code for it, no memory. */
int ops_cuda_new(struct ops **o, int device) MUST_CHECK;

/* A device that only counts memory, as ops_cpu_counting: no kernel is launched. Like GPU `device`,
 * or where there is none like one of Hopper. */
int ops_cuda_counting(struct ops **o, int device) MUST_CHECK;

/* Bytes of its memory that a run on GPU `device` may take: what is free, less what CUDA takes for
 * kernels and graphs. */
int ops_cuda_available(double *bytes, int device) MUST_CHECK;

/* Facts about the device, kept apart so that the check runs without a GPU. */
struct gpu_facts {
    int driver, runtime; /* CUDA versions, 1000 major + 10 minor; driver 0: none */
    int visible; /* GPUs */
    const char *error; /* of cudaGetDeviceCount, or NULL */
    int major, minor; /* compute capability of the requested GPU */
    int code; /* compute capability its code was compiled for, 10 major + minor; 0: none */
};
/* Fills f for GPU `device`; `code`, which takes a CUDA context, is left 0. */
void ops_cuda_facts(int device, struct gpu_facts *f);
/* Writes the name of a GPU that is there, or "GPU", to text; slow, as it asks the driver for all properties. */
void ops_cuda_name(int device, char *text, size_t size);
static inline bool gpu_has_fp8(const struct gpu_facts *f)
{
    return f->major > 8 || (f->major == 8 && f->minor == 9);
}
int ops_cuda_fits(const struct gpu_facts *f, int device) MUST_CHECK;

/* Hopper has kernels of its own for some ops (kernels/sm90). The native path is these, the portable
 * one the kernels for any GPU in their place. What ops_cuda_new takes: native where the GPU has it,
 * unless the environment's GPT_GPU_PATH says `native` or `portable`, or ops_cuda_choose_path does,
 * before any ops_cuda_new and above the environment. Native on a GPU without: GPT_DEVICE. */
void ops_cuda_choose_path(const char *path);
int ops_cuda_portable(int device, bool *portable) MUST_CHECK;
int ops_cuda_path(const struct gpu_facts *f, int device, const char *wanted,
                  bool *portable) MUST_CHECK;

/* Returns how many GPUs are visible; 0 also without a driver. */
int ops_cuda_count(void);

/* Versions of what is there; "none" of a driver that is not. driver: of the kernel's module, or,
 * where that is not to be seen, the CUDA that the driver knows. nccl: "none" in programs without.
 * No GPU needed. */
struct gpu_software {
    char runtime[32], driver[64], cublaslt[32], nccl[32];
};
const struct gpu_software *ops_cuda_software(void);
/* Returns these versions as text, one a line. */
const char *ops_cuda_version(void);

/* cudaStream_t that the ops queue into, for a communicator's events. */
void *ops_cuda_stream(struct ops *o);

int ops_cuda_capture(struct ops *o) MUST_CHECK;
int ops_cuda_capture_end(struct ops *o, void **graph) MUST_CHECK;
void ops_cuda_launch(struct ops *o, void *graph);
void ops_cuda_graph_free(void *graph);

/* Queues a mark for a timeline (base/trace.h): a kernel that does nothing. 0 <= part <= 1023. */
void ops_cuda_mark(struct ops *o, int mark, int part);

#ifdef __cplusplus
}
#endif
#endif
