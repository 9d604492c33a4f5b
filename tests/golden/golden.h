/* golden.h - comparing a device with numbers made by a record's own program.
 *
 * The files are safetensors; their metadata say sizes and cases. Each function
 * prints a line a tensor with the worst relative error and returns 0, or 1 when
 * one is beyond its tolerance or not finite; 2 and more as base/err.h.
 */
#ifndef TESTS_GOLDEN_H
#define TESTS_GOLDEN_H

#include "floats.h"
#include "recipe/recipe.h"
#include "ops/ops.h"
#include "checkpoint/safetensors.h"

/* bf16: weights and activations are, as on a GPU. */
int golden_forward(struct ops *o, const char *file, bool bf16);
int golden_optimizer(struct ops *o, const char *file);
/* The same of files whose parameters have a name for each block (golden_track.c). */
int golden_track_forward(struct ops *o, const char *file, bool bf16);
int golden_track_optimizer(struct ops *o, const char *file);
/* The CPU with activations rounded to bf16 (golden_rounded.c): at random, or seed 0, to nearest. */
int golden_rounded_ops(struct ops **o, uint64_t seed) MUST_CHECK;

/* A file with all its tensors at hand. */
struct golden {
    struct st_reader *r;
    const struct st_header *h;
};
int golden_open(struct golden *g, const char *file);
/* Tensor as floats, malloc'd; NULL and *n = 0 when there is none. */
float *golden_floats(struct golden *g, const char *name, int64_t *n);
/* n numbers in the device's memory, which stay there. */
const int32_t *golden_device(struct ops *o, const int32_t *host, int64_t n);
int golden_int(const struct golden *g, const char *key, int dflt);
/* Their name for a parameter of ours ("attn" -> "attn_bank"). */
const char *golden_name(const char *label);
/* Does the optimizer leave it alone? Such a parameter has no gradient in a file. */
static inline bool golden_fixed(const struct param_spec *s) { return s->lr_mul[0] == 0; }
/* The recipe of the file's record at its sizes. f32: all parameters in f32. */
int golden_recipe(struct recipe **r, const struct golden *g, bool f32);

/* Prints "  name  error  (tolerance)"; true when error <= tolerance. */
bool golden_report(const char *name, double error, double tolerance);

#endif
