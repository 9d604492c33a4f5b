/* shard_verify.c - see shard_verify.h. */
#include "data/shard_verify.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "data/corpus.h"
#include "data/shard_read.h"

static int verify_content(const char *path, const struct manifest *m, const struct manifest_shard *s)
{
    struct shard_want want = { .vocab = (int)m->vocab_size, .bos = (int)m->bos, .expect = s->tokens };
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
        return err_set(GPT_SYSTEM, "out of memory");
    if (!(rc = corpus_check_shard(path, s)) && full)
        rc = verify_content(path, m, s);
    free(path);
    return rc == GPT_INPUT ? err_set(GPT_NO, "%s", err_message()) : rc;
}
