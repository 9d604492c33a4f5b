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
/* The line of a published rule (share/recipes/rules), its length in *length; NULL: none. */
const char *recipe_rule_published(const char *name, int *length);
/* Writes them all, with what is said of each. */
void recipe_rules_list(FILE *f);
/* RECIPE, the names, and KEY=VALUE, what --set takes: model.heads= and so on. */
extern const struct opt_words recipe_words[];
void recipe_key_words(FILE *f);

#endif
