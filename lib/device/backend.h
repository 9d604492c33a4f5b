/* backend.h - what computes a run: devices, and the communicators between their ranks.
 *
 * A backend is chosen by the command, once, and then asked nothing about its kind: ranks are threads
 * on the CPU (backend_cpu), or GPUs (kernels/host/backend_cuda.h).
 *
 *     struct backend_wants w = { .ranks = 2, .world = 2 };
 *     struct backend b;
 *     if ((rc = backend_cpu(&b, &w))) return rc;
 *     // in each rank's thread, i of this process:
 *     b.ops_new(&ops, i, b.group);
 *     b.comm_new(&comm, ops, b.first + i, b.world, b.group);
 *     // once, after the threads have ended:
 *     backend_release(&b);
 *
 * Threads: ops_new and what follows in the rank's own thread, comm_new there or beside it, abort in any.
 */
#ifndef DEVICE_BACKEND_H
#define DEVICE_BACKEND_H

#include <stdbool.h>
#include "base/trace.h"
#include "comm/comm.h"
#include "ops/ops.h"

/* Versions of what a device computes with, for the log; NULL: it has none. */
struct backend_software {
    const char *cuda, *nccl, *driver;
};

struct backend {
    const char *name;
    char about[512]; /* the device in a line, for the log */
    struct backend_software software;
    bool slow; /* the CPU's products run without vector instructions of ours */
    bool queues; /* work is queued: a step's loss is read while the next one computes */
    int world, first; /* ranks of all processes; the first one of this process */
    /* The device of this process's i-th rank. */
    int (*ops_new)(struct ops **o, int i, void *group);
    /* A device like that one which only counts memory (ops_cpu_counting). */
    int (*ops_counting)(struct ops **o, int i, void *group);
    /* Bytes that the i-th rank's device has left for the run; one_memory: all ranks' together. */
    int (*available)(double *bytes, int i, void *group);
    bool one_memory;
    double memory; /* bytes: the run may take no more of it; 0: all that is left */
    /* Creates the communicator of one rank, with those of the others. o stays the rank's: another thread may
     * make the communicator while the rank's uses o. */
    int (*comm_new)(struct comm **c, struct ops *o, int rank, int world, void *group);
    void *group;
    /* A rank failed before it had a communicator: ends the wait of the others. */
    void (*abort)(void *group, int rank, int code, const char *message);
    /* The phase that a rank enters; what NULL: one of unlimited duration. May be NULL. */
    void (*phase)(struct comm *c, const char *what);
    /* Capture of a step as a graph, and its launch; NULL: the backend has no graphs. */
    int (*capture)(struct ops *o);
    int (*capture_end)(struct ops *o, void **graph);
    void (*launch)(struct ops *o, void *graph);
    void (*graph_free)(void *graph);
    /* Records into t what the devices do between the two calls; NULL: not available. mark: queues one, which
     * is in t too, where it is done. */
    int (*profile)(struct trace *t);
    void (*profile_end)(void);
    void (*mark)(struct ops *o, int mark, int part);
    void (*release)(struct backend *b); /* NULL: there is nothing to release */
};

/* A backend is made for this; members for GPUs alone are 0 or NULL on a CPU. */
struct backend_wants {
    int ranks, world; /* of this process, of all */
    int threads; /* of a rank on a CPU; 0: processors / ranks */
    bool counting; /* devices are only counted on: ops_counting is all that is used */
    const char *gpu_path; /* "native", "portable"; NULL: what the GPU has */
    double timeout_s; /* a rank without progress for so long has failed */
    /* Kernels are loaded at the start: a first launch beside a pending collective can deadlock. */
    bool eager;
    const char *cpu_alone; /* what a GPU needs of the recipe and has not; NULL: nothing */
    const char *fp8; /* what is computed in fp8 where the GPU has it: "the head"; NULL: nothing */
    const char *fp8_required; /* the recipe's key that refuses a GPU without fp8; or NULL */
    /* A rank is still inside the device after all communicators were aborted, so that its thread
     * cannot be ended: should end the process. */
    void (*stuck)(int code, const char *message);
};

/* Ranks are threads in one process. */
int backend_cpu(struct backend *b, const struct backend_wants *w) MUST_CHECK;
static inline void backend_release(struct backend *b)
{
    if (b->release)
        b->release(b);
}

#endif
