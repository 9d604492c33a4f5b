/* encode.h - a unit of input to documents and tokens.
 *
 *     struct encoder *e;                                   // one a thread
 *     if ((rc = encoder_new(&e, &config))) return rc;
 *     if ((rc = encode_unit(e, &unit))) return rc;         // unit.doc, unit.token
 *     encoder_free(e);
 *
 * A document is its start token and the tokens of its text. Bytes that are not
 * UTF-8 are replaced, kept or refused, and counted, as the config says.
 */
#ifndef TOKENIZE_ENCODE_H
#define TOKENIZE_ENCODE_H

#include "tokenize/source.h"
#include "tokenize/vocab.h"

enum invalid_policy {
    /* U+FFFD for each maximal part of a character, as browsers and Python do */
    INVALID_REPLACE,
    INVALID_BYTES, /* encoded as the bytes that they are */
    INVALID_ERROR,
};

struct encode_config {
    const struct vocab *vocab;
    const char *field; /* of .jsonl; a string */
    enum invalid_policy invalid;
    bool skip_bad; /* lines of .jsonl without a text are counted (unit_skip_line), not refused */
};

struct encoder;
int encoder_new(struct encoder **e, const struct encode_config *c) MUST_CHECK;
/* GPT_INPUT names file and line (or file and offset) of the document. Units that
 * are runs must come one after the other to the same encoder. */
int encode_unit(struct encoder *e, struct unit *u) MUST_CHECK;
void encoder_free(struct encoder *e);

#endif
