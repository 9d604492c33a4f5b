/* tokjob.h - input to shards.
 *
 *     struct tokjob_config c = { .source = {...}, .encode = {...}, .out = "shards", ... };
 *     struct tokjob_result r;
 *     if ((rc = tokjob_run(&c, &r))) return rc;
 *
 * The folder gets all shards or none (shard_folder.h). The bytes do not depend on
 * the number of threads; pipeline.h says how it runs. Documents that are shuffled,
 * or split by a number of tokens, go through a temporary store in the folder
 * (spool.h).
 */
#ifndef TOKENIZE_TOKJOB_H
#define TOKENIZE_TOKJOB_H

#include "tokenize/encode.h"
#include "data/manifest.h"
#include "tokenize/source.h"
#include "tokenize/token_stats.h"
#include "tokenize/val_pick.h"

/* In the folder: what holds the shards until the job is done. */
#define SHARDS_TMP ".shards.tmp"

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
    double val_fraction; /* documents with hash < fraction of 2^64 are validation */
    int64_t val_first_tokens; /* the first tokens are validation, as in the records; 0: none */
    int64_t val_tokens; /* validation: so many, in the documents of the lowest hashes */
    bool shuffle; /* in an order drawn from the seed */
    uint64_t seed;
    int threads;
    int64_t memory; /* bytes; 0: what the threads take */
    bool with_index; /* an index beside each shard */
    bool force; /* replaces shards that are there */
    struct token_stats *stats; /* NULL: not wanted */
    void (*progress)(void *ctx, const struct tokjob_progress *p); /* from the calling thread */
    void *ctx;
};

struct tokjob_result {
    int64_t documents, tokens, invalid, text_bytes;
    int64_t val_documents, val_tokens; /* of them, for validation */
    int shards;
    double seconds;
    /* Set after a failure, too. */
    int64_t skipped; /* lines of .jsonl, with skip_bad */
    char first_skipped[SKIPPED_MESSAGE]; /* the first of them, and its fault */
    struct source_notes notes;
    bool cleared; /* a temporary folder that a killed job had left was removed (SHARDS_TMP) */
};

int tokjob_run(const struct tokjob_config *c, struct tokjob_result *r) MUST_CHECK;

#endif
