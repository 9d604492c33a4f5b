/* pipeline.h - units of input to frames of output, by equal threads.
 *
 * Each thread takes the next thing that can be done, what is furthest along
 * first: write a packed frame, pack one, cut an encoded unit into frames, read a
 * unit and encode it. Reading, cutting and writing happen in order and by one
 * thread at a time; encoding and packing by all. The units and frames in flight
 * are all there are, so memory does not depend on the input, and results do not
 * depend on the number of threads.
 *
 *     struct pipeline *p;
 *     if ((rc = pipeline_new(&p, threads, units, packs))) return rc;
 *     if ((rc = pipeline_run(p, &stages, ctx))) return rc;        // again for another pass
 *     pipeline_free(p);
 */
#ifndef TOKENIZE_PIPELINE_H
#define TOKENIZE_PIPELINE_H

#include <stdbool.h>
#include "base/err.h"
#include "data/manifest.h"
#include "tokenize/source.h"

#define MAX_THREADS 256

/* Tokens on their way to a shard. The last frame of a shard carries its line (but
 * name, bytes and hash). */
struct out_frame {
    enum split split;
    int index; /* of the shard */
    bool first, last; /* of the shard */
    size_t n, raw_n; /* bytes */
    struct manifest_shard line;
    unsigned char *plain, *raw; /* raw: packed, if frames are */
};

struct pipeline;

/* What the stages do; each returns a code, and the first failure in the order of
 * the units ends the run. What came before a unit that could not be read or
 * encoded is still cut and written: standard output has each shard that is whole. */
struct stages {
    /* Fills the unit; u->end at the end. *encoded: nothing is left to encode. */
    int (*read)(void *ctx, struct unit *u, bool *encoded);
    int (*encode)(void *ctx, int worker, struct unit *u);
    /* Takes a unit, or NULL at the end; *done = false: there was no frame for the
     * rest, call again. Takes frames with pipeline_spare, gives with pipeline_put. */
    int (*cut)(void *ctx, const struct unit *u, bool *done);
    int (*pack)(void *ctx, int worker, struct out_frame *f); /* NULL: frames stay plain */
    int (*write)(void *ctx, struct out_frame *f);
    /* From the calling thread now and then; may be NULL. */
    void (*report)(void *ctx);
};

/* packs: frames have room for packed bytes. */
int pipeline_new(struct pipeline **p, int threads, int units, bool packs) MUST_CHECK;
int pipeline_run(struct pipeline *p, const struct stages *s, void *ctx) MUST_CHECK;
void pipeline_free(struct pipeline *p);

/* From the cutting stage: an empty frame, or NULL if all are in flight. */
struct out_frame *pipeline_spare(struct pipeline *p);
void pipeline_put(struct pipeline *p, struct out_frame *f);

#endif
