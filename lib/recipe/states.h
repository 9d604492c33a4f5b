/* states.h - what is kept of a parameter from step to step: the one table of it.
 *
 * The weight as it is stored, its scales, its exact value beside it (mantissa, remainder, master),
 * the states of its rule's stages, and a gradient that waits. Allocation, --plan, checkpoints,
 * verify, import and export read it.
 * A tensor of a checkpoint is named LABEL.KIND; the kind is a stage's word for its state, with ".2"
 * for the second use of the stage, and so does not depend on what stands beside it in the chain.
 *
 *     struct state s[MAX_STATES];
 *     int n = states_of(recipe, i, s);                 // s[0] is the weight
 *     for (k...) bytes += states_bytes(recipe, i, &s[k], world);
 *
 * Pure functions; any thread.
 */
#ifndef RECIPE_STATES_H
#define RECIPE_STATES_H

#include "recipe/recipe.h"

enum { MAX_STATES = 24 };
struct state {
    char kind[KIND_SIZE];
    enum state_role {
        STATE_WEIGHT, /* as stored */
        STATE_SCALE, /* of a weight in e4m3: one a row */
        STATE_AMAX, /* largest numbers of past updates or steps: replicated, or each_rank */
        STATE_MASTER, /* what makes the weight exact: low halves, or a wider copy; and its scales */
        STATE_RULE, /* of the rule's stages */
        STATE_GRADIENT /* that waits for an update: in checkpoints of runs that end before it */
    } role;
    enum dtype dtype;
    int64_t matrices, rows, cols; /* of the whole parameter */
    bool sharded; /* cut like the parameter; else whole on every rank */
    bool each_rank; /* of this shape on every rank with numbers of its own: a checkpoint's array is
                       theirs, rank by rank */
    int chain, use; /* STATE_RULE: whose */
};

/* Fills s (MAX_STATES) in the order of checkpoints and returns how many. */
int states_of(const struct recipe *r, int param, struct state *s);
/* Bytes of a state on the rank that owns most. */
int64_t states_bytes(const struct recipe *r, int param, const struct state *s, int world);

#endif
