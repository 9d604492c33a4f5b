/* grow.h - arrays that grow by doubling.
 *
 *     struct item *v = NULL;                                   // and int n = 0
 *     if ((rc = grow_one(&v, n, sizeof *v))) return rc;        // room for v[n]
 *     v[n++] = item;
 *
 * The array is malloc's, the caller frees it, and a failure (GPT_SYSTEM) leaves it as it was.
 * `array` is the address of the pointer to it. Threads: as realloc.
 */
#ifndef BASE_GROW_H
#define BASE_GROW_H

#include <stddef.h>
#include "base/err.h"

/* Room for one more than n elements of `size` bytes. An array grown by this alone has room for 16
 * elements, or for the next power of two, so that n says whether it is full. */
int grow_one(void *array, size_t n, size_t size) MUST_CHECK;

/* Room for n elements of `size` bytes; *room, at first 0, is how many there is room for. */
int grow_to(void *array, size_t *room, size_t n, size_t size) MUST_CHECK;

#endif
