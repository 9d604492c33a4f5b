/* plot.h - groups of runs as one SVG: loss curves with bands, step times, loss against time.
 *
 *     if ((rc = plot_svg(f, &gather, 3.28))) ...
 *
 * A band is a deviation to either side. The upper part of the loss curve (before the second
 * validation) is cut off. Step times are means over runs and over stretches of steps, and
 * need groups with profiles. Panels without data are left out. One thread.
 */
#ifndef RUNS_PLOT_H
#define RUNS_PLOT_H

#include <stdio.h>
#include "runs/gather.h"

int plot_svg(FILE *f, const struct gather *g, double target) MUST_CHECK;

#endif
