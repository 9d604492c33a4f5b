/* recipe_text.h - a recipe as lines: sections, keys, values, and where they came from.
 *
 * Private to lib/model. A table row is an entry too: its first word is the key.
 */
#ifndef MODEL_RECIPE_TEXT_H
#define MODEL_RECIPE_TEXT_H

#include "model/recipe.h"

struct recipe_entry {
    char *section, *key, *value;
    int line; /* 0: from --set */
    bool used;
};
struct recipe_text {
    char *name; /* file, for messages */
    struct recipe_entry *e;
    int n;
    char *canonical;
};

int text_parse(struct recipe_text *t, const char *name, const char *text) MUST_CHECK;
int text_override(struct recipe_text *t, const char *assignment) MUST_CHECK;
struct recipe_entry *text_find(struct recipe_text *t, const char *section, const char *key);
/* "file:line: section.key: " and the message; GPT_INPUT, or GPT_USAGE for an override. */
int text_error(const struct recipe_text *t, const struct recipe_entry *e, const char *fmt, ...)
    PRINTF_LIKE(3, 4);
void text_release(struct recipe_text *t);

/* recipe_keys.c */
int recipe_bind(struct recipe *r) MUST_CHECK; /* text -> fields, defaults added to the text */
int recipe_print(struct recipe *r) MUST_CHECK; /* text -> canonical */
/* roles.c */
int recipe_check(const struct recipe *r) MUST_CHECK; /* can the model run it? */
/* recipe_tables.c */
int bind_layers(struct recipe *r) MUST_CHECK;
int bind_params(struct recipe *r) MUST_CHECK;
int bind_scalars(struct recipe *r) MUST_CHECK;
int bind_stages(struct recipe *r) MUST_CHECK;
int bind_labels(struct recipe *r, const struct recipe_entry *e, int *list, int *n) MUST_CHECK;
int bind_order(struct recipe *r, const char *key, int *order) MUST_CHECK;

#endif
