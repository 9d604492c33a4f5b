/* toy_vocab.h - vocabularies drawn at random for the tests, and BPE by its
 * definition: each merge in its turn applied to all of a pre-token. */
#ifndef TOY_VOCAB_H
#define TOY_VOCAB_H

#include <stddef.h>
#include <stdint.h>

#define TOY_TOKENS 700
struct toy_token {
    uint8_t bytes[32];
    int n, left, right;
};
extern struct toy_token toy[TOY_TOKENS];
extern int toys;

/* Merges at random of tokens over a few bytes: long words, repeats and runs, and
 * ranks in no sensible order. A merge is taken if it can ever happen. */
void draw_toy(uint64_t seed);
/* Each merge in the order of ranks, from left to right; out needs n. */
size_t toy_encode(const uint8_t *s, size_t n, uint16_t *out);

/* The first four are one vocabulary. JSON_IDS has three special tokens at 0, 1 and 2, of which 1 starts
 * documents, and the others' ids the other way round: toy_id. */
enum form { RANKS, MERGES, JSON_STRINGS, JSON_PAIRS, FORMS, JSON_IDS = FORMS };
int toy_id(enum form form, int rank);
int put_vocab(const char *path, enum form form); /* 0 if it is written */

#endif
