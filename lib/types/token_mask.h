/* token_mask.h - which tokens never follow which: rows of bits, of which equal ones are one.
 *
 * Bit b & 31 of word b / 32 of the row of a token is set where token b never comes after it. Both
 * arrays are in the memory of whoever reads them.
 */
#ifndef TYPES_TOKEN_MASK_H
#define TYPES_TOKEN_MASK_H

#include <stdbool.h>
#include <stdint.h>

struct token_mask {
    int ids, rows, words; /* words of a row: ids / 32, rounded up */
    int32_t *row; /* (ids): which, of the token before */
    uint32_t *bits; /* (rows, words); NULL: no mask, every token may follow */
};

/* Returns the bits, one a token, of what may follow the token `before`. */
static inline const uint32_t *token_mask_row(const struct token_mask *m, int32_t before)
{
    return m->bits + (int64_t)m->row[before] * m->words;
}

static inline bool token_mask_never(const struct token_mask *m, int32_t before, int32_t next)
{
    return token_mask_row(m, before)[next >> 5] >> (next & 31) & 1;
}

#endif
