/* comm_group.h - inside of the NCCL communicator: the group, its members, and how they fail.
 *
 * Private to comm_nccl.cu and comm_group.cu.
 */
#ifndef KERNELS_HOST_COMM_GROUP_H
#define KERNELS_HOST_COMM_GROUP_H

#include <nccl.h>
#include <pthread.h>
#include "host/comm_nccl.h"
#include "host/device.h"
extern "C" {
#include "comm/rendezvous.h"
}

enum { TICKETS = 256 }; /* collectives in flight that can be told apart */

struct ticket {
    cudaEvent_t done;
    unsigned long long capture; /* in which it was made; 0: none */
};

/* Memory that the copies of other ranks reach. */
struct window {
    char *base;
    size_t bytes;
    ncclWindow_t win;
};

/* Chunks of all ranks for one owner. */
struct received {
    char *at;
    cudaEvent_t added; /* the last time */
    unsigned long long capture; /* in which; 0: none */
};

struct member {
    struct comm c; /* first: struct comm * is struct member * */
    struct nccl_group *group;
    int device;
    ncclComm_t nccl; /* NULL once aborted; under `calling` */
    struct cuda_ops *ops; /* collectives wait for the stream that it queues into, and it for them */
    cudaStream_t stream;
    cudaEvent_t queued[TICKETS];
    struct ticket ticket[TICKETS];
    int64_t seq; /* collectives so far */
    bool grouped; /* a group of all-reduces is open, and `calling` held */
    pthread_mutex_t calling; /* held while NCCL is called */
    /* comm_copies.cu: are there copies; what share() was told of; memory for chunks of all ranks,
     * taken in turns; a stream that adds them up. */
    bool copies;
    struct window *window;
    int n_windows;
    struct received received[2]; /* both in a window of their own */
    ncclWindow_t received_win;
    int turn;
    size_t received_bytes; /* of each */
    cudaStream_t adding;
    cudaEvent_t exchanged;
    int64_t copied; /* collectives by copies so far */
    /* Written by the rank, read by the watching thread: only through __atomic. */
    const char *phase; /* NULL: not watched */
    bool worked; /* it has been in a phase */
    const char *last; /* collective */
    bool aborted; /* under the group's lock: the abort no longer uses m->nccl */
    int64_t active_ms; /* when the rank last called a function of the communicator */
    int64_t begun; /* collectives that it has called */
};

static inline const char *nccl_member_phase(const struct member *m)
{
    const char *phase = __atomic_load_n(&m->phase, __ATOMIC_RELAXED);
    bool worked = __atomic_load_n(&m->worked, __ATOMIC_RELAXED);
    return phase ? phase : worked ? "between steps" : "start";
}

/* Records the first failure of the process, with rank, GPU and phase in front. */
void nccl_member_fail(struct member *m, int code, const char *fmt, ...) PRINTF_LIKE(3, 4);
bool nccl_member_failed(const struct member *m);
bool nccl_member_cuda(struct member *m, cudaError_t e, const char *expr, const char *file,
                      int line);
bool nccl_member_nccl(struct member *m, ncclResult_t e, const char *expr, const char *file,
                      int line);
/* Records that the rank is active now; what: the collective that it calls, or NULL. */
void nccl_member_active(struct member *m, const char *what);

#define MEMBER_CUDA(m, expr) nccl_member_cuda((m), (expr), #expr, __FILE__, __LINE__)
#define MEMBER_NCCL(m, expr) nccl_member_nccl((m), (expr), #expr, __FILE__, __LINE__)

/* Make a stream of the highest priority; an event without times. */
bool nccl_member_stream(struct member *m, cudaStream_t *stream);
bool nccl_member_event(struct member *m, cudaEvent_t *event);
/* 0 outside of a capture, else the capture's id. */
bool nccl_member_capture(struct member *m, unsigned long long *id);
bool nccl_group_copies(struct nccl_group *g); /* copies_possible, asked once; any thread */
void nccl_group_join(struct member *m);
/* Ends the watch over m; waits for an abort that is under way. */
void nccl_group_leave(struct member *m);
/* bytes of every rank to every rank, over all processes; every rank calls it. */
int nccl_group_gather(struct nccl_group *g, int rank, const void *mine, size_t bytes,
                      void *all) MUST_CHECK;
/* Gives all ranks, each of which calls it, the same id. */
int nccl_group_id(struct nccl_group *g, int rank, ncclUniqueId *id) MUST_CHECK;

#endif
