/* tensor_stats.h - range, mean, rms and exponents of the numbers in tensors.
 *
 *     struct tensor_stats *rows = calloc(views.n, sizeof *rows);
 *     if ((rc = tensor_stats_views(s, &views, NULL, rows))) return rc;
 *     printf("%s %g\n", views.v[i].name, rows[i].rms);
 *     tensor_stats_histogram(stdout, &rows[i], 60);
 *
 * One pass, in double; a tensor larger than memory is fine. Thread-safe.
 */
#ifndef INSPECT_TENSOR_STATS_H
#define INSPECT_TENSOR_STATS_H

#include <stdio.h>
#include "inspect/views.h"
#include "recipe/recipe.h"

enum { STAT_EXPONENTS = 320, STAT_EXPONENT_0 = -170 }; /* floor(log2 |x|) from -170 to 149 */

struct tensor_stats {
    bool known; /* the values can be decoded (tensors.h); else only their number is known */
    uint64_t elements, zeros;
    uint64_t nonfinite; /* NaN and infinities; not part of what follows */
    uint64_t underflow; /* 0 < |x| < 2^-126: bf16 and fp32 have no normal number for it */
    double min, max, mean, rms; /* NaN when there is no finite element */
    double update; /* rms of the next update over rms; NaN when it is not known */
    uint64_t exponents[STAT_EXPONENTS]; /* the first and last also count what is beyond */
};

/* All views, by several threads; rows: views->n of them. `update` is known of the weights of a
 * checkpoint whose recipe r is not NULL. */
int tensor_stats_views(struct tensors *s, const struct views *v, const struct recipe *r,
                       struct tensor_stats *rows) MUST_CHECK;
/* Bars of how many elements have which power of two; `width` columns. */
void tensor_stats_histogram(FILE *f, const struct tensor_stats *row, int width);

#endif
