/* quad.h - 113-bit floating point, with the C library's square root and printing.
 *
 * gcc and clang have IEEE binary128 as __float128 on x86 and as long double on 64-bit ARM, RISC-V
 * and s390x; glibc has their functions since 2.26. Pure functions, safe in any thread.
 *
 *     quad root = quad_sqrt(2);
 *     puts(quad_text(buf, sizeof buf, root, 17));
 */
#ifndef COEFFS_QUAD_H
#define COEFFS_QUAD_H

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if LDBL_MANT_DIG == 113
typedef long double quad;
#define QUAD_OF(name) name##l
#elif defined(__SIZEOF_FLOAT128__)
typedef __float128 quad;
#define QUAD_OF(name) name##f128
#else
#error "no 113-bit floating point: use gcc or clang on x86-64, or a 64-bit ARM"
#endif

#define QUAD_EPSILON ((quad)0x1p-112) /* from 1 to the next number */

static inline quad quad_abs(quad x) { return x < 0 ? -x : x; }
static inline quad quad_sqrt(quad x) { return QUAD_OF(sqrt)(x); }

/* Writes x with `digits` significant decimal digits, as "%.*g" writes a double but without cutting
 * zeros, and 1e-5 like 1e-4; a zero is "0". Returns buf. */
static inline char *quad_text(char *buf, size_t size, quad x, int digits)
{
    char format[16];
    snprintf(format, sizeof format, "%%.%de", digits - 1);
    QUAD_OF(strfrom)(buf, size, format, x);
    const char *exponent = strchr(buf, 'e');
    int e = exponent ? atoi(exponent + 1) : digits; /* none: not finite */
    if (e >= -5 && e < digits) {
        snprintf(format, sizeof format, "%%.%df", quad_abs(x) > 0 ? digits - 1 - e : 0);
        QUAD_OF(strfrom)(buf, size, format, x);
    }
    return buf;
}

#endif
