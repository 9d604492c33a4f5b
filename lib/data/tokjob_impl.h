/* tokjob_impl.h - the parts of a job: pipeline (tokjob.c), cutting tokens into
 * frames and shards (cutter.c), the folder and its manifest (shard_folder.c). */
#ifndef DATA_TOKJOB_IMPL_H
#define DATA_TOKJOB_IMPL_H

#include <pthread.h>

#include "data/shard_write.h"
#include "data/tokjob.h"

/* --- the folder of shards --- */

struct shard_folder {
    const struct tokjob_config *c;
    struct manifest manifest;    /* of what is whole */
    FILE *journal;               /* MANIFEST.partial; NULL if out is no folder */
    int kept;
};

/* Makes the folder ready: new, or continued. GPT_SYSTEM if it holds shards and
 * neither resume nor force; GPT_INPUT if what is there was made otherwise. */
int folder_open(struct shard_folder *f, const struct tokjob_config *c) MUST_CHECK;
/* The shard is whole: its line. */
int folder_add(struct shard_folder *f, const struct manifest_shard *s) MUST_CHECK;
/* The MANIFEST. */
int folder_finish(struct shard_folder *f) MUST_CHECK;
void folder_release(struct shard_folder *f);

/* --- cutting --- */

/* A frame of tokens on its way to a file. The last of a shard carries its line
 * (but name, bytes and hash). */
struct out_frame {
    enum split split;
    int index;                   /* of the shard */
    bool first, last;
    size_t n, raw_n;
    struct manifest_shard line;
    unsigned char *plain, *raw;
};

/* One a split: where in which shard the next token goes. */
struct cutter {
    enum split split;
    int64_t shard_tokens;
    int index;                   /* of the next or present shard */
    struct position skip;        /* tokens before this stand in shards already */
    struct out_frame *frame;     /* being filled; NULL: a new one is needed */
    bool open;                   /* a shard has been begun */
    struct manifest_shard line;  /* of that shard */
};

/* Tokens of a document part to append; moved along as they are taken. */
struct part {
    const uint16_t *token;
    size_t n;
    struct position at;          /* document, and tokens of it before these */
    bool ends;                   /* the document ends with them */
    bool counted;                /* its invalid sequences are */
    int64_t invalid;
};

/* Appends what fits the frame. *full: the frame is to be handed on (take_frame). */
void cutter_put(struct cutter *k, struct part *p, bool *full);
/* Hands the frame on; the shard's line goes with its last. To end a shard early,
 * set frame->last before. */
struct out_frame *cutter_take(struct cutter *k);

#endif
