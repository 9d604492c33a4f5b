/* unicode.h - the four classes of code points that GPT-2's pre-tokeniser knows.
 *
 * Letters and numbers are general categories L* and N* of UNICODE_VERSION, from
 * a table of our own, so that tokens do not change with the machine's
 * libraries; it is the version of tiktoken's regular expressions today. Spaces
 * are the 25 code points of White_Space.
 *
 * Thread-safe after unicode_init, which may be called any number of times.
 */
#ifndef TOKENIZE_UNICODE_H
#define TOKENIZE_UNICODE_H

#include <stddef.h>
#include <stdint.h>
#include "base/text.h"

enum char_class { CLASS_OTHER, CLASS_LETTER, CLASS_NUMBER, CLASS_SPACE };

extern const char unicode_version[]; /* "16.0.0" */

/* Two-stage table: a page of 256 code points has 64 bytes, two bits each. */
extern uint8_t unicode_page[0x1100];
extern uint8_t unicode_bits[256][64];
void unicode_init(void);

static inline enum char_class unicode_class(uint32_t c) /* c <= 0x10ffff */
{
    return unicode_bits[unicode_page[c >> 8]][(c & 255) >> 2] >> (2 * (c & 3)) & 3;
}

/* Bytes of valid UTF-8 at the start of s; n if all of it is. */
size_t utf8_valid_prefix(const char *s, size_t n);
/* Length of the longest prefix of a character at s that is not a character:
 * what one U+FFFD stands for (Unicode 16, section 3.9, "maximal subpart"). */
int utf8_bad_length(const unsigned char *s, size_t n);
/* Whether the three bytes are there that half a pair of surrogates would have. */
static inline bool utf8_is_surrogate(const unsigned char *s, size_t n)
{
    return n >= 3 && s[0] == 0xed && s[1] >> 5 == 5 && s[2] >> 6 == 2;
}
/* Copies n bytes with one U+FFFD in place of each sequence that is no character, which *invalid
 * counts; returns the bytes written, 3 n at most. json: half a pair of surrogates is one sequence,
 * mostly an escape (json_unescape). to NULL: only counts. */
size_t utf8_repair(char *to, const char *s, size_t n, bool json, int64_t *invalid);

#endif
