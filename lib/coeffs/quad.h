/* quad.h - 113-bit floating point, from the compiler alone.
 *
 * gcc and clang have IEEE binary128 as __float128 on x86 and as long double on
 * 64-bit ARM, RISC-V and s390x; + - * / and conversions come with the compiler's
 * own runtime. Square root and printing, all that we need besides, are here, so
 * that no library is needed. Pure functions, safe in any thread.
 */
#ifndef COEFFS_QUAD_H
#define COEFFS_QUAD_H

#include <float.h>
#include <stddef.h>

#if LDBL_MANT_DIG == 113
typedef long double quad;
#elif defined(__SIZEOF_FLOAT128__)
typedef __float128 quad;
#else
#error "no 113-bit floating point: use gcc or clang on x86-64, or a 64-bit ARM"
#endif

#define QUAD_EPSILON ((quad)0x1p-112) /* from 1 to the next number */

static inline quad quad_abs(quad x) { return x < 0 ? -x : x; }
/* Two Newton steps from the double: 53, 106, then all bits but the last few. */
quad quad_sqrt(quad x);
/* x with `digits` (1 to 30) significant decimal digits, rounded to nearest, as "%.*g" writes
 * a double without cutting zeros; |x| in 1e-250..1e250 or 0. Returns buf. */
char *quad_text(char *buf, size_t size, quad x, int digits);

#endif
