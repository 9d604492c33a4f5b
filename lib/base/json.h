/* json.h - a pull parser over text in memory or in pieces: just enough for a field of a line of
 * .jsonl, tokenizer.json and the header of a tensor file, and fast on long strings.
 *
 *     struct json j = { .at = s, .end = s + n };
 *     json_open(&j, '{');
 *     while (json_key(&j, &key))
 *         json_skip(&j);
 *     if (j.bad || json_more(&j)) ...   // j.bad: what was expected; j.at is where
 *
 * Each function leaves j.at after what it read. On anything that is not JSON (RFC 8259), or is
 * nested deeper than JSON_DEPTH, it sets j.bad to what was expected, and from then on all return
 * 0. Whether strings are UTF-8 is the caller's business. Time is linear in the text.
 *
 * Text that arrives in pieces has a `refill`, which is called when more is wanted behind end. It
 * moves the bytes from at on to the front of its buffer, of 2 * JSON_HELD bytes at least, adds more
 * and sets at and end; or returns false and changes nothing, if the text ends there. A string of
 * more than JSON_HELD bytes may then come without its bytes (s = NULL), and json_text gives its
 * text in parts; a number is at most that long.
 */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define JSON_DEPTH 200
#define JSON_HELD 4096

struct json {
    const char *at, *end, *bad;
    int depth;
    bool opened; /* a bracket was opened and no member of it read yet */
    bool (*refill)(struct json *j); /* NULL: all of the text is there */
    void *arg; /* refill's */
    int64_t refills;
};
struct json_string {
    const char *s;
    size_t n;
    bool escaped;
}; /* between the quotes, raw */

char json_peek(struct json *j); /* next character after space; 0 at the end */
bool json_more(struct json *j); /* anything but space up to the end */
bool json_open(struct json *j, char bracket); /* '{' or '[' */
/* Next key of an object, up to and with its colon; false at the closing brace. */
bool json_key(struct json *j, struct json_string *key);
/* Before each element of an array; false at the closing bracket. */
bool json_element(struct json *j);
bool json_string(struct json *j, struct json_string *s);
bool json_u64(struct json *j, uint64_t *x); /* no sign, point or exponent */
bool json_skip(struct json *j); /* any value */

/* A string and its text in one go, as json_string and json_unescape. The text
 * must have JSON_PAD readable bytes after it; out needs what is left of the text
 * and JSON_PAD more. */
#define JSON_PAD 16
bool json_copy_string(struct json *j, char *out, size_t *n);
/* Read a string in parts: json_begin_text takes the quote, and each json_text puts up to `room`
 * bytes in out, which has JSON_PAD more. True if the string ended; else, unless j->bad, fewer than
 * 4 bytes of room are left. */
bool json_begin_text(struct json *j);
bool json_text(struct json *j, char *out, size_t room, size_t *n);

/* Undoes escapes; out needs s->n bytes. A surrogate without its other half
 * becomes the three bytes that its code point would have, which are not UTF-8
 * (tokenize/encode.c takes them as one bad sequence, safetensors.c refuses them).
 * Returns the length. */
size_t json_unescape(const struct json_string *s, char *out);
bool json_equal(const struct json_string *s, const char *text);

#endif
