/* batch.h - one rank's micro-batch: tokens, targets, document starts, and who reads which row of a
 * table.
 *
 * Arrays lie in the memory of the device that computes; lib/data lays them out, ops read them.
 * Owns nothing; read-only while a step runs.
 */
#ifndef TYPES_BATCH_H
#define TYPES_BATCH_H

#include <stdbool.h>
#include <stdint.h>

/* Which row of a table each position reads, and which positions read each row. */
struct lookup {
    int tokens; /* T */
    const int32_t *row; /* (T) */
    const int32_t *order; /* (T): positions sorted by row, stable */
    const int32_t *start; /* (rows+1): order[start[v] .. start[v+1]) read row v */
};

/* One rank's micro-batch in device memory. */
struct batch {
    int tokens; /* T */
    const int32_t *tgt; /* (T): the token after each */
    const int32_t *cu; /* (ncu): document starts, cu[0] = 0, padded with T */
    int ncu;
    struct lookup token; /* the tokens themselves: rows of V */
    struct lookup bigram; /* their hashes (record-74.md 3), where there is a table */
    /* NULL: the rows are one sequence, row t its position t. Else (T) each: */
    const int32_t *pos; /* the row's position in its sequence */
    const int32_t *before; /* the token before it there; -1: none */
    bool apart; /* no two rows are of one sequence */
};

#endif
