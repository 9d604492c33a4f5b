/* canonical.h - which tokens no text has side by side.
 *
 * BPE of the bytes of two tokens gives just these two (bpe_may_follow), or some merge across their
 * boundary goes before one inside them, and no encoding has the pair. Such a next token is not
 * canonical, and a model that knows its tokenizer gives it no probability: modded-nanogpt pull request
 * 350, after "Language Models over Canonical Byte-Pair Encodings" (arXiv 2506.07956), local
 * conditioning. A pair counts only where no text lets the pre-tokeniser (pretoken.h) cut between the
 * two, because no merge crosses a cut. The document start and ids above stand anywhere, and so does
 * what does not begin or end with a whole character.
 *
 *     struct token_mask m;
 *     if ((rc = canonical_make(&m, vocab, 50304))) return rc;
 *     ... token_mask_never(&m, before, next) ...
 *     canonical_free(&m);
 */
#ifndef TOKENIZE_CANONICAL_H
#define TOKENIZE_CANONICAL_H

#include "types/token_mask.h"
#include "tokenize/vocab.h"

/* Makes the mask of `ids` >= v->size ids. A second and 90 MB for GPT-2's vocabulary. GPT_SYSTEM. */
int canonical_make(struct token_mask *m, const struct vocab *v, int ids) MUST_CHECK;
void canonical_free(struct token_mask *m);

#endif
