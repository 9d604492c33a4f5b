/* shard_verify.h - shards against their MANIFEST.
 *
 *     struct manifest m;
 *     if ((rc = manifest_read(&m, path))) return rc;
 *     for (i = 0; i < m.n; i++)
 *         if ((rc = shard_verify(dir, &m, i, full)) == GPT_NO) report(err_message());
 *
 * Quick: the file is there, its size and its header are as the MANIFEST says.
 * Full: also its hash, every token, and the number of document starts.
 */
#ifndef TOKENIZE_SHARD_VERIFY_H
#define TOKENIZE_SHARD_VERIFY_H

#include <stdbool.h>
#include "data/manifest.h"

/* GPT_NO with a message if the shard is not what it should be; GPT_SYSTEM if that
 * could not be found out. */
int shard_verify(const char *dir, const struct manifest *m, int i, bool full) MUST_CHECK;

#endif
