/* vocab_forms.h - what the readers of a vocabulary's forms share; used by vocab_forms.c and
 * vocab_json.c alone. All add to begin, bytes, left_bytes and tokens of a vocabulary that is being
 * read, by rank.
 */
#ifndef TOKENIZE_VOCAB_FORMS_H
#define TOKENIZE_VOCAB_FORMS_H

#include "tokenize/vocab.h"

struct vocab_text {
    const char *path, *begin, *at, *end;
};

int vocab_line(const struct vocab_text *t); /* of `at` */
int vocab_reserve(struct vocab *v, int tokens, size_t bytes) MUST_CHECK;
void vocab_put_bytes(struct vocab *v); /* the single bytes, in GPT-2's order */
/* The merge of two strings of the printable alphabet. */
int vocab_put_merge(struct vocab *v, const struct vocab_text *t, const char *a, size_t na,
                    const char *b, size_t nb) MUST_CHECK;
/* Undoes the alphabet; returns the bytes written (out needs n), or -1. */
int vocab_unmap(const char *s, size_t n, uint8_t *out);
/* GPT_INPUT */
int vocab_too_long(const struct vocab_text *t, int id, size_t n);
int vocab_too_many(const struct vocab_text *t);

/* vocab_json.c: tokenizer.json */
int vocab_parse_json(struct vocab *v, struct vocab_text *t) MUST_CHECK;

#endif
