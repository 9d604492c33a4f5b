/* shard_describe.c - see shard_describe.h. */
#include "tokenize/shard_describe.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "base/file.h"
#include "base/grow.h"
#include "base/hash.h"
#include "base/text.h"
#include "base/version.h"
#include "data/corpus.h"
#include "data/shard_read.h"
#include "tokenize/unicode.h"
#include "tokenize/vocab.h"

enum { GPT2_IDS = 50257 };

struct names {
    char **v;
    int n;
};

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int list(const char *dir, struct names *names)
{
    DIR *d = opendir(dir);
    int rc = 0;
    if (!d)
        return err_sys("cannot open '%s'", dir);
    for (struct dirent *e; !rc && (e = readdir(d));) {
        if (*e->d_name == '.' ||
            !(text_ends(e->d_name, ".bin") || text_ends(e->d_name, ".bin.zst")))
            continue;
        if ((rc = grow_one(&names->v, names->n, sizeof *names->v)))
            break;
        if (!(names->v[names->n] = strdup(e->d_name)))
            rc = err_memory();
        else
            names->n++;
    }
    closedir(d);
    if (!rc && !names->n)
        rc = err_set(GPT_INPUT, "%s: expected shards, NAME.bin or NAME.bin.zst, found none", dir);
    qsort(names->v, (size_t)names->n, sizeof *names->v, by_name);
    return rc;
}

/* The hashes of each mebibyte of tokens, with blanks between; NULL: out of memory. */
static char *hash_frames(const char *tokens, size_t n)
{
    size_t frames = (n + SHARD_FRAME_BYTES - 1) / SHARD_FRAME_BYTES;
    char *text = malloc(frames * FRAME_HASH_CHARS + 1);
    for (size_t i = 0; text && i < frames; i++) {
        size_t at = i * SHARD_FRAME_BYTES, left = n - at;
        char *to = text + i * FRAME_HASH_CHARS;
        xxh_hex_of(tokens + at, left < SHARD_FRAME_BYTES ? left : SHARD_FRAME_BYTES, to);
        to[FRAME_HASH_CHARS - 1] = i + 1 < frames ? ' ' : '\0';
    }
    return text;
}

static int add_shard(struct manifest *m, const char *path, char *name, enum split split)
{
    struct shard_want want = { .vocab = (int)m->vocab_size, .bos = (int)m->bos };
    struct shard *f;
    struct stat st;
    int64_t tokens;
    int rc = shard_check_header(path, &tokens);
    if (rc || (rc = shard_open(&f, path, &want)))
        return rc;
    if (!(rc = shard_wait(f, shard_size(f)))) {
        size_t n = 2 * (size_t)tokens;
        const char *bytes = shard_bytes(f);
        struct manifest_shard s = { .split = split,
                                    .name = name,
                                    .tokens = tokens,
                                    .documents = shard_documents(f),
                                    .frames = hash_frames(bytes + SHARD_HEADER_BYTES, n) };
        xxh_hex_of(bytes, SHARD_HEADER_BYTES + n, s.hash);
        if (!s.frames)
            rc = err_memory();
        else if (stat(path, &st))
            rc = err_sys("cannot read '%s'", path);
        s.bytes = st.st_size;
        if (!rc)
            rc = manifest_add(m, &s);
        m->tokens += s.tokens;
        m->documents += s.documents;
        free(s.frames);
    }
    shard_close(f);
    return rc;
}

static int begin(struct manifest *m, const char *arguments, const struct vocab *v)
{
    char tool[128];
    memset(m, 0, sizeof *m);
    m->tool = strdup(version_tool("gpt-tokshard", tool, sizeof tool));
    m->arguments = strdup(arguments);
    m->tokenizer = strdup(v ? v->name : "gpt2");
    m->vocabulary = strdup(v ? v->sha256 : GPT2_SHA256);
    m->unicode = strdup(unicode_version);
    m->settings = strdup("made by another program");
    m->vocab_size = v ? v->size : GPT2_IDS;
    m->bos = v ? v->bos : GPT2_IDS - 1;
    return m->tool && m->arguments && m->tokenizer && m->vocabulary && m->unicode && m->settings
               ? 0
               : err_memory();
}

int shard_describe(struct manifest *m, const char *dir, const char *arguments,
                   const struct vocab *v, int *left_out)
{
    struct names names = { 0 };
    int count[4] = { 0 }, rc = begin(m, arguments, v);
    if (!rc)
        rc = list(dir, &names);
    for (int i = 0; i < names.n; i++)
        count[corpus_role(names.v[i])]++;
    enum corpus_role val = count[ROLE_VAL] ? ROLE_VAL : ROLE_TEST;
    *left_out = val == ROLE_VAL ? count[ROLE_TEST] : 0;
    for (int first = 1; first >= 0; first--) /* validation first */
        for (int i = 0; i < names.n && !rc; i++) {
            enum corpus_role role = corpus_role(names.v[i]);
            if ((role == val) != first || (role == ROLE_TEST && role != val))
                continue;
            char *path = path_join(dir, names.v[i]);
            rc = path ? add_shard(m, path, names.v[i], first ? SPLIT_VAL : SPLIT_TRAIN)
                      : err_memory();
            free(path);
        }
    for (int i = 0; i < names.n; i++)
        free(names.v[i]);
    free(names.v);
    return rc;
}
