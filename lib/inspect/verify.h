/* verify.h - is it sound? Every fault found is told, not only the first.
 *
 *     static void tell(void *arg, const char *fault) { ... }
 *     char *checked;
 *     if ((rc = verify_path(path, true, NULL, NULL, tell, arg, &checked)))
 *         return rc;                                                          // GPT_NO: told
 *     printf("%s: sound\n", checked);
 *     free(checked);
 *
 * Quick: MANIFEST and its hash, sizes of files, each file's header by the
 * safetensors rules and against MANIFEST, shapes against what the model expects.
 * Full: also the hash of every file, every zstd checksum, the hash of every piece,
 * and that every number is finite. A fault names file, tensor and offset.
 */
#ifndef INSPECT_VERIFY_H
#define INSPECT_VERIFY_H

#include "checkpoint/checkpoint.h"
#include "checkpoint/tensors.h"

typedef void verify_tell_fn(void *arg, const char *fault);
/* What the model expects of a checkpoint: told through tell; its return is an error to stop at. */
typedef int verify_model_fn(void *arg, const struct ckpt *c, verify_tell_fn *tell, void *tell_arg);

/* path: a checkpoint, a directory of them (the newest), a safetensors file. model may be NULL.
 * checked: of what is sound, the path of what was read, which the caller frees; else NULL. */
int verify_path(const char *path, bool full, verify_model_fn *model, void *model_arg,
                verify_tell_fn *tell, void *arg, char **checked) MUST_CHECK;

#endif
