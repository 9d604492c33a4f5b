/* tokjob_impl.h - the parts of a job: passes (tokjob.c), the stages of a pass
 * (tokjob_stages.c), cutting tokens into frames and shards (cutter.c), the folder
 * and its manifest (shard_folder.c). */
#ifndef TOKENIZE_TOKJOB_IMPL_H
#define TOKENIZE_TOKJOB_IMPL_H

#include <stdatomic.h>

#include "base/rng.h"
#include "tokenize/pipeline.h"
#include "data/shard_write.h"
#include "tokenize/spool.h"
#include "tokenize/tokjob.h"

/* --- the folder of shards --- */

struct shard_folder {
    const struct tokjob_config *c;
    struct manifest manifest; /* of what is whole; for a repair, of all */
    bool *damaged; /* repair: [manifest.n] to be made again; else NULL */
    bool remaking; /* repair without a MANIFEST: all shards, to compare, and it */
    FILE *journal; /* MANIFEST.partial; NULL if none is kept */
    int kept;
    bool complete; /* resume: it was, nothing is left to do */
};

/* Makes the folder ready: new, continued, or to be repaired, which verifies it.
 * GPT_SYSTEM if it holds shards and is neither; GPT_INPUT if what is there was
 * made otherwise. */
int folder_open(struct shard_folder *f, const struct tokjob_config *c) MUST_CHECK;
/* The shard is whole: its line. */
int folder_add(struct shard_folder *f, const struct manifest_shard *s) MUST_CHECK;
/* The MANIFEST. */
int folder_finish(struct shard_folder *f) MUST_CHECK;
void folder_release(struct shard_folder *f);
/* The line of a shard by its name; -1: none. */
int folder_find(const struct shard_folder *f, const char *name);

/* --- cutting --- */

/* One a split: where in which shard the next token goes. */
struct cutter {
    enum split split;
    int64_t shard_tokens;
    int index; /* of the next or present shard */
    int stop; /* shards from this index on are not wanted */
    struct position skip; /* tokens before this stand in shards already */
    struct out_frame *frame; /* being filled; NULL: a new one is needed */
    bool open; /* a shard has been begun */
    struct manifest_shard line; /* of that shard */
};

/* Tokens of a document part to append; moved along as they are taken. */
struct part {
    const uint16_t *token;
    size_t n;
    struct position at; /* document, and tokens of it before these */
    bool ends; /* the document ends with them */
    bool counted; /* its invalid sequences are */
    int64_t invalid;
    uint64_t input; /* of all documents up to this one: input_hash */
};

/* Appends what fits the frame. *full: the frame is to be handed on (cutter_take). */
void cutter_put(struct cutter *k, struct part *p, bool *full);
/* Hands the frame on; the shard's line goes with its last. To end a shard early,
 * set frame->last before. */
struct out_frame *cutter_take(struct cutter *k);

/* --- a job --- */

struct job {
    const struct tokjob_config *c;
    struct encode_config encode; /* c's, and what is found out on the way */
    struct source *source;
    struct spool *spool; /* between two passes; NULL: there is one */
    struct pipeline *pipeline;
    struct shard_folder folder;
    struct shard_writer writer[2];
    struct cutter cutter[2];
    int64_t val_left; /* val_first: tokens that validation still wants */
    int threads, units;
    struct encoder *encoder[MAX_THREADS], *run_encoder; /* the last for units that are runs */
    ZSTD_CCtx *z[MAX_THREADS];
    struct val_pick pick;
    /* The cutting stage: document of the unit, and what is left of it. */
    int cut_doc;
    bool cut_begun;
    struct part cut_part;
    int64_t document_tokens; /* of the present document so far */
    uint64_t input; /* input_hash so far */
    int agreed; /* of the shards kept, with the input so far */
    atomic_bool enough; /* all shards that are wanted are cut */
    struct tokjob_result *result; /* its counters are the cutting stage's */
    double start, pass_start;
    atomic_ullong read_bytes; /* for progress */
    atomic_llong seen_text, seen_tokens, put_tokens;
};

/* The stages of the three kinds of pass. */
extern const struct stages stages_direct, stages_to_spool, stages_from_spool;
/* The same without packing. */
struct stages stages_plain(const struct stages *s);

#endif
