/* shard_read.h - the tokens of one shard, in memory as they arrive.
 *
 * A shard is read by threads of its own, from the front; .bin.zst made of
 * independent frames (zstd's seekable format, its table of frames at the end)
 * is decoded by several at once, straight to its place. Whoever wants a
 * document waits only until that document is there, so a start costs the first
 * frame and not the file. The index of document starts grows with the tokens.
 *
 *     struct shard *s;
 *     if ((rc = shard_open(&s, path, &(struct shard_want){ .vocab = 50304, .bos = 50256 })))
 *         return rc;
 *     for (i = 0; !(rc = shard_document(s, i, 2048, &begin, &end)) && begin >= 0; i++)
 *         use(shard_tokens(s) + begin, end - begin);
 *     shard_close(s);
 *
 * Threads: shard_document and shard_wait may be called by several threads.
 */
#ifndef DATA_SHARD_READ_H
#define DATA_SHARD_READ_H

#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"
#include "data/shard_index.h"

struct shard_want {
    int vocab; /* a token >= vocab is GPT_INPUT with its place */
    int bos;
    bool whole; /* the first token begins a document, too, whatever it is */
    int threads; /* to decode; 0: 2 */
    int64_t limit; /* tokens wanted from the front; 0: all */
    int64_t expect; /* tokens that the header must say; 0: any */
    /* The MANIFEST's hashes of frames (manifest.h), for as many tokens as expected: each frame is
     * held against its own when it is read, before its tokens are given out. NULL: unchecked. */
    const char *frames;
    /* Where documents begin (shard_index.h), which shard_open takes over, or NULL.
     * Then reading may start with a document, and those before are not there. */
    struct shard_index *index;
    int64_t document;
    /* Tokens that are read of a stream (shard_open_next, "-", a compressed file without a table of
     * frames) at most ahead of those that are forgotten (shard_forget), unless someone waits for
     * more. Memory is bounded by it. 0: the whole shard is kept. */
    int64_t window;
};

struct shard;
/* Checks the header and starts reading. GPT_INPUT, GPT_SYSTEM. */
int shard_open(struct shard **s, const char *path, const struct shard_want *want) MUST_CHECK;
/* The next `tokens` tokens of a stream that stays the caller's, and is not read by others before
 * all of them are there (shard_stream.h). name is for messages; of want, limit and expect do not
 * count. */
struct zreader;
int shard_open_next(struct shard **s, struct zreader *z, const char *name, int64_t tokens,
                    const struct shard_want *want) MUST_CHECK;
/* Gives up the first n tokens, with a window, and shard_bytes. shard_document
 * forgets what lies before a document that it waits for. */
void shard_forget(struct shard *s, int64_t n);
/* Reads the first n tokens and forgets them. */
int shard_skip(struct shard *s, int64_t n) MUST_CHECK;
/* Waits until the first n tokens are there and checked. Errors are those of
 * reading: truncated, damaged, another hash, token out of range. */
int shard_wait(struct shard *s, int64_t n) MUST_CHECK;
/* The first document that is there. */
int64_t shard_first_document(const struct shard *s);
/* Begin of document i, and its end: the next document's begin or the shard's
 * end, but at most begin + limit. Waits for as much as that takes. *begin = -1
 * if there is no document i. */
int shard_document(struct shard *s, int64_t i, int64_t limit, int64_t *begin,
                   int64_t *end) MUST_CHECK;
/* [shard_size]; valid as far as waited for */
const uint16_t *shard_tokens(const struct shard *s);
int64_t shard_size(const struct shard *s); /* tokens: limit, or all */
/* Document starts found so far; all, when all was waited for. */
int64_t shard_documents(struct shard *s);
/* The plain file's bytes, header and all, as far as waited for. */
const void *shard_bytes(const struct shard *s);
const char *shard_path(const struct shard *s);
void shard_close(struct shard *s);

#endif
