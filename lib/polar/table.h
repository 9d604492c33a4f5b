/* table.h - coefficient tables as text: `#` comments, then "a b c" a line.
 *
 *     double row[10][3]; int n;
 *     if ((rc = coeffs_load("record.coeffs", row, 10, &n))) return rc;
 *
 * Thread-safe; owns nothing.
 */
#ifndef POLAR_TABLE_H
#define POLAR_TABLE_H

#include <stddef.h>
#include "base/err.h"

/* Reads 1..max rows. A missing number, a fourth one, a non-finite one: GPT_INPUT with line. */
int coeffs_load(const char *path, double (*row)[3], int max, int *n) MUST_CHECK;

#endif
