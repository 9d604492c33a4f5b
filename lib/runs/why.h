/* why.h - differences of program, recipe, machine and data that may explain one of loss or time.
 *
 *     if ((rc = why_report(&r, &gather, 1, 200))) ...    // 1 line of context, 200 lines a diff
 *
 * Writes the parts "why", a line for each kind of text and finding, and "diff", unified diffs: in a
 * group the most frequent text against the others, between groups that of the first group against
 * that of each other. Needs a gather that kept texts. One thread.
 */
#ifndef RUNS_WHY_H
#define RUNS_WHY_H

#include "base/report.h"
#include "runs/gather.h"

int why_report(struct report *r, const struct gather *g, int context, long lines_max) MUST_CHECK;

#endif
