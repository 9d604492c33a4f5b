/* st_index.h - a model.safetensors.index.json: which files hold the tensors of one model.
 *
 *     struct st_index x;
 *     if ((rc = st_index_read(&x, path))) return rc;
 *     for (size_t i = 0; i < x.n; i++) ... x.map[i].key is in the file x.map[i].value beside it
 *     st_index_release(&x);
 *
 * {"metadata": {...}, "weight_map": {"NAME": "FILE", ...}}, as Hugging Face's libraries write it.
 * GPT_INPUT: something else, a name that comes twice, a file that is not beside the index.
 */
#ifndef CHECKPOINT_ST_INDEX_H
#define CHECKPOINT_ST_INDEX_H

#include <stdbool.h>
#include "checkpoint/st_header.h"

struct st_index {
    struct st_meta *map; /* by name of tensor */
    size_t n;
    struct st_meta *meta; /* numbers as they are written */
    size_t nmeta;
};

/* Sets *is: does the file at path begin as JSON? A file of tensors begins with its header's size. */
int st_index_detect(const char *path, bool *is) MUST_CHECK;
int st_index_read(struct st_index *x, const char *path) MUST_CHECK;
void st_index_release(struct st_index *x);
/* The file that holds a tensor; NULL: the index does not name it. */
const char *st_index_file(const struct st_index *x, const char *name);

#endif
