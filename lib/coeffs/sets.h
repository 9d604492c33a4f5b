/* sets.h - the published coefficient sets, by name, with where they come from.
 *
 *     struct coeffs c;
 *     if ((rc = set_get(&c, "record-61"))) return rc;          // GPT_USAGE: no such set
 *     for (int i = 0; i < set_count(); i++) puts(set_at(i)->name);
 *
 * Digits are those published, also where they are rounding noise. Read-only.
 */
#ifndef COEFFS_SETS_H
#define COEFFS_SETS_H

#include <stdbool.h>
#include "coeffs/table.h"

struct coeff_set {
    const char *name, *about, *source;
    bool aol; /* for input scaled by AOL, not by its Frobenius norm */
    int n;
    double row[10][3];
};
int set_count(void);
const struct coeff_set *set_at(int i);
const struct coeff_set *set_find(const char *name); /* NULL: none */
int set_get(struct coeffs *c, const char *name) MUST_CHECK;
/* A set's name, or else a file ("-": stdin). */
int set_or_file(struct coeffs *c, const char *name) MUST_CHECK;

#endif
