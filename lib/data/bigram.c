/* bigram.c - the rows of a micro-batch. */
#include "data/bigram.h"

#include <assert.h>
#include "types/bigram.h"

void bigram_rows(const int32_t *tok, int tokens, int rows, int32_t *row)
{
    assert(rows >= 2);
    if (tokens > 0)
        row[0] = rows - 1;
    if (tokens > 1)
        row[1] = bigram_row(tok[1], rows - 1, rows);
    for (int t = 2; t < tokens; t++)
        row[t] = bigram_row(tok[t], tok[t - 1], rows);
}
