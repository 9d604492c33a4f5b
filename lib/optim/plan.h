/* plan.h - what a step of the optimizer does, as a list of actions for each kind of step.
 *
 * Which parameters move, which gathers are late, what runs beside what, depends on the recipe, the number
 * of ranks and the kind of step alone. It is decided here, once; step.c runs the lists, --plan prints them.
 *
 *     struct step_plans s;
 *     if ((rc = step_plans_make(&s, recipe, world, sparse))) return rc;
 *     const struct step_plan *p = step_plan_of(&s, &at);
 *     for (int a = p->begin[PART_UPDATE]; a < p->begin[PART_UPDATE + 1]; a++) ... p->action[a] ...
 *     step_plans_free(&s);
 *
 * Pure data; threads may read one struct step_plans together.
 */
#ifndef OPTIM_PLAN_H
#define OPTIM_PLAN_H

#include "recipe/schedule.h"

enum act {
    ACT_FRESH, /* mark gradients that the backward writes; to all others it adds */
    ACT_GATHER, /* start the gather of a weight, and of its fp8 copy */
    ACT_NEED, /* wait for a gather that has started */
    ACT_WAIT_BEGUN, /* wait for the parts of reductions that have begun in the backward */
    ACT_EXCHANGE, /* reduce the touched rows of a sparse gradient, by counts that the host reads */
    ACT_MIX_TIED, /* add the embedding's gradient to the tied head's */
    ACT_REDUCE, /* start the reduction of a gradient, or of what is left of it */
    ACT_WAIT, /* wait for a reduction */
    ACT_DECIDE, /* wait for all of them; clip, or skip the step (optimizers.md 2.5) */
    ACT_BRANCH, /* queue what follows into a branch, or TRUNK (ops.h) */
    ACT_JOIN, /* wait for all branches */
    ACT_UPDATE, /* move the weights, several of Adam's in one launch */
    ACT_AROUND, /* move the weights once more, by means of moves (`around` of [rules]) */
    ACT_COPY_TIED, /* copy the tied head's weight to the embedding */
    ACT_CLEAR, /* forget gradients that have been applied */
    ACTS
};

struct action {
    enum act act;
    int branch; /* ACT_BRANCH */
    int n;
    uint8_t param[MAX_PARAMS]; /* indices into the recipe's, in this order */
    uint8_t chains; /* ACT_UPDATE: bit c: chain c of the parameters' rules runs */
    const char *why; /* set where it is decided; NULL: the recipe's order */
};

/* Before the forward; between backward and exchange, where there is one; after that. Where there is an exchange a graph
 * ends at it. */
enum part { PART_BEGIN, PART_PAUSE, PART_UPDATE, PARTS };

struct step_kind {
    bool tied;
    int change; /* of struct step_schedule */
    int phase; /* step % optimizer.period */
};

struct step_plan {
    struct step_kind kind;
    int first, steps; /* the first step of the kind, and how many a run has */
    int queued; /* index of the first plan that queues the same work: they share a graph */
    uint32_t met; /* bit 2 stage + step % 2: such steps are of the kind */
    int begin[PARTS + 1]; /* actions of a part: begin[part] .. begin[part + 1] - 1 */
    bool exchanges;
    uint32_t early; /* parameters whose reduction starts as rows of their gradient become final */
    uint32_t adam; /* whose moments are updated: their counters go up */
    struct action *action;
};

struct step_plans {
    struct step_plan *plan;
    int n, period;
};

/* True if a set of parameters, a bit each, has i. */
static inline bool in_set(uint32_t set, int i) { return set >> i & 1; }

/* Makes the plans of all steps of the recipe. sparse: the rows of a sparse parameter are exchanged.
 * GPT_SYSTEM: memory. */
int step_plans_make(struct step_plans *s, const struct recipe *r, int world,
                    bool sparse) MUST_CHECK;
void step_plans_free(struct step_plans *s);
const struct step_plan *step_plan_of(const struct step_plans *s, const struct step_schedule *at);
/* Counts the graphs of a whole run: steps differ by the shape of their batches, by which of two sets of batches
 * they read, and by what they queue; an exchange parts a graph in two. */
int step_plans_graphs(const struct step_plans *s);

const char *step_plan_word(enum act act);
/* Writes the actions from a on that can stand in one line, "wait, update, gather  attn mlp", and their reason;
 * returns the index of the next. */
int step_plan_line(const struct recipe *r, const struct step_plan *p, int a, char *text,
                   size_t size);

#endif
