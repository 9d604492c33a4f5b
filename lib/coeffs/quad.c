#include "coeffs/quad.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

quad quad_sqrt(quad x)
{
    quad r = sqrt((double)x);
    if (!(r > 0))
        return 0;
    for (int i = 0; i < 3; i++)
        r = (r + x / r) / 2;
    return r;
}

static quad power_of_ten(int n)
{
    quad p = 1, ten = 10;
    for (unsigned k = n < 0 ? (unsigned)-n : (unsigned)n; k; k /= 2, ten *= ten)
        if (k & 1)
            p *= ten;
    return n < 0 ? 1 / p : p;
}

/* x * 10^n, dividing for a negative n: powers up to 10^48 are exact, their inverses are not. */
static quad shifted(quad x, int n) { return n < 0 ? x / power_of_ten(-n) : x * power_of_ten(n); }

char *quad_text(char *buf, size_t size, quad x, int digits)
{
    char d[48];
    const char *sign = x < 0 ? "-" : "";
    quad a = quad_abs(x), limit = power_of_ten(digits);
    if (!(a > 0)) {
        snprintf(buf, size, "0");
        return buf;
    }
    int e = (int)floor(log10((double)a)); /* one off at most */
    unsigned __int128 n = (unsigned __int128)(shifted(a, digits - 1 - e) + (quad)0.5);
    if ((quad)n >= limit)
        n = (unsigned __int128)(shifted(a, digits - 1 - ++e) + (quad)0.5);
    else if ((quad)n * 10 < limit)
        n = (unsigned __int128)(shifted(a, digits - 1 - --e) + (quad)0.5);
    for (int i = digits; i-- > 0; n /= 10)
        d[i] = (char)('0' + (int)(n % 10));
    d[digits] = 0;
    if (e < -5 || e >= digits)
        snprintf(buf, size, "%s%c%s%se%+03d", sign, d[0], digits > 1 ? "." : "", d + 1, e);
    else if (e < 0)
        snprintf(buf, size, "%s0.%.*s%s", sign, -e - 1, "00000", d);
    else
        snprintf(buf, size, "%s%.*s%s%s", sign, e + 1, d, e + 1 < digits ? "." : "", d + e + 1);
    return buf;
}
