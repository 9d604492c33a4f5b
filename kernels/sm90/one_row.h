/* one_row.h - products of one row: those of a decoding step of one sequence (one_row.cu).
 *
 * A step is 60 kernels, one behind the other, whose time is latency: 1 to 2 us each.
 */
#ifndef KERNELS_SM90_ONE_ROW_H
#define KERNELS_SM90_ONE_ROW_H

#include "host/device.h"

struct product_args; /* few_rows.cuh */

/* As few_rows() does it, to the bit; a.rows is 1. w (I,O) if in_out, else (O,I). False: nothing was launched, for its
 * widths are others. */
bool one_row(struct cuda_ops *c, const product_args &a, bool in_out);

#endif
