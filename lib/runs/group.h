/* group.h - runs that are compared as one: their curves, their mean curve, the texts of their logs.
 *
 *     struct variants v = { 0 };                     // shared by all groups
 *     struct group g = { .name = "new" };
 *     rc = group_add(&g, &v, run);                   // copies it: for each
 *     rc = group_finish(&g, GROUP_PROFILE, &said);   // joins resumed runs, makes the mean curve
 *     const struct curve_point *p = group_at(&g, 250);
 *     group_release(&g); variants_release(&v);
 *
 * A run is kept whole, 48 bytes a step; of program texts each different one once (VARIANT_TEXTS of
 * them). A run whose log says that it continues another is one with it, where a run of the same
 * recipe, seed and data reaches that step: what the first did after it is dropped, and the clock goes
 * on. Threads: one at a time.
 */
#ifndef RUNS_GROUP_H
#define RUNS_GROUP_H

#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"
#include "runs/profile.h"
#include "runs/run.h"
#include "runs/ttest.h"

/* --- texts that differ --- */

enum { VARIANT_TEXTS = 24 }; /* texts kept of one kind; of more only the hash */
struct variant {
    enum fact kind;
    char hash[33];
    char *text;
    size_t n;
    bool cut;
};
struct variants {
    struct variant *v;
    int n, texts[FACTS];
};
void variants_release(struct variants *v);
/* The text of variant `which`; NULL: it was not kept, or which is -1. */
static inline const char *variant_text(const struct variants *v, int which)
{
    return which < 0 ? NULL : v->v[which].text;
}

/* --- groups --- */

/* n, mean and m2 (squares about the mean) of finite losses; timed and time_s of their clock. */
struct curve_point {
    int32_t step;
    int n, digits, timed;
    double mean, m2, time_s;
};

struct group {
    char *name;
    struct run *run; /* without facts */
    int n;
    int again; /* further logs of these runs: see group_same */
    int operand,
        order; /* of the command line: groups stand in that order, of one operand in this */
    /* made by group_finish */
    int validated; /* runs with a validation loss */
    struct curve_point *curve; /* by step */
    int points;
    struct profile profile;
};
enum { GROUP_PROFILE = 1 };
struct group_notes {
    void (*note)(void *arg, const char *path, long line, const char *text);
    void *arg;
};
/* A run that the group has already, by group_same, is added to it and does not count again. */
int group_add(struct group *g, struct variants *v, const struct run *r) MUST_CHECK;
/* After the last group_add, and again after more of them. at_step: runs end with the validation of that
 * step; 0: at their end. */
int group_finish(struct group *g, unsigned flags, int32_t at_step,
                 const struct group_notes *to) MUST_CHECK;
/* The run of the group that r is, in whole or as an excerpt: the same last step, loss and time, or the
 * same place in the same list; NULL: none. */
struct run *group_same(const struct group *g, const struct run *r);
void group_release(struct group *g);

/* The point of a step, or NULL. */
const struct curve_point *group_at(const struct group *g, int32_t step);
/* Deviation of a point (n - 1; NaN for one run); what rounding adds is in it. */
double curve_sd(const struct curve_point *p);

/* A group's line of the table, of the runs that reached their end. */
struct group_sum {
    int runs, left_out, not_finite; /* counted; without an end; loss NaN or infinite */
    struct sample loss, time;
    int loss_digits; /* the fewest of any */
    double steps; /* mean of the last steps; NaN where one is not known */
    double p, p_low, p_high; /* against the target; what rounding allows; NaN where sd is 0 */
};
int group_sum(const struct group *g, double target, struct group_sum *out) MUST_CHECK;
/* Runs by variant of one kind: the most frequent, how many there are, -1 and 0 if none says.
 * all: runs that did not reach their end count, too. */
int group_variant(const struct group *g, enum fact kind, bool all, int *different);

#endif
