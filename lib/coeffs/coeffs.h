/* coeffs.h - coefficient tables as text: `#` comments, then "a b c" a line (gpt-coeffs(5)).
 *
 *     struct coeffs c;
 *     if ((rc = coeffs_read(&c, "my.coeffs"))) return rc;
 *     y = coeffs_value(&c, x);                 // all rows, one after the other
 *     coeffs_write(&c, stdout);
 *
 * A line may have a fourth number, of x^7, which recipes do not take: coeffs_load
 * is what they read with. Thread-safe; owns nothing.
 */
#ifndef COEFFS_COEFFS_H
#define COEFFS_COEFFS_H

#include <stdbool.h>
#include <stdio.h>
#include "base/err.h"

enum { COEFFS_ROWS = 64, COEFFS_TERMS = 4 };

/* A matrix is divided before the first row by its Frobenius norm, by its largest singular value, or, row by row, by AOL's
 * factors. A table is made for one of them, which a comment "input: WORD" says; the norm without. */
enum coeffs_input { INPUT_NORM, INPUT_SPECTRAL, INPUT_AOL, COEFFS_INPUTS };
#define INPUT_CHOICES "norm|spectral|aol"
extern const char *const coeffs_input_names[COEFFS_INPUTS];
enum coeffs_input coeffs_input_parse(const char *word); /* COEFFS_INPUTS: none of them */

struct coeffs {
    char name[64]; /* of the file or set */
    int n, terms; /* rows; numbers in the longest, 3 or 4 */
    enum coeffs_input input; /* that it is made for */
    double row[COEFFS_ROWS][COEFFS_TERMS]; /* of x, x^3, x^5, x^7 */
};

/* Reads 1..max rows. A missing number, a fourth one, a non-finite one: GPT_INPUT with line; also rows for
 * INPUT_SPECTRAL, by which no optimizer here scales. */
int coeffs_load(const char *path, double (*row)[3], int max, int *n, bool *aol) MUST_CHECK;
/* Reads a table of three or four numbers a row; "-" is stdin. Errors as coeffs_load's. */
int coeffs_read(struct coeffs *c, const char *path) MUST_CHECK;
/* Leaves the first row out, whose work AOL does (pull request 155): the others are for INPUT_AOL; or the last one.
 * The name says which. GPT_USAGE: there is only one. */
int coeffs_drop(struct coeffs *c, bool last) MUST_CHECK;
/* The comment of tables for other input than the norm's, and rows, with as many digits as give the same numbers again; the
 * caller checks the stream. */
void coeffs_write(const struct coeffs *c, FILE *f);

/* One row: p(x) = x (a + b x^2 + c x^4 + d x^6), and p'(x). */
static inline double coeffs_row_value(const double *row, double x)
{
    double xx = x * x;
    return x * (row[0] + xx * (row[1] + xx * (row[2] + xx * row[3])));
}
static inline double coeffs_row_slope(const double *row, double x)
{
    double xx = x * x;
    return row[0] + xx * (3 * row[1] + xx * (5 * row[2] + xx * 7 * row[3]));
}
/* Clips a value to +-1e40, as is done after each row: a diverging table stays finite. */
static inline double coeffs_clip(double x) { return x > 1e40 ? 1e40 : x < -1e40 ? -1e40 : x; }
double coeffs_value(const struct coeffs *c, double x);

#endif
