/* inspect.h - a checkpoint, or a file of tensors, together with the recipe that explains it.
 *
 *     struct inspect x;
 *     if ((rc = inspect_open(&x, path))) return rc;
 *     rc = views_make(&v, x.tensors, &x.map, NULL, 0);
 *     inspect_close(&x);
 *
 * The recipe is the checkpoint's own, or that of an exported file; without one, or with one that
 * this program cannot read, recipe is NULL, map is empty and tensors keep their stored names.
 *
 * The functions below are what lib/state asks of whoever knows the model (their void * is a struct
 * inspect).
 */
#ifndef INSPECT_INSPECT_H
#define INSPECT_INSPECT_H

#include "model/recipe.h"
#include "inspect/tensor_names.h"
#include "inspect/export.h"
#include "inspect/stat.h"
#include "inspect/verify.h"

struct inspect {
    struct tensors *tensors;
    struct recipe *recipe;
    struct name_map map;
    char why[512]; /* why recipe is NULL; "" when there is none */
};
int inspect_open(struct inspect *x, const char *path) MUST_CHECK;
void inspect_close(struct inspect *x);

/* sharded_fn: is the parameter cut by rank? */
bool inspect_sharded(void *x, const char *param);
/* update_rule_fn: how the step after the checkpoint's moves the parameter of a view. */
void inspect_update_rule(void *x, const struct view *v, struct update_rule *u);
/* verify_model_fn: types and shapes of the checkpoint's tensors are the recipe's, none is missing,
 * none unknown. arg is not used. */
int inspect_verify(void *arg, const struct ckpt *c, verify_tell_fn *tell,
                   void *tell_arg) MUST_CHECK;

/* Step, tokens, tool and small state, of a checkpoint or as export wrote them into a file; zero and
 * none where it has none. recipe and ranks are the caller's to set. */
int inspect_info(const struct inspect *x, struct ckpt_info *info) MUST_CHECK;
void inspect_info_release(struct ckpt_info *info);

/* Makes a checkpoint root/step-N from a file of exported tensors. */
struct inspect_import {
    const char *file;
    const char *recipe,
        *like; /* files of a recipe; a checkpoint to take recipe, step, data position
                                   and counters from; NULL: as the file says */
    const char *root;
    int ranks, level; /* zstd's; 0: plain files */
    bool force; /* replace what is there */
};
/* only_weights: the file held no momenta or moments, which begin at zero. */
int inspect_import(const struct inspect_import *job, bool *only_weights) MUST_CHECK;

/* Every tensor that a checkpoint of this recipe holds; caller frees *e. */
int inspect_expected(const struct recipe *r, struct expected **e, int *n) MUST_CHECK;

#endif
