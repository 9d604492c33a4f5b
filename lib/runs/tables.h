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

/* True if there is one run in all, whose curve is then of more use than a group's sums. */
bool tables_one_run(const struct gather *g);
/* v: one verdict for each group. */
void tables_groups(struct report *r, const struct gather *g, const struct judgement *v,
                   const struct criteria *k);
void tables_verdicts(struct report *r, const struct gather *g, const struct judgement *v,
                     const struct criteria *k);
/* Prints the pairs of --paired; nothing without it. */
void tables_paired(struct report *r, const struct gather *g, const struct judgement *v,
                   const struct criteria *k);
/* The benchmark's table: published results and these groups, fewest steps first. */
int tables_standings(struct report *r, const struct gather *g, const struct judgement *v,
                     const struct criteria *k) MUST_CHECK;
void tables_runs(struct report *r, const struct gather *g);
/* What differences of losses are worth (worth.h). */
int tables_worth(struct report *r, const struct gather *g, double target) MUST_CHECK;
/* Prints groups against the first: each step that both have validated, and where they part. */
void tables_curves(struct report *r, const struct gather *g, double alpha);
/* Prints the mean curve of a single group, or those of several side by side. */
void tables_side_by_side(struct report *r, const struct gather *g);
/* Prints a single run's curve, its speed, where the time went. */
int tables_run(struct report *r, const struct gather *g) MUST_CHECK;
int tables_steps(struct report *r, const struct gather *g) MUST_CHECK;
void tables_notes(struct report *r, const struct gather *g);

#endif
