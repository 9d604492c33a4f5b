/* corpus.c - see corpus.h. */
#include "data/corpus.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"
#include "base/grow.h"
#include "base/hash.h"
#include "base/le.h"
#include "base/zio.h"

bool shard_begins(const void *bytes, size_t n)
{
    const unsigned char *b = bytes;

    return n >= 8 && le32(b) == SHARD_MAGIC && le32(b + 4) == SHARD_VERSION;
}

int shard_header_tokens(const void *header, size_t n, const char *path, int64_t *tokens)
{
    const unsigned char *h = header;

    if (n < SHARD_HEADER_BYTES)
        return err_set(GPT_INPUT, "%s: expected a header of 1024 bytes, found %zu", path, n);
    if (!shard_begins(h, n))
        return err_set(GPT_INPUT,
                       "%s: offset 0: expected a token shard (numbers %d, %d), found "
                       "%d, %d",
                       path, SHARD_MAGIC, SHARD_VERSION, (int32_t)le32(h), (int32_t)le32(h + 4));
    *tokens = (int32_t)le32(h + 8);
    if (*tokens < 0)
        return err_set(GPT_INPUT, "%s: offset 8: expected a number of tokens, found %d", path,
                       (int)*tokens);
    return 0;
}

int shard_check_end(const void *beyond, size_t n, const char *path)
{
    return !shard_begins(beyond, n)
               ? 0
               : err_set(GPT_INPUT,
                         "%s: expected one shard, found another behind it: of several in a file "
                         "all are read with - in its place (-d -) and the file on standard input",
                         path);
}

/* Of a plain file of `bytes` bytes. */
static int check_size(const char *path, int64_t bytes, int64_t tokens)
{
    int64_t end = SHARD_HEADER_BYTES + 2 * tokens;
    char beyond[8];
    int fd;

    if (bytes < end)
        return err_set(GPT_INPUT, "%s: truncated: expected %lld bytes for %lld tokens, found %lld",
                       path, (long long)end, (long long)tokens, (long long)bytes);
    if (bytes == end)
        return 0;
    if ((fd = open(path, O_RDONLY | O_CLOEXEC)) < 0)
        return err_sys("cannot open '%s'", path);
    ssize_t n = pread(fd, beyond, sizeof beyond, (off_t)end);
    close(fd);
    return n < 0 ? err_sys("cannot read '%s'", path) : shard_check_end(beyond, (size_t)n, path);
}

int shard_check_header(const char *path, int64_t *tokens)
{
    const void *h;
    struct zreader *z;
    struct stat st;
    size_t got;
    int rc;

    if ((rc = zreader_open(&z, path)))
        return rc;
    if (!(rc = zreader_peek(z, SHARD_HEADER_BYTES, &h, &got)))
        rc = shard_header_tokens(h, got, path, tokens);
    bool plain = zreader_plain(z);
    zreader_close(z);
    if (rc || !plain || !strcmp(path, "-")) /* the others' length is known at their end */
        return rc;
    if (stat(path, &st))
        return err_sys("cannot open '%s'", path);
    return S_ISREG(st.st_mode) ? check_size(path, st.st_size, *tokens) : 0;
}

/* What the MANIFEST says of the shard's documents and frames; at most once for a shard. */
static int take_facts(struct corpus_shard *p, const struct manifest_shard *s)
{
    p->documents = s->documents;
    return !s->frames || (p->frames = strdup(s->frames)) ? 0 : err_memory();
}

static int add_shard(struct corpus *c, const char *path, int64_t tokens, const char *hash)
{
    struct corpus_shard *p;

    if (grow_one(&c->shard, c->n, sizeof *p))
        return GPT_SYSTEM;
    p = &c->shard[c->n];
    if (!(p->path = strdup(path)))
        return err_memory();
    p->name = strrchr(p->path, '/') ? strrchr(p->path, '/') + 1 : p->path;
    p->tokens = tokens;
    p->documents = -1;
    p->frames = NULL;
    snprintf(p->hash, sizeof p->hash, "%s", hash);
    c->n++;
    return 0;
}

static void id_add(struct xxh *x, const char *name, int64_t tokens, const char *hash)
{
    char line[1024];
    int n = snprintf(line, sizeof line, "%s %lld %s\n", name, (long long)tokens, hash);

    xxh_add(x, line, (size_t)n < sizeof line ? (size_t)n : sizeof line - 1);
}

int corpus_check_shard(const char *path, const struct manifest_shard *s)
{
    struct stat st;
    int64_t tokens;
    int rc;

    if (stat(path, &st))
        return errno != ENOENT
                   ? err_sys("cannot open '%s'", path)
                   : err_set(GPT_INPUT, "%s: in the MANIFEST, but there is no such file", path);
    if ((int64_t)st.st_size != s->bytes)
        return err_set(GPT_INPUT, "%s: %s: expected %lld bytes as the MANIFEST says, found %lld",
                       path, st.st_size < s->bytes ? "truncated" : "changed", (long long)s->bytes,
                       (long long)st.st_size);
    if ((rc = shard_check_header(path, &tokens)))
        return rc;
    if (tokens != s->tokens)
        return err_set(GPT_INPUT,
                       "%s: offset 8: expected %lld tokens as the MANIFEST says, found "
                       "%lld",
                       path, (long long)s->tokens, (long long)tokens);
    return 0;
}

static void take_tokenizer(struct corpus *c, const struct manifest *m)
{
    c->bos = (int)m->bos;
    c->vocab_size = (int)m->vocab_size;
    snprintf(c->tokenizer, sizeof c->tokenizer, "%s %s", m->tokenizer, m->vocabulary);
}

static int open_folder(struct corpus *c, const char *dir, enum split split, struct xxh *x)
{
    struct manifest m;
    char *path = path_join(dir, "MANIFEST");
    struct stat st;
    int rc;

    if (!path)
        return err_memory();
    if (stat(path, &st) && errno == ENOENT)
        rc = err_set(GPT_INPUT,
                     "%s: expected a MANIFEST, found none: the shards are not complete, "
                     "or not gpt-tokshard's (then name them: '%s/*.bin')",
                     dir, dir);
    else
        rc = manifest_read(&m, path);
    free(path);
    if (rc)
        return rc;
    take_tokenizer(c, &m);
    for (int i = 0; i < m.n && !rc; i++) {
        const struct manifest_shard *s = &m.shard[i];

        if ((s->split == SPLIT_TRAIN) != (split == SPLIT_TRAIN))
            continue;
        if (!(path = path_join(dir, s->name)))
            rc = err_memory();
        else if (!(rc = corpus_check_shard(path, s)) &&
                 !(rc = add_shard(c, path, s->tokens, s->hash)) &&
                 !(rc = take_facts(&c->shard[c->n - 1], s)))
            id_add(x, s->name, s->tokens, s->hash);
        free(path);
    }
    manifest_release(&m);
    return rc;
}

static const char *base_name(const char *path)
{
    return strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
}

static int add_files(struct corpus *c, char **path, size_t n, enum split split, struct xxh *x)
{
    bool named = false;
    int rc = 0;

    for (size_t i = 0; i < n; i++)
        named |= strstr(base_name(path[i]), "_val_") || strstr(base_name(path[i]), "_train_");
    for (size_t i = 0; i < n && !rc; i++) {
        const char *name = base_name(path[i]);
        bool val = named ? strstr(name, "_val_") != NULL : n > 1 && i == 0;
        bool train = named ? strstr(name, "_train_") != NULL : !val;
        int64_t tokens;

        if (split == SPLIT_VAL ? !val : split == SPLIT_TRAIN && !train)
            continue;
        if (!(rc = shard_check_header(path[i], &tokens)) &&
            !(rc = add_shard(c, path[i], tokens, "")))
            id_add(x, name, tokens, "-");
    }
    return rc;
}

/* The shard of c that a line of the MANIFEST in the folder of its first shard means, or NULL. */
static struct corpus_shard *named_in(struct corpus *c, const struct manifest_shard *s)
{
    size_t folder = (size_t)(c->shard[0].name - c->shard[0].path);

    for (int i = 0; i < c->n; i++)
        if ((size_t)(c->shard[i].name - c->shard[i].path) == folder &&
            !memcmp(c->shard[i].path, c->shard[0].path, folder) &&
            !strcmp(c->shard[i].name, s->name))
            return &c->shard[i];
    return NULL;
}

/* Files that are named may still stand beside the MANIFEST that names them too:
 * then it says which tokens they hold, and their hashes. */
static int look_beside(struct corpus *c)
{
    const struct corpus_shard *first = &c->shard[0];
    struct manifest m;
    char *path;
    int rc = 0;

    if (asprintf(&path, "%.*sMANIFEST", (int)(first->name - first->path), first->path) < 0)
        return err_memory();
    if (!access(path, R_OK) && !(rc = manifest_read(&m, path))) {
        for (int i = 0; i < m.n && !rc; i++) {
            struct corpus_shard *p = named_in(c, &m.shard[i]);

            if (p == first)
                take_tokenizer(c, &m);
            if (p && p->tokens == m.shard[i].tokens && !p->frames)
                rc = take_facts(p, &m.shard[i]);
        }
        manifest_release(&m);
    }
    free(path);
    return rc;
}

static int open_pattern(struct corpus *c, const char *pattern, enum split split, struct xxh *x)
{
    glob_t g;
    int rc, e = glob(pattern, GLOB_TILDE, NULL, &g);

    if (e == GLOB_NOMATCH)
        return err_set(GPT_SYSTEM, "cannot open '%s': No such file or directory", pattern);
    if (e)
        return err_set(GPT_SYSTEM, "cannot list '%s'", pattern);
    rc = add_files(c, g.gl_pathv, g.gl_pathc, split, x);
    globfree(&g);
    return rc;
}

int corpus_open(struct corpus *c, const char *data, enum split split)
{
    struct stat st;
    struct xxh x;
    int rc;

    memset(c, 0, sizeof *c);
    c->bos = CORPUS_BOS;
    if ((rc = xxh_init(&x)))
        return rc;
    if (!stat(data, &st) && S_ISDIR(st.st_mode)) {
        rc = open_folder(c, data, split, &x);
    } else {
        rc = stat(data, &st) ? open_pattern(c, data, split, &x)
                             : add_files(c, (char **)&data, 1, split, &x);
        if (!rc && c->n)
            rc = look_beside(c);
    }
    bool none = !rc && !c->n;
    if (none)
        rc = split != SPLIT_TRAIN
                 ? err_set(GPT_INPUT,
                           "%s: expected a validation shard, found none: make the shards with "
                           "gpt-tokshard --val-tokens N, or train without validation: "
                           "-s data.val_tokens=0",
                           data)
                 : err_set(GPT_INPUT,
                           "%s: expected a training shard, found none: make the shards of more "
                           "text, or with less of it for validation",
                           data);
    xxh_hex(&x, c->id);
    xxh_release(&x);
    if (rc)
        corpus_release(c);
    c->none = none;
    return rc;
}

void corpus_release(struct corpus *c)
{
    for (int i = 0; i < c->n; i++) {
        free(c->shard[i].path);
        free(c->shard[i].frames);
    }
    free(c->shard);
    memset(c, 0, sizeof *c);
}

int corpus_check_vocab(const struct corpus *c, const char *data, int vocab, int bos)
{
    if (c->vocab_size > vocab)
        return err_set(GPT_INPUT,
                       "%s: expected tokens for a model of %d ids, found a vocabulary of %d", data,
                       vocab, c->vocab_size);
    if (bos >= vocab)
        return err_set(GPT_INPUT,
                       "%s: expected a document start below the model's %d ids, found %d", data,
                       vocab, bos);
    return 0;
}
