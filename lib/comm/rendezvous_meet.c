/* rendezvous_meet.c - process 0 opens a door and waits, the others knock until it opens. */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/progress.h"
#include "comm/rendezvous_impl.h"

/* seconds: as long as a call may wait for the other side. */
static void prepare(int fd, double seconds)
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
    int on = 1, off = 0, bound = -1;

    *fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*fd >= 0) {
        setsockopt(*fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
        setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        bound = bind(*fd, (struct sockaddr *)&six, sizeof six);
    } else {
        *fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (*fd < 0)
            return err_sys("process 0: socket");
        setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        bound = bind(*fd, (struct sockaddr *)&four, sizeof four);
    }
    if (bound || listen(*fd, 128)) {
        int rc = err_sys("process 0: cannot listen at port %d", port);
        close(*fd);
        return rc;
    }
    return GPT_OK;
}

/* One caller at the door: a process of ours, or a stranger that is sent away. */
static void admit(struct rendezvous *r, int fd, int *come)
{
    struct frame f;
    char *data;

    prepare(fd, r->timeout);
    if (rendezvous_hear(fd, &f, &data, sizeof(int)) && f.word == HELLO && data &&
        f.bytes == sizeof(int) && memcmp(data, &r->at.processes, sizeof(int)) == 0 &&
        f.process > 0 && (int)f.process < r->peers && r->peer[f.process].fd < 0) {
        r->peer[f.process].fd = fd;
        r->peer[f.process].heard = now_seconds();
        ++*come;
    } else {
        close(fd);
    }
    free(data);
}

static int wait_for_all(struct rendezvous *r)
{
    double until = now_seconds() + r->meet;
    int door, come = 1, rc = open_port(r->at.port, &door);

    while (!rc && come < r->at.processes) {
        struct pollfd watch = { .fd = door, .events = POLLIN };
        double left = until - now_seconds();
        if (left <= 0) {
            int absent = 1;
            while (r->peer[absent].fd >= 0)
                absent++;
            rc = err_set(GPT_DEVICE,
                         "waited %g seconds at port %d for %d processes: %d came, "
                         "process %d did not",
                         r->meet, r->at.port, r->at.processes, come, absent);
        } else if (poll(&watch, 1, (int)(left * 1e3) + 1) > 0) {
            int fd = accept(door, NULL, NULL);
            if (fd >= 0)
                admit(r, fd, &come);
        }
    }
    for (int i = 1; !rc && i < r->peers; i++)
        if (!rendezvous_say(r, r->peer[i].fd, HELLO, NULL, 0))
            rc = err_set(GPT_DEVICE, "process %d left while the others were still coming", i);
    if (door >= 0)
        close(door);
    return rc;
}

static int try_connect(const struct rendezvous *r, int *fd)
{
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *list;
    char port[16];
    int e, err = ECONNREFUSED;

    snprintf(port, sizeof port, "%d", r->at.port);
    *fd = -1;
    if ((e = getaddrinfo(r->at.address, port, &hints, &list)))
        return err_set(GPT_DEVICE, "process %d: address of process 0, '%s': %s", r->at.process,
                       r->at.address, gai_strerror(e));
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

static int join(struct rendezvous *r)
{
    double until = now_seconds() + r->meet;
    struct frame f;
    char *data;
    int fd, rc;

    while ((rc = try_connect(r, &fd)) || fd < 0) { /* it may not have started yet */
        if (now_seconds() > until)
            return rc ? rc
                      : err_set(GPT_DEVICE,
                                "process %d of %d: cannot reach process 0 at "
                                "%s:%d within %g seconds: %s",
                                r->at.process, r->at.processes, r->at.address, r->at.port, r->meet,
                                strerror(errno));
        usleep(50000);
    }
    prepare(fd, r->meet); /* the answer comes when all are there */
    r->peer[0].fd = fd;
    if (!rendezvous_say(r, fd, HELLO, &r->at.processes, sizeof(int)) ||
        !rendezvous_hear(fd, &f, &data, 0) || f.word != HELLO)
        return err_set(GPT_DEVICE,
                       "process %d of %d: process 0 at %s:%d did not find all "
                       "processes, or is none of ours",
                       r->at.process, r->at.processes, r->at.address, r->at.port);
    prepare(fd, r->timeout);
    return GPT_OK;
}

int rendezvous_meet(struct rendezvous *r) { return r->at.process == 0 ? wait_for_all(r) : join(r); }
