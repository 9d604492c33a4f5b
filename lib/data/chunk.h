/* chunk.h - what one rank works on in one micro-step: tokens, targets, documents, and
 * which positions read each row of a table.
 *
 * The arrays of a chunk lie in one block, so that one copy moves them to a device.
 *
 *     struct chunk_shape s = { .tokens = 49152, .bound = cu_bound(49152, 0), .vocab = 50304,
 *                              .bigram_rows = 251520, .csr = true };
 *     chunk_place(&c, malloc(chunk_block_bytes(&s)), &s);
 *     ... fill tok, tgt, cu ...
 *     chunk_index(&c, &s);                        // the rest follows from tok
 *
 * Pure; any thread.
 */
#ifndef DATA_CHUNK_H
#define DATA_CHUNK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* M: a multiple of 128, of record 61 (§6.2) the smallest that is >= max(128, T/300), and more where
 * a chunk is to hold so many documents; 0: none said. */
int cu_bound(int tokens, int documents);

struct piece {
    uint32_t begin, end;
}; /* token positions in the shard, end exclusive */

/* Each array lies at a multiple of 256 bytes in the block, in the order tok tgt cu start order
 * bigram bigram_start bigram_order; block_bytes covers them. Chunks of ranks that are not local
 * have tok = NULL. */
struct chunk {
    int tokens; /* T */
    int bound; /* M */
    int docs; /* n: cu[0] = 0, cu[1..n] are the ends, the rest is T */
    const int32_t *tok; /* [T] */
    const int32_t *tgt; /* [T] the token after tok[t] */
    const int32_t *cu; /* [M] */
    /* [V+1] occurrences of token v are order[start[v] .. start[v+1]-1]; NULL without csr */
    const int32_t *start;
    const int32_t *order; /* [T] positions sorted by token, stable (ascending within a token) */
    /* [T] rows of the bigram table (bigram.h), and by row as above; NULL without such a table */
    const int32_t *bigram, *bigram_start, *bigram_order;
    /* training: [docs] where the pieces came from; NULL in validation */
    const struct piece *piece;
    const void *block;
    size_t block_bytes;
};

struct chunk_shape {
    int tokens, bound;
    int vocab;
    int bigram_rows; /* 0: no bigram table */
    bool csr; /* start and order, for gradients of tables */
};

size_t chunk_block_bytes(const struct chunk_shape *s);
/* Points c's arrays into the block and sets the sizes; fills nothing. */
void chunk_place(struct chunk *c, void *block, const struct chunk_shape *s);
/* Computes bigram and the orders, where the chunk has them, from tok. */
void chunk_index(struct chunk *c, const struct chunk_shape *s);
/* Counting sort of ids[T] < rows. start has rows+1 entries. */
void csr_by_row(const int32_t *ids, int tokens, int rows, int32_t *start, int32_t *order);

#endif
