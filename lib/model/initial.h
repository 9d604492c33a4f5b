/* initial.h - the initial values of a recipe's parameters.
 *
 * They are drawn in the background by all processors, while devices start, and once for all ranks
 * of a process. A value depends on seed, parameter and index alone.
 *
 *     struct initial *v;
 *     if ((rc = initial_new(&v, recipe, seed))) return rc;
 *     ...                                              // devices, memory
 *     rc = banks_fill(&banks, v);                      // each rank
 *     initial_free(v);                                 // after all of them
 *
 * Threads: any number may wait and read at once.
 */
#ifndef MODEL_INITIAL_H
#define MODEL_INITIAL_H

#include "model/recipe.h"

struct initial;

/* Begins to draw. GPT_SYSTEM: no thread. */
int initial_new(struct initial **v, const struct recipe *r, uint64_t seed) MUST_CHECK;
/* NULL is fine. Also while it draws: when nobody waits any more. */
void initial_free(struct initial *v);

/* The list of a parameter that has one, in the parameter's type; out NULL: only checks it.
 * GPT_INPUT: not a list, or not of as many values as the parameter has. */
int initial_values(const struct param_spec *s, void *out) MUST_CHECK;

/* Until parameter i is drawn. GPT_SYSTEM: memory. */
int initial_wait(struct initial *v, int i) MUST_CHECK;
/* Then: (rows,cols) of its matrix m in the parameter's type; NULL: zeros. */
const void *initial_matrix(const struct initial *v, int i, int64_t m);

#endif
