/* tokjob.h - input to shards.
 *
 *     struct tokjob_config c = { .source = {...}, .encode = {...}, .out = "shards", ... };
 *     struct tokjob_result r;
 *     if ((rc = tokjob_run(&c, &r))) return rc;
 *
 * While it works, the folder has MANIFEST.partial: the settings, and a line for
 * each shard that is whole. At the end MANIFEST takes its place. The bytes do not
 * depend on the number of threads, nor on whether the job was interrupted and
 * resumed; pipeline.h says how it runs. Documents that are shuffled, or split by
 * a number of tokens, go through a temporary store in the folder (spool.h).
 */
#ifndef TOKENIZE_TOKJOB_H
#define TOKENIZE_TOKJOB_H

#include "tokenize/encode.h"
#include "data/manifest.h"
#include "tokenize/source.h"
#include "tokenize/token_stats.h"
#include "tokenize/val_pick.h"

struct tokjob_progress {
    uint64_t read_bytes, total_bytes;
    int64_t text_bytes, tokens;
    int64_t put_tokens; /* read back from the store, in the second pass of two; else 0 */
    double seconds, pass_seconds; /* since the job, and this pass, began */
};

struct tokjob_config {
    struct source_config source;
    struct encode_config encode;
    const char *out; /* folder, "-": shards to stdout, one after the other, NULL: only counts */
    const char *prefix; /* of shard names */
    const char *arguments; /* for the MANIFEST */
    int level; /* 0: .bin; 1..19: .bin.zst */
    int64_t shard_tokens;
    int64_t val_first_tokens; /* the first tokens are validation, as in the records; 0: none */
    int64_t val_tokens; /* validation: so many, in the documents of the lowest hashes */
    bool shuffle; /* in an order drawn from the seed */
    uint64_t seed;
    int threads;
    int64_t memory; /* bytes; 0: what the threads take */
    bool with_index; /* an index beside each shard */
    bool resume, force;
    bool repair; /* only makes again what --verify would find damaged; shards that
                                    no MANIFEST names must come out as they are */
    struct token_stats *stats; /* of what this run encodes; NULL: not wanted */
    void (*progress)(void *ctx, const struct tokjob_progress *p); /* from the calling thread */
    void *ctx;
};

struct tokjob_result {
    int64_t documents, tokens, invalid; /* of all shards */
    int64_t text_bytes, encoded_tokens; /* by this run */
    int shards, kept, repaired; /* kept: whole before this run (resume) */
    bool remade; /* repair: the MANIFEST, too */
    double seconds;
};

int tokjob_run(const struct tokjob_config *c, struct tokjob_result *r) MUST_CHECK;

#endif
