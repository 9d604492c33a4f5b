/* remarks.h - what a recipe says that can run but is unlikely to be meant.
 *
 *     recipe_remarks(r, say, ctx);         // say(ctx, text): once a remark, a sentence without its end
 *
 * Pure; any thread.
 */
#ifndef RECIPE_REMARKS_H
#define RECIPE_REMARKS_H

#include "recipe/recipe.h"

void recipe_remarks(const struct recipe *r, void (*say)(void *ctx, const char *text), void *ctx);

#endif
