/* means.h - the mean curves of a group, over steps, tokens and time: as they are drawn.
 *
 *     struct means m;
 *     if ((rc = means_of(&m, &gather, 0))) return rc;
 *     for (int i = 0; i < m.vals; i++) ... m.val[i].at[MEANS_TOKENS], m.val[i].mean, m.val[i].sd ...
 *     means_release(&m);                          // also after a failure
 *
 * val has a point a validation that all validated runs of the group have. train has at most
 * MEANS_POINTS, each the mean over runs of their mean loss in a stretch of steps, of the next token
 * where all lines have that, else of the objective; runs that end early leave no points behind their
 * end. Losses that are not finite are left out. Tokens are those of the recipe that most runs have.
 * One thread.
 */
#ifndef RUNS_MEANS_H
#define RUNS_MEANS_H

#include "runs/gather.h"

enum means_axis { MEANS_STEPS, MEANS_TOKENS, MEANS_TIME, MEANS_AXES };
enum { MEANS_POINTS = 400 };
struct mean_point {
    double at[MEANS_AXES]; /* NaN: not known; the time in seconds */
    double mean, sd; /* n - 1, over runs; NaN for one run */
};
struct means {
    struct mean_point *val, *train;
    int vals, trains;
    bool next; /* train is of the next token */
};
int means_of(struct means *m, const struct gather *g, int group) MUST_CHECK;
void means_release(struct means *m);

#endif
