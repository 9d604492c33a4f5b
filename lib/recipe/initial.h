/* initial.h - the initial values of a recipe's parameters.
 *
 * A background thread draws them on all processors while devices start, once for all ranks of a
 * process. A value depends on seed, parameter and index alone.
 *
 *     struct initial *v;
 *     if ((rc = initial_new(&v, recipe, seed))) return rc;
 *     ...                                              // devices, memory
 *     rc = banks_fill(&banks, v);                      // each rank
 *     initial_free(v);                                 // after all of them
 *
 * Threads: any number may wait and read at once.
 */
#ifndef RECIPE_INITIAL_H
#define RECIPE_INITIAL_H

#include "recipe/recipe.h"

struct initial;

/* Starts the thread. GPT_SYSTEM: it cannot be started. */
int initial_new(struct initial **v, const struct recipe *r, uint64_t seed) MUST_CHECK;
/* Stops the drawing if it is not done: nothing may wait in initial_wait. */
void initial_free(struct initial *v);

/* Parses the list of an INIT_VALUES parameter into out, of the parameter's type; out NULL: only
 * checks it. GPT_INPUT: not a list, or not of as many values as the parameter has. */
int initial_values(const struct param_spec *s, void *out) MUST_CHECK;

/* Waits until parameter i is drawn. GPT_SYSTEM: memory. */
int initial_wait(struct initial *v, int i) MUST_CHECK;
/* After that: values (rows,cols) of its matrix m in the parameter's type; NULL: zeros. */
const void *initial_matrix(const struct initial *v, int i, int64_t m);

#endif
