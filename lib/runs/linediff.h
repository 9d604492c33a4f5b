/* linediff.h - the unified diff of two texts (Myers, Algorithmica 1986, in linear space).
 *
 *     static void emit(void *arg, const char *line, size_t n) { ... }
 *     if ((rc = linediff(a, na, b, nb, 1, emit, arg))) return rc;
 *
 * Emits `@@ -a,n +b,m @@` and lines with ' ', '-' or '+' in front, without their ends; nothing
 * where the texts agree. Stretches that differ by thousands of edits are shown as all removed and
 * all added. Fails only when out of memory. Threads: any.
 */
#ifndef RUNS_LINEDIFF_H
#define RUNS_LINEDIFF_H

#include <stddef.h>
#include "base/err.h"

typedef void linediff_emit(void *arg, const char *line, size_t n);
int linediff(const char *a, size_t na, const char *b, size_t nb, int context, linediff_emit *emit,
             void *arg) MUST_CHECK;

#endif
