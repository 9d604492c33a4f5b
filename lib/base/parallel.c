#include "base/parallel.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct crew {
    int n, next;
    int (*work)(void *arg, int i);
    void *arg;
    int failed, code; /* the lowest i that failed, or n */
    char *message;
    pthread_mutex_t lock;
};

static int take(struct crew *c)
{
    pthread_mutex_lock(&c->lock);
    int i = c->failed < c->n ? c->n : c->next++;
    pthread_mutex_unlock(&c->lock);
    return i;
}

static void *member(void *arg)
{
    struct crew *c = arg;
    for (int i; (i = take(c)) < c->n;) {
        int rc = c->work(c->arg, i);
        if (!rc)
            continue;
        pthread_mutex_lock(&c->lock);
        if (i < c->failed) {
            free(c->message);
            c->message = strdup(err_message());
            c->failed = i;
            c->code = rc;
        }
        pthread_mutex_unlock(&c->lock);
    }
    return NULL;
}

int parallel_for(int n, int threads, int (*work)(void *arg, int i), void *arg)
{
    struct crew c = { .n = n, .work = work, .arg = arg, .failed = n };
    pthread_t id[64];
    int started = 0;
    if (threads <= 0)
        threads = (int)sysconf(_SC_NPROCESSORS_ONLN);
    if (threads > n)
        threads = n;
    if (threads > 64)
        threads = 64;
    pthread_mutex_init(&c.lock, NULL);
    while (started < threads - 1 && !pthread_create(&id[started], NULL, member, &c))
        started++;
    member(&c); /* this thread works, too */
    while (started > 0)
        pthread_join(id[--started], NULL);
    pthread_mutex_destroy(&c.lock);
    int rc = c.code;
    if (rc)
        err_set(rc, "%s", c.message ? c.message : "out of memory");
    free(c.message);
    return rc;
}
