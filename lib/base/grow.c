#include "base/grow.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { LEAST = 16 };

/* `array` points to a pointer of any type, which a void ** must not alias. */
static int resize(void *array, size_t n, size_t size)
{
    void *p, *grown;
    size_t bytes;
    memcpy(&p, array, sizeof p);
    if (__builtin_mul_overflow(n, size, &bytes) || !(grown = realloc(p, bytes)))
        return err_memory();
    memcpy(array, &grown, sizeof grown);
    return 0;
}

int grow_one(void *array, size_t n, size_t size)
{
    bool full = !n || (n >= LEAST && !(n & (n - 1)));
    return full ? resize(array, n ? 2 * n : LEAST, size) : 0;
}

int grow_to(void *array, size_t *room, size_t n, size_t size)
{
    size_t more = *room > n / 2 ? 2 * *room : n;
    if (n <= *room)
        return 0;
    int rc = resize(array, more, size);
    if (!rc)
        *room = more;
    return rc;
}
