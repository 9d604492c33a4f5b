/* svg.h - a picture of tables: f above, |1 - f| below, over a logarithmic x.
 *
 *     svg_plot(f, tables, 3, 1e-3, 1);         // the caller checks the stream
 *
 * About 40 kB a table.
 */
#ifndef COEFFS_SVG_H
#define COEFFS_SVG_H

#include <stdio.h>
#include "coeffs/table.h"

/* From lower / 10 to 1.3 upper; the interval itself is marked. n is at most 8. */
enum { SVG_TABLES = 8 };
void svg_plot(FILE *f, const struct coeffs *c, int n, double lower, double upper);

#endif
