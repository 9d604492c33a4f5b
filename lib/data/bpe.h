/* bpe.h - text to tokens and back: GPT-2's byte-level BPE, exact.
 *
 *     struct bpe *b;                                   // one a thread
 *     if ((rc = bpe_new(&b, vocab))) return rc;
 *     n = bpe_encode(b, text, len, false, tokens);     // tokens: len + BPE_SLACK
 *     bpe_free(b);
 *
 * text must have BPE_PAD readable bytes after its len (of any value). Bytes
 * that are not UTF-8 are encoded as such; utf8_valid_prefix finds them. No
 * text gives the document start; the caller puts it.
 *
 * Encoding a pre-token: a cache of short ones, else the longest match first
 * with backtracking, which is linear: a sequence of tokens is what BPE gives if
 * and only if each neighbouring pair is, so a token is taken if it can stand
 * after the one before (van Antwerpen and Neubeck, "So many tokens, so little
 * time", 2024). The memory of a struct bpe does not depend on the text but for
 * one bit a byte of the longest pre-token.
 */
#ifndef DATA_BPE_H
#define DATA_BPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "data/vocab.h"

#define BPE_PAD 64
#define BPE_SLACK 8          /* tokens; wide stores go beyond the last */

struct bpe;
int bpe_new(struct bpe **b, const struct vocab *v) MUST_CHECK;
/* more: a character that is no white space follows the text (pretoken_cut).
 * Returns the number of tokens, at most len. */
size_t bpe_encode(struct bpe *b, const char *text, size_t len, bool more, uint16_t *tokens);
void bpe_free(struct bpe *b);

/* Bytes of a token; the document start and ids above have none. */
size_t bpe_decode(const struct vocab *v, const uint16_t *tokens, size_t n, char *out, size_t room);

/* Whether `right` can follow `left`: BPE of their bytes together gives just
 * these two. Public for the tests and for bpe_run.c. */
bool bpe_may_follow(const struct vocab *v, uint32_t left, uint32_t right);

#endif
