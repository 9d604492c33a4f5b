/* verify.h - is a checkpoint, or a file of tensors, sound? All faults are reported.
 *
 *     static void report(void *arg, const char *fault) { ... }
 *     char *checked;
 *     if ((rc = verify_path(path, true, report, arg, &checked)))
 *         return rc;                                                  // GPT_NO: faults
 *     printf("%s: sound\n", checked);
 *     free(checked);
 *
 * Quick: MANIFEST and its hash, sizes of files, each file's header by the safetensors rules and
 * against MANIFEST, names, types and shapes against what the recipe expects.
 * Full: also the hash of every file, every zstd checksum, the hash of every piece,
 * and that every number is finite. A fault names file, tensor and offset.
 */
#ifndef INSPECT_VERIFY_H
#define INSPECT_VERIFY_H

#include <stdbool.h>
#include "base/err.h"

/* Called by one thread at a time. */
typedef void verify_report_fn(void *arg, const char *fault);

/* path: a checkpoint, a directory of them (the newest), a safetensors file.
 * checked: of what is sound, the path of what was read, which the caller frees; else NULL. */
int verify_path(const char *path, bool full, verify_report_fn *report, void *arg,
                char **checked) MUST_CHECK;

#endif
