#include "base/pool.h"

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct helper {
    struct pool *p;
    int thread;
    pthread_t id;
};

struct pool {
    int helpers;
    long processors;
    pthread_mutex_t lock;
    pthread_cond_t start, done;
    atomic_uint round; /* calls of pool_for so far */
    atomic_bool end;
    atomic_int busy; /* helpers that have not finished this round */
    int n;
    void (*work)(void *arg, int i, int thread);
    void *arg;
    atomic_int next;
    struct helper helper[];
};

/* Between short pieces of work a thread looks for the next for some 10 microseconds before it
 * sleeps, unless there are more threads than processors: a step of tiny on two threads sleeps half
 * as often. */
enum { LOOKS = 256 };
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

static void work_off(struct pool *p, int thread)
{
    for (int i; (i = atomic_fetch_add(&p->next, 1)) < p->n;)
        p->work(p->arg, i, thread);
}

static void *help(void *arg)
{
    struct helper *h = arg;
    struct pool *p = h->p;
    unsigned seen = 0;

    for (;;) {
        for (int i = looks(p); i > 0 && atomic_load(&p->round) == seen && !atomic_load(&p->end);
             i--)
            pause_briefly();
        pthread_mutex_lock(&p->lock);
        while (p->round == seen && !p->end)
            pthread_cond_wait(&p->start, &p->lock);
        seen = p->round;
        pthread_mutex_unlock(&p->lock);
        if (p->end)
            return NULL;
        work_off(p, h->thread);
        if (atomic_fetch_sub(&p->busy, 1) > 1)
            continue;
        pthread_mutex_lock(&p->lock);
        pthread_cond_signal(&p->done);
        pthread_mutex_unlock(&p->lock);
    }
}

struct pool *pool_new(int threads)
{
    struct pool *p;

    if (threads < 2 || !(p = calloc(1, sizeof *p + (size_t)threads * sizeof *p->helper)))
        return NULL;
    p->processors = sysconf(_SC_NPROCESSORS_ONLN);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->start, NULL);
    pthread_cond_init(&p->done, NULL);
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

void pool_free(struct pool *p)
{
    if (!p)
        return;
    atomic_fetch_sub(&all_threads, p->helpers + 1);
    pthread_mutex_lock(&p->lock);
    p->end = true;
    pthread_cond_broadcast(&p->start);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->helpers; i++)
        pthread_join(p->helper[i].id, NULL);
    pthread_cond_destroy(&p->start);
    pthread_cond_destroy(&p->done);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

int pool_threads(const struct pool *p) { return p ? p->helpers + 1 : 1; }

void pool_for(struct pool *p, int n, void (*work)(void *arg, int i, int thread), void *arg)
{
    if (pool_threads(p) == 1 || n < 2) {
        for (int i = 0; i < n; i++)
            work(arg, i, 0);
        return;
    }
    pthread_mutex_lock(&p->lock);
    p->n = n;
    p->work = work;
    p->arg = arg;
    p->busy = p->helpers;
    atomic_store(&p->next, 0);
    p->round++;
    pthread_cond_broadcast(&p->start);
    pthread_mutex_unlock(&p->lock);
    work_off(p, 0);
    for (int i = looks(p); i > 0 && atomic_load(&p->busy); i--)
        pause_briefly();
    pthread_mutex_lock(&p->lock);
    while (p->busy)
        pthread_cond_wait(&p->done, &p->lock);
    pthread_mutex_unlock(&p->lock);
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
    int most = threads > 0 ? threads : (int)sysconf(_SC_NPROCESSORS_ONLN);

    most = most < n ? most : n;
    struct pool *p = pool_new(most < 64 ? most : 64);
    pool_for(p, n, try_one, &f);
    pool_free(p);
    if (f.code)
        err_set(f.code, "%s", f.message ? f.message : "out of memory");
    free(f.message);
    return f.code;
}
