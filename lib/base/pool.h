/* pool.h - threads that are kept, for work too short to start threads for (parallel.h does that).
 *
 *     static void part(void *arg, int i, int thread) { ... }
 *     struct pool *p = pool_new(4);               // three threads beside the caller
 *     pool_for(p, n, part, &job);                 // returns when every i in 0 .. n-1 is done
 *     pool_free(p);
 *
 * Each i is done once, in any order, on one of the threads 0 .. pool_threads() - 1; thread 0 is the
 * caller. NULL is a pool of the caller alone.
 *
 * Threads: a pool is used by one thread at a time, and not from inside its work.
 */
#ifndef BASE_POOL_H
#define BASE_POOL_H

struct pool;

/* NULL for one thread, or when there is no memory; fewer threads where the system gives no more. */
struct pool *pool_new(int threads);
void pool_free(struct pool *p);
int pool_threads(const struct pool *p);
void pool_for(struct pool *p, int n, void (*work)(void *arg, int i, int thread), void *arg);

#endif
