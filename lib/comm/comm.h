/* comm.h - the communicator: collectives between ranks, asynchronous, by ticket.
 *
 * A rank is a thread with its own device queue. Every rank calls the same
 * collectives in the same order. An operation is queued behind the work that
 * its rank has queued on its ops so far, and the rank's later work does not
 * wait for it until comm->wait(ticket). Buffers must not be touched between.
 *
 *     ticket = c->reduce_scatter(c, grad, NULL);      // mean over ranks
 *     ...
 *     c->wait(c, ticket);                             // later ops on this rank see the result
 *     if ((rc = c->status(c))) return rc;
 *
 * Two kinds: of threads that share memory (sums in rank order in f32, one rounding, so results
 * do not depend on timing; one rank alone copies at most), and of NCCL (kernels/). The first error
 * sticks, as in ops.h: status() returns it. A rank that fails calls abort(); the others' waits
 * return and their status names it.
 *
 * Threads: one struct comm belongs to one rank's thread; abort() may be
 * called from any.
 */
#ifndef COMM_COMM_H
#define COMM_COMM_H

#include <stdbool.h>
#include "types/tensor.h"
#include "base/err.h"

enum { MAX_RANKS = 1024 }; /* of all processes */

typedef int comm_ticket; /* >= 0; 0 is a ticket that is always done */

struct comm {
    int rank, world;
    int local_rank; /* this node's rank: which device */
    int64_t piece; /* bytes of a shard that are worth a reduction; 0: none but the whole shard */

    /* Says of memory, whole as alloc_shared() of ops gave it, that collectives on tensors in it
     * follow, at the same places on every rank; reduced: bytes of the largest that is reduced, 0:
     * all are only gathered. They are the same without, maybe slower. Every rank says it of the
     * same memory in the same order, before it captures a graph. */
    void (*share)(struct comm *c, void *memory, size_t bytes, size_t reduced);
    /* Rank r's chunk of full is its rows own[r] (host array of world entries, equal on all ranks):
     * chunks do not overlap, may differ in size and may be empty. NULL: equal chunks in the order
     * of ranks, of rows that the world size divides, which is faster on GPUs. Writes the mean over
     * ranks of this rank's chunk into that chunk. Rows of other chunks become undefined; those of
     * none are not touched. */
    comm_ticket (*reduce_scatter)(struct comm *c, struct tensor full, const struct span *own);
    /* Each rank's chunk of full -> the same chunk on every rank. In place. own: as above. Where
     * each chunk is the front of an equal share, the rest of the share may be sent with it. */
    comm_ticket (*all_gather)(struct comm *c, struct tensor full, const struct span *own);
    comm_ticket (*all_reduce)(struct comm *c, struct tensor t); /* mean, in place */
    /* Opens a group, or closes it: the all_reduces between are queued as one where that is faster. No
     * other collective, and no wait, stands in a group. */
    void (*group)(struct comm *c, bool open);
    comm_ticket (*broadcast)(struct comm *c, struct tensor t, int root);
    /* counts in rows of recv/send (host arrays of world entries); rows packed by rank. */
    comm_ticket (*all_to_all)(struct comm *c, struct tensor recv, const int64_t *recv_rows,
                              struct tensor send, const int64_t *send_rows);
    void (*wait)(struct comm *c, comm_ticket t);
    int (*barrier)(struct comm *c) MUST_CHECK; /* host side */
    /* n doubles of every rank to every rank: all[rank*n + i]. Host side, for control. */
    int (*gather_host)(struct comm *c, const double *mine, int n, double *all) MUST_CHECK;

    int (*status)(struct comm *c) MUST_CHECK;
    void (*abort)(struct comm *c, int code, const char *message); /* this rank failed */
    void (*free)(struct comm *c);
};

/* Makes the communicators of one group of `world` ranks; out has world entries. In a world of one
 * rank only all_to_all touches memory: the others may have tensors of any device. Its user may set
 * rank and world to those of a larger group, of which it then takes one rank's part alone. */
int comm_threads_new(struct comm **out, int world) MUST_CHECK;
/* Sets the collective timeout of the group (600 s by default): a wait that is longer fails, and the
 * error names a rank that has not called the collective. */
void comm_threads_timeout(struct comm *c, double seconds);

#endif
