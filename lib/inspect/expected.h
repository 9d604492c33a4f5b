/* expected.h - the tensors and the small state that a checkpoint of a recipe holds.
 *
 *     if ((rc = expected_tensors(r, &e, &n))) return rc;
 *     ... e[i].param, e[i].kind, e[i].shape
 *     free(e);
 */
#ifndef INSPECT_EXPECTED_H
#define INSPECT_EXPECTED_H

#include "checkpoint/checkpoint_manifest.h"
#include "recipe/recipe.h"

struct expected {
    const char *param;
    char kind[KIND_SIZE];
    const struct param_spec *spec;
    enum dtype dtype;
    int rank;
    int64_t shape[CKPT_MAX_RANK];
    bool sharded; /* each rank holds a part; else rank 0 holds all */
    bool each_rank; /* of one rank: the first axis of the array counts those of all ranks */
    bool optional; /* there are whole checkpoints without it */
    float scale; /* of a weight in e4m3 and its scales: the recipe's; else 0 */
};

/* All of them; caller frees *e, which points into r. */
int expected_tensors(const struct recipe *r, struct expected **e, int *n) MUST_CHECK;

/* A line of small state without which no run continues: a whole number. */
struct expected_state {
    char key[64];
    const char *param; /* whose Adam updates it counts; NULL: part of the data position */
};
/* All of them; caller frees *s, which points into r. */
int expected_state(const struct recipe *r, struct expected_state **s, int *n) MUST_CHECK;

#endif
