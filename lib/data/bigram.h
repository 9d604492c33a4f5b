/* bigram.h - which row of a bigram table each position reads.
 *
 *     bigram_rows(tok, tokens, 251520, row);   // row[t] in [0, 251520)
 *
 * The arithmetic is that of modded-nanogpt's record 74 (record-74.md 3), to the bit:
 * with M = rows - 1,
 *
 *     row[0] = M
 *     row[t] = floormod(wrap(36313 tok[t]) ^ wrap(27191 p[t]), M),   p[1] = M, p[t] = tok[t-1]
 *
 * wrap: two's complement, 32 bits; floormod: never negative. Position 1 sees M and not
 * tok[0], because the record hashes in place of the output. Positions count from the start
 * of one rank's micro-batch; documents play no part.
 */
#ifndef DATA_BIGRAM_H
#define DATA_BIGRAM_H

#include <stdint.h>

/* rows >= 2. */
void bigram_rows(const int32_t *tok, int tokens, int rows, int32_t *row);

#endif
