/* sparse.h - the mean over ranks of a table's gradient, of which each rank has touched few rows.
 *
 * The table is cut by rows among ranks. A rank notes on the host which rows its
 * tokens read (their gradients may differ from zero); when the gradient is
 * wanted, it sends those of others to their owners, row numbers and rows, and
 * adds what it gets to its own. Where that would not move fewer bytes than a
 * dense reduce-scatter on the rank that moves most, all ranks take the latter.
 * Own rows do not travel. After record 74's (optimizers.md 6); the result is
 * that of the reduce-scatter, up to the order of sums.
 *
 *     struct sparse *s;
 *     if ((rc = sparse_new(&s, o, c, g, most))) return rc;
 *     sparse_touch(s, rows, n);                // for each micro-batch, while the device works
 *     if ((rc = sparse_exchange(s, c, g))) return rc;     // in g's own rows: the mean
 *     sparse_free(s);
 *
 * Counts are host numbers, so an exchange cannot be part of a captured graph.
 * Memory on the device is taken from ops and goes with it.
 *
 * Threads: a struct sparse belongs to its rank's thread.
 */
#ifndef OPTIM_SPARSE_H
#define OPTIM_SPARSE_H

#include <stdbool.h>
#include "comm/comm.h"
#include "ops/ops.h"

struct sparse;

/* What was moved since sparse_new. Bytes are means over ranks. */
struct sparse_stats {
    int64_t exchanges, dense; /* dense: those of them that were reduce-scatters */
    double sent_bytes; /* by all exchanges, row numbers included */
    double dense_bytes; /* what reduce-scatters in a ring would have sent */
};

/* g: the gradient as sparse_exchange will get it, rows a multiple of the ranks. most: rows that a
 * rank touches between two exchanges, at most (more is our bug). */
int sparse_new(struct sparse **s, struct ops *o, struct comm *c, struct tensor g,
               int64_t most) MUST_CHECK;
void sparse_free(struct sparse *s);
/* Bytes that it takes on the device. */
int64_t sparse_bytes(struct tensor g, int world, int64_t most);

/* Rows of the table, in any order, any number of times. */
void sparse_touch(struct sparse *s, const int32_t *row, int n);
/* Nothing touched since the last exchange? */
bool sparse_settled(const struct sparse *s);
/* Makes it so. */
void sparse_forget(struct sparse *s);
/* All ranks together. Rows of g that this rank has not touched must be zero; those of others
 * become undefined. */
int sparse_exchange(struct sparse *s, struct comm *c, struct tensor g) MUST_CHECK;
struct sparse_stats sparse_stats(const struct sparse *s);

#endif
