/* inspect.h - a checkpoint, or a file of tensors, together with the recipe that explains it.
 *
 *     struct inspect x;
 *     if ((rc = inspect_open(&x, path))) return rc;
 *     rc = views_make(&v, x.tensors, &x.map, NULL, 0);
 *     inspect_close(&x);
 *
 * The recipe is the checkpoint's own, or that of an exported file; without one, or with one that
 * this program cannot read, recipe is NULL, map is empty and tensors keep their stored names.
 */
#ifndef INSPECT_INSPECT_H
#define INSPECT_INSPECT_H

#include "checkpoint/tensors.h"
#include "inspect/name_map.h"

struct inspect {
    struct tensors *tensors;
    struct recipe *recipe;
    struct name_map map;
    char why[512]; /* why recipe is NULL; "" when there is none */
};
int inspect_open(struct inspect *x, const char *path) MUST_CHECK;
void inspect_close(struct inspect *x);

#endif
