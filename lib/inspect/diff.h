/* diff.h - two sets of tensors, and by how much they differ.
 *
 *     struct diff_row *rows; int n; bool same;
 *     if ((rc = diff_tensors(a, b, map, NULL, 0, false, &rows, &n, &same))) return rc;
 *     ... rows[i].name, rows[i].what, rows[i].relative
 *     diff_free(rows, n);
 *
 * Views are matched by name. Values are compared as they decode, weights exactly (tensors.h);
 * `bits` counts elements whose stored bits, or those of masters or low halves, differ. Thread-safe.
 */
#ifndef INSPECT_DIFF_H
#define INSPECT_DIFF_H

#include "inspect/views.h"

enum diff_what {
    DIFF_SAME, /* the same bits */
    DIFF_EQUAL, /* another type, or codes with other scales, the same values */
    DIFF_WITHIN, /* the tolerance */
    DIFF_DIFFERS,
    DIFF_ONLY_A,
    DIFF_ONLY_B,
    DIFF_SHAPE,
};
struct diff_row {
    char *name;
    enum diff_what what;
    uint64_t elements;
    uint64_t bits; /* elements that are not the same bits */
    double max, rms; /* of B - A; NaN or infinity on one side only: infinite */
    double relative; /* |B - A| / |A|, Frobenius; 0 when both are zero */
    double cosine; /* of A and B */
    double along; /* <A, B> / |A|^2: the share of A in B; NaN where A is zero */
    bool total; /* a row of all tensors together */
    struct diff_sums {
        double dd, aa, bb, ab; /* of squares of B - A, A and B, and of A B; NaN: not read */
    } sums;
    bool left_out; /* used within diff_tensors */
};

/* relative <= tolerance is DIFF_WITHIN. *same: no row is beyond that. total: a last row, "total", of all
 * tensors that were compared, as if they were one; what is the same is then read, too. pattern as for views_make.
 * Tensors whose pieces have the same ranges and hashes in two checkpoints are not read. */
int diff_tensors(struct tensors *a, struct tensors *b, const struct name_map *map,
                 const char *pattern, double tolerance, bool total, struct diff_row **rows, int *n,
                 bool *same) MUST_CHECK;
void diff_free(struct diff_row *rows, int n);
const char *diff_word(enum diff_what w);

/* What two checkpoints say of themselves beside tensors: calls f(arg, key, a, b) for each line of
 * step, tokens, recipe and state that is not the same; NULL for a missing one. How many. */
int diff_info(const struct ckpt_info *a, const struct ckpt_info *b,
              void (*f)(void *arg, const char *key, const char *a, const char *b), void *arg);

#endif
