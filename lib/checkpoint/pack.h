/* pack.h - a whole checkpoint as one stream: an ordinary tar, POSIX's ustar, which tar reads too.
 *
 *     rc = ckpt_pack(c, stdout, "standard output", 1);        // zstd level; 0: plain
 *     rc = ckpt_unpack("-", root, false);                     // root/step-N
 *
 * MANIFEST comes first, so that each file that follows can be held against its size and hash while
 * it passes. A stream that is cut, changed or incomplete is GPT_INPUT, and then nothing is left of
 * it. Same checkpoint, same bytes. Format: IEEE Std 1003.1, pax, ustar Interchange Format; files of
 * 8 GiB and more have their size in base 256, as GNU tar writes it.
 */
#ifndef CHECKPOINT_PACK_H
#define CHECKPOINT_PACK_H

#include <stdbool.h>
#include <stdio.h>
#include "checkpoint/checkpoint.h"

int ckpt_pack(const struct ckpt *c, FILE *f, const char *name, int level) MUST_CHECK;
/* path: a file or "-", plain or compressed. force: a checkpoint of that step is replaced. */
int ckpt_unpack(const char *path, const char *root, bool force) MUST_CHECK;
/* Into a directory that is there and empty. After a failure files may be in it, but no MANIFEST. */
int ckpt_unpack_into(const char *path, const char *dir) MUST_CHECK;

#endif
