/* text.h - strings of any bytes: how they end, and how they are written so that nothing that reads
 * them is misled.
 *
 *     text_json(f, name, strlen(name), false);   // "a \"b\"\u000a", quotes included
 *     text_plain(f, name, strlen(name));   // a terminal sees no control character
 *     text_line(stderr, "gpt-x: cannot open '%s'", name);   // a message of a program: all are so
 *
 * The caller checks the stream. Thread-safe.
 */
#ifndef BASE_TEXT_H
#define BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

bool text_ends(const char *s, const char *end);

/* Takes a byte-order mark and the CR before each LF out of n bytes; returns how many are left. All
 * that is read by lines is read so (file_read_text); documents are not. */
size_t text_plain_lines(char *s, size_t n);

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

/* The length alone. */
size_t text_utf8(const char *s, size_t n);

/* The bytes of the first characters of a string, at most so many. */
size_t text_cut(const char *s, int characters);

/* Writes a string of JSON, with '?' in place of what is not UTF-8, or with it as it is. */
void text_json(FILE *f, const char *s, size_t n, bool as_is);
/* Writes a part of such a string, without quotes. */
void text_json_part(FILE *f, const char *s, size_t n, bool as_is);
/* Writes s with '?' in place of control characters and of what is not UTF-8. */
void text_plain(FILE *f, const char *s, size_t n);
/* A formatted line, written as text_plain does, with those indented by four that belong to it, and
 * its end. */
void text_line(FILE *f, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Writes s as text_plain does, as text of an XML element. */
void text_xml(FILE *f, const char *s);

#endif
