/* gpt_shard.c - see gpt_shard.h: a struct gpt_shard is a struct shard. */
#include "data/gpt_shard.h"

#include "data/shard_read.h"

static struct shard *inside(const struct gpt_shard *s) { return (struct shard *)s; }

int gpt_shard_open(struct gpt_shard **s, const char *path, int vocab, int document_start)
{
    struct shard_want want = { .vocab = vocab > 0 ? vocab : UINT16_MAX + 1,
                               .bos = document_start,
                               .whole = document_start < 0 };
    struct shard *opened = NULL;
    int rc = shard_open(&opened, path, &want);
    *s = rc ? NULL : (struct gpt_shard *)opened;
    return rc;
}

int64_t gpt_shard_size(const struct gpt_shard *s) { return shard_size(inside(s)); }

int gpt_shard_wait(struct gpt_shard *s, int64_t n)
{
    int64_t all = shard_size(inside(s));
    if (n < 0 || n > all)
        return err_set(GPT_USAGE, "%s: %lld of %lld tokens", shard_path(inside(s)), (long long)n,
                       (long long)all);
    return shard_wait(inside(s), n);
}

const uint16_t *gpt_shard_tokens(const struct gpt_shard *s) { return shard_tokens(inside(s)); }

int gpt_shard_document(struct gpt_shard *s, int64_t i, int64_t limit, int64_t *begin, int64_t *end)
{
    if (i < 0 || limit < 0)
        return err_set(GPT_USAGE, "%s: document %lld, limit %lld", shard_path(inside(s)),
                       (long long)i, (long long)limit);
    return shard_document(inside(s), i, limit ? limit : INT64_MAX / 2, begin, end);
}

void gpt_shard_close(struct gpt_shard *s)
{
    if (s)
        shard_close(inside(s));
}
