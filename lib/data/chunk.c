/* chunk.c - the block of arrays that is a chunk, and its csr. */
#include "data/loader_impl.h"

#include <string.h>

int cu_bound(int tokens)
{
    int m = tokens / 300 > 128 ? tokens / 300 : 128;

    return (m + 127) / 128 * 128;
}

static size_t padded(size_t n)
{
    return (n * sizeof(int32_t) + 255) & ~(size_t)255;
}

size_t chunk_block_bytes(int tokens, int bound, int vocab)
{
    size_t csr = vocab ? padded((size_t)vocab + 1) + padded((size_t)tokens) : 0;

    return 2 * padded((size_t)tokens) + padded((size_t)bound) + csr;
}

void chunk_place(struct chunk *c, void *block, int tokens, int bound, int vocab)
{
    char *p = block;

    memset(c, 0, sizeof *c);
    c->tokens = tokens;
    c->bound = bound;
    c->block = block;
    c->block_bytes = chunk_block_bytes(tokens, bound, vocab);
    c->tok = (int32_t *)p;
    c->tgt = (int32_t *)(p += padded((size_t)tokens));
    c->cu = (int32_t *)(p += padded((size_t)tokens));
    p += padded((size_t)bound);
    if (vocab) {
        c->start = (int32_t *)p;
        c->order = (int32_t *)(p + padded((size_t)vocab + 1));
    }
}

/* Counting sort: start[v+1] first counts v, then is where v's next goes. */
void csr_by_token(const int32_t *ids, int tokens, int vocab, int32_t *start, int32_t *order)
{
    int32_t sum = 0;

    memset(start, 0, ((size_t)vocab + 1) * sizeof *start);
    for (int t = 0; t < tokens; t++)
        start[ids[t] + 1]++;
    for (int v = 0; v < vocab; v++) {
        int32_t n = start[v + 1];

        start[v + 1] = sum;
        sum += n;
    }
    for (int t = 0; t < tokens; t++)
        order[start[ids[t] + 1]++] = t;
}

int check_vocab(const char *data, int corpus_vocab, int vocab, int bos)
{
    if (corpus_vocab > vocab)
        return err_set(GPT_INPUT,
                       "%s: expected tokens for a model of %d ids, found a vocabulary of %d",
                       data, vocab, corpus_vocab);
    if (bos >= vocab)
        return err_set(GPT_INPUT,
                       "%s: expected a document start below the model's %d ids, found %d",
                       data, vocab, bos);
    return 0;
}
