/* cat.h - elements of one tensor, or a slice of it, as text or as they are stored.
 *
 *     "layers.7.attn.k.weight[0:2,:8]"   rows 0 and 1, the first eight of each
 *     "attn.momentum[3]"                 one matrix; "[-1]" the last
 *
 * Each axis takes i, a:b, a:, :b or :, negative numbers count from the end. Axes
 * that are not given are whole.
 */
#ifndef INSPECT_CAT_H
#define INSPECT_CAT_H

#include <stdio.h>
#include "inspect/views.h"

/* Text: a line a row of the last axis, tabs between, digits that give the number again. raw: the
 * stored bytes, little-endian. GPT_INPUT: no such tensor; GPT_USAGE: no such slice. */
int cat_tensor(struct tensors *s, const struct name_map *map, const char *what, bool raw,
               FILE *f) MUST_CHECK;

#endif
