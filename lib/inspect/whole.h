/* whole.h - a tensor of a checkpoint, put together from the tensors of a file: whole as PARAM.KIND,
 * or the parts that a recipe names (name_map.h), as gpt-ckpt export writes them.
 *
 *     struct whole w = whole_of(&expected[i]);
 *     if ((rc = whole_find(&w, tensors, &map, &states))) return rc;
 *     struct feed f = { .s = tensors, .w = &w };
 *     rc = feed_read(&f, dst, n);                    // bytes of e->dtype, in order
 *     feed_close(&f), whole_release(&w);
 *
 * Elements that the file does not have are zero; a weight that is missing or of another size is
 * GPT_INPUT. A struct belongs to one thread.
 */
#ifndef INSPECT_WHOLE_H
#define INSPECT_WHOLE_H

#include <stdbool.h>
#include "checkpoint/tensors.h"
#include "inspect/expected.h"
#include "inspect/name_map.h"

/* Elements first .. first + n - 1 of an expected tensor are those of t. */
struct part {
    uint64_t first, n;
    struct stored t; /* weights: as the forward pass reads them, where that is not a rounding of the
                        exact ones of which masters and low halves are made */
};

struct whole {
    const struct expected *e;
    struct part *parts; /* by first, without overlap; what is between them is zero */
    int n;
    bool master, low; /* of the exact weight, and not its own tensor: itself, or its low half */
    float *scale; /* (rows) of numbers with scales: of the whole that holds them */
    bool holds; /* the scales; freed with it */
};
/* Without parts yet. */
struct whole whole_of(const struct expected *e);
uint64_t whole_elements(const struct expected *e);
/* Finds its parts; adds 1 to *states where it is a state that the file has. */
int whole_find(struct whole *w, const struct tensors *s, const struct name_map *map,
               int *states) MUST_CHECK;
/* w, found, holds the scales of `of`: those of the file, else as Adam would choose them. */
int whole_scales(struct whole *w, struct whole *of, struct tensors *s) MUST_CHECK;
void whole_release(struct whole *w);

/* A piece as a stream. */
struct feed {
    struct tensors *s;
    const struct whole *w;
    uint64_t at; /* next element of the whole */
    struct values v;
    int open; /* index of the part that v reads, + 1 */
};
int feed_read(void *feed, void *dst, size_t n) MUST_CHECK;
void feed_close(struct feed *f);

#endif
