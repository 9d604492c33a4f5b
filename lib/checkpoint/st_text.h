/* st_text.h - the JSON that says which tensors there are: messages with file and offset, strings
 * that are UTF-8.
 *
 *     struct st_text c = { { .at = text, .end = text + n }, path, "header", text, 8 };
 *     json_open(&c.j, '{');
 *     while (json_key(&c.j, &key))
 *         if ((rc = st_text_decode(&c, &key, &name)) || ...) return rc;
 *     return st_text_end(&c);
 *
 * Private to lib/checkpoint. A text belongs to one thread.
 */
#ifndef CHECKPOINT_ST_TEXT_H
#define CHECKPOINT_ST_TEXT_H

#include "base/err.h"
#include "base/json.h"

struct st_text {
    struct json j;
    const char *path, *what, *begin; /* of messages: the file, and what of it this is */
    uint64_t base; /* offset of begin in the file */
};

/* "expected ..., found" what stands at p: a character, or all of an escape. GPT_INPUT. */
int st_text_wrong(const struct st_text *c, const char *p, const char *expected) MUST_CHECK;
/* The first error of the JSON parser, as a message; 0 when there is none. */
int st_text_end(const struct st_text *c) MUST_CHECK;
/* GPT_INPUT unless only blanks follow. */
int st_text_nothing_more(struct st_text *c) MUST_CHECK;
/* Decodes s, which must be UTF-8 without U+0000, to a NUL-terminated string. Caller frees. */
int st_text_decode(const struct st_text *c, const struct json_string *s, char **out) MUST_CHECK;
/* Reads the string that comes next into *out, which the caller frees. */
int st_text_string(struct st_text *c, char **out) MUST_CHECK;

#endif
