/* plot.h - groups of runs as one SVG: losses over steps, tokens and time, step times, loss against time,
 * and over a number that was varied.
 *
 *     if ((rc = plot_svg(f, &gather, 3.28))) ...           // NAN: no target
 *
 * Losses are means of a group (means.h), of validation and of training, from the first step on, and once
 * more the validations of the last third of the steps, where these are three or more. A band is a
 * deviation to either side. Step times are means over runs and over stretches of steps, and need groups
 * with profiles. Dots are of two runs or more. Groups called NAME@X, X a number, as a learning rate, have a
 * panel of a curve a NAME: mean losses over X, with standard errors, logarithmic where X spans more than a
 * factor of three. Panels without data are left out; the groups' legend stands in the first. One thread.
 */
#ifndef RUNS_PLOT_H
#define RUNS_PLOT_H

#include <stdio.h>
#include "runs/gather.h"

int plot_svg(FILE *f, const struct gather *g, double target) MUST_CHECK;

#endif
