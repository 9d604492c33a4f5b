/* val.c - validation chunks, each a pure function of its number. */
#include "data/loader.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "data/shard_stream.h"

struct val_file {
    struct shard *shard;
    int64_t first_group, groups;
};

struct val {
    struct val_config c;
    struct corpus corpus;
    int bos;
    struct chunk_shape shape;
    size_t block_bytes;
    char *memory; /* [ranks] blocks */
    struct val_file *file;
    int files;
};

/* Returns how many groups a file serves. The record leaves a file when the end of a
 * group and its last target reach the size (pos + Q + 1 >= size), even if they
 * fit; in the last file, where it would fail, a group that fits is taken. */
static int64_t groups_in(int64_t tokens, int64_t group_tokens, bool last)
{
    return tokens < 2 ? 0 : (tokens - (last ? 1 : 2)) / group_tokens;
}

/* The beginning of the stream. It is read here, since what follows is for training. */
static int open_stream(struct val *v)
{
    int64_t q = (int64_t)v->c.shape.chunks * v->c.shape.tokens;
    int64_t groups = (v->c.total + v->c.shape.chunks - 1) / v->c.shape.chunks;
    struct shard_want w = { .vocab = v->c.vocab, .bos = v->bos, .limit = groups * q + 1 };
    int rc;

    if (!(v->file = calloc(1, sizeof *v->file)))
        return err_memory();
    v->file->groups = groups;
    if ((rc = shard_stream_next(v->c.stream, &v->file->shard, &w)))
        return rc;
    v->files = 1;
    if (shard_size(v->file->shard) < w.limit)
        return err_set(GPT_INPUT,
                       "%s: expected %lld validation tokens and a target in the first shard of the "
                       "stream, found %lld: name a file, --val FILE, or train without validation: "
                       "-s data.val_tokens=0",
                       v->c.data, (long long)(w.limit - 1), (long long)shard_size(v->file->shard));
    return shard_wait(v->file->shard, w.limit);
}

/* Refuses files of `have` groups, of `tokens` tokens in all, where `want` are asked for. */
static int too_few(const struct val *v, int64_t want, int64_t have, int64_t tokens)
{
    enum { LEAST = 64 }; /* tokens of a chunk that is worth proposing */
    int64_t chunks = v->c.shape.chunks, q = chunks * v->c.shape.tokens, chunk = LEAST;
    char remedy[120] = "train without validation: -s data.val_tokens=0";

    while (2 * chunk * chunks < tokens)
        chunk *= 2;
    if (have)
        snprintf(remedy, sizeof remedy, "take what is there: -s data.val_tokens=%lld",
                 (long long)(have * q));
    else if (v->corpus.n == 1 && chunk * chunks < tokens)
        snprintf(remedy, sizeof remedy,
                 "take what is there: -s data.val_tokens=%lld -s data.val_chunk=%lld",
                 (long long)(chunk * chunks), (long long)chunk);
    return err_set(GPT_INPUT,
                   "%s: expected %lld validation tokens in groups of %lld and a target "
                   "each, found %lld group%s in %lld tokens: make the shards with gpt-tokshard "
                   "--val-tokens %lld, or %s",
                   v->c.data, (long long)(want * q), (long long)q, (long long)have,
                   have == 1 ? "" : "s", (long long)tokens, (long long)(want * q), remedy);
}

/* Opens as much of the files as `total` chunks take. */
static int open_files(struct val *v)
{
    int64_t q = (int64_t)v->c.shape.chunks * v->c.shape.tokens;
    int64_t want = (v->c.total + v->c.shape.chunks - 1) / v->c.shape.chunks, have = 0, tokens = 0;
    int rc;

    if (!(v->file = calloc((size_t)v->corpus.n, sizeof *v->file)))
        return err_memory();
    for (int i = 0; i < v->corpus.n && have < want; i++) {
        const struct corpus_shard *f = &v->corpus.shard[i];
        struct val_file *file = &v->file[v->files];
        int64_t n = groups_in(f->tokens, q, i + 1 == v->corpus.n);
        struct shard_want w = { .vocab = v->c.vocab,
                                .bos = v->bos,
                                .threads = v->c.threads,
                                .expect = f->tokens,
                                .frames = v->c.no_verify ? NULL : f->frames };

        tokens += f->tokens;
        if (!n)
            continue;
        file->first_group = have;
        file->groups = n < want - have ? n : want - have;
        have += file->groups;
        w.limit = file->groups * q + 1;
        if ((rc = shard_open(&file->shard, f->path, &w)))
            return rc;
        v->files++;
    }
    return have < want ? too_few(v, want, have, tokens) : 0;
}

int val_new(struct val **out, const struct val_config *c)
{
    struct val *v;
    int rc;

    *out = NULL;
    if (c->ranks < 1 || c->vocab < 1 || c->shape.chunks < 1 || c->shape.tokens < 1 || c->total < 1)
        return err_set(GPT_USAGE,
                       "validation: expected ranks, vocabulary, chunks and tokens, found "
                       "%d, %d, %lld x %d",
                       c->ranks, c->vocab, (long long)c->total, c->shape.tokens);
    if (!(v = calloc(1, sizeof *v)))
        return err_memory();
    v->c = *c;
    v->shape = (struct chunk_shape){ .tokens = c->shape.tokens,
                                     .vocab = c->vocab,
                                     .bigram_rows = c->bigram_rows,
                                     .bound = c->shape.bound ? c->shape.bound
                                                             : cu_bound(c->shape.tokens, 0) };
    v->block_bytes = chunk_block_bytes(&v->shape);
    if (!(v->memory = aligned_alloc(256, v->block_bytes * (size_t)c->ranks))) {
        rc = err_memory();
        goto fail;
    }
    if (c->stream)
        v->corpus.bos = CORPUS_BOS;
    else if ((rc = corpus_open(&v->corpus, c->data, c->only_val ? SPLIT_ONLY_VAL : SPLIT_VAL,
                               &c->choice)))
        goto fail;
    v->bos = c->bos >= 0 ? c->bos : v->corpus.bos;
    if ((rc = corpus_check_vocab(&v->corpus, c->data, c->vocab, v->bos)) ||
        (rc = c->stream ? open_stream(v) : open_files(v)))
        goto fail;
    *out = v;
    return 0;
fail:
    val_free(v);
    return rc;
}

static int fill_chunk(const struct val *v, const struct shard *s, int64_t pos, struct chunk *c)
{
    const uint16_t *from = shard_tokens(s) + pos;
    int32_t *tok = (int32_t *)c->tok, *tgt = (int32_t *)c->tgt, *cu = (int32_t *)c->cu;
    int n = 0;

    for (int t = 0; t < c->tokens; t++) {
        tok[t] = from[t];
        tgt[t] = from[t + 1];
    }
    cu[0] = 0;
    for (int t = 0; t < c->tokens; t++) {
        if (v->c.row ? !t || t % v->c.row : tok[t] != v->bos)
            continue;
        /* One entry is kept for the end. */
        if (++n > c->bound - 2)
            return err_set(GPT_INPUT,
                           "%s: token %lld: expected at most %d document starts in %d "
                           "tokens, found more: allow for them (-s data.max_documents=%d), join "
                           "short documents, or set a smaller data.val_chunk",
                           shard_path(s), (long long)(pos + t), c->bound - 2, c->tokens, c->tokens);
        cu[n] = t;
    }
    for (int i = n + 1; i < c->bound; i++)
        cu[i] = c->tokens;
    c->docs = n + 1;
    chunk_index(c, &v->shape);
    return 0;
}

int val_chunk(struct val *v, int rank, int64_t k, struct chunk *out)
{
    int64_t group = k / v->c.shape.chunks, pos;
    const struct val_file *f = v->file;
    int rc;

    if (rank < 0 || rank >= v->c.ranks || k < 0 || k >= v->c.total)
        return err_set(GPT_USAGE,
                       "validation: expected rank below %d and chunk below %lld, found %d, "
                       "%lld",
                       v->c.ranks, (long long)v->c.total, rank, (long long)k);
    while (group >= f->first_group + f->groups)
        f++;
    pos =
        ((group - f->first_group) * v->c.shape.chunks + k % v->c.shape.chunks) * v->c.shape.tokens;
    if ((rc = shard_wait(f->shard, pos + v->c.shape.tokens + 1)))
        return rc;
    chunk_place(out, v->memory + (size_t)rank * v->block_bytes, &v->shape);
    return fill_chunk(v, f->shard, pos, out);
}

const struct corpus *val_files(const struct val *v) { return &v->corpus; }

void val_free(struct val *v)
{
    if (!v)
        return;
    for (int i = 0; i < v->files; i++)
        shard_close(v->file[i].shard);
    free(v->file);
    free(v->memory);
    corpus_release(&v->corpus);
    free(v);
}
