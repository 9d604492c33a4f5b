/* kind.h - what a file holds, by its first bytes and, where they leave it open, by its name: text,
 * JSON lines, or neither, which is refused with what makes text of it.
 *
 *     struct kind k;
 *     struct kind_wanted w = { .field = "text" };
 *     if ((rc = kind_of(&k, z, path, &w))) return rc;    // z: a reader, before the first read
 *     if (k.jsonl) ...
 *
 * kind.c has the table of what is known by a magic number. JSON lines are those of which the first
 * two are objects with the field, whatever the name; a byte-order mark and blanks may stand before
 * them. A file that is named as JSON lines is taken at its word. In the first 64 KiB at most one
 * byte in a thousand is NUL, or a single one. Of a pipe there is something. A format that is given
 * ends all questions, except whether these are shards of tokens. Thread-safe.
 */
#ifndef TOKENIZE_KIND_H
#define TOKENIZE_KIND_H

#include <stdbool.h>
#include "base/zio.h"

enum source_format { FORMAT_AUTO, FORMAT_TEXT, FORMAT_JSONL };

struct kind_wanted {
    enum source_format format;
    const char *field; /* of JSON lines: what holds the text */
    bool utf8; /* text of which more than one byte in ten begins no UTF-8 is refused */
};

struct kind {
    bool jsonl; /* else text */
    bool marked; /* text with '<|endoftext|>' at a line's beginning, in the first 64 KiB */
    bool guessed; /* by what it holds, where the name says nothing or something else */
    bool known; /* kind_of has decided */
};

/* Decides what z reads, from the file at path. GPT_INPUT where it is neither: the file, what it is,
 * and the remedy. */
int kind_of(struct kind *k, struct zreader *z, const char *path,
            const struct kind_wanted *w) MUST_CHECK;
/* True if the name ends in one of a list as "txt,md", in letters of either case, perhaps with .zst
 * or .gz behind it. */
bool has_extension(const char *name, const char *extensions);

#endif
