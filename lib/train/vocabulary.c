/* vocabulary.c - see vocabulary.h. */
#include "train/vocabulary.h"

#include <stdlib.h>
#include "recipe/schedule.h"
#include "tokenize/canonical.h"

void run_vocabulary_release(struct run_vocabulary *v)
{
    free(v->prefix);
    canonical_free(&v->never);
}

/* A token's prefix is the longest token that it begins with. */
static int fill_prefixes(struct run_vocabulary *out, const struct vocab *v, const struct recipe *r)
{
    if (!(out->prefix = malloc((size_t)r->model.vocab * sizeof *out->prefix)))
        return err_memory();
    for (int i = 0; i < r->model.vocab; i++) {
        uint32_t rank = i < v->size ? vocab_rank(v, (uint16_t)i) : TOKEN_NONE;
        bool some = rank != TOKEN_NONE && v->shorter[rank] != TOKEN_NONE;
        out->prefix[i] = some ? (int32_t)vocab_id(v, v->shorter[rank]) : -1;
    }
    return 0;
}

int run_vocabulary_read(struct run_vocabulary *out, const char *file, const struct recipe *r)
{
    struct vocab *v = NULL;
    char *found = NULL;
    *out = (struct run_vocabulary){ 0 };
    if (!recipe_prefixes(r) && !r->data.val.canonical)
        return !file ? 0
                     : err_set(GPT_USAGE, "--vocab: no stage of the recipe has a weight for "
                                          "prefixes, and data.val_canonical is no");
    int rc = file ? 0 : vocab_find(&found);
    if (!rc)
        rc = vocab_load(&v, file ? file : found);
    if (!rc && v->size > r->model.vocab)
        rc = err_set(GPT_INPUT, "%s: the recipe has %d ids, the vocabulary %s has %d",
                     file ? file : found, r->model.vocab, v->name, v->size);
    if (!rc && recipe_prefixes(r))
        rc = fill_prefixes(out, v, r);
    if (!rc && r->data.val.canonical)
        rc = canonical_make(&out->never, v, r->model.vocab);
    if (!rc)
        snprintf(out->tokenizer, sizeof out->tokenizer, "%s %s", v->name, v->sha256);
    vocab_free(v);
    free(found);
    return rc;
}
