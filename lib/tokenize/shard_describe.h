/* shard_describe.h - the MANIFEST of shards that another program made.
 *
 *     struct manifest m;
 *     if ((rc = shard_describe(&m, "fineweb10B", arguments, false))) return rc;
 *     if ((rc = manifest_text(&m, &text))) ...
 *     manifest_release(&m);                        // also after a failure
 *
 * Every .bin and .bin.zst of the folder is read whole: header, size, range of its tokens, document
 * starts, hashes. Files that their names, or the folder's, mark so (corpus.h) are validation; a test's are left
 * out, or validation where there is no other. Where documents begin in the
 * text is not known: `from`, `to` and `input` are zero. Memory: one shard. One thread.
 */
#ifndef TOKENIZE_SHARD_DESCRIBE_H
#define TOKENIZE_SHARD_DESCRIBE_H

#include "data/manifest.h"
#include "tokenize/vocab.h"

/* v: whose the tokens are; NULL: GPT-2's. left_out: how many a test's files. GPT_INPUT names the file that is no shard, cut short or
 * has a token that there is not. */
int shard_describe(struct manifest *m, const char *dir, const char *arguments,
                   const struct vocab *v, int *left_out) MUST_CHECK;

#endif
