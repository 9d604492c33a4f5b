/* report.h - the parts of a report: table, verdicts, runs, curves, step times, notes.
 *
 * Each writes its parts into a doc (doc.h). The order in text is that of a pull request:
 * table, verdict, runs, then what was asked for. One thread.
 */
#ifndef RUNS_REPORT_H
#define RUNS_REPORT_H

#include "runs/doc.h"
#include "runs/gather.h"
#include "runs/judge.h"

/* v: one verdict for each group. */
void report_groups(struct doc *d, const struct gather *g, const struct judgement *v,
                   const struct criteria *k);
void report_verdicts(struct doc *d, const struct gather *g, const struct judgement *v);
void report_runs(struct doc *d, const struct gather *g);
void report_curves(struct doc *d, const struct gather *g, double alpha);
int report_steps(struct doc *d, const struct gather *g) MUST_CHECK;
void report_notes(struct doc *d, const struct gather *g);

#endif
