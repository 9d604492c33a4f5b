#include "base/pool.h"

#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct helper {
    struct pool *p;
    int thread;
    pthread_t id;
};

/* A call's pieces are claimed by counting down the low half of `ticket`; the high half counts calls.
 * A thread reads what the call asks for and then claims: that succeeds only while the ticket is the
 * one it saw, so a call waits for its pieces and not for threads that are late. */
struct pool {
    int helpers;
    int processors;
    _Atomic uint64_t ticket;
    atomic_int done; /* pieces of this call */
    atomic_int n;
    void (*_Atomic work)(void *arg, int i, int thread);
    void *_Atomic arg;
    pthread_mutex_t lock; /* for sleep alone */
    pthread_cond_t start, finished;
    atomic_int asleep; /* helpers */
    atomic_bool waiting; /* the caller */
    atomic_bool end;
    struct helper helper[];
};

/* Between short pieces of work a thread looks for the next for some 40 microseconds before it
 * sleeps, unless there are more threads than processors. */
enum { LOOKS = 1024 };
static atomic_int all_threads; /* of all pools */

static int looks(const struct pool *p)
{
    return atomic_load(&all_threads) <= p->processors ? LOOKS : 0;
}

static void pause_briefly(void)
{
#ifdef __x86_64__
    __builtin_ia32_pause();
#elif defined __aarch64__
    __asm__ volatile("isb");
#endif
}

static uint32_t pieces_left(struct pool *p) { return (uint32_t)atomic_load(&p->ticket); }

static void work_off(struct pool *p, int thread)
{
    uint64_t ticket = atomic_load(&p->ticket);

    while ((uint32_t)ticket > 0) {
        int n = atomic_load(&p->n), i = n - (int)(uint32_t)ticket;
        void (*work)(void *arg, int i, int thread) = atomic_load(&p->work);
        void *arg = atomic_load(&p->arg);
        if (!atomic_compare_exchange_weak(&p->ticket, &ticket, ticket - 1))
            continue;
        work(arg, i, thread);
        if (atomic_fetch_add(&p->done, 1) + 1 == n && atomic_load(&p->waiting)) {
            pthread_mutex_lock(&p->lock);
            pthread_cond_signal(&p->finished);
            pthread_mutex_unlock(&p->lock);
        }
        ticket = atomic_load(&p->ticket);
    }
}

static void *help(void *arg)
{
    struct helper *h = arg;
    struct pool *p = h->p;

    while (!atomic_load(&p->end)) {
        for (int i = looks(p); i > 0 && !pieces_left(p) && !atomic_load(&p->end); i--)
            pause_briefly();
        if (!pieces_left(p)) {
            pthread_mutex_lock(&p->lock);
            atomic_fetch_add(&p->asleep, 1);
            while (!pieces_left(p) && !atomic_load(&p->end))
                pthread_cond_wait(&p->start, &p->lock);
            atomic_fetch_sub(&p->asleep, 1);
            pthread_mutex_unlock(&p->lock);
        }
        work_off(p, h->thread);
    }
    return NULL;
}

int pool_processors(void)
{
    cpu_set_t mine;

    return sched_getaffinity(0, sizeof mine, &mine) ? (int)sysconf(_SC_NPROCESSORS_ONLN)
                                                    : CPU_COUNT(&mine);
}

struct pool *pool_new(int threads)
{
    struct pool *p;

    if (threads < 2 || !(p = calloc(1, sizeof *p + (size_t)threads * sizeof *p->helper)))
        return NULL;
    p->processors = pool_processors();
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->start, NULL);
    pthread_cond_init(&p->finished, NULL);
    for (int i = 0; i < threads - 1; i++) {
        struct helper *h = &p->helper[i];
        *h = (struct helper){ .p = p, .thread = i + 1 };
        if (pthread_create(&h->id, NULL, help, h))
            break;
        p->helpers++; /* read by this thread alone */
    }
    atomic_fetch_add(&all_threads, p->helpers + 1);
    return p;
}

/* Wakes `wanted` of the helpers that sleep. One that falls asleep at this moment has counted itself
 * before it looked at the ticket. */
static void wake(struct pool *p, int wanted)
{
    int asleep = atomic_load(&p->asleep);

    if (!asleep)
        return;
    pthread_mutex_lock(&p->lock);
    if (wanted >= asleep)
        pthread_cond_broadcast(&p->start);
    else
        for (int i = 0; i < wanted; i++)
            pthread_cond_signal(&p->start);
    pthread_mutex_unlock(&p->lock);
}

void pool_free(struct pool *p)
{
    if (!p)
        return;
    atomic_fetch_sub(&all_threads, p->helpers + 1);
    atomic_store(&p->end, true);
    wake(p, p->helpers);
    for (int i = 0; i < p->helpers; i++)
        pthread_join(p->helper[i].id, NULL);
    pthread_cond_destroy(&p->start);
    pthread_cond_destroy(&p->finished);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

int pool_threads(const struct pool *p) { return p ? p->helpers + 1 : 1; }

static void wait_for_pieces(struct pool *p, int n)
{
    for (int i = looks(p); i > 0 && atomic_load(&p->done) < n; i--)
        pause_briefly();
    if (atomic_load(&p->done) == n)
        return;
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->waiting, true);
    while (atomic_load(&p->done) < n)
        pthread_cond_wait(&p->finished, &p->lock);
    atomic_store(&p->waiting, false);
    pthread_mutex_unlock(&p->lock);
}

void pool_for(struct pool *p, int n, void (*work)(void *arg, int i, int thread), void *arg)
{
    if (pool_threads(p) == 1 || n < 2) {
        for (int i = 0; i < n; i++)
            work(arg, i, 0);
        return;
    }
    atomic_store(&p->n, n);
    atomic_store(&p->work, work);
    atomic_store(&p->arg, arg);
    atomic_store(&p->done, 0);
    atomic_store(&p->ticket, ((atomic_load(&p->ticket) >> 32) + 1) << 32 | (uint32_t)n);
    wake(p, n - 1);
    work_off(p, 0);
    wait_for_pieces(p, n);
}

/* --- work that may fail --- */

struct fallible {
    int (*work)(void *arg, int i);
    void *arg;
    atomic_int failed; /* the lowest i that failed; INT_MAX: none */
    int code;
    char *message;
    pthread_mutex_t lock; /* of the three above */
};

static void try_one(void *arg, int i, int thread)
{
    struct fallible *f = arg;
    int rc = atomic_load(&f->failed) < INT_MAX ? 0 : f->work(f->arg, i);

    (void)thread;
    if (!rc)
        return;
    pthread_mutex_lock(&f->lock);
    if (i < f->failed) {
        free(f->message);
        f->message = strdup(err_message());
        f->failed = i;
        f->code = rc;
    }
    pthread_mutex_unlock(&f->lock);
}

int parallel_for(int n, int threads, int (*work)(void *arg, int i), void *arg)
{
    struct fallible f = { work, arg, INT_MAX, 0, NULL, PTHREAD_MUTEX_INITIALIZER };
    int most = threads > 0 ? threads : pool_processors();

    most = most < n ? most : n;
    struct pool *p = pool_new(most < 64 ? most : 64);
    pool_for(p, n, try_one, &f);
    pool_free(p);
    if (f.code)
        err_set(f.code, "%s", f.message ? f.message : "out of memory");
    free(f.message);
    return f.code;
}
