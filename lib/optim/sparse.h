/* sparse.h - reduce-scatter of a table's gradient that is zero but for few rows on each rank.
 *
 * The table is sharded by rows. A rank records on the host which rows its
 * tokens read: only their gradients may differ from zero. The exchange sends
 * the rows of other shards, with their indices, to the ranks that own them,
 * and adds the rows received to its own shard. Where the rank that moves most
 * would not move fewer bytes than in a dense reduce-scatter, all ranks do the
 * dense one. After record 74's (optimizers.md 6); the result is that of the
 * reduce-scatter, up to the order of sums.
 *
 *     struct sparse *s;
 *     if ((rc = sparse_new(&s, o, c, g, most))) return rc;
 *     sparse_touch(s, rows, n);                // for each micro-batch, while the device works
 *     if ((rc = sparse_exchange(s, c, g))) return rc;     // in g's own shard: the mean
 *     sparse_free(s);
 *
 * The counts of rows are known on the host alone, so an exchange cannot be part of a captured
 * graph. Device memory is allocated by ops and freed with it.
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
    double sent_bytes; /* by all exchanges, row indices included */
    double dense_bytes; /* what ring reduce-scatters would have sent */
};

/* g: the gradient that sparse_exchange will get. own (world): the rows of each rank, in its order.
 * most: an upper bound on the rows that a rank touches between two exchanges (asserted). */
int sparse_new(struct sparse **s, struct ops *o, struct comm *c, struct tensor g,
               const struct span *own, int64_t most) MUST_CHECK;
void sparse_free(struct sparse *s);

/* Records rows of the table as touched, in any order; repeats are allowed. */
void sparse_touch(struct sparse *s, const int32_t *row, int n);
/* Has no row been touched since the last exchange? */
bool sparse_settled(const struct sparse *s);
/* Forgets the rows touched so far. */
void sparse_forget(struct sparse *s);
/* Collective. Rows of g that this rank has not touched must be zero; the rows of other shards are
 * undefined afterwards. */
int sparse_exchange(struct sparse *s, struct comm *c, struct tensor g) MUST_CHECK;
struct sparse_stats sparse_stats(const struct sparse *s);

#endif
