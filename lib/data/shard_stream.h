/* shard_stream.h - shards that follow each other in one stream of bytes, plain, zstd or gzip.
 *
 *     struct shard_stream *t;
 *     if ((rc = shard_stream_open(&t, "-", 0))) return rc;
 *     while (!(rc = shard_stream_next(t, &s, &want))) {      // GPT_NO: the stream has ended
 *         ... shard_document, shard_forget ...               // shard_read.h
 *         shard_close(s);
 *     }
 *     shard_stream_close(t);
 *
 * Each shard is a header of 1024 bytes and the tokens that it says, and no more.
 * Threads: one; a shard is read by a thread of its own.
 */
#ifndef DATA_SHARD_STREAM_H
#define DATA_SHARD_STREAM_H

#include "data/shard_read.h"

struct shard_stream;
/* Checks the first header. id_bytes: how many tell which data this is; 0: 64 Ki. */
int shard_stream_open(struct shard_stream **t, const char *path, int64_t id_bytes) MUST_CHECK;
/* The next shard, or at most want->limit tokens of it: what is left of it is the next one then.
 * All tokens of the one before must have been read, and it must be closed or read no more. GPT_NO,
 * without a message: there is none. */
int shard_stream_next(struct shard_stream *t, struct shard **s,
                      const struct shard_want *want) MUST_CHECK;
/* Returns how many tokens it has given out: sizes of the shards so far. */
int64_t shard_stream_tokens(const struct shard_stream *t);
/* Returns XXH3-128 of the stream's first shard_stream_id_bytes: which data this is. */
const char *shard_stream_id(const struct shard_stream *t);
int64_t shard_stream_id_bytes(const struct shard_stream *t);
bool shard_stream_is_short(const struct shard_stream *t); /* those are fewer than 64 Ki */
void shard_stream_close(struct shard_stream *t);

#endif
