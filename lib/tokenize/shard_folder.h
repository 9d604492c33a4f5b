/* shard_folder.h - the folder that shards are written to: all of them appear in it, or none.
 *
 *     struct shard_folder f;
 *     if ((rc = shard_folder_open(&f, config))) goto out;
 *     ...                                                      // writes shards into f.dir
 *     if ((rc = manifest_add(&f.manifest, &line))) goto out;   // after each
 *     rc = shard_folder_finish(&f);
 *     out: shard_folder_release(&f);
 *
 * Until the job is done its files are in DIR/.shards.tmp, which a signal removes. finish moves them
 * into DIR, MANIFEST last. What a killed job left is removed by the next one, which dir_lock tells
 * from a job at work. One thread.
 */
#ifndef TOKENIZE_SHARD_FOLDER_H
#define TOKENIZE_SHARD_FOLDER_H

#include <stdbool.h>
#include "base/file.h"
#include "base/lock.h"
#include "data/manifest.h"
#include "tokenize/tokjob.h"

struct shard_folder {
    const struct tokjob_config *c;
    const char *dir; /* for shard_writer: .shards.tmp of the folder, "-", or NULL */
    struct manifest manifest; /* of the shards that are whole */
    struct dir_lock lock; /* of the folder, from open to release */
    struct temporary_dir tmp;
    bool cleared; /* .shards.tmp of a killed job was removed */
};

/* GPT_SYSTEM without --force if the folder holds a MANIFEST or shards of this name, or if another
 * job writes into it. After a failure, too, shard_folder_release is needed. */
int shard_folder_open(struct shard_folder *f, const struct tokjob_config *c) MUST_CHECK;
/* Sums up and sorts the manifest; a folder gets its shards and the MANIFEST, and loses its old ones. */
int shard_folder_finish(struct shard_folder *f) MUST_CHECK;
void shard_folder_release(struct shard_folder *f); /* idempotent */

#endif
