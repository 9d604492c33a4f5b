/* sets.h - the published coefficient sets, by name, with where they come from.
 *
 *     struct coeffs c;
 *     if ((rc = coeffs_set_get(&c, "record-61"))) return rc;          // GPT_USAGE: no such set
 *     for (int i = 0; i < coeffs_set_count(); i++) puts(coeffs_set_at(i)->name);
 *
 * Digits are those published, also where they are rounding noise. Read-only.
 */
#ifndef COEFFS_SETS_H
#define COEFFS_SETS_H

#include "coeffs/coeffs.h"

struct coeffs_set {
    const char *name, *about, *source;
    enum coeffs_input input; /* that it is made for */
    int n;
    double row[12][3];
};
int coeffs_set_count(void);
const struct coeffs_set *coeffs_set_at(int i);
const struct coeffs_set *coeffs_set_find(const char *name); /* NULL: none */
int coeffs_set_get(struct coeffs *c, const char *name) MUST_CHECK;
/* A set's name, or else a file ("-": stdin). */
int coeffs_set_or_file(struct coeffs *c, const char *name) MUST_CHECK;

#endif
