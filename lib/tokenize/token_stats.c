/* token_stats.c - see token_stats.h. */
#include "tokenize/token_stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "data/corpus.h"
#include "data/shard_stream.h"
#include "data/shard_write.h"
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

static void count(struct token_stats *s, const uint16_t *tok, int64_t n, const struct vocab *v,
                  int64_t *open)
{
    token_stats_add(s, tok, (size_t)n);
    for (int64_t i = 0; i < n; i++) {
        if (tok[i] == v->bos) {
            token_stats_document(s, *open);
            *open = 0;
        } else if (vocab_rank(v, tok[i]) != TOKEN_NONE) {
            size_t bytes;

            vocab_token(v, (int)vocab_rank(v, tok[i]), &bytes);
            s->text_bytes += (int64_t)bytes;
        }
        ++*open;
    }
}

/* *open: tokens so far of the document that the shard before ended in. Closes the shard. */
static int read_shard(struct token_stats *s, struct shard *shard, const struct vocab *v,
                      int64_t *open)
{
    int64_t n = shard_size(shard);
    int rc = 0;

    for (int64_t at = 0, k; at < n && !rc; at += k) {
        k = n - at < FRAME_TOKENS ? n - at : FRAME_TOKENS;
        if (!(rc = shard_wait(shard, at + k)))
            count(s, shard_tokens(shard) + at, k, v, open);
        shard_forget(shard, at + k);
    }
    shard_close(shard);
    return rc;
}

static int read_stream(struct token_stats *s, const char *data, const struct vocab *v)
{
    struct shard_want want = { .vocab = v->size, .bos = v->bos, .window = 2 * FRAME_TOKENS };
    struct shard_stream *t;
    struct shard *shard;
    int64_t open = 0;
    int rc;

    if ((rc = shard_stream_open(&t, data, 0)))
        return rc;
    while (!(rc = shard_stream_next(t, &shard, &want)) && !(rc = read_shard(s, shard, v, &open)))
        ;
    shard_stream_close(t);
    token_stats_document(s, open);
    return rc == GPT_NO ? 0 : rc;
}

int token_stats_read(struct token_stats *s, const char *data, const struct vocab *v)
{
    struct shard_want want = { .vocab = v->size, .bos = v->bos };
    struct shard *shard;
    struct corpus c;
    int64_t open = 0;
    int rc;

    if (!strcmp(data, "-"))
        return read_stream(s, data, v);
    if ((rc = corpus_open(&c, data, SPLIT_ALL, NULL)))
        return rc;
    for (int i = 0; i < c.n && !rc; i++) {
        if (i && c.shard[i].val != c.shard[i - 1].val) { /* no document is of both splits */
            token_stats_document(s, open);
            open = 0;
        }
        if (!(rc = shard_open(&shard, c.shard[i].path, &want)))
            rc = read_shard(s, shard, v, &open);
    }
    token_stats_document(s, open);
    corpus_release(&c);
    return rc;
}
