#include "inspect/inspect.h"

#include <stdio.h>
#include <string.h>

static const char *recipe_of(const struct tensors *s)
{
    const struct ckpt *c = tensors_ckpt(s);
    return c ? ckpt_info(c)->recipe : tensors_note(s, "gpt.recipe");
}

int inspect_open(struct inspect *x, const char *path)
{
    memset(x, 0, sizeof *x);
    int rc = tensors_open(&x->tensors, path);
    const char *text = rc ? NULL : recipe_of(x->tensors);
    if (!text)
        return rc;
    if (recipe_parse(&x->recipe, tensors_path(x->tensors), text, NULL, 0)) {
        x->recipe = NULL;
        snprintf(x->why, sizeof x->why, "%s", err_message());
        err_clear();
        return 0;
    }
    if ((rc = name_map_make(&x->map, x->recipe)))
        inspect_close(x);
    return rc;
}

void inspect_close(struct inspect *x)
{
    tensors_close(x->tensors);
    recipe_free(x->recipe);
    name_map_release(&x->map);
    memset(x, 0, sizeof *x);
}
