/* linediff.h - the unified diff of two texts.
 *
 *     if ((rc = linediff(f, a, na, b, nb, 1))) return rc;   // 1 line of context
 *
 * Lines `@@ -a,n +b,m @@`, and lines with ' ', '-' or '+' in front; nothing where the texts agree.
 * The script is a shortest one, but where what lies between the texts' common beginning and end has
 * more than 2^25 pairs of lines: there all is removed and all is added. Threads: any.
 */
#ifndef RUNS_LINEDIFF_H
#define RUNS_LINEDIFF_H

#include <stddef.h>
#include <stdio.h>
#include "base/err.h"

/* Writes the diff to f. Fails when out of memory; errors of f are the caller's to find. */
int linediff(FILE *f, const char *a, size_t na, const char *b, size_t nb, int context) MUST_CHECK;

#endif
