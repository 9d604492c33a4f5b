/* threads_impl.h - a collective of ranks that are threads, and the parts that it falls into.
 *
 * Private to threads.c (who carries out which part, and when) and threads_parts.c (what a part
 * does). Parts of one slot write disjoint memory and read none that another writes, so any threads
 * may carry them out, each once.
 */
#ifndef COMM_THREADS_IMPL_H
#define COMM_THREADS_IMPL_H

#include <stdbool.h>
#include "comm/comm.h"

enum kind { REDUCE_SCATTER, ALL_GATHER, ALL_REDUCE, BROADCAST, ALL_TO_ALL, BARRIER, GATHER_HOST };

/* What one rank brings to a collective. */
struct entry {
    bool here;
    struct tensor t, send;
    int64_t *recv_rows, *send_rows; /* world each, owned by the slot; recv: of each place */
    const double *mine;
    double *all;
};

struct slot {
    int64_t seq; /* which collective; -1: none yet */
    enum kind kind;
    int root, n;
    int arrived, parts, claimed, done;
    struct entry *e; /* world */
};

/* How many parts a collective of tensors like t falls into. */
int threads_parts(enum kind kind, int world, struct tensor t);
/* Of a slot that all ranks have filled in. */
void threads_carry_out(const struct slot *s, int world, int part);

#endif
