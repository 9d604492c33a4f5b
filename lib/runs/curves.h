/* curves.h - validation losses of two groups at the steps both have.
 *
 *     struct curve_row row;
 *     struct curves c = curves_begin(base, own, 0.01);
 *     while (curves_next(&c, &row)) ...
 *     if (c.parted >= 0) ...                    // known at the end
 *
 * The error of a difference is sqrt(s1^2/n1 + s2^2/n2); what rounding to the printed digits
 * adds is in s, so that the deviation of runs that print the same is not zero. Groups part at
 * the first trained step where Welch's two-sided p is below alpha divided by the number of
 * steps compared (Bonferroni). Pure but for the struct.
 */
#ifndef RUNS_CURVES_H
#define RUNS_CURVES_H

#include "runs/group.h"

struct curve_row {
    int32_t step;
    struct sample base, own;
    double difference, error, p; /* error and p NaN where a group has one run */
    bool parts; /* this is the step where they part */
};
struct curves {
    const struct group *base, *own;
    double alpha; /* for one step */
    int at, rows, tested; /* tested: rows so far that have a p */
    int32_t parted; /* -1: not so far */
};
struct curves curves_begin(const struct group *base, const struct group *own, double alpha);
bool curves_next(struct curves *c, struct curve_row *row);

/* The baseline's mean loss at a step between its own, linearly; NaN outside. sd of the nearest. */
double curve_between(const struct group *g, double step, double *sd);

#endif
