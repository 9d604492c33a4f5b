/* svals.h - lists of singular values, as gpt-ckpt(1) prints them.
 *
 *     struct svals_list l;
 *     if ((rc = svals_read(&l, "-"))) return rc;
 *     for (int i = 0; i < l.n; i++) ... l.v[i].sigma[0 .. l.v[i].n - 1], descending
 *     svals_release(&l);
 *
 * One number a line, descending. A line that begins with '#', or a blank one,
 * begins another matrix; of a comment, the first word names it and a word such
 * as 768x3072 is its shape. Zeros are counted and left out. Input may be
 * compressed. One thread a list.
 */
#ifndef COEFFS_SVALS_H
#define COEFFS_SVALS_H

#include <stdbool.h>
#include "base/err.h"

struct svals {
    char name[96];
    int rows, cols; /* 0: not said */
    int n, zeros;
    double *sigma; /* n positive numbers, descending */
};
struct svals_list {
    int n;
    struct svals *v;
};

/* GPT_INPUT with the line: no number, a negative or non-finite one, one larger than the one
 * before, two on a line, more than the shape has; no positive number in the whole file. */
int svals_read(struct svals_list *l, const char *path) MUST_CHECK;
void svals_release(struct svals_list *l);
/* "768x3072" to two numbers of 1 to SHAPE_MAX; false: it is none. */
enum { SHAPE_MAX = 1 << 20 };
bool shape_parse(const char *text, int *rows, int *cols);

#endif
