/* cutter.c - documents to frames and shards of a fixed number of tokens. */
#include <string.h>

#include "tokenize/tokjob_impl.h"

/* Drops what stands in shards of an earlier run. */
static void skip_known(const struct cutter *k, struct part *p)
{
    int64_t known = p->at.document < k->skip.document   ? (int64_t)p->n
                    : p->at.document > k->skip.document ? 0
                                                        : k->skip.token - p->at.token;

    if (known <= 0)
        return;
    if (known > (int64_t)p->n)
        known = (int64_t)p->n;
    p->token += known;
    p->n -= (size_t)known;
    p->at.token += known;
    p->counted = true; /* with its first token, in that shard */
}

static void begin_shard(struct cutter *k, const struct part *p)
{
    memset(&k->line, 0, sizeof k->line);
    k->line.split = k->split;
    k->line.from = p->at;
    k->open = true;
    k->frame->first = true;
}

void cutter_put(struct cutter *k, struct part *p, bool *full)
{
    struct out_frame *f = k->frame;
    size_t room, n;

    *full = false;
    skip_known(k, p);
    if (!p->n)
        return;
    if (!k->open)
        begin_shard(k, p);
    room = FRAME_TOKENS - f->n / 2;
    if ((int64_t)room > k->shard_tokens - k->line.tokens)
        room = (size_t)(k->shard_tokens - k->line.tokens);
    n = p->n < room ? p->n : room;
    memcpy(f->plain + f->n, p->token, 2 * n);
    f->n += 2 * n;
    k->line.tokens += (int64_t)n;
    k->line.documents += p->at.token == 0;
    if (!p->counted)
        k->line.invalid += p->invalid;
    p->counted = true;
    p->token += n;
    p->n -= n;
    p->at.token += (int64_t)n;
    k->line.to = p->at;
    if (!p->n && p->ends)
        k->line.to = (struct position){ p->at.document + 1, 0 };
    k->line.input = p->input;
    f->last = k->line.tokens == k->shard_tokens;
    *full = f->last || n == room;
}

struct out_frame *cutter_take(struct cutter *k)
{
    struct out_frame *f = k->frame;

    f->split = k->split;
    f->index = k->index;
    if (f->last) {
        f->line = k->line;
        k->open = false;
        k->index++;
    }
    k->frame = NULL;
    return f;
}
