/* export.h - a checkpoint as a file of plain named tensors, which import.h reads back.
 *
 * Exported tensors are named as views are (views.h): layers.7.attn.k.weight, one
 * a matrix, without padding, which NumPy and PyTorch load as they are. Weights are exact
 * (tensors.h); NAME.rounded is beside one of which the forward pass reads what cannot be rounded
 * from it again. The file's metadata carries what MANIFEST says ("gpt.step", "gpt.recipe",
 * "gpt.state.KEY"), so that import makes the checkpoint again.
 *
 * Data is streamed: memory does not depend on the size of the model. One thread.
 */
#ifndef INSPECT_EXPORT_H
#define INSPECT_EXPORT_H

#include <stdio.h>
#include "inspect/views.h"

struct export_options {
    int level; /* of zstd; 0: plain */
    bool bf16; /* weights as the forward pass sees them; else exact ones in fp32 */
    bool states; /* momenta and moments, too, as fp32 */
    bool padding; /* also what no layer uses */
};
int export_tensors(struct tensors *s, const struct name_map *map, const struct export_options *o,
                   FILE *f, const char *name) MUST_CHECK;

#endif
