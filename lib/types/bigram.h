/* bigram.h - the row of a bigram table that a token and the one before it read.
 *
 * With M = rows - 1: floormod(wrap(36313 token) ^ wrap(27191 before), M), the arithmetic of
 * modded-nanogpt's record 74 to the bit (record-74.md 3). wrap: two's complement, 32 bits;
 * floormod: never negative. A sequence's first token reads row M, and the second one has M before
 * it. Also compiled for GPUs.
 */
#ifndef TYPES_BIGRAM_H
#define TYPES_BIGRAM_H

#include <stdint.h>

#ifdef __CUDACC__
#define BIGRAM_SIDES __host__ __device__
#else
#define BIGRAM_SIDES
#endif

/* rows >= 2. Unsigned products wrap as the record's int32 do; the conversion back is gcc's and
 * clang's. */
BIGRAM_SIDES static inline int32_t bigram_row(int32_t token, int32_t before, int rows)
{
    int32_t mixed = (int32_t)(36313u * (uint32_t)token ^ 27191u * (uint32_t)before);
    int32_t r = mixed % (rows - 1);

    return r < 0 ? r + rows - 1 : r;
}

#endif
