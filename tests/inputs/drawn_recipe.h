/* drawn_recipe.h - recipes of small models drawn at random, among all that the parser accepts.
 *
 *     struct small_size size;
 *     char *text = drawn_recipe(seed, &size);          // free(text)
 *     recipe_parse(&s.r, "drawn", text, NULL, 0);      // then small_model(&s, o, &size, seed)
 *
 * One to five layers, each with plain, paired or no attention, banks in any order and with gaps,
 * tables of value embeddings read by none, one or two layers, gates and learnable scalars that
 * layers share, one lane or two, with skip, backout and bigrams or without; and record 84's forms:
 * coefficients of tokens in any place that takes them, exclusive attention, attention that reads an
 * earlier layer's input, narrow bigrams with signs, Q, K and V, O in banks of their own. Weights are
 * f32.
 */
#ifndef TESTS_DRAWN_RECIPE_H
#define TESTS_DRAWN_RECIPE_H

#include "small_model.h"

char *drawn_recipe(uint64_t seed, struct small_size *size);

#endif
