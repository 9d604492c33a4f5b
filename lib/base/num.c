#include "base/num.h"

#include <ctype.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* The factor of the suffix at s, which must end the text; 0 when it is none. */
static int64_t suffix_factor(const char *s)
{
    static const struct {
        const char *text;
        int64_t factor;
    } suffixes[] = {
        { "", 1 },         { "k", 1000 },     { "M", 1000000 },  { "G", 1000000000 },
        { "Ki", 1 << 10 }, { "Mi", 1 << 20 }, { "Gi", 1 << 30 },
    };
    for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0]; i++)
        if (!strcmp(s, suffixes[i].text))
            return suffixes[i].factor;
    return 0;
}

static int bad_i64(const char *text, const char *what, int64_t lo, int64_t hi)
{
    if (lo == INT64_MIN && hi == INT64_MAX)
        return err_set(GPT_INPUT, "%s: expected a whole number, found '%s'", what, text);
    if (hi == INT64_MAX)
        return err_set(GPT_INPUT, "%s: expected a whole number of at least %lld, found '%s'", what,
                       (long long)lo, text);
    return err_set(GPT_INPUT, "%s: expected a whole number from %lld to %lld, found '%s'", what,
                   (long long)lo, (long long)hi, text);
}

int num_i64(const char *text, const char *what, int64_t lo, int64_t hi, int64_t *out)
{
    const char *s = text;
    bool negative = *s == '-';
    s += *s == '-' || *s == '+';
    /* the value is digits / scale, scale a power of ten */
    unsigned __int128 digits = 0;
    uint64_t scale = 1;
    int n = 0;
    bool point = false;
    for (; isdigit((unsigned char)*s) || (*s == '.' && !point); s++) {
        if (*s == '.') {
            point = true;
            continue;
        }
        if (++n > 36 || (point && scale > UINT64_MAX / 10))
            return bad_i64(text, what, lo, hi);
        digits = digits * 10 + (unsigned)(*s - '0');
        scale *= point ? 10 : 1;
    }
    int64_t factor = suffix_factor(s);
    if (!n || !factor || digits > (unsigned __int128)1 << 92)
        return bad_i64(text, what, lo, hi);
    digits *= (uint64_t)factor;
    if (digits % scale)
        return bad_i64(text, what, lo, hi);
    digits /= scale;
    if (digits > (uint64_t)INT64_MAX + negative)
        return bad_i64(text, what, lo, hi);
    int64_t v = negative ? (int64_t)(0 - (uint64_t)digits) : (int64_t)digits;
    if (v < lo || v > hi)
        return bad_i64(text, what, lo, hi);
    *out = v;
    return GPT_OK;
}

int num_f64(const char *text, const char *what, double lo, double hi, double *out)
{
    char *end = (char *)text;
    double v = NAN;
    /* strtod would also take blanks, "inf", "nan" and hexadecimal */
    if (strspn(text, "+-.0123456789") && !strpbrk(text, "xX"))
        v = strtod(text, &end);
    int64_t factor = suffix_factor(end);
    v *= (double)factor;
    if (end == text || !factor || !(v >= lo && v <= hi) || !isfinite(v)) {
        if (lo <= -HUGE_VAL && hi >= HUGE_VAL)
            return err_set(GPT_INPUT, "%s: expected a number, found '%s'", what, text);
        if (hi >= HUGE_VAL)
            return err_set(GPT_INPUT, "%s: expected a number of at least %.15g, found '%s'", what,
                           lo, text);
        return err_set(GPT_INPUT, "%s: expected a number from %.15g to %.15g, found '%s'", what, lo,
                       hi, text);
    }
    *out = v;
    return GPT_OK;
}
