/* activations.h - sums over the numbers of an activation, and what they say of it.
 *
 *     struct site_sums s;
 *     if ((rc = site_new(&s, cols))) return rc;
 *     for each piece: site_add(&s, x, rows);             // (rows,cols), row by row
 *     struct site_numbers n = site_numbers(&s);
 *     site_free(&s);
 *
 * Moments are central from the start, so that numbers beside a large mean keep their digits; those of parts
 * are joined by the formulas of Pebay (Sandia report 2008-6212), 1.5, 2.1 and 3.1. One thread.
 */
#ifndef TRAIN_ACTIVATIONS_H
#define TRAIN_ACTIVATIONS_H

#include <stdint.h>
#include "base/err.h"

/* The largest magnitude; how many; the mean; sums of the second to fourth powers of what differs from it; the
 * sum of squares, and by column. */
enum {
    SITE_LARGEST,
    SITE_COUNT,
    SITE_MEAN,
    SITE_CENTRAL,
    SITE_SQUARES = SITE_CENTRAL + 3,
    SITE_CHANNELS
};
struct site_sums {
    int64_t cols;
    double *at; /* SITE_CHANNELS + cols */
};
int site_new(struct site_sums *s, int64_t cols) MUST_CHECK;
void site_free(struct site_sums *s);
void site_add(struct site_sums *s, const float *x, int64_t rows);
/* Joins the sums of another part, of the same columns. */
void site_join(struct site_sums *s, const double *at);

struct site_numbers {
    double largest, rms;
    double
        kurtosis; /* fourth central moment over the square of the second; 3 of a normal distribution */
    double top1,
        top8; /* of the sum of squares, the part of the 1 and the 8 channels with most of it */
    int64_t channel; /* which has most */
};
/* Makes the table's numbers of the sums; NaN where there are none to make one of. */
struct site_numbers site_numbers(const struct site_sums *s);

#endif
