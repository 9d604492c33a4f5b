/* tables.h - the parts of gpt-logdiff's report: groups, verdicts, runs, curves, step times, notes.
 *
 * In text they are written in the order of a pull request: table, verdict, runs, then what was
 * asked for. One thread.
 */
#ifndef RUNS_TABLES_H
#define RUNS_TABLES_H

#include "base/report.h"
#include "runs/gather.h"
#include "runs/judge.h"

/* v: one verdict for each group. */
void tables_groups(struct report *r, const struct gather *g, const struct judgement *v,
                   const struct criteria *k);
void tables_verdicts(struct report *r, const struct gather *g, const struct judgement *v);
void tables_runs(struct report *r, const struct gather *g);
void tables_curves(struct report *r, const struct gather *g, double alpha);
int tables_steps(struct report *r, const struct gather *g) MUST_CHECK;
void tables_notes(struct report *r, const struct gather *g);

#endif
