/* manifest.h - the MANIFEST of a folder of shards, written last.
 *
 * Text: "key: value" lines, then one line a shard, then the XXH3-128 of all
 * lines above, so that a damaged manifest is noticed; man/gpt-shard.5 has it in
 * full. A shard's hash is that of its plain .bin bytes, compressed or not, as
 * `zstd -dc FILE | xxh128sum` prints it.
 *
 *     struct manifest m;
 *     if ((rc = manifest_read(&m, "shards/MANIFEST"))) return rc;
 *     for (i = 0; i < m.n; i++) use(m.shard[i].name, m.shard[i].tokens);
 *     manifest_release(&m);
 *
 * A struct belongs to one thread.
 */
#ifndef DATA_MANIFEST_H
#define DATA_MANIFEST_H

#include <stdint.h>
#include "base/err.h"

/* The last two are of corpus_open alone. */
enum split { SPLIT_TRAIN, SPLIT_VAL, SPLIT_ONLY_VAL, SPLIT_ALL };

/* from: which document the shard's first token belongs to, counted over both
 * splits in the order written, and how many of its tokens stand in shards
 * before; to: the same of the token after its last. */
struct manifest_shard {
    enum split split;
    char *name; /* file in the folder */
    int64_t bytes; /* of the file */
    int64_t tokens, documents; /* documents that start in it */
    int64_t invalid; /* bad UTF-8 sequences in the text of its tokens */
    struct position {
        int64_t document, token;
    } from, to;
    uint64_t input; /* of all documents up to its last: input_hash */
    char hash[33];
    /* XXH3-128 of each SHARD_FRAME_BYTES of tokens, the last one shorter, joined by blanks; NULL:
     * not known, as of shards that were made before there was such a line. */
    char *frames;
};
#define SHARD_FRAME_BYTES (1 << 20)
#define FRAME_HASH_CHARS 33 /* from one hash in `frames` to the next */

struct manifest {
    char *tool, *arguments; /* what made it */
    char *tokenizer; /* gpt2, bytes, other */
    char *vocabulary; /* SHA-256 of the rank file */
    char *unicode;
    char *settings; /* everything that the bytes depend on but the input, one line */
    int64_t vocab_size, bos;
    int64_t documents, tokens, invalid; /* sums over the shards */
    int64_t skipped; /* lines of .jsonl without a text, passed over */
    struct manifest_shard *shard;
    int n;
    char *frames; /* while it is read: of the next shard */
};

/* GPT_INPUT with file and line; GPT_SYSTEM if it cannot be read. */
int manifest_read(struct manifest *m, const char *path) MUST_CHECK;
/* The same of a folder's. Where it has none the message shows its *.bin, between `quote`s. */
int manifest_read_in(struct manifest *m, const char *dir, const char *quote) MUST_CHECK;
/* The text; caller frees. */
int manifest_text(const struct manifest *m, char **text) MUST_CHECK;
int manifest_add(struct manifest *m, const struct manifest_shard *s) MUST_CHECK; /* copies */
void manifest_release(struct manifest *m);
/* Names in dir of shards and indexes that m does not have, in the order of their bytes. Caller
 * frees each and the list. */
int manifest_strays(const struct manifest *m, const char *dir, char ***names, int *n) MUST_CHECK;
const char *split_name(enum split s); /* "train", "val" */
/* XXH64 of the 8 bytes of a document's hash, the value before as the seed; 0 at first. */
uint64_t input_hash(uint64_t before, uint64_t document_hash);

#endif
