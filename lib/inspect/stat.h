/* stat.h - numbers about the numbers in tensors.
 *
 *     struct stat_row *rows = calloc(views.n, sizeof *rows);
 *     if ((rc = stat_views(s, &views, NULL, 0, rows))) return rc;
 *     printf("%s %g\n", views.v[i].name, rows[i].rms);
 *     stat_histogram(stdout, &rows[i], 60);
 *
 * One pass, in double; a tensor larger than memory is fine. Thread-safe.
 */
#ifndef INSPECT_STAT_H
#define INSPECT_STAT_H

#include <stdio.h>
#include "inspect/views.h"

enum { STAT_EXPONENTS = 320, STAT_EXPONENT_0 = -170 }; /* floor(log2 |x|) from -170 to 149 */

struct stat_row {
    uint64_t elements, zeros;
    uint64_t nonfinite; /* NaN and infinities; not part of what follows */
    uint64_t underflow; /* 0 < |x| < 2^-126: bf16 and fp32 have no normal number for it */
    double min, max, mean, rms; /* NaN when there is no finite element */
    double update; /* rms of the next update over rms; NaN when it is not known */
    uint64_t exponents[STAT_EXPONENTS]; /* ends take what lies beyond */
};

/* How the optimizer will move the parameter that a view is part of, for `update`. */
struct update_rule {
    bool known, orthogonal; /* NorMuon: the update is rate times a near-orthogonal matrix */
    double rate; /* learning rate with every multiplier */
    double correction, eps; /* Adam: sqrt(1-b2^n)/(1-b1^n) of the last update; eps */
};
typedef void update_rule_fn(void *arg, const struct view *v, struct update_rule *u);

/* All views, by several threads; rule NULL: no updates. rows: views->n of them. */
int stat_views(struct tensors *s, const struct views *v, update_rule_fn *rule, void *arg,
               struct stat_row *rows) MUST_CHECK;
/* Bars of how many elements have which power of two; `width` columns. */
void stat_histogram(FILE *f, const struct stat_row *row, int width);

#endif
