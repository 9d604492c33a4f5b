/* initial.h - the initial values of a recipe's parameters.
 *
 * A background thread draws them on all processors while devices start, once for all ranks of a
 * process. A value depends on seed, parameter and index alone. Or they come from a source, such as the
 * weights of another run, all or in part.
 *
 *     struct initial *v;
 *     if ((rc = initial_new(&v, recipe, seed, NULL))) return rc;
 *     ...                                              // devices, memory
 *     rc = banks_fill(&banks, v);                      // each rank
 *     rc = optim_masters(&optim, v);
 *     initial_free(v);                                 // after all of them
 *
 * Threads: any number may wait and read at once.
 */
#ifndef RECIPE_INITIAL_H
#define RECIPE_INITIAL_H

#include "recipe/recipe.h"

struct initial;

/* Where weights come from. */
struct initial_source {
    const char *name; /* for messages */
    bool partial[MAX_PARAMS]; /* read leaves some numbers of the parameter as they are drawn */
    /* Puts numbers of parameter i into exact and reads, all of its matrices one after the other: those
     * that an optimizer keeps, and those that the forward pass reads of them. */
    int (*read)(void *arg, int i, float *exact, float *reads);
    void *arg;
};

/* Starts the thread. source, NULL: all is drawn; it stays until initial_free. GPT_SYSTEM: it cannot be
 * started. */
int initial_new(struct initial **v, const struct recipe *r, uint64_t seed,
                const struct initial_source *source) MUST_CHECK;
/* Stops the drawing if it is not done: nothing may wait in initial_wait. */
void initial_free(struct initial *v);

/* Parses the list of an INIT_VALUES parameter into out, of the parameter's type; out NULL: only
 * checks it. GPT_INPUT: not a list, or not of as many values as the parameter has. */
int initial_values(const struct param_spec *s, void *out) MUST_CHECK;

/* Waits until parameter i is there. GPT_SYSTEM: memory; or the source's failure; GPT_INPUT: the recipe
 * ties two parameters which the source has apart. */
int initial_wait(struct initial *v, int i) MUST_CHECK;
/* The parameter whose transpose i begins as, which then has no values of its own here; -1: none. */
int initial_transposed(const struct initial *v, int i);
/* The type of those values: the weight's, f32 where it is kept in f32. */
static inline enum dtype initial_dtype(const struct param_spec *s)
{
    return s->stored == DT_F32 ? DT_F32 : s->dtype;
}
/* After waiting: values (rows,cols) of its matrix m in that type; NULL: zeros. */
const void *initial_matrix(const struct initial *v, int i, int64_t m);
/* All matrices in f32, where the source has more than that: what an optimizer keeps of a bf16 weight;
 * what the forward pass reads of one that is stored in f16 or e4m3. NULL: the same. */
const float *initial_exact(const struct initial *v, int i);
const float *initial_reads(const struct initial *v, int i);

#endif
