/* rendezvous_impl.h - inside of a rendezvous: how processes meet, and what each then holds.
 *
 * Private to rendezvous.c (what is said) and rendezvous_meet.c (how they find each other).
 */
#ifndef COMM_RENDEZVOUS_IMPL_H
#define COMM_RENDEZVOUS_IMPL_H

#include <pthread.h>
#include <stdint.h>
#include "comm/rendezvous.h"

enum { MAGIC = 0x67707431, MAX_BYTES = 64 << 10, POLL_MS = 200, ALIVE_SECONDS = 1 };
enum word { HELLO, ALIVE, DATA, ALL, FAILED, BYE };

struct frame {
    uint32_t magic, word, process, bytes;
};

struct peer {
    int fd; /* -1: none (any more) */
    double heard; /* when it last said anything */
    bool left; /* said BYE */
    char *data; /* process 0: what it brings to the gather; NULL: nothing yet */
    size_t bytes;
};

struct rendezvous {
    struct rendezvous_place at;
    double meet, timeout; /* seconds: of meeting, of silence */
    struct peer *peer; /* process 0: of all processes (its own has no fd); else [0] only */
    int peers;
    pthread_t thread;
    bool listening, stop;
    pthread_mutex_t lock; /* of everything below, and of writing */
    pthread_cond_t change;
    bool failed;
    char message[400];
    char *result; /* of the gather that is under way; NULL: none complete */
};

/* A frame and its payload; false: the other side is gone, or sent what is no frame of ours. */
bool rendezvous_say(const struct rendezvous *r, int fd, enum word word, const void *data,
                    size_t bytes);
/* Payload of at most `most` bytes into *data (caller frees; NULL when there is none). */
bool rendezvous_hear(int fd, struct frame *f, char **data, size_t most);

/* Process 0 waits for all others, they connect to it: r->peer has their sockets, and every process
 * knows that all are there. */
int rendezvous_meet(struct rendezvous *r) MUST_CHECK;

#endif
