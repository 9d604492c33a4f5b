/* pool.h - work in independent pieces on several threads.
 *
 *     static void part(void *arg, int i, int thread) { ... }
 *     struct pool *p = pool_new(4);               // three threads beside the caller
 *     pool_for(p, n, part, &job);                 // returns when every i in 0 .. n-1 is done
 *     pool_free(p);
 *
 * The threads of a pool are kept, for work too short to start threads for. Each i is done once, in
 * any order, on one of the threads 0 .. pool_threads() - 1; thread 0 is the caller. NULL is a pool
 * of the caller alone.
 *
 *     static int one(void *arg, int i) { ... return rc; }
 *     if ((rc = parallel_for(n, threads, one, &job))) return rc;
 *
 * Threads: a pool is used by one thread at a time, and not from inside its work.
 */
#ifndef BASE_POOL_H
#define BASE_POOL_H

#include "base/err.h"

struct pool;

/* NULL for one thread, or when there is no memory; fewer threads where the system gives no more. */
struct pool *pool_new(int threads);
void pool_free(struct pool *p);
int pool_threads(const struct pool *p);
void pool_for(struct pool *p, int n, void (*work)(void *arg, int i, int thread), void *arg);

/* Returns how many processors this process may run on: taskset may leave it fewer than there are. */
int pool_processors(void);

/* Calls work(arg, 0 .. n - 1), which may fail, on a pool of its own; threads 0: one for each
 * processor, 64 at most. After a failure no new i is begun; code and message of the failed one with
 * the lowest i come back in the calling thread. */
int parallel_for(int n, int threads, int (*work)(void *arg, int i), void *arg) MUST_CHECK;

#endif
