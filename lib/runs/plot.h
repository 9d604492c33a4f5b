/* plot.h - groups of runs as one SVG: losses over steps, tokens and time, step times, loss against time.
 *
 *     if ((rc = plot_svg(f, &gather, 3.28))) ...           // NAN: no target
 *
 * Losses are means of a group (means.h), of validation and of training, from the first step on, and once
 * more the validations of the last third of the steps, where these are three or more. A band is a
 * deviation to either side. Step times are means over runs and over stretches of steps, and need groups
 * with profiles. Dots are of two runs or more. Panels without data are left out; the legend stands in the
 * first. One thread.
 */
#ifndef RUNS_PLOT_H
#define RUNS_PLOT_H

#include <stdio.h>
#include "runs/gather.h"

int plot_svg(FILE *f, const struct gather *g, double target) MUST_CHECK;

#endif
