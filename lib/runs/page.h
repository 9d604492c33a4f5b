/* page.h - groups of runs as one page of HTML that needs nothing else, no network either.
 *
 *     if ((rc = page_write(f, &gather, NAN, report, "gpt-logdiff 0.1.0"))) ...
 *
 * The data stand in one element, <script type="application/json" id="data">, an object:
 *     made     what wrote it
 *     target   the loss to be below, or null
 *     groups   their names
 *     facts    { kind, text } of each text that runs' logs have, program text left out
 *     runs     { group, run, trial, facts, rows }: group and facts by their numbers; of rows (rows.h) an
 *              array for each column that has values, null where one is missing
 *     report   the report of gpt-logdiff --format json
 * Without scripts the page shows the picture of plot.h. page.html is the page but for these. One thread.
 */
#ifndef RUNS_PAGE_H
#define RUNS_PAGE_H

#include <stdio.h>
#include "runs/gather.h"

/* target: NaN: none. report: JSON. */
int page_write(FILE *f, const struct gather *g, double target, const char *report,
               const char *made) MUST_CHECK;

#endif
