/* spool.h - encoded documents on disk, to be read back in another order.
 *
 * Documents are put into buckets by the high bits of a key and come out by key:
 * one bucket after the other, each sorted. With one bucket and no sorting they
 * come out as they went in. The files have no names, so a killed job leaves none.
 * Memory: a buffer a bucket while writing; while reading, 32 bytes a document of
 * one bucket, and the bucket if it is no larger than `memory`.
 *
 *     struct spool *s;
 *     if ((rc = spool_new(&s, dir, true, memory))) return rc;
 *     if ((rc = spool_put(s, key, &doc, tokens))) return rc;     // each part, in order
 *     if ((rc = spool_rewind(s))) return rc;
 *     while (!(rc = spool_next(s, &unit)) && !unit.end) ...
 *     spool_free(s);
 *
 * One thread at a time.
 */
#ifndef TOKENIZE_SPOOL_H
#define TOKENIZE_SPOOL_H

#include <stdbool.h>
#include "base/err.h"
#include "tokenize/source.h"

struct spool;
/* Files in dir. sorted: by key, else as put. */
int spool_new(struct spool **s, const char *dir, bool sorted, size_t memory) MUST_CHECK;
/* A part of a document; the parts of one must be put one after the other. */
int spool_put(struct spool *s, uint64_t key, const struct unit_doc *d,
              const uint16_t *tokens) MUST_CHECK;
int spool_rewind(struct spool *s) MUST_CHECK;
/* Fills doc and token of the unit. */
int spool_next(struct spool *s, struct unit *u) MUST_CHECK;
void spool_free(struct spool *s);

#endif
