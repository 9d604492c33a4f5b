/* rendezvous.c - TCP between processes: all speak with process 0, which answers for everybody.
 *
 * One thread a process listens; a word is a frame of a few bytes. Whoever has something to say
 * writes it into the socket under the lock. Each second, or four times in the time that silence may
 * last if that is shorter, everybody says that he is alive.
 */
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/progress.h"
#include "comm/rendezvous_impl.h"

/* -- frames ------------------------------------------------------------------------ */

static bool write_all(int fd, const void *from, size_t bytes)
{
    for (const char *p = from; bytes > 0;) {
        ssize_t n = send(fd, p, bytes, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        p += n, bytes -= (size_t)n;
    }
    return true;
}

static bool read_all(int fd, void *to, size_t bytes)
{
    for (char *p = to; bytes > 0;) {
        ssize_t n = recv(fd, p, bytes, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        p += n, bytes -= (size_t)n;
    }
    return true;
}

bool rendezvous_say(const struct rendezvous *r, int fd, enum word word, const void *data,
                    size_t bytes)
{
    struct frame f = { MAGIC, word, (uint32_t)r->at.process, (uint32_t)bytes };
    return write_all(fd, &f, sizeof f) && write_all(fd, data, bytes);
}

bool rendezvous_hear(int fd, struct frame *f, char **data, size_t most)
{
    *data = NULL;
    if (!read_all(fd, f, sizeof *f) || f->magic != MAGIC || f->bytes > most)
        return false;
    if (!f->bytes)
        return true;
    *data = malloc(f->bytes + 1);
    if (*data && read_all(fd, *data, f->bytes)) {
        (*data)[f->bytes] = '\0';
        return true;
    }
    free(*data);
    *data = NULL;
    return false;
}

static size_t most_bytes(const struct rendezvous *r)
{
    return (size_t)MAX_BYTES * (size_t)r->at.processes;
}

/* -- what happens; r->lock is held --------------------------------------------------- */

static void fail(struct rendezvous *r, int except, const char *message)
{
    if (r->failed)
        return;
    r->failed = true;
    snprintf(r->message, sizeof r->message, "%s", message);
    for (int i = 0; i < r->peers; i++)
        if (r->peer[i].fd >= 0 && i != except)
            rendezvous_say(r, r->peer[i].fd, FAILED, r->message, strlen(r->message));
    pthread_cond_broadcast(&r->change);
}

static void lost(struct rendezvous *r, int i, const char *why)
{
    struct peer *p = &r->peer[i];
    char text[200];

    close(p->fd);
    p->fd = -1;
    if (p->left)
        return;
    int n = snprintf(text, sizeof text, "process %d of %d ", i, r->at.processes);
    if (r->at.ranks == 1)
        n += snprintf(text + n, sizeof text - (size_t)n, "(rank %d) ", i);
    else if (r->at.ranks > 1)
        n += snprintf(text + n, sizeof text - (size_t)n, "(ranks %d to %d) ", i * r->at.ranks,
                      (i + 1) * r->at.ranks - 1);
    snprintf(text + n, sizeof text - (size_t)n, "%s", why);
    fail(r, i, text);
}

/* Process 0: answers when everybody has brought his part. */
static void answer_gather(struct rendezvous *r)
{
    size_t bytes = r->peer[0].bytes, at = 0;
    char text[120], *all;

    for (int i = 0; i < r->peers; i++)
        if (!r->peer[i].data)
            return;
    all = malloc(bytes * (size_t)r->peers + 1);
    for (int i = 0; all && i < r->peers; i++) {
        if (r->peer[i].bytes != bytes) {
            snprintf(text, sizeof text, "process %d gathers %zu bytes where process 0 gathers %zu",
                     i, r->peer[i].bytes, bytes);
            free(all);
            fail(r, -1, text);
            return;
        }
        memcpy(all + at, r->peer[i].data, bytes);
        at += bytes;
    }
    for (int i = 0; i < r->peers; i++) {
        free(r->peer[i].data);
        r->peer[i].data = NULL;
        if (all && r->peer[i].fd >= 0 && !rendezvous_say(r, r->peer[i].fd, ALL, all, at))
            lost(r, i, "cannot be reached");
    }
    r->result = all;
    if (!all)
        fail(r, -1, "process 0: out of memory");
    pthread_cond_broadcast(&r->change);
}

/* Takes over data. */
static void take(struct rendezvous *r, int i, const struct frame *f, char *data)
{
    struct peer *p = &r->peer[i];

    p->heard = now_seconds();
    switch (f->word) {
    case DATA:
        free(p->data);
        p->data = data ? data : calloc(1, 1);
        p->bytes = f->bytes;
        answer_gather(r);
        return;
    case ALL:
        free(r->result);
        r->result = data;
        pthread_cond_broadcast(&r->change);
        return;
    case FAILED: fail(r, i, data ? data : "a process failed"); break;
    case BYE:
        p->left = true;
        pthread_cond_broadcast(&r->change);
        break;
    }
    free(data);
}

/* -- the thread that listens ------------------------------------------------------------- */

static void *listen_main(void *arg)
{
    struct rendezvous *r = arg;
    struct pollfd *watch = calloc((size_t)r->peers, sizeof *watch);
    double said = now_seconds(), every = fmin(ALIVE_SECONDS, r->timeout / 4);

    pthread_mutex_lock(&r->lock);
    while (watch && !r->stop) {
        for (int i = 0; i < r->peers; i++)
            watch[i] = (struct pollfd){ .fd = r->peer[i].fd, .events = POLLIN };
        pthread_mutex_unlock(&r->lock);
        poll(watch, (nfds_t)r->peers, POLL_MS);
        bool time_to_speak = now_seconds() - said >= every;
        if (time_to_speak)
            said = now_seconds();
        for (int i = 0; i < r->peers; i++) {
            struct frame f;
            char *data;
            bool news = watch[i].fd >= 0 && watch[i].revents;
            bool heard = news && rendezvous_hear(watch[i].fd, &f, &data, most_bytes(r));
            pthread_mutex_lock(&r->lock);
            if (heard)
                take(r, i, &f, data);
            else if (news)
                lost(r, i, "is gone: its connection closed");
            else if (watch[i].fd >= 0 && now_seconds() - r->peer[i].heard > r->timeout)
                lost(r, i, "gives no sign of life");
            if (time_to_speak && r->peer[i].fd >= 0)
                rendezvous_say(r, r->peer[i].fd, ALIVE, NULL, 0);
            pthread_mutex_unlock(&r->lock);
        }
        pthread_mutex_lock(&r->lock);
    }
    pthread_mutex_unlock(&r->lock);
    free(watch);
    return NULL;
}

int rendezvous_new(struct rendezvous **out, const struct rendezvous_place *at, double meet_s,
                   double timeout_s)
{
    struct rendezvous *r = calloc(1, sizeof *r);
    pthread_condattr_t monotonic;
    int rc = GPT_OK;

    *out = NULL;
    if (!r)
        return err_sys("rendezvous");
    r->at = *at;
    r->meet = meet_s;
    r->timeout = timeout_s;
    r->peers = at->processes == 1 ? 0 : at->process == 0 ? at->processes : 1;
    r->peer = calloc((size_t)r->peers + 1, sizeof *r->peer);
    pthread_mutex_init(&r->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&r->change, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (!r->peer)
        rc = err_sys("rendezvous");
    for (int i = 0; !rc && i < r->peers; i++)
        r->peer[i].fd = -1;
    if (!rc && r->peers)
        rc = rendezvous_meet(r);
    for (int i = 0; i < r->peers; i++) /* whoever came first has waited in silence */
        r->peer[i].heard = now_seconds();
    if (!rc && r->peers && pthread_create(&r->thread, NULL, listen_main, r))
        rc = err_sys("rendezvous: thread");
    r->listening = !rc && r->peers;
    if (rc) {
        rendezvous_free(r);
        return rc;
    }
    *out = r;
    return GPT_OK;
}

/* -- the interface ----------------------------------------------------------------------------- */

/* r->lock is held. A process that has left cannot bring anything more. */
static bool somebody_left(const struct rendezvous *r, int *who)
{
    for (int i = 0; i < r->peers; i++)
        if (r->peer[i].left) {
            *who = i;
            return true;
        }
    return false;
}

int rendezvous_gather(struct rendezvous *r, const void *mine, size_t bytes, void *all)
{
    int rc = GPT_OK, who = 0;

    if (!r->peers) {
        memcpy(all, mine, bytes);
        return GPT_OK;
    }
    if (bytes > MAX_BYTES)
        return err_set(GPT_DEVICE, "%zu bytes are too many to gather", bytes);
    pthread_mutex_lock(&r->lock);
    if (r->at.process == 0) {
        r->peer[0].data = malloc(bytes + 1);
        r->peer[0].bytes = bytes;
        if (r->peer[0].data)
            memcpy(r->peer[0].data, mine, bytes);
        else
            fail(r, -1, "process 0: out of memory");
        if (!r->failed)
            answer_gather(r);
    } else if (r->peer[0].fd >= 0 && !rendezvous_say(r, r->peer[0].fd, DATA, mine, bytes)) {
        lost(r, 0, "cannot be reached");
    }
    while (!r->result && !r->failed && !somebody_left(r, &who))
        pthread_cond_wait(&r->change, &r->lock);
    if (r->result)
        memcpy(all, r->result, bytes * (size_t)r->at.processes);
    else if (r->failed)
        rc = err_set(GPT_DEVICE, "%s", r->message);
    else
        rc = err_set(GPT_DEVICE, "process %d of %d has left", who, r->at.processes);
    free(r->result);
    r->result = NULL;
    pthread_mutex_unlock(&r->lock);
    return rc;
}

void rendezvous_tell(struct rendezvous *r, const char *message)
{
    pthread_mutex_lock(&r->lock);
    fail(r, -1, message);
    pthread_mutex_unlock(&r->lock);
}

bool rendezvous_failed(struct rendezvous *r, char *message, size_t size)
{
    pthread_mutex_lock(&r->lock);
    bool failed = r->failed;
    if (failed)
        snprintf(message, size, "%s", r->message);
    pthread_mutex_unlock(&r->lock);
    return failed;
}

/* Says goodbye and waits a little for the other to close, too: closing with unread words in the
 * socket would take back what was said last. */
static void part(const struct rendezvous *r, int fd)
{
    struct timeval t = { .tv_usec = 100000 };
    double until = now_seconds() + 0.5;
    char unread[256];

    rendezvous_say(r, fd, BYE, NULL, 0);
    shutdown(fd, SHUT_WR);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
    while (now_seconds() < until) {
        ssize_t n = recv(fd, unread, sizeof unread, 0);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            break;
    }
}

void rendezvous_free(struct rendezvous *r)
{
    if (!r)
        return;
    if (r->listening) {
        pthread_mutex_lock(&r->lock);
        r->stop = true;
        pthread_mutex_unlock(&r->lock);
        pthread_join(r->thread, NULL);
    }
    for (int i = 0; r->peer && i < r->peers; i++) {
        if (r->peer[i].fd >= 0) {
            if (r->listening)
                part(r, r->peer[i].fd);
            close(r->peer[i].fd);
        }
        free(r->peer[i].data);
    }
    free(r->result);
    free(r->peer);
    pthread_cond_destroy(&r->change);
    pthread_mutex_destroy(&r->lock);
    free(r);
}
