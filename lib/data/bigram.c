/* bigram.c - the hash of a token and the one before it. */
#include "data/bigram.h"

#include <assert.h>

/* Unsigned products wrap as the record's int32 do; the conversion back is gcc's and clang's. */
static int32_t hash(int32_t token, int32_t before, int32_t m)
{
    int32_t mixed = (int32_t)(36313u * (uint32_t)token ^ 27191u * (uint32_t)before);
    int32_t r = mixed % m;

    return r < 0 ? r + m : r;
}

void bigram_rows(const int32_t *tok, int tokens, int rows, int32_t *row)
{
    int32_t m = rows - 1;

    assert(rows >= 2);
    if (tokens > 0)
        row[0] = m;
    if (tokens > 1)
        row[1] = hash(tok[1], m, m);
    for (int t = 2; t < tokens; t++)
        row[t] = hash(tok[t], tok[t - 1], m);
}
