/* json_stream.h - one field of one line of .jsonl that is too long to be held.
 *
 *     struct json_stream j;
 *     json_stream_init(&j, "text");
 *     while (!j.done && !j.bad) {
 *         used = json_stream_feed(&j, in, n, last, out, room, &got);   // text in out[0..got)
 *         ... move on by used, add input ...
 *     }
 *     if (j.bad) ...                  // what was expected, at byte j.at of the line
 *
 * What json.h says of strings holds here too. The first field of the name
 * counts; other values are passed over, and their brackets checked.
 */
#ifndef TOKENIZE_JSON_STREAM_H
#define TOKENIZE_JSON_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/json.h"

struct json_stream {
    const char *field;
    const char *bad; /* what was expected */
    int64_t at; /* bytes of the line taken so far */
    bool done; /* the line's end was taken */
    bool found, is_field; /* the field was begun; the key just read is its name */
    int state, depth;
    char open[JSON_DEPTH]; /* '{' or '[' */
    char word[64]; /* a key's beginning, or a number, true, false or null */
    int n_word;
};

void json_stream_init(struct json_stream *j, const char *field);
/* Takes input, of which less than 12 bytes may be left unless `last` says that
 * there is no more; stops at the line's end, and when out has less than 8 bytes
 * free. Returns the bytes taken. */
size_t json_stream_feed(struct json_stream *j, const char *in, size_t n, bool last, char *out,
                        size_t room, size_t *got);

#endif
