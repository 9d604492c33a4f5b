/* pretoken.h - where GPT-2's pre-tokeniser cuts text.
 *
 * The regular expression
 *   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 * as masks over blocks of 64 bytes: bit i of a block's mask says that a
 * pre-token starts at byte i. Classes decide almost everything without a
 * branch; contractions and white space of several bytes are patched in.
 *
 *     struct pretoken p;
 *     pretoken_init(&p, text, n, false);
 *     for (at = 0; at < n; at += 64) {
 *         uint64_t starts = pretoken_block(&p);
 *         ...
 *     }
 *
 * A byte that is not part of valid UTF-8 counts as a character of class other.
 * The text must have PRETOKEN_PAD readable bytes after its n (of any value).
 * A struct belongs to one thread; unicode_init first.
 */
#ifndef TOKENIZE_PRETOKEN_H
#define TOKENIZE_PRETOKEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PRETOKEN_PAD 64 /* not less than JSON_PAD and BPE_PAD */

struct pretoken {
    const unsigned char *text;
    size_t n, at; /* at: the next block */
    bool more; /* a character that is no space follows the text */
    uint64_t a, b, sp; /* the byte before the block: the two bits of its class; a space */
    uint64_t set, clear; /* starts, and what is none, known before the next block is read */
    int spill, spill_class; /* bytes of a character that began in the block before */
};

/* more: the text goes on with a character that is no white space, so that white
 * space at its end is not the end of all. */
void pretoken_init(struct pretoken *p, const char *text, size_t n, bool more);
uint64_t pretoken_block(struct pretoken *p);

/* The last place in text, above 0, where it can be cut so that the two sides,
 * encoded apart, give the tokens of the whole: before ASCII white space that
 * follows something else, or after an ASCII white space other than ' ' before
 * something else. 0: none. *more is what pretoken_init wants for the left. */
size_t pretoken_cut(const char *text, size_t n, bool *more);

/* The last start in text that what follows its n bytes cannot change; 0 if there
 * is none but the first. Any start is a place to cut; *more as above. Looks at
 * all of the text, where pretoken_cut looks at its end. */
size_t pretoken_last_start(const char *text, size_t n, bool *more);

/* How many of the n bytes belong to a pre-token that they begin (first) or go on
 * with, and of which they are known to hold the class; class is set by the first
 * call. `end`: nothing follows them. *ended: the pre-token ends there. What is
 * left over is less than PRETOKEN_PAD bytes unless *ended. */
size_t pretoken_run(const char *text, size_t n, bool first, bool end, int *class, bool *ended);

#endif
