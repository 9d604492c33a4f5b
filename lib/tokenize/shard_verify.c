/* shard_verify.c - see shard_verify.h. */
#include "tokenize/shard_verify.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/file.h"
#include "base/hash.h"
#include "data/corpus.h"
#include "data/shard_read.h"

/* The index, if there is one, against the document starts that were found. */
static int verify_index(struct shard *f, const struct manifest_shard *s)
{
    char *path = shard_index_path(shard_path(f));
    struct shard_index x = { 0 };
    int64_t begin, end;
    int rc = path ? 0 : err_memory();

    if (rc || access(path, F_OK)) {
        free(path);
        return rc;
    }
    if (!(rc = shard_index_read(&x, path, s->tokens, s->hash)) && x.documents != s->documents)
        rc = err_set(GPT_INPUT, "%s: expected %lld documents, found %lld", path,
                     (long long)s->documents, (long long)x.documents);
    if (!rc && !x.hashed)
        rc = err_set(GPT_INPUT, "%s: offset 16: expected the hash %s, found zeros", path, s->hash);
    for (int64_t i = 0; i < x.documents && !rc; i++)
        if (!(rc = shard_document(f, i, 1, &begin, &end)) && begin != x.start[i])
            rc = err_set(GPT_INPUT, "%s: document %lld: expected its start at token %lld, found %u",
                         path, (long long)i, (long long)begin, x.start[i]);
    shard_index_release(&x);
    free(path);
    return rc;
}

static int verify_content(const char *path, const struct manifest *m,
                          const struct manifest_shard *s)
{
    struct shard_want want = {
        .vocab = (int)m->vocab_size, .bos = (int)m->bos, .expect = s->tokens, .frames = s->frames
    };
    struct shard *f;
    char hash[33];
    int64_t documents;
    int rc;

    if ((rc = shard_open(&f, path, &want)))
        return rc;
    if (!(rc = shard_wait(f, shard_size(f)))) {
        documents = shard_documents(f);
        xxh_hex_of(shard_bytes(f), SHARD_HEADER_BYTES + 2 * (size_t)s->tokens, hash);
        if (documents != s->documents)
            rc = err_set(GPT_INPUT, "%s: expected %lld documents, found %lld", path,
                         (long long)s->documents, (long long)documents);
        else if (strcmp(hash, s->hash))
            rc = err_set(GPT_INPUT, "%s: expected the hash %s, found %s", path, s->hash, hash);
        else
            rc = verify_index(f, s);
    }
    shard_close(f);
    return rc;
}

int shard_verify(const char *dir, const struct manifest *m, int i, bool full)
{
    const struct manifest_shard *s = &m->shard[i];
    char *path = path_join(dir, s->name);
    int rc;

    if (!path)
        return err_memory();
    if (!(rc = corpus_check_shard(path, s)) && full)
        rc = verify_content(path, m, s);
    free(path);
    return rc == GPT_INPUT ? err_set(GPT_NO, "%s", err_message()) : rc;
}
