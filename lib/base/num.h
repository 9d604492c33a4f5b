/* num.h - numbers from users: the whole string, range-checked, one suffix rule.
 *
 * Suffixes k M G are powers of ten, Ki Mi Gi of two. "1.5k" is 1500; for a
 * whole number "1.5" is an error. What does not fit is GPT_INPUT, with a message
 * that names `what`, the text and the range; *out is then unchanged. A range of
 * INT64_MIN..INT64_MAX or -INFINITY..INFINITY is any. Thread-safe.
 */
#ifndef BASE_NUM_H
#define BASE_NUM_H

#include <stdint.h>
#include "base/err.h"

int num_i64(const char *text, const char *what, int64_t lo, int64_t hi, int64_t *out) MUST_CHECK;
/* Finite only. */
int num_f64(const char *text, const char *what, double lo, double hi, double *out) MUST_CHECK;

#endif
