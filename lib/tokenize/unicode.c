/* unicode.c - the class table and UTF-8 validation. */
#include "tokenize/unicode.h"

#include <pthread.h>
#include <string.h>
#include "tokenize/unicode_ranges.h"

const char unicode_version[] = UNICODE_VERSION_TEXT;
uint8_t unicode_page[0x1100];
uint8_t unicode_bits[256][64];

static const uint16_t spaces[] = {
    0x9,    0xa,    0xb,    0xc,    0xd,    0x20,   0x85,   0xa0,   0x1680,
    0x2000, 0x2001, 0x2002, 0x2003, 0x2004, 0x2005, 0x2006, 0x2007, 0x2008,
    0x2009, 0x200a, 0x2028, 0x2029, 0x202f, 0x205f, 0x3000,
};

/* One page, two bits a code point; the ranges that touch it begin at *range. */
static void fill_page(uint32_t page, size_t *range, uint8_t bits[64])
{
    const size_t n = sizeof unicode_ranges / sizeof unicode_ranges[0];
    uint32_t first = page << 8, last = first | 255;
    size_t i;

    memset(bits, 0, 64);
    while (*range < n && unicode_ranges[*range].last < first)
        ++*range;
    for (i = *range; i < n && unicode_ranges[i].first <= last; i++) {
        uint32_t c = unicode_ranges[i].first > first ? unicode_ranges[i].first : first;
        uint32_t end = unicode_ranges[i].last < last ? unicode_ranges[i].last : last;

        for (; c <= end; c++)
            bits[(c & 255) >> 2] |= (uint8_t)(unicode_ranges[i].class << 2 * (c & 3));
    }
    for (i = 0; i < sizeof spaces / sizeof spaces[0]; i++)
        if (spaces[i] >> 8 == page)
            bits[(spaces[i] & 255) >> 2] |= (uint8_t)(CLASS_SPACE << 2 * (spaces[i] & 3));
}

static void make_tables(void)
{
    size_t range = 0;
    int pages = 0;

    for (uint32_t p = 0; p < 0x1100; p++) {
        uint8_t bits[64];
        int k;

        fill_page(p, &range, bits);
        for (k = 0; k < pages; k++)
            if (!memcmp(unicode_bits[k], bits, 64))
                break;
        if (k == pages) /* Unicode 16 has 133 different pages; 256 fit */
            memcpy(unicode_bits[pages++], bits, 64);
        unicode_page[p] = (uint8_t)k;
    }
}

void unicode_init(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, make_tables);
}

size_t utf8_valid_prefix(const char *text, size_t n)
{
    const unsigned char *s = (const unsigned char *)text;
    size_t i = 0;

    while (i < n) {
        uint32_t c;
        int k;

        while (i + 8 <= n) { /* eight ASCII bytes at once */
            uint64_t u;

            memcpy(&u, s + i, 8);
            if (u & 0x8080808080808080u)
                break;
            i += 8;
        }
        if (i == n)
            break;
        if (!(k = utf8_decode(s + i, n - i, &c)))
            return i;
        i += (size_t)k;
    }
    return n;
}

int utf8_bad_length(const unsigned char *s, size_t n)
{
    unsigned a = s[0], lo = 0x80, hi = 0xbf;
    int need, k;

    if (a < 0xc2 || a > 0xf4)
        return 1;
    need = a < 0xe0 ? 1 : a < 0xf0 ? 2 : 3;
    if (a == 0xe0)
        lo = 0xa0;
    else if (a == 0xed)
        hi = 0x9f;
    else if (a == 0xf0)
        lo = 0x90;
    else if (a == 0xf4)
        hi = 0x8f;
    for (k = 1; k <= need && (size_t)k < n; k++, lo = 0x80, hi = 0xbf)
        if (s[k] < lo || s[k] > hi)
            break;
    return k;
}

static size_t append(char *to, size_t at, const char *s, size_t n)
{
    if (to)
        memcpy(to + at, s, n);
    return at + n;
}

size_t utf8_repair(char *to, const char *s, size_t n, bool json, int64_t *invalid)
{
    size_t m = 0;
    for (size_t at = 0;;) {
        size_t good = utf8_valid_prefix(s + at, n - at);
        m = append(to, m, s + at, good);
        at += good;
        if (at == n)
            return m;
        const unsigned char *bad = (const unsigned char *)s + at;
        m = append(to, m, "\xef\xbf\xbd", 3);
        at += json && utf8_is_surrogate(bad, n - at) ? 3 : (size_t)utf8_bad_length(bad, n - at);
        ++*invalid;
    }
}
