/* chunk.c - the block of arrays that is a chunk, and its csr. */
#include "data/chunk.h"

#include <string.h>
#include "data/bigram.h"

int cu_bound(int tokens, int documents)
{
    int m = tokens / 300 > 128 ? tokens / 300 : 128;

    if (documents >
        m - 2) /* validation has an entry for the middle of one before them, and the end */
        m = documents + 2;
    return (m + 127) / 128 * 128;
}

static size_t padded(size_t n) { return (n * sizeof(int32_t) + 255) & ~(size_t)255; }

/* The next n numbers of a block; only counts while p->base is NULL. */
struct place {
    char *base;
    size_t at;
};

static int32_t *take(struct place *p, size_t n)
{
    int32_t *a = p->base ? (int32_t *)(p->base + p->at) : NULL;

    p->at += padded(n);
    return a;
}

void chunk_place(struct chunk *c, void *block, const struct chunk_shape *s)
{
    struct place p = { block, 0 };
    size_t tokens = (size_t)s->tokens;

    *c = (struct chunk){ .tokens = s->tokens, .bound = s->bound, .block = block };
    c->tok = take(&p, tokens);
    c->tgt = take(&p, tokens);
    c->cu = take(&p, (size_t)s->bound);
    if (s->csr) {
        c->start = take(&p, (size_t)s->vocab + 1);
        c->order = take(&p, tokens);
    }
    if (s->bigram_rows)
        c->bigram = take(&p, tokens);
    if (s->bigram_rows && s->csr) {
        c->bigram_start = take(&p, (size_t)s->bigram_rows + 1);
        c->bigram_order = take(&p, tokens);
    }
    c->block_bytes = p.at;
}

size_t chunk_block_bytes(const struct chunk_shape *s)
{
    struct chunk c;

    chunk_place(&c, NULL, s);
    return c.block_bytes;
}

void chunk_index(struct chunk *c, const struct chunk_shape *s)
{
    if (c->start)
        csr_by_row(c->tok, c->tokens, s->vocab, (int32_t *)c->start, (int32_t *)c->order);
    if (c->bigram)
        bigram_rows(c->tok, c->tokens, s->bigram_rows, (int32_t *)c->bigram);
    if (c->bigram_start)
        csr_by_row(c->bigram, c->tokens, s->bigram_rows, (int32_t *)c->bigram_start,
                   (int32_t *)c->bigram_order);
}

/* Counting sort: start[v+1] first counts v, then is where v's next goes. */
void csr_by_row(const int32_t *ids, int tokens, int rows, int32_t *start, int32_t *order)
{
    int32_t sum = 0;

    memset(start, 0, ((size_t)rows + 1) * sizeof *start);
    for (int t = 0; t < tokens; t++)
        start[ids[t] + 1]++;
    for (int v = 0; v < rows; v++) {
        int32_t n = start[v + 1];

        start[v + 1] = sum;
        sum += n;
    }
    for (int t = 0; t < tokens; t++)
        order[start[ids[t] + 1]++] = t;
}
