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
 * Encoding a pre-token: a cache of short ones; a long one is split where no token
 * of the vocabulary has the two bytes side by side, so that none can lie across;
 * else the longest match first with backtracking, which is linear: a sequence of
 * tokens is what BPE gives if and only if each neighbouring pair is, so a token
 * is taken if it can stand after the one before (van Antwerpen and Neubeck, "So
 * many tokens, so little time", 2024). The memory of a struct bpe does not depend
 * on the text but for one bit a byte of the longest pre-token (bpe_reserve).
 */
#ifndef TOKENIZE_BPE_H
#define TOKENIZE_BPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "tokenize/vocab.h"

#define BPE_PAD 64 /* = PRETOKEN_PAD */
#define BPE_SLACK 8 /* tokens; wide stores go beyond the last */

struct bpe;
int bpe_new(struct bpe **b, const struct vocab *v) MUST_CHECK;
/* Makes ready for texts of len bytes; 65,536 without. GPT_SYSTEM. */
int bpe_reserve(struct bpe *b, size_t len) MUST_CHECK;
/* more: a character that is no white space follows the text (pretoken_cut).
 * Returns the number of tokens, at most len. */
size_t bpe_encode(struct bpe *b, const char *text, size_t len, bool more, uint16_t *tokens);
void bpe_free(struct bpe *b);

/* A pre-token that comes in pieces, for one that is too long to be held: what is
 * final is given out. That is what stands before a boundary through which the
 * encoding of every continuation goes, which is looked for among the last
 * tokens: the encoding of a longer text goes through some place in the last
 * TOKEN_MAX_BYTES of this one, and what stands before that place is the encoding
 * of the text up to it; so if for each of those places it has the boundary, it
 * stays.
 *
 *     struct bpe_run r = { .b = b };
 *     if ((rc = bpe_run_add(&r, s, n, tokens, &m))) return rc;    // room: see bpe_run_room
 *     bpe_run_end(&r, tokens, &m);                                // and ready for another
 *     bpe_run_release(&r);
 */
struct bpe_run {
    struct bpe *b;
    size_t window; /* bytes held before any is given out; 0: 256 KiB */
    uint8_t *text; /* not final yet */
    uint16_t *token;
    size_t n, room;
    uint32_t before; /* the last token given out, if any was */
    bool begun;
};
int bpe_run_add(struct bpe_run *r, const void *s, size_t n, uint16_t *tokens, size_t *m) MUST_CHECK;
void bpe_run_end(struct bpe_run *r, uint16_t *tokens, size_t *m);
/* Tokens that the next bpe_run_add of n bytes, or bpe_run_end with 0, may give. */
size_t bpe_run_room(const struct bpe_run *r, size_t n);
void bpe_run_release(struct bpe_run *r);

/* Bytes of tokens by their ids; the document start and ids without a rank have none. */
size_t bpe_decode(const struct vocab *v, const uint16_t *tokens, size_t n, char *out, size_t room);

/* By ranks: whether `right` can follow `left`: BPE of their bytes together gives just
 * these two. */
bool bpe_may_follow(const struct vocab *v, uint32_t left, uint32_t right);
/* The ranks of the tokens of n bytes of one pre-token, behind the token `before` of it, or
 * TOKEN_NONE at its begin. False if there is no boundary behind that token in
 * the encoding. n as reserved, with BPE_PAD bytes behind; out: n + BPE_SLACK. */
bool bpe_encode_after(struct bpe *b, uint32_t before, const uint8_t *s, size_t n, uint16_t *out,
                      size_t *tokens);

#endif
