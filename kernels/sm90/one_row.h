/* one_row.h - products of one row: those of a decoding step of one sequence (one_row.cu).
 *
 * A step is 60 kernels, one behind the other, whose time is latency: 1 to 2 us each.
 */
#ifndef KERNELS_SM90_ONE_ROW_H
#define KERNELS_SM90_ONE_ROW_H

#include "host/device.h"

struct product_args; /* few_rows.cuh */

/* Launches the product of one row with few_rows()'s bits; a.rows is 1, w (I,O) if in_out, else
 * (O,I). Returns false, and launches nothing, where it has no kernel for these widths. */
bool one_row(struct cuda_ops *c, const product_args &a, bool in_out);

#endif
