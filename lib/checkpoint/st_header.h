/* st_header.h - what a safetensors file says of its tensors: names, types, shapes, offsets.
 *
 *     struct st_header h = { 0 };
 *     if ((rc = st_header_parse(&h, path, text, n))) return rc; // GPT_INPUT: offset, what is wrong
 *     const struct st_tensor *t = st_find(&h, "embed.weight");
 *     st_header_release(&h);
 *
 * Rules and source: safetensors.h. A header may be read by all threads.
 */
#ifndef CHECKPOINT_ST_HEADER_H
#define CHECKPOINT_ST_HEADER_H

#include <stddef.h>
#include <stdint.h>
#include "types/dtype.h"
#include "base/err.h"

#define ST_HEADER_MAX 100000000u

struct st_tensor {
    char *name;
    const char *type; /* as the format spells it: "F32", "F8_E4M3", ... */
    enum dtype dtype; /* DT_NONE: the format has it, types/dtype.h does not (F8_E8M0, F4, ...) */
    unsigned bits; /* an element */
    int rank; /* 0: a scalar */
    uint64_t *shape; /* rank numbers */
    uint64_t elements; /* product of shape */
    uint64_t begin, bytes; /* offset and length in the data section */
};
struct st_meta {
    char *key, *value;
};
struct st_header {
    struct st_tensor *tensors; /* by begin: the order of the data */
    size_t n;
    struct st_meta *meta; /* as written */
    size_t nmeta;
    uint64_t data_at; /* 8 + N: offset of the data section in the file */
    uint64_t data_bytes;
};

/* Parses and checks the N bytes of JSON; path is for messages. */
int st_header_parse(struct st_header *h, const char *path, const char *text, size_t n) MUST_CHECK;
void st_header_release(struct st_header *h);
const struct st_tensor *st_find(const struct st_header *h, const char *name); /* NULL: none */
const char *st_meta(const struct st_header *h, const char *key); /* NULL: none */

/* "F32" for DT_F32; NULL for DT_NONE. */
const char *st_type_name(enum dtype t);

#endif
