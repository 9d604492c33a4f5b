/* unicode.h - the four classes of code points that GPT-2's pre-tokeniser knows.
 *
 * Letters and numbers are general categories L* and N* of UNICODE_VERSION, from
 * a table of our own, so that tokens do not change with the machine's
 * libraries; it is the version of tiktoken's regular expressions today. Spaces
 * are the 25 code points of White_Space.
 *
 * Thread-safe after unicode_init, which may be called any number of times.
 */
#ifndef DATA_UNICODE_H
#define DATA_UNICODE_H

#include <stddef.h>
#include <stdint.h>

enum char_class { CLASS_OTHER, CLASS_LETTER, CLASS_NUMBER, CLASS_SPACE };

extern const char unicode_version[];     /* "16.0.0" */

/* Two-stage table: a page of 256 code points has 64 bytes, two bits each. */
extern uint8_t unicode_page[0x1100];
extern uint8_t unicode_bits[256][64];
void unicode_init(void);

static inline enum char_class unicode_class(uint32_t c)     /* c <= 0x10ffff */
{
    return unicode_bits[unicode_page[c >> 8]][(c & 255) >> 2] >> (2 * (c & 3)) & 3;
}

/* Decodes the character at s, n >= 1 bytes are there. Returns its length, or 0
 * if the bytes are not UTF-8 (RFC 3629: no overlong forms, no surrogates). */
static inline int utf8_decode(const unsigned char *s, size_t n, uint32_t *c)
{
    unsigned a = s[0];

    if (a < 0x80) {
        *c = a;
        return 1;
    }
    if (a < 0xc2 || a > 0xf4 || n < 2 || (s[1] & 0xc0) != 0x80)
        return 0;
    if (a < 0xe0) {
        *c = (a & 31) << 6 | (s[1] & 63);
        return 2;
    }
    if (n < 3 || (s[2] & 0xc0) != 0x80)
        return 0;
    if (a < 0xf0) {
        *c = (a & 15) << 12 | (uint32_t)(s[1] & 63) << 6 | (s[2] & 63);
        return *c < 0x800 || (*c >> 11) == 0x1b ? 0 : 3;
    }
    if (n < 4 || (s[3] & 0xc0) != 0x80)
        return 0;
    *c = (a & 7) << 18 | (uint32_t)(s[1] & 63) << 12 | (uint32_t)(s[2] & 63) << 6 | (s[3] & 63);
    return *c < 0x10000 || *c > 0x10ffff ? 0 : 4;
}

/* Bytes of valid UTF-8 at the start of s; n if all of it is. */
size_t utf8_valid_prefix(const char *s, size_t n);
/* Length of the longest prefix of a character at s that is not a character:
 * what one U+FFFD stands for (Unicode 16, section 3.9, "maximal subpart"). */
int utf8_bad_length(const unsigned char *s, size_t n);

#endif
