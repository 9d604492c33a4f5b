/* text.h - strings of any bytes: how they end, and how they are written so that nothing that reads
 * them is misled.
 *
 *     text_json(f, name);                  // "a \"b\"\u000a", quotes included
 *     text_plain(f, name, strlen(name));   // a terminal sees no control character
 *
 * The caller checks the stream. Thread-safe.
 */
#ifndef BASE_TEXT_H
#define BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

bool text_ends(const char *s, const char *end);
/* Bytes of the well-formed UTF-8 character at s, of n > 0 bytes; 0: it is none (Unicode, table
 * 3-7). */
size_t text_utf8(const char *s, size_t n);
/* As a string of JSON. Bytes that are not UTF-8 are written as they are. */
void text_json(FILE *f, const char *s);
/* With '?' in place of control characters and of what is not UTF-8. */
void text_plain(FILE *f, const char *s, size_t n);
/* The same as text of an XML element. */
void text_xml(FILE *f, const char *s);

#endif
