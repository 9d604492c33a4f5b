/* feed.c - from the loader's chunks to a device. */
#include "train/rank.h"

struct chunk_shape feed_chunk(const struct recipe *r, int tokens, bool csr)
{
    return (struct chunk_shape){ .tokens = tokens,
                                 .bound = cu_bound(tokens),
                                 .vocab = r->vocab,
                                 .bigram_rows = r->bigram_rows,
                                 .csr = csr };
}

size_t feed_slot_bytes(const struct recipe *r, int64_t tokens, bool csr)
{
    struct chunk_shape s = feed_chunk(r, (int)tokens, csr);
    return chunk_block_bytes(&s);
}

/* The block has the same layout on both sides. */
static const int32_t *moved(char *slot, const struct chunk *c, const int32_t *p)
{
    return p ? (const int32_t *)(slot + ((const char *)p - (const char *)c->block)) : NULL;
}

struct batch feed_batch(struct rank *k, char *slot, const struct chunk *c, bool ahead)
{
    (ahead ? k->ops->upload_ahead : k->ops->upload)(k->ops, slot, c->block, c->block_bytes);
    return (struct batch){
        .tokens = c->tokens,
        .tgt = moved(slot, c, c->tgt),
        .cu = moved(slot, c, c->cu),
        .ncu = c->bound,
        .token = { c->tokens, moved(slot, c, c->tok), moved(slot, c, c->order),
                   moved(slot, c, c->start) },
        .bigram = { c->bigram ? c->tokens : 0, moved(slot, c, c->bigram),
                    moved(slot, c, c->bigram_order), moved(slot, c, c->bigram_start) },
    };
}

/* What the loader asks for a step, from its own thread. */
struct batch_shape feed_shape(void *ctx, int64_t step)
{
    const struct recipe *r = ctx;
    struct step_schedule p;
    if (step >= schedule_total(r))
        return (struct batch_shape){ 0 };
    schedule_at(r, (int)step, &p);
    return (struct batch_shape){ .chunks = r->chunks, .tokens = p.chunk_tokens, .cap = p.sequence };
}

struct batch_shape feed_largest(const struct recipe *r)
{
    struct batch_shape s = { .chunks = r->chunks };
    for (int i = 0; i < r->n_stages; i++)
        if (r->stages[i].tokens / r->chunks > s.tokens)
            s.tokens = (int)(r->stages[i].tokens / r->chunks);
    return s;
}
