/* rendezvous.c - TCP connections in a star: every process is connected to process 0, which relays.
 *
 * One thread a process reads frames from its connections. Frames are written from any thread, under
 * the lock. Every process sends a heartbeat each ALIVE_SECONDS, or each quarter of the timeout if
 * that is shorter; a process from which nothing has connected for the timeout has failed.
 */
#include <errno.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/progress.h"
#include "comm/rendezvous.h"

enum { MAGIC = 0x67707431, MAX_BYTES = 64 << 10, POLL_MS = 200, ALIVE_SECONDS = 1 };
enum frame_type { HELLO, ALIVE, DATA, ALL, FAILED, BYE };

struct frame {
    uint32_t magic, type, process, bytes;
};

struct peer {
    int fd; /* -1: not connected */
    double heard; /* when its last frame arrived */
    bool left; /* it sent BYE */
    char *data; /* process 0: its part of the gather; NULL: not received yet */
    size_t bytes;
};

struct rendezvous {
    struct rendezvous_env env;
    double connect_timeout, timeout; /* seconds: of rendezvous_new, of silence */
    struct peer *peer; /* process 0: of all processes (its own has no fd); else [0] only */
    int peers;
    pthread_t thread;
    bool reading, stop;
    pthread_mutex_t lock; /* of everything below, and of writing */
    pthread_cond_t change;
    bool failed;
    char message[400];
    char *result; /* of the gather that is under way; NULL: not complete */
};

/* -- frames ------------------------------------------------------------------------ */

enum direction { SEND, RECEIVE };

static bool transfer(int fd, enum direction way, void *data, size_t bytes)
{
    for (char *p = data; bytes > 0;) {
        ssize_t n = way == SEND ? send(fd, p, bytes, MSG_NOSIGNAL) : recv(fd, p, bytes, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        p += n, bytes -= (size_t)n;
    }
    return true;
}

static bool send_frame(const struct rendezvous *r, int fd, enum frame_type type, const void *data,
                       size_t bytes)
{
    struct frame f = { MAGIC, type, (uint32_t)r->env.process, (uint32_t)bytes };
    return transfer(fd, SEND, &f, sizeof f) && transfer(fd, SEND, (void *)data, bytes);
}

static bool receive_frame(int fd, struct frame *f, char **data, size_t most)
{
    *data = NULL;
    if (!transfer(fd, RECEIVE, f, sizeof *f) || f->magic != MAGIC || f->bytes > most)
        return false;
    if (!f->bytes)
        return true;
    *data = malloc(f->bytes + 1);
    if (*data && transfer(fd, RECEIVE, *data, f->bytes)) {
        (*data)[f->bytes] = '\0';
        return true;
    }
    free(*data);
    *data = NULL;
    return false;
}

/* -- connecting ------------------------------------------------------------------------- */

/* seconds: timeout of one send or receive. */
static void set_options(int fd, double seconds)
{
    struct timeval t = { .tv_sec = (time_t)seconds + 1 };
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t);
}

static int open_port(int port, int *fd)
{
    struct sockaddr_in6 six = { .sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port) };
    struct sockaddr_in four = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
    int on = 1, off = 0;

    *fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool has_six = *fd >= 0;
    if (!has_six && (*fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) < 0)
        return err_sys("process 0: socket");
    setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (has_six)
        setsockopt(*fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if ((has_six ? bind(*fd, (struct sockaddr *)&six, sizeof six)
                 : bind(*fd, (struct sockaddr *)&four, sizeof four)) ||
        listen(*fd, 128)) {
        int rc = err_sys("process 0: cannot listen at port %d", port);
        close(*fd);
        return rc;
    }
    return GPT_OK;
}

/* Keeps the connection if the other side sends a valid HELLO of this job, else closes it. */
static void accept_one(struct rendezvous *r, int fd, int *connected)
{
    struct frame f;
    char *data;

    set_options(fd, r->timeout);
    if (receive_frame(fd, &f, &data, sizeof(int)) && f.type == HELLO && data &&
        f.bytes == sizeof(int) && memcmp(data, &r->env.processes, sizeof(int)) == 0 &&
        f.process > 0 && (int)f.process < r->peers && r->peer[f.process].fd < 0) {
        r->peer[f.process].fd = fd;
        r->peer[f.process].heard = now_seconds();
        ++*connected;
    } else {
        close(fd);
    }
    free(data);
}

static int accept_all(struct rendezvous *r)
{
    double until = now_seconds() + r->connect_timeout;
    int listener, connected = 1, rc = open_port(r->env.port, &listener);

    while (!rc && connected < r->env.processes) {
        struct pollfd watch = { .fd = listener, .events = POLLIN };
        double left = until - now_seconds();
        if (left <= 0) {
            int absent = 1;
            while (r->peer[absent].fd >= 0)
                absent++;
            rc = err_set(GPT_DEVICE,
                         "waited %g seconds at port %d for %d processes: %d came, "
                         "process %d did not",
                         r->connect_timeout, r->env.port, r->env.processes, connected, absent);
        } else if (poll(&watch, 1, (int)(left * 1e3) + 1) > 0) {
            int fd = accept(listener, NULL, NULL);
            if (fd >= 0)
                accept_one(r, fd, &connected);
        }
    }
    for (int i = 1; !rc && i < r->peers; i++)
        if (!send_frame(r, r->peer[i].fd, HELLO, NULL, 0))
            rc = err_set(GPT_DEVICE, "process %d left while the others were still coming", i);
    if (listener >= 0)
        close(listener);
    return rc;
}

static int try_connect(const struct rendezvous *r, int *fd)
{
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *list;
    char port[16];
    int e, err = ECONNREFUSED;

    snprintf(port, sizeof port, "%d", r->env.port);
    *fd = -1;
    if ((e = getaddrinfo(r->env.address, port, &hints, &list)))
        return err_set(GPT_DEVICE, "process %d: address of process 0, '%s': %s", r->env.process,
                       r->env.address, gai_strerror(e));
    for (struct addrinfo *a = list; a && *fd < 0; a = a->ai_next) {
        *fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (*fd >= 0 && connect(*fd, a->ai_addr, a->ai_addrlen)) {
            err = errno;
            close(*fd);
            *fd = -1;
        }
    }
    freeaddrinfo(list);
    errno = err;
    return GPT_OK;
}

static int connect_to_0(struct rendezvous *r)
{
    double until = now_seconds() + r->connect_timeout;
    struct frame f;
    char *data;
    int fd, rc;

    while ((rc = try_connect(r, &fd)) || fd < 0) { /* it may not have started yet */
        if (now_seconds() > until)
            return rc ? rc
                      : err_set(GPT_DEVICE,
                                "process %d of %d: cannot reach process 0 at "
                                "%s:%d within %g seconds: %s",
                                r->env.process, r->env.processes, r->env.address, r->env.port,
                                r->connect_timeout, strerror(errno));
        usleep(50000);
    }
    set_options(fd, r->connect_timeout); /* process 0 answers when all are connected */
    r->peer[0].fd = fd;
    if (!send_frame(r, fd, HELLO, &r->env.processes, sizeof(int)) ||
        !receive_frame(fd, &f, &data, 0) || f.type != HELLO)
        return err_set(GPT_DEVICE,
                       "process %d of %d: process 0 at %s:%d did not find all "
                       "processes, or belongs to another job",
                       r->env.process, r->env.processes, r->env.address, r->env.port);
    set_options(fd, r->timeout);
    return GPT_OK;
}

/* -- frames and failures; r->lock is held -------------------------------------------------- */

static void PRINTF_LIKE(3, 4) fail(struct rendezvous *r, int except, const char *fmt, ...)
{
    va_list ap;

    if (r->failed)
        return;
    r->failed = true;
    va_start(ap, fmt);
    vsnprintf(r->message, sizeof r->message, fmt, ap);
    va_end(ap);
    for (int i = 0; i < r->peers; i++)
        if (r->peer[i].fd >= 0 && i != except)
            send_frame(r, r->peer[i].fd, FAILED, r->message, strlen(r->message));
    pthread_cond_broadcast(&r->change);
}

static void PRINTF_LIKE(3, 4) peer_lost(struct rendezvous *r, int i, const char *fmt, ...)
{
    struct peer *p = &r->peer[i];
    char ranks[60] = "", why[100];
    va_list ap;

    close(p->fd);
    p->fd = -1;
    if (p->left)
        return;
    if (r->env.ranks == 1)
        snprintf(ranks, sizeof ranks, "(rank %d) ", i);
    else if (r->env.ranks > 1)
        snprintf(ranks, sizeof ranks, "(ranks %d to %d) ", i * r->env.ranks,
                 (i + 1) * r->env.ranks - 1);
    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    fail(r, i, "process %d of %d %s%s", i, r->env.processes, ranks, why);
}

/* Process 0: sends the result to all when every part has arrived. */
static void finish_gather(struct rendezvous *r)
{
    size_t bytes = r->peer[0].bytes, at = 0;
    char *all;

    for (int i = 0; i < r->peers; i++)
        if (!r->peer[i].data)
            return;
    all = malloc(bytes * (size_t)r->peers + 1);
    for (int i = 0; all && i < r->peers; i++) {
        if (r->peer[i].bytes != bytes) {
            fail(r, -1, "process %d gathers %zu bytes where process 0 gathers %zu", i,
                 r->peer[i].bytes, bytes);
            free(all);
            return;
        }
        memcpy(all + at, r->peer[i].data, bytes);
        at += bytes;
    }
    for (int i = 0; i < r->peers; i++) {
        free(r->peer[i].data);
        r->peer[i].data = NULL;
        if (all && r->peer[i].fd >= 0 && !send_frame(r, r->peer[i].fd, ALL, all, at))
            peer_lost(r, i, "cannot be reached");
    }
    r->result = all;
    if (!all)
        fail(r, -1, "process 0: out of memory");
    pthread_cond_broadcast(&r->change);
}

/* Owns data from here on. */
static void handle_frame(struct rendezvous *r, int i, const struct frame *f, char *data)
{
    struct peer *p = &r->peer[i];

    p->heard = now_seconds();
    switch (f->type) {
    case DATA:
        free(p->data);
        p->data = data ? data : calloc(1, 1);
        p->bytes = f->bytes;
        finish_gather(r);
        return;
    case ALL:
        free(r->result);
        r->result = data;
        pthread_cond_broadcast(&r->change);
        return;
    case FAILED: fail(r, i, "%s", data ? data : "a process failed"); break;
    case BYE:
        p->left = true;
        pthread_cond_broadcast(&r->change);
        break;
    }
    free(data);
}

/* -- the thread that reads frames ----------------------------------------------------------- */

static void *reader_main(void *arg)
{
    struct rendezvous *r = arg;
    struct pollfd *watch = calloc((size_t)r->peers, sizeof *watch);
    double last_beat = now_seconds(), every = fmin(ALIVE_SECONDS, r->timeout / 4);
    size_t most = (size_t)MAX_BYTES * (size_t)r->env.processes;

    pthread_mutex_lock(&r->lock);
    while (watch && !r->stop) {
        for (int i = 0; i < r->peers; i++)
            watch[i] = (struct pollfd){ .fd = r->peer[i].fd, .events = POLLIN };
        pthread_mutex_unlock(&r->lock);
        poll(watch, (nfds_t)r->peers, POLL_MS);
        bool beat = now_seconds() - last_beat >= every;
        if (beat)
            last_beat = now_seconds();
        for (int i = 0; i < r->peers; i++) {
            struct frame f;
            char *data;
            bool ready = watch[i].fd >= 0 && watch[i].revents;
            bool heard = ready && receive_frame(watch[i].fd, &f, &data, most);
            pthread_mutex_lock(&r->lock);
            if (heard)
                handle_frame(r, i, &f, data);
            else if (ready)
                peer_lost(r, i, "is gone: its connection closed");
            else if (watch[i].fd >= 0 && now_seconds() - r->peer[i].heard > r->timeout)
                peer_lost(r, i, "has sent no heartbeat within %g seconds", r->timeout);
            if (beat && r->peer[i].fd >= 0)
                send_frame(r, r->peer[i].fd, ALIVE, NULL, 0);
            pthread_mutex_unlock(&r->lock);
        }
        pthread_mutex_lock(&r->lock);
    }
    pthread_mutex_unlock(&r->lock);
    free(watch);
    return NULL;
}

int rendezvous_new(struct rendezvous **out, const struct rendezvous_env *env, double connect_s,
                   double timeout_s)
{
    struct rendezvous *r = calloc(1, sizeof *r);
    int rc = GPT_OK;

    *out = NULL;
    if (!r)
        return err_sys("rendezvous");
    r->env = *env;
    r->connect_timeout = connect_s;
    r->timeout = timeout_s;
    r->peers = env->processes == 1 ? 0 : env->process == 0 ? env->processes : 1;
    r->peer = calloc((size_t)r->peers + 1, sizeof *r->peer);
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->change, NULL);
    if (!r->peer)
        rc = err_sys("rendezvous");
    for (int i = 0; !rc && i < r->peers; i++)
        r->peer[i].fd = -1;
    if (!rc && r->peers)
        rc = env->process == 0 ? accept_all(r) : connect_to_0(r);
    for (int i = 0; !rc && i < r->peers; i++) /* those connected first have sent nothing since */
        r->peer[i].heard = now_seconds();
    if (!rc && r->peers && (errno = pthread_create(&r->thread, NULL, reader_main, r)))
        rc = err_sys("rendezvous: thread");
    r->reading = !rc && r->peers;
    if (rc) {
        rendezvous_free(r);
        return rc;
    }
    *out = r;
    return GPT_OK;
}

/* -- the interface ----------------------------------------------------------------------------- */

/* A process that has left and so sends no part; -1: none. r->lock is held. */
static int find_left(const struct rendezvous *r)
{
    for (int i = 0; i < r->peers; i++)
        if (r->peer[i].left)
            return i;
    return -1;
}

int rendezvous_gather(struct rendezvous *r, const void *mine, size_t bytes, void *all)
{
    int rc = GPT_OK;

    if (!r->peers) {
        memcpy(all, mine, bytes);
        return GPT_OK;
    }
    if (bytes > MAX_BYTES)
        return err_set(GPT_DEVICE, "%zu bytes are too many to gather", bytes);
    pthread_mutex_lock(&r->lock);
    if (r->env.process == 0) {
        r->peer[0].data = malloc(bytes + 1);
        r->peer[0].bytes = bytes;
        if (r->peer[0].data)
            memcpy(r->peer[0].data, mine, bytes);
        else
            fail(r, -1, "process 0: out of memory");
        if (!r->failed)
            finish_gather(r);
    } else if (r->peer[0].fd >= 0 && !send_frame(r, r->peer[0].fd, DATA, mine, bytes)) {
        peer_lost(r, 0, "cannot be reached");
    }
    while (!r->result && !r->failed && find_left(r) < 0)
        pthread_cond_wait(&r->change, &r->lock);
    if (r->result)
        memcpy(all, r->result, bytes * (size_t)r->env.processes);
    else if (r->failed)
        rc = err_set(GPT_DEVICE, "%s", r->message);
    else
        rc = err_set(GPT_DEVICE, "process %d of %d has left", find_left(r), r->env.processes);
    free(r->result);
    r->result = NULL;
    pthread_mutex_unlock(&r->lock);
    return rc;
}

void rendezvous_tell(struct rendezvous *r, const char *message)
{
    pthread_mutex_lock(&r->lock);
    fail(r, -1, "%s", message);
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

/* Sends BYE and waits at most half a second for the other side to close: closing a socket that has
 * unread data discards what was sent last. */
static void send_bye(const struct rendezvous *r, int fd)
{
    struct timeval t = { .tv_usec = 100000 };
    double until = now_seconds() + 0.5;
    char unread[256];

    send_frame(r, fd, BYE, NULL, 0);
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
    if (r->reading) {
        pthread_mutex_lock(&r->lock);
        r->stop = true;
        pthread_mutex_unlock(&r->lock);
        pthread_join(r->thread, NULL);
    }
    for (int i = 0; r->peer && i < r->peers; i++) {
        if (r->peer[i].fd >= 0) {
            if (r->reading)
                send_bye(r, r->peer[i].fd);
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
