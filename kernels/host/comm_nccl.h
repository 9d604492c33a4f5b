/* comm_nccl.h - the communicator of ranks on NVIDIA GPUs: NCCL, one thread a rank.
 *
 * A group is what the ranks of this process share: the number of ranks here
 * and elsewhere, connections to the other processes, and a thread that
 * detects failures. A rank is a thread with a GPU of its own.
 *
 *     struct nccl_group *g;
 *     if ((rc = nccl_group_new(&g, 8, 10.0))) return rc;       // once a process
 *     // in each of the 8 threads:
 *     int rank = nccl_group_first(g) + i;
 *     nccl_group_ops(&o, i, g);
 *     comm_nccl_new(&c, o, rank, nccl_group_world(g), g);
 *     ... c->reduce_scatter(c, grad, NULL) ...
 *     c->free(c);                                              // after graphs that hold its work
 *     // once, after the threads have ended:
 *     nccl_group_free(g);
 *
 * Collectives run on a stream of their own, of high priority: they begin after
 * what the rank has queued, and the rank's queue waits for them at wait().
 * Both also while a graph is captured: a ticket must then be waited for in the
 * capture that made it, and everything has been waited for when it ends. The
 * mean is NCCL's, in the tensor's type.
 *
 * Large tensors that share() was told of go by the GPUs' copy engines, between GPUs of one process
 * that have access to each other (comm_copies.h).
 *
 * Failures. The watching thread checks ten times a second for errors of NCCL,
 * for other processes that failed, ended or send no heartbeat, and for ranks of
 * this process that are in a phase (comm_nccl_phase) and have called nothing
 * for timeout seconds. Then, and when a rank calls abort(), every communicator
 * of the process is aborted, which ends kernels that wait for others; the
 * ranks' next status() names rank, GPU, phase and reason. If a rank is still
 * inside CUDA 2 seconds later, `stuck` is called with its name and should end
 * the process.
 *
 * Threads: a struct comm belongs to its rank's thread once it is made; abort() may be called
 * from any. nccl_group_* by one thread, nccl_group_status by any.
 */
#ifndef KERNELS_HOST_COMM_NCCL_H
#define KERNELS_HOST_COMM_NCCL_H

#ifdef __cplusplus
extern "C" {
#endif
#include "comm/comm.h"
#include "ops/ops.h"

struct nccl_group;

/* gpus: ranks of this process. Connects to the other processes (comm/rendezvous.h), each of which
 * must have as many, within a minute or timeout_s if that is longer. timeout_s: after which a
 * process without heartbeat, or a rank without progress, has failed. */
int nccl_group_new(struct nccl_group **g, int gpus, double timeout_s) MUST_CHECK;
/* Starts NCCL, which needs no GPU for that: while the GPUs' contexts are made, so that comm_nccl_new need not
 * do it. By one thread, before it. */
int nccl_group_begin(struct nccl_group *g) MUST_CHECK;
int nccl_group_world(const struct nccl_group *g);
int nccl_group_first(const struct nccl_group *g); /* this process's first rank */
int nccl_group_gpus(const struct nccl_group *g); /* this process's ranks */
int nccl_group_device(const struct nccl_group *g, int i); /* GPU of its rank first + i */
/* The GPU of rank first + i (ops_cuda_new). group is a struct nccl_group; the signature is that of
 * struct backend (device/backend.h). */
int nccl_group_ops(struct ops **o, int i, void *group) MUST_CHECK;
/* Called from the watching thread; code and message as of status(). */
void nccl_group_stuck(struct nccl_group *g, void (*stuck)(void *ctx, int code, const char *message),
                      void *ctx);
int nccl_group_status(struct nccl_group *g) MUST_CHECK;
/* A rank failed before it had a communicator: the others' comm_nccl_new returns. Any thread. group
 * is a struct nccl_group; the signature is that of struct backend (device/backend.h). */
void nccl_group_abort(void *group, int rank, int code, const char *message);
void nccl_group_free(struct nccl_group *g);

/* Makes a rank's communicator, all ranks together, in the rank's thread or beside it: it only reads o's
 * device, and the rank may use o meanwhile. group is a struct
 * nccl_group; rank and world are over all processes. The signature is that of struct backend
 * (train/run.h). */
int comm_nccl_new(struct comm **c, struct ops *o, int rank, int world, void *group) MUST_CHECK;

/* Names what the rank does from now on, for messages: a string that outlives the communicator.
 * Until the next call of this or of any function of the communicator no more than timeout_s may
 * pass. NULL: no limit (files, a validation). */
void comm_nccl_phase(struct comm *c, const char *phase);

/* Collectives so far that went by copies. */
int64_t comm_nccl_copied(struct comm *c);

#ifdef __cplusplus
}
#endif
#endif
