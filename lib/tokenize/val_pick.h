/* val_pick.h - which documents are validation, when a number of tokens is wanted.
 *
 * Those of the lowest hashes, as many as give the tokens: a choice that does not
 * depend on the order of the documents or on how they are cut into shards.
 *
 *     struct val_pick p = { .want = 1000000 };
 *     for (...) if ((rc = val_pick_add(&p, hash, tokens))) return rc;   // each document
 *     below = val_pick_below(&p);                                       // hash < below: validation
 *     val_pick_release(&p);
 *
 * Documents of one text have one hash: they are validation together. Keeps only the candidates, so
 * memory goes with `want`. One thread.
 */
#ifndef TOKENIZE_VAL_PICK_H
#define TOKENIZE_VAL_PICK_H

#include <stdint.h>
#include "base/err.h"

struct val_pick {
    int64_t want;
    int64_t have, all; /* tokens of the candidates, and of all documents */
    int64_t documents;
    uint64_t highest; /* hash of all */
    struct candidate {
        uint64_t hash;
        int64_t tokens;
    } * heap; /* highest hash first */
    int64_t n;
};

int val_pick_add(struct val_pick *p, uint64_t hash, int64_t tokens) MUST_CHECK;
/* GPT_INPUT if the documents have fewer tokens, or none would be left to train on. */
int val_pick_below(const struct val_pick *p, uint64_t *below) MUST_CHECK;
void val_pick_release(struct val_pick *p);

#endif
