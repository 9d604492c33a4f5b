/* pool_test.c - each piece done once, by a thread of the pool, before the call returns; calls one behind another and
 * after a pause; and the code of work that fails. */
#include <stdatomic.h>
#include <unistd.h>
#include "base/pool.h"
#include "check.h"

enum { MOST = 300 };

struct job {
    int threads, outside;
    atomic_int times[MOST], threads_off;
};

static void piece(void *arg, int i, int thread)
{
    struct job *j = arg;

    if (thread < 0 || thread >= j->threads)
        atomic_fetch_add(&j->threads_off, 1);
    atomic_fetch_add(&j->times[i], 1);
}

static bool once(struct pool *p, int n)
{
    static struct job j;
    int off = 0;

    j.threads = pool_threads(p);
    atomic_store(&j.threads_off, 0);
    for (int i = 0; i < MOST; i++)
        atomic_store(&j.times[i], 0);
    pool_for(p, n, piece, &j);
    for (int i = 0; i < MOST; i++)
        off += atomic_load(&j.times[i]) != (i < n);
    return off == 0 && atomic_load(&j.threads_off) == 0;
}

/* Pieces of 0 to 7 microseconds, so that threads come late to some calls and sleep between others. */
static void waits(void *arg, int i, int thread)
{
    (void)thread;
    for (volatile int k = 0; k < i % 8 * 1000; k++)
        ;
    piece(arg, i, 0);
}

static void many_calls(int threads)
{
    static struct job j;
    struct pool *p = pool_new(threads);
    bool right = true;

    CHECK(pool_threads(p) >= 1 && pool_threads(p) <= threads);
    for (int n = 0; n < MOST; n++)
        right &= once(p, n);
    CHECK(right);
    for (int i = 0; i < MOST; i++)
        atomic_store(&j.times[i], 0);
    j.threads = threads;
    for (int call = 0; call < 3000; call++) {
        int n = 2 + call % 9;
        pool_for(p, n, waits, &j);
        for (int i = 0; i < n; i++)
            right &= atomic_exchange(&j.times[i], 0) == 1;
        if (call % 500 == 0)
            usleep(2000);
    }
    CHECK(right);
    pool_free(p);
}

static int fails(void *arg, int i)
{
    (void)arg;
    return i == 7 ? err_set(GPT_INPUT, "piece %d", i) : 0;
}

int main(void)
{
    pool_free(NULL);
    CHECK(once(NULL, MOST));
    for (int threads = 1; threads <= 7; threads += 2)
        many_calls(threads);
    for (int k = 0; k < 20; k++) {
        CHECK_ERR(parallel_for(MOST, 3, fails, NULL), GPT_INPUT, "piece 7");
    }
    CHECK_OK(parallel_for(7, 0, fails, NULL));
    return check_done();
}
