/* le.h - little-endian numbers at any address. Pure functions. */
#ifndef BASE_LE_H
#define BASE_LE_H

#include <stdint.h>

static inline uint32_t le32(const void *p)
{
    const unsigned char *b = p;

    return b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

/* A number of `size` bytes, at most 8. */
static inline uint64_t le_number(const unsigned char *b, int size)
{
    uint64_t v = 0;

    for (int i = size; i-- > 0;)
        v = v << 8 | b[i];
    return v;
}

/* Returns what is behind it. */
static inline void *put_le32(void *p, uint32_t x)
{
    unsigned char *b = p;

    for (int i = 0; i < 4; i++)
        *b++ = (unsigned char)(x >> 8 * i);
    return b;
}

#endif
