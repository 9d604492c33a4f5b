/* name_map.h - what the model calls the parts of its banks.
 *
 *     struct name_map map;
 *     if ((rc = name_map_make(&map, recipe))) return rc;
 *     views_make(&v, tensors, &map, NULL, 0);
 *     name_map_release(&map);
 *
 * layers.N.attn.{q,k,v,o}, layers.N.mlp.{fc,proj}, layers.N.attn_gate, layers.N.ve_gate; matrices
 * that no layer uses are LABEL.padding.N. The recipe's [scalars] give layers.N.NAME, or NAME when
 * there is one for all layers. Other parameters keep their label. The table is in name_map.c
 * and nowhere else.
 */
#ifndef INSPECT_NAME_MAP_H
#define INSPECT_NAME_MAP_H

#include <stdbool.h>
#include "recipe/recipe.h"

/* A name for units of a parameter's first axis, or for some elements of one unit. */
struct part_name {
    char name[80]; /* "layers.7.attn.k" */
    char param[40]; /* "attn" */
    uint64_t unit, units;
    uint64_t inner, elements; /* elements > 0: only these of the unit, from `inner` on */
    bool padding; /* no layer uses it */
};
struct name_map {
    struct part_name *v;
    int n;
};

int name_map_make(struct name_map *map, const struct recipe *r) MUST_CHECK;
void name_map_release(struct name_map *map);

#endif
