/* views.h - tensors as the model knows them: matrices of banks, by layer and role.
 *
 * A view is a part of a stored tensor with a name of its own: matrix 25 of
 * attn.momentum is layers.7.attn.k.momentum. A struct name_map, made from the recipe, has the
 * names. Without one, and for tensors that it does not know, each matrix of a tensor of three or
 * more axes is a view ("attn.weight[25]"), and any other tensor is one view.
 *
 *     struct views v;
 *     if ((rc = views_make(&v, s, &map, "layers.*.momentum", 0))) return rc;
 *     for (int i = 0; i < v.n; i++) ... v.v[i].name, values_open(&x, s, v.v[i].t, v.v[i].first)
 *     views_release(&v);
 *
 * Views are in file order, and read-only once made.
 */
#ifndef INSPECT_VIEWS_H
#define INSPECT_VIEWS_H

#include "checkpoint/tensors.h"
#include "inspect/name_map.h"

enum {
    VIEWS_PADDING = 1, /* also what no layer uses */
    VIEWS_SCALARS = 2, /* each of the recipe's scalars; else their tensor is one view */
    VIEWS_STORED = 4, /* also masters, mantissas and scales as tensors of their own */
};
struct view {
    char *name; /* "layers.7.attn.k.momentum" */
    const struct stored *t;
    uint64_t first, elements; /* part of t */
    uint64_t unit; /* of t's first axis */
    int rank;
    uint64_t shape[4]; /* axes beyond the fourth are multiplied into it */
    const struct part_name *part; /* NULL: not of the map */
};
struct views {
    struct view *v;
    int n;
    int *by_name;
}; /* by_name: indices in v */

/* Views whose name, or stored tensor's name or parameter, matches the glob pattern
 * (NULL: all). map may be NULL. No match is GPT_INPUT when a pattern was given. */
int views_make(struct views *v, const struct tensors *s, const struct name_map *map,
               const char *pattern, int flags) MUST_CHECK;
void views_release(struct views *v);
/* Drops all but matrices of a kind; a tensor without a kind counts as a weight. */
void views_keep_matrices(struct views *v, const char *kind);
/* work(arg, i) for each view, on `threads` threads (0: all processors); those of one tensor in
 * order on one thread, so that its bytes are read once. */
int views_each(const struct views *v, int threads, int (*work)(void *arg, int i),
               void *arg) MUST_CHECK;
const struct view *views_find(const struct views *v, const char *name);
/* "768x3072"; "" for a scalar. buf of 96. */
const char *view_shape(const struct view *v, char *buf);
/* Returns the bytes as stored; a master, a low half or a scale is a tensor of its own. */
uint64_t view_bytes(const struct view *v);
/* The ranks that keep it: "3", "0-7"; NULL in a safetensors file. buf of 32. */
const char *view_ranks(const struct tensors *s, const struct view *v, char *buf);

#endif
