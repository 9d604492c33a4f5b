/* A checkpoint from a file of tensors. */
#include "inspect/inspect.h"

#include <stdlib.h>
#include "inspect/reshard.h"

/* The recipe: given, of the checkpoint that it shall be like, or the file's own. */
static int find_recipe(const struct inspect_import *job, const struct inspect *x,
                       const struct inspect *like, struct recipe **r)
{
    bool is_ckpt = tensors_ckpt(x->tensors);
    const char *path = tensors_path(x->tensors);
    const char *text = is_ckpt ? NULL : st_meta(tensors_header(x->tensors), "gpt.recipe");
    *r = NULL;
    if (job->recipe)
        return recipe_read(r, job->recipe, NULL, 0);
    if (job->like && tensors_ckpt(like->tensors))
        text = ckpt_info(tensors_ckpt(like->tensors))->recipe;
    if (!text)
        return err_set(GPT_INPUT,
                       is_ckpt ? "%s: is a checkpoint already; import makes one of a "
                                 "file, reshard writes one for another number of ranks"
                               : "%s: carries no recipe; --recipe or --like gives one",
                       path);
    return recipe_parse(r, path, text, NULL, 0);
}

static int write_as(const struct inspect_import *job, struct inspect *x, const struct recipe *r,
                    const struct ckpt_info *info, bool *only_weights)
{
    struct expected *e = NULL;
    struct name_map map;
    int n, states, rc = job->force ? 0 : ckpt_check_free(job->root, info->step);
    if (rc || (rc = tensor_names(r, &map)))
        return rc;
    if (!(rc = inspect_expected(r, &e, &n)))
        rc = import_tensors(x->tensors, &map, e, n, info, job->root, job->level, &states);
    *only_weights = !rc && states == 0;
    free(e);
    tensor_names_release(&map);
    return rc;
}

int inspect_import(const struct inspect_import *job, bool *only_weights)
{
    struct inspect x = { 0 }, like = { 0 };
    struct recipe *r = NULL;
    struct ckpt_info info;
    int rc = inspect_open(&x, job->file);
    if (!rc && job->like)
        rc = inspect_open(&like, job->like);
    if (!rc && !(rc = find_recipe(job, &x, &like, &r)) &&
        !(rc = inspect_info(job->like ? &like : &x, &info))) {
        info.ranks = job->ranks;
        info.recipe = recipe_canonical(r);
        rc = write_as(job, &x, r, &info, only_weights);
        inspect_info_release(&info);
    }
    recipe_free(r);
    inspect_close(&like);
    inspect_close(&x);
    return rc;
}
