/* named.h - the recipes of share/recipes, which the programs hold, by name.
 *
 *     for (int i = 0; i < recipe_named_count(); i++) puts(recipe_named_at(i)->name);
 *     const struct recipe_named *k = recipe_named_find("tiny");    // NULL: none
 *
 * Read-only.
 */
#ifndef RECIPE_NAMED_H
#define RECIPE_NAMED_H

#include <stdio.h>
#include "base/opt.h"

struct recipe_named {
    const char *name, *text;
};
int recipe_named_count(void);
const struct recipe_named *recipe_named_at(int i);
const struct recipe_named *recipe_named_find(const char *name);
/* A line each: the name, a tab, and what the first line of its text says about it. */
void recipe_named_list(FILE *f);
/* RECIPE, the names, and KEY=VALUE, what --set takes: model.heads= and so on. */
extern const struct opt_words recipe_words[];
void recipe_key_words(FILE *f);

#endif
