/* shard_write.h - one shard file, frame by frame, whole or absent.
 *
 *     struct shard_writer w = { .dir = "out", .prefix = "text", .level = 3,
 *                               .shard_tokens = 100000000 };
 *     if ((rc = shard_writer_open(&w, SPLIT_TRAIN, 1))) return rc;
 *     while (...)
 *         if ((rc = shard_writer_put(&w, plain, n, raw, raw_n))) return rc;    // tokens, a frame
 *     if ((rc = shard_writer_finish(&w, tokens, &line))) return rc;            // name, bytes, hash
 *
 * With level 0 the file is the public .bin and raw is not looked at. Else it is .bin.zst: the
 * header's frame, the frames that shard_pack made, and a table of frames. The file appears under
 * its name when it is finished. dir "-" writes to stdout at the end, from a temporary file (the
 * header needs the count), or from memory where a full shard has at most SHARD_MEMORY_TOKENS.
 *
 * Threads: shard_pack any; a writer belongs to one.
 */
#ifndef DATA_SHARD_WRITE_H
#define DATA_SHARD_WRITE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <zstd.h>
#include "base/file.h"
#include "base/hash.h"
#include "data/frames.h"
#include "data/manifest.h"
#include "data/shard_index.h"

#define FRAME_BYTES SHARD_FRAME_BYTES /* what a reader decodes at once */
#define FRAME_TOKENS (FRAME_BYTES / 2)
#define SHARD_MEMORY_TOKENS (16 << 20)

struct shard_writer {
    /* Set by the caller. */
    const char *dir, *prefix;
    int level; /* 0: .bin; 1..19: .bin.zst */
    int64_t shard_tokens; /* what a full shard has */
    bool with_index; /* also write x.idx */
    int bos; /* for it */
    /* Its own. */
    bool is_open;
    struct output out;
    struct xxh hash; /* as if the shard will be full */
    char *frame_hashes; /* manifest_shard's frames */
    size_t hashes_room;
    int hashes;
    struct frames frames;
    struct shard_index index;
    int64_t tokens; /* so far */
    enum split split;
    char name[256];
    uint64_t bytes;
};

int shard_writer_open(struct shard_writer *w, enum split split, int index) MUST_CHECK;
int shard_writer_put(struct shard_writer *w, const void *plain, size_t n, const void *raw,
                     size_t raw_n) MUST_CHECK;
/* Fills bytes, tokens and hash of *s, and name and frames, which stay the writer's. */
int shard_writer_finish(struct shard_writer *w, int64_t tokens,
                        struct manifest_shard *s) MUST_CHECK;
/* Removes a shard that is not finished, and releases the writer. */
void shard_writer_abort(struct shard_writer *w);

/* One frame of at most FRAME_BYTES; raw has shard_pack_room bytes. */
int shard_pack(ZSTD_CCtx *z, int level, const void *plain, size_t n, void *raw,
               size_t *raw_n) MUST_CHECK;
size_t shard_pack_room(void);

#endif
