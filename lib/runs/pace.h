/* pace.h - tokens and learning rate of a run's steps, from the recipe in its log.
 *
 *     struct pace p;
 *     if ((rc = pace_open(&p, text))) return rc;           // of variants, group.h
 *     ... p.steps, p.tokens[s]: so many by the end of step s ...
 *     pace_close(&p);
 *
 * steps is -1 where there is no text, or one that cannot be read: of a version with other keys. One thread.
 */
#ifndef RUNS_PACE_H
#define RUNS_PACE_H

#include <stdint.h>
#include "base/err.h"

struct pace {
    int steps;
    int64_t *tokens; /* [0 .. steps] */
    double *lr; /* the multiplier of a step, [1 .. steps] */
};
int pace_open(struct pace *p, const char *recipe) MUST_CHECK; /* NULL: not known */
void pace_close(struct pace *p);
/* Tokens by the end of a step, between steps in proportion; NaN: not known. */
double pace_tokens(const struct pace *p, double step);

#endif
