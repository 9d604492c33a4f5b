/* token_stats.h - what a stream of tokens is made of.
 *
 *     struct token_stats s;
 *     if ((rc = token_stats_init(&s))) return rc;
 *     token_stats_add(&s, tokens, n);
 *     printf("%g\n", token_stats_entropy(&s));
 *     token_stats_release(&s);
 *
 * A struct belongs to one thread.
 */
#ifndef TOKENIZE_TOKEN_STATS_H
#define TOKENIZE_TOKEN_STATS_H

#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

struct token_stats {
    int64_t *count; /* [65536] by token */
    int64_t tokens, documents, text_bytes;
    int64_t lengths[64]; /* documents by floor(log2(tokens)), the start token included */
};

int token_stats_init(struct token_stats *s) MUST_CHECK;
void token_stats_release(struct token_stats *s);
void token_stats_add(struct token_stats *s, const uint16_t *tokens, size_t n);
void token_stats_document(struct token_stats *s, int64_t tokens); /* one more, of this length */
/* Entropy of the distribution of single tokens, in nats a token: -sum p log p. */
double token_stats_entropy(const struct token_stats *s);
/* The k most frequent tokens, most first, ties by id; returns how many there are. */
int token_stats_top(const struct token_stats *s, int k, uint16_t *top);

struct vocab;
/* Adds all tokens of the shards that `data` means (corpus.h), both splits. */
int token_stats_read(struct token_stats *s, const char *data, const struct vocab *v) MUST_CHECK;

#endif
