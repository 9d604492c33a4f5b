/* tensor_names.h - what the model calls the parts of its banks.
 *
 *     struct name_map map;
 *     if ((rc = tensor_names(r, &map))) return rc;
 *     views_make(&v, tensors, &map, NULL, 0);
 *     tensor_names_release(&map);
 *
 * layers.N.attn.{q,k,v,o}, layers.N.mlp.{fc,proj}, layers.N.attn_gate, layers.N.ve_gate; matrices
 * that no layer uses are LABEL.padding.N. The recipe's [scalars] give layers.N.NAME, or NAME when
 * there is one for all layers. Other parameters keep their label. The table is in tensor_names.c
 * and nowhere else.
 */
#ifndef INSPECT_TENSOR_NAMES_H
#define INSPECT_TENSOR_NAMES_H

#include "model/recipe.h"
#include "inspect/views.h"

int tensor_names(const struct recipe *r, struct name_map *map) MUST_CHECK;
void tensor_names_release(struct name_map *map);

#endif
