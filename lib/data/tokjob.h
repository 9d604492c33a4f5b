/* tokjob.h - input to shards: read, encode, cut, pack, write, by equal threads.
 *
 * Each of the threads takes the next thing that can be done: write a packed
 * frame, pack one, cut encoded units into frames, read a unit and encode it.
 * Reading, cutting and writing happen in order and by one thread at a time, so
 * the bytes do not depend on how many there are; what is in flight is bounded,
 * so memory does not depend on the input.
 *
 *     struct tokjob_config c = { .source = {...}, .encode = {...}, .out = "shards", ... };
 *     struct tokjob_result r;
 *     if ((rc = tokjob_run(&c, &r))) return rc;
 *
 * While it works, the folder has MANIFEST.partial: the settings, and a line for
 * each shard that is whole. At the end MANIFEST takes its place.
 */
#ifndef DATA_TOKJOB_H
#define DATA_TOKJOB_H

#include "data/encode.h"
#include "data/manifest.h"
#include "data/source.h"
#include "data/token_stats.h"
#include "data/val_pick.h"

struct tokjob_progress {
    uint64_t read_bytes, total_bytes;
    int64_t text_bytes, tokens;
    double seconds;
};

struct tokjob_config {
    struct source_config source;
    struct encode_config encode;
    const char *out;             /* folder, "-": one shard to stdout, NULL: only counts */
    const char *prefix;          /* of shard names */
    const char *arguments;       /* for the MANIFEST */
    int level;                   /* 0: .bin; 1..19: .bin.zst */
    int64_t shard_tokens;
    int64_t val_first_tokens;    /* the first tokens are validation, as in the records; 0: none */
    int threads;
    bool resume, force;
    struct token_stats *stats;   /* of what this run encodes; NULL: not wanted */
    struct val_pick *pick;       /* gets every document; NULL: not wanted */
    void (*progress)(void *ctx, const struct tokjob_progress *p);   /* from the calling thread */
    void *ctx;
};

struct tokjob_result {
    int64_t documents, tokens, invalid;      /* of all shards */
    int64_t text_bytes, encoded_tokens;      /* by this run */
    int shards, kept;                        /* kept: whole before this run (resume) */
    double seconds;
};

int tokjob_run(const struct tokjob_config *c, struct tokjob_result *r) MUST_CHECK;

#endif
