/* shard_read_impl.h - a shard that is being read: opening and asking (shard_read.c),
 * and the threads that fill it (shard_fill.c).
 *
 * The file is a list of pieces: frames of a .bin.zst, a mebibyte of a .bin, or what a
 * stream without a table yields. Threads claim pieces and put them in their
 * place in any order; whoever finds the next piece in order complete checks and
 * indexes it and moves the watermark.
 */
#ifndef DATA_SHARD_READ_IMPL_H
#define DATA_SHARD_READ_IMPL_H

#include <pthread.h>
#include <stdbool.h>

#include "data/corpus.h"
#include "data/frames.h"
#include "data/shard_read.h"

#define STARTS_BITS 16 /* document starts a block of the index */
#define MAX_READERS 16

struct piece_range {
    uint64_t begin, end;
    bool done;
}; /* plain bytes of the file */

struct shard {
    char *path;
    struct shard_want want;
    int fd; /* -1: a stream without a table, through zreader */
    int64_t n; /* tokens to have */
    unsigned char *bytes; /* the plain file, as far as wanted */
    size_t room;
    struct frames frames;
    struct piece_range *piece;
    int pieces, claimed, scanned;
    bool scanning, stop;
    uint32_t **starts; /* blocks, so that readers need no lock */
    struct shard_index index; /* or blocks of this, if start is set */
    int64_t indexed; /* documents in starts; of the thread that scans */
    int64_t documents, ready; /* what of it, and of the tokens, is published */
    int code; /* of the first failure, and its message */
    char message[1024];
    pthread_mutex_t lock;
    pthread_cond_t moved;
    pthread_t thread[MAX_READERS];
    int threads;
};

/* Tokens that lie before a byte of the plain file, of those wanted. */
static inline int64_t tokens_before(const struct shard *s, uint64_t byte)
{
    int64_t n = byte < SHARD_HEADER_BYTES ? 0 : (int64_t)(byte - SHARD_HEADER_BYTES) / 2;

    return n < s->n ? n : s->n;
}

/* Threads on the pieces, or one on a stream. */
int shard_start_threads(struct shard *s, bool stream) MUST_CHECK;

#endif
