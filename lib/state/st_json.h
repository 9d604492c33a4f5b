/* st_json.h - a strict cursor over the JSON of a tensor file's header.
 *
 * Only what such headers need: objects, arrays of whole numbers, strings in
 * well-formed UTF-8. The caller walks the grammar:
 *
 *     struct st_json c = { path, text, length, 0, 8 };
 *     if ((rc = st_json_expect(&c, '{'))) return rc;
 *     if ((rc = st_json_string(&c, &key)) || (rc = st_json_expect(&c, ':')) ...
 *     if ((rc = st_json_next(&c, '}', &more))) return rc;
 *
 * Every failure is GPT_INPUT with path, offset in the file, expected and found.
 * A cursor belongs to one thread.
 */
#ifndef STATE_ST_JSON_H
#define STATE_ST_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

struct st_json {
    const char *path, *s;    /* s holds n bytes, no NUL needed */
    size_t n, i;
    size_t base;             /* offset of s in the file, for messages */
};

void st_json_blanks(struct st_json *c);
bool st_json_at(struct st_json *c, char ch);                  /* skips blanks; is ch next? */
int st_json_expect(struct st_json *c, char ch) MUST_CHECK;     /* skips blanks, takes ch */
/* After a member: ',' means more, `end` closes. */
int st_json_next(struct st_json *c, char end, bool *more) MUST_CHECK;
/* Decoded, NUL-terminated, UTF-8; U+0000 and lone surrogates are refused. Caller frees. */
int st_json_string(struct st_json *c, char **out) MUST_CHECK;
/* 0 .. 2^64 - 1 without sign, point, exponent or leading zero. */
int st_json_number(struct st_json *c, uint64_t *out) MUST_CHECK;
/* "expected ..., found" what stands at offset `at` of s. */
int st_json_fail(const struct st_json *c, size_t at, const char *expected);
int st_json_no_memory(const char *path);

#endif
