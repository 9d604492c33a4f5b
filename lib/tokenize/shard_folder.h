/* shard_folder.h - the folder that shards are written to, and what it says of itself while the
 * work goes on: MANIFEST.partial until the last shard is whole, then MANIFEST.
 *
 *     struct shard_folder f;
 *     if ((rc = shard_folder_open(&f, config))) return rc;     // f.manifest: shards that are whole
 *     if ((rc = shard_folder_add(&f, &line))) return rc;       // after each shard
 *     if ((rc = shard_folder_finish(&f))) return rc;
 *     shard_folder_release(&f);
 *
 * It owns the manifest and the journal. One thread at a time.
 */
#ifndef TOKENIZE_SHARD_FOLDER_H
#define TOKENIZE_SHARD_FOLDER_H

#include <stdbool.h>
#include <stdio.h>
#include "base/lock.h"
#include "data/manifest.h"
#include "tokenize/tokjob.h"

struct shard_folder {
    const struct tokjob_config *c;
    struct manifest manifest; /* of what is whole; for a repair, of all */
    bool *damaged; /* repair: [manifest.n] whether to make it again; else NULL */
    bool remaking; /* repair without a MANIFEST: makes all shards, compares, writes it */
    FILE *journal; /* MANIFEST.partial; NULL if none is kept */
    struct dir_lock lock; /* of the folder, from open to release */
    int kept;
    bool complete; /* resume: it was, nothing is left to do */
};

/* Makes the folder ready: new, continued, or to be repaired, which verifies it.
 * GPT_SYSTEM if it holds shards and is neither; GPT_INPUT if what is there was
 * made otherwise. */
int shard_folder_open(struct shard_folder *f, const struct tokjob_config *c) MUST_CHECK;
/* The shard is whole: its line. */
int shard_folder_add(struct shard_folder *f, const struct manifest_shard *s) MUST_CHECK;
/* The MANIFEST. */
int shard_folder_finish(struct shard_folder *f) MUST_CHECK;
void shard_folder_release(struct shard_folder *f);
/* Index of the shard of that name in manifest; -1: none. */
int shard_folder_find(const struct shard_folder *f, const char *name);

#endif
