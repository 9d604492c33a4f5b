/* shard_index.h - where the documents of a shard begin, in a file beside it.
 *
 * With it a run that continues in the middle of a shard reads from there, and
 * nothing is searched. "x.bin" or "x.bin.zst" has "x.idx": 256 little-endian
 * int32, 20240520, 2, documents, tokens, then XXH3-128 of the plain shard as in
 * the MANIFEST (16 bytes; zeros: not known), zeros; then the begin of each
 * document as uint32.
 */
#ifndef DATA_SHARD_INDEX_H
#define DATA_SHARD_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

struct shard_index {
    uint32_t *start;
    int64_t documents;
    size_t room;
    bool hashed; /* read: it says of which shard it is */
};

int shard_index_add(struct shard_index *x, int64_t start) MUST_CHECK;
/* Makes the shard's first token a document start, if it is none. */
int shard_index_begin(struct shard_index *x) MUST_CHECK;
void shard_index_release(struct shard_index *x);
/* hash: 32 hexadecimal digits, or NULL. */
int shard_index_write(const struct shard_index *x, const char *path, int64_t tokens,
                      const char *hash) MUST_CHECK;
/* GPT_INPUT if it is damaged, or of a shard of other tokens or (hash not NULL, and
 * known) another hash. */
int shard_index_read(struct shard_index *x, const char *path, int64_t tokens,
                     const char *hash) MUST_CHECK;
/* The index's name for a shard's; caller frees. NULL: no memory. */
char *shard_index_path(const char *shard);

#endif
