/* token_stats.c - see token_stats.h. */
#include "tokenize/token_stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "data/corpus.h"
#include "data/shard_read.h"
#include "tokenize/vocab.h"

int token_stats_init(struct token_stats *s)
{
    memset(s, 0, sizeof *s);
    if (!(s->count = calloc(65536, sizeof *s->count)))
        return err_memory();
    return 0;
}

void token_stats_release(struct token_stats *s)
{
    free(s->count);
    s->count = NULL;
}

void token_stats_add(struct token_stats *s, const uint16_t *tokens, size_t n)
{
    for (size_t i = 0; i < n; i++)
        s->count[tokens[i]]++;
    s->tokens += (int64_t)n;
}

void token_stats_document(struct token_stats *s, int64_t tokens)
{
    if (tokens < 1)
        return;
    s->lengths[63 - __builtin_clzll((uint64_t)tokens)]++;
    s->documents++;
}

double token_stats_entropy(const struct token_stats *s)
{
    double h = 0;

    for (int i = 0; i < 65536; i++)
        if (s->count[i]) {
            double p = (double)s->count[i] / (double)s->tokens;

            h -= p * log(p);
        }
    return h;
}

int token_stats_top(const struct token_stats *s, int k, uint16_t *top)
{
    int n = 0;

    for (int id = 0; id < 65536; id++) {
        int at = n < k ? n : k;

        if (!s->count[id])
            continue;
        while (at > 0 && s->count[top[at - 1]] < s->count[id])
            at--;
        if (at >= k)
            continue;
        if (n < k)
            n++;
        memmove(top + at + 1, top + at, (size_t)(n - at - 1) * sizeof *top);
        top[at] = (uint16_t)id;
    }
    return n;
}

/* *open: tokens so far of the document that the shard before ended in. */
static int read_shard(struct token_stats *s, const char *path, const struct vocab *v, int64_t *open)
{
    struct shard_want want = { .vocab = v->size, .bos = v->bos };
    struct shard *shard;
    int rc;

    if ((rc = shard_open(&shard, path, &want)))
        return rc;
    if (!(rc = shard_wait(shard, shard_size(shard)))) {
        const uint16_t *tok = shard_tokens(shard);
        int64_t n = shard_size(shard);

        token_stats_add(s, tok, (size_t)n);
        for (int64_t i = 0; i < n; i++) {
            if (tok[i] == v->bos) {
                token_stats_document(s, *open);
                *open = 0;
            } else {
                size_t bytes;

                vocab_token(v, tok[i], &bytes);
                s->text_bytes += (int64_t)bytes;
            }
            ++*open;
        }
    }
    shard_close(shard);
    return rc;
}

int token_stats_read(struct token_stats *s, const char *data, const struct vocab *v)
{
    int rc = 0, shards = 0;

    for (int split = 0; split < 2 && !rc; split++) {
        struct corpus c;
        int64_t open = 0;

        if (corpus_open(&c, data, (enum split)split))
            /* no shard of this split; if data is wrong, opening the other split fails, too */
            continue;
        for (int i = 0; i < c.n && !rc; i++, shards++)
            rc = read_shard(s, c.shard[i].path, v, &open);
        token_stats_document(s, open);
        corpus_release(&c);
    }
    if (!rc && !shards)
        rc = err_prefix("--stats");
    return rc;
}
