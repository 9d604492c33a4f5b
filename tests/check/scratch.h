/* scratch.h - a folder of a test's own, gone when the program ends; files in it.
 *
 *     spill(scratch("a"), text, n);
 *     data = slurp(scratch("a"), &n);          // caller frees
 *
 * Paths are in one of eight buffers, so that a path is kept by strdup. Threads: one, but slurp and
 * spill any.
 */
#ifndef SCRATCH_H
#define SCRATCH_H

#include <stddef.h>

char *in(const char *dir, const char *name); /* dir/name */
char *scratch(const char *name); /* in the folder, which the first call makes */
unsigned char *slurp(const char *path,
                     size_t *n); /* as it is, with a NUL behind it; NULL: it cannot be read */
void spill(const char *path, const void *data, size_t n); /* aborts where it cannot */

#endif
