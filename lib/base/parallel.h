/* parallel.h - independent pieces of work on a few threads.
 *
 *     static int one(void *arg, int i) { ... return rc; }
 *     if ((rc = parallel_for(n, threads, one, &job))) return rc;
 *
 * Each i in 0 .. n-1 is done once, in any order. After a failure no new one is
 * begun; code and message of the failed one with the lowest i come back in the
 * calling thread. threads 0: one for each processor.
 */
#ifndef BASE_PARALLEL_H
#define BASE_PARALLEL_H

#include "base/err.h"

int parallel_for(int n, int threads, int (*work)(void *arg, int i), void *arg) MUST_CHECK;

#endif
