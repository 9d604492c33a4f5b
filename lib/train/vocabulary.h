/* vocabulary.h - what the losses of a run need of its tokenizer: tokens' prefixes, and which tokens never
 * follow which.
 *
 *     struct run_vocabulary v;
 *     if ((rc = run_vocabulary_read(&v, file, recipe))) return rc;
 *     ... v.prefix, v.never ...
 *     run_vocabulary_release(&v);                        // also after a failure
 */
#ifndef TRAIN_VOCABULARY_H
#define TRAIN_VOCABULARY_H

#include "recipe/recipe.h"
#include "types/token_mask.h"

struct run_vocabulary {
    int32_t *prefix; /* of each of the recipe's ids (model_prefixes); NULL: no loss has it */
    struct token_mask never; /* tokens that never follow (model_never); bits NULL: not wanted */
    char tokenizer[80]; /* whose tokens those are, as MANIFESTs say it (corpus.h) */
};

/* Reads rank file, vocab.bpe or tokenizer.json; NULL: GPT-2's, where it is found. Reads nothing, and
 * refuses a file, where the recipe has no use for it. */
int run_vocabulary_read(struct run_vocabulary *v, const char *file,
                        const struct recipe *r) MUST_CHECK;
void run_vocabulary_release(struct run_vocabulary *v);

#endif
