/* json_line.h - the text field of one line of .jsonl, in memory or in pieces.
 *
 *     struct json_line l = { .j = { .at = s, .end = s + n }, .begin = s, .field = "text" };
 *     if (!json_line_begin(&l) || !json_copy_string(&l.j, out, &n) || !json_line_end(&l))
 *         return json_line_error(&l);
 *
 * A line that has the field twice is refused: programs differ in which of the two they take.
 * Threads: one a struct.
 */
#ifndef TOKENIZE_JSON_LINE_H
#define TOKENIZE_JSON_LINE_H

#include "base/err.h"
#include "base/json.h"

struct json_line {
    struct json j; /* its text ends where the line does */
    const char *begin; /* of the bytes that j has */
    int64_t before; /* bytes of the line that came before those */
    const char *field;
    enum { LINE_GOOD, LINE_NOT_TEXT, LINE_WITHOUT, LINE_TWICE } wrong; /* where it is JSON */
};

/* Up to the field's string, whose text is next (json_copy_string, json_begin_text). */
bool json_line_begin(struct json_line *l);
/* From behind that string to the line's end. */
bool json_line_end(struct json_line *l);
/* GPT_INPUT: the column and what was expected there. */
int json_line_error(const struct json_line *l) MUST_CHECK;

#endif
