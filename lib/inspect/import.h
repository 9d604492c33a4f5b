/* import.h - a checkpoint from a file of named tensors: exported ones (export.h) or whole ones
 * named param.kind.
 *
 * A weight that is missing or of another size is GPT_INPUT. A state that the file does not have
 * begins at zero, and so do padding, Adam's count of a parameter without moments, and the data
 * position: gpt-train continues from every checkpoint made here. Moments without their count are
 * GPT_INPUT. Masters are the exact weights of the file; a weight beside one is rounded or cut as
 * Adam does it, or what the file has as rounded. Data is streamed: memory does not depend on the
 * size of the model.
 */
#ifndef INSPECT_IMPORT_H
#define INSPECT_IMPORT_H

#include <stdbool.h>
#include "base/err.h"

struct import_job {
    const char *file; /* "-": standard input, by way of a temporary file */
    const char *recipe; /* a file of a recipe, or NULL */
    const char *like; /* a checkpoint to take step, data position, counters and, without `recipe`,
                         the recipe from; NULL: all that is the file's */
    const char *root; /* root/step-N is written */
    int ranks, level; /* zstd's; 0: plain files */
    bool force; /* replace what is there */
};
/* only_weights: the file held no momenta or moments. */
int import_checkpoint(const struct import_job *job, bool *only_weights) MUST_CHECK;

#endif
