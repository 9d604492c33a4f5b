/* export.h - checkpoints to plain named tensors, and back.
 *
 * Exported tensors are named as views are (views.h): layers.7.attn.k.weight, one
 * a matrix, without padding, which NumPy and PyTorch load as they are. The file's
 * metadata carries what MANIFEST says ("gpt.step", "gpt.recipe", "gpt.state.KEY"),
 * so that import makes the checkpoint again.
 *
 * Both stream: memory does not depend on the size of the model. One thread.
 */
#ifndef INSPECT_EXPORT_H
#define INSPECT_EXPORT_H

#include <stdio.h>
#include "inspect/views.h"

struct export_options {
    bool npz; /* else safetensors, zstd with `level` > 0 */
    int level;
    bool bf16; /* weights as the forward pass sees them; else fp32 masters.
                                   An npz has no bf16: the same values as fp32 */
    bool states; /* momenta and moments, too, as fp32 */
    bool padding; /* also what no layer uses */
};
int export_tensors(struct tensors *s, const struct name_map *map, const struct export_options *o,
                   FILE *f, const char *name) MUST_CHECK;

/* One tensor that a checkpoint must hold. */
struct expected {
    const char *param, *kind;
    enum dtype dtype;
    int rank;
    int64_t shape[CKPT_MAX_RANK];
    bool sharded;
};
/* Makes ROOT/step-N from a file of named tensors: exported ones, or whole ones named
 * param.kind. A weight that is missing or of another size is GPT_INPUT; a state that the file
 * does not have is zero; so is padding. A bf16 weight whose mantissa is expected is cut, any
 * other rounded. *states: how many states the file had. */
int import_tensors(struct tensors *s, const struct name_map *map, const struct expected *e, int n,
                   const struct ckpt_info *info, const char *root, int level,
                   int *states) MUST_CHECK;

#endif
