/* manifest.c - see manifest.h. */
#include "data/manifest.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define XXH_INLINE_ALL
#include <xxhash.h>
#include "base/file.h"
#include "base/grow.h"
#include "base/hash.h"
#include "base/le.h"
#include "base/text.h"
#include "data/shard_index.h"

#define FORMAT "gpt-shards 2"

const char *split_name(enum split s) { return s == SPLIT_VAL ? "val" : "train"; }

uint64_t input_hash(uint64_t before, uint64_t document_hash)
{
    unsigned char b[8];

    put_le32(put_le32(b, (uint32_t)document_hash), (uint32_t)(document_hash >> 32));
    return XXH64(b, sizeof b, before);
}

/* The text keys, in the order of the file. */
struct text_key {
    const char *name;
    size_t offset;
};
static const struct text_key text_keys[] = {
    { "tool", offsetof(struct manifest, tool) },
    { "arguments", offsetof(struct manifest, arguments) },
    { "tokenizer", offsetof(struct manifest, tokenizer) },
    { "vocabulary", offsetof(struct manifest, vocabulary) },
    { "unicode", offsetof(struct manifest, unicode) },
    { "settings", offsetof(struct manifest, settings) },
};
static const struct text_key number_keys[] = {
    { "vocab_size", offsetof(struct manifest, vocab_size) },
    { "bos", offsetof(struct manifest, bos) },
    { "documents", offsetof(struct manifest, documents) },
    { "tokens", offsetof(struct manifest, tokens) },
    { "invalid", offsetof(struct manifest, invalid) },
    { "skipped", offsetof(struct manifest, skipped) },
};
#define COUNT(a) (sizeof(a) / sizeof *(a))

static char **text_of(const struct manifest *m, const struct text_key *k)
{
    return (char **)((char *)m + k->offset);
}

static int64_t *number_of(const struct manifest *m, const struct text_key *k)
{
    return (int64_t *)((char *)m + k->offset);
}

int manifest_add(struct manifest *m, const struct manifest_shard *s)
{
    if (grow_one(&m->shard, m->n, sizeof *m->shard))
        return GPT_SYSTEM;
    m->shard[m->n] = *s;
    m->shard[m->n].name = strdup(s->name);
    m->shard[m->n].frames = s->frames ? strdup(s->frames) : NULL;
    m->n++; /* what is there is released, whether or not all is */
    return m->shard[m->n - 1].name && !s->frames == !m->shard[m->n - 1].frames ? 0 : err_memory();
}

static void put_shard(const struct manifest_shard *s, FILE *f)
{
    if (s->frames)
        fprintf(f, "frames: %s\n", s->frames);
    fprintf(f,
            "shard: %s %s %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 ":%" PRId64
            " %" PRId64 ":%" PRId64 " %016" PRIx64 " %s\n",
            split_name(s->split), s->name, s->bytes, s->tokens, s->documents, s->invalid,
            s->from.document, s->from.token, s->to.document, s->to.token, s->input, s->hash);
}

/* Checks that there are as many hashes as the shard has frames, in their places. */
static int check_frames(const char *frames, int64_t tokens)
{
    int64_t n = (2 * tokens + SHARD_FRAME_BYTES - 1) / SHARD_FRAME_BYTES;
    bool good = (int64_t)strlen(frames) == n * FRAME_HASH_CHARS - 1;

    for (int64_t i = 0; good && i < n; i++)
        good = strspn(frames + i * FRAME_HASH_CHARS, "0123456789abcdef") == 32;
    return good ? 0
                : err_set(GPT_INPUT,
                          "expected a line 'frames: ...' of %lld hashes before that of a shard of "
                          "%lld tokens, found another",
                          (long long)n, (long long)tokens);
}

static int parse_shard(struct manifest *m, const char *line)
{
    char split[8], name[512], hash[33], rest;
    struct manifest_shard s = { .name = name };

    if (sscanf(line,
               "shard: %7s %511s %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64
               ":%" SCNd64 " %" SCNd64 ":%" SCNd64 " %16" SCNx64 " %32s%c",
               split, name, &s.bytes, &s.tokens, &s.documents, &s.invalid, &s.from.document,
               &s.from.token, &s.to.document, &s.to.token, &s.input, hash, &rest) != 12 ||
        (strcmp(split, "train") && strcmp(split, "val")) || strchr(name, '/') || s.bytes < 0 ||
        s.tokens < 0 || s.tokens > INT32_MAX || s.documents < 0 || s.from.document < 0 ||
        s.from.token < 0 || strspn(hash, "0123456789abcdef") != 32)
        return err_set(GPT_INPUT,
                       "expected 'shard: train|val NAME BYTES TOKENS DOCUMENTS INVALID "
                       "FROM TO INPUT HASH', found '%s'",
                       line);
    s.split = strcmp(split, "val") ? SPLIT_TRAIN : SPLIT_VAL;
    memcpy(s.hash, hash, 33);
    s.frames = m->frames;
    int rc = s.frames ? check_frames(s.frames, s.tokens) : 0;
    if (!rc)
        rc = manifest_add(m, &s);
    free(m->frames);
    m->frames = NULL;
    return rc;
}

static int set_text(char **to, const char *value)
{
    free(*to);
    return (*to = strdup(value)) ? 0 : err_memory();
}

static int parse_line(struct manifest *m, const char *line)
{
    const char *value = strstr(line, ": ");
    size_t n = value ? (size_t)(value - line) : 0;

    if (!value)
        return err_set(GPT_INPUT, "expected 'key: value', found '%s'", line);
    value += 2;
    if (n == 5 && !memcmp(line, "shard", 5))
        return parse_shard(m, line);
    if (n == 6 && !memcmp(line, "frames", 6))
        return set_text(&m->frames, value);
    for (size_t i = 0; i < COUNT(text_keys); i++)
        if (n == strlen(text_keys[i].name) && !memcmp(line, text_keys[i].name, n))
            return set_text(text_of(m, &text_keys[i]), value);
    for (size_t i = 0; i < COUNT(number_keys); i++)
        if (n == strlen(number_keys[i].name) && !memcmp(line, number_keys[i].name, n)) {
            char *end;
            int64_t x = strtoll(value, &end, 10);

            if (end == value || *end || x < 0)
                return err_set(GPT_INPUT, "expected a number, found '%s'", value);
            *number_of(m, &number_keys[i]) = x;
            return 0;
        }
    return 0; /* a key of a later version */
}

static int check(const struct manifest *m)
{
    int64_t tokens = 0;

    for (size_t i = 0; i < COUNT(text_keys); i++)
        if (!*text_of(m, &text_keys[i]))
            return err_set(GPT_INPUT, "expected a line '%s: ...', found none", text_keys[i].name);
    if (m->vocab_size < 1 || m->vocab_size > 65536 || m->bos >= m->vocab_size)
        return err_set(GPT_INPUT, "expected bos < vocab_size <= 65536, found %lld and %lld",
                       (long long)m->bos, (long long)m->vocab_size);
    for (int i = 0; i < m->n; i++)
        tokens += m->shard[i].tokens;
    if (tokens != m->tokens)
        return err_set(GPT_INPUT, "expected shards of %lld tokens together, found %lld",
                       (long long)m->tokens, (long long)tokens);
    return 0;
}

/* The last line is the hash of everything before it. */
static int check_hash(const char *text, size_t n)
{
    static const char key[] = "manifest: ";
    size_t line = sizeof key - 1 + 32 + 1;
    char hash[33];

    if (n < line || memcmp(text + n - line, key, sizeof key - 1) || text[n - 1] != '\n')
        return err_set(GPT_INPUT, "expected 'manifest: HASH' as the last line: cut short?");
    xxh_hex_of(text, n - line, hash);
    if (memcmp(hash, text + n - 33, 32))
        return err_set(GPT_INPUT,
                       "expected the hash %.32s of the lines above, found %s: changed "
                       "since it was written",
                       text + n - 33, hash);
    return 0;
}

static int parse_text(struct manifest *m, char *text, const char *path)
{
    int rc, number = 0;

    for (char *line = text, *next; *line; line = next) {
        char *eol = strchr(line, '\n');

        number++;
        next = eol ? eol + 1 : line + strlen(line);
        if (eol)
            *eol = 0;
        if (*line && *line != '#' && (rc = parse_line(m, line)))
            return err_prefix("%s: line %d", path, number);
    }
    return 0;
}

static int read_text(const char *path, char **text, size_t *n)
{
    int rc = file_read_text(path, 256u << 20, text, n);

    if (rc || !strncmp(*text, "format: " FORMAT "\n", strlen("format: " FORMAT "\n")))
        return rc;
    bool older = !strncmp(*text, "format: gpt-shards 1\n", strlen("format: gpt-shards 1\n"));
    free(*text);
    return err_set(GPT_INPUT, "%s: line 1: expected 'format: " FORMAT "'%s", path,
                   older ? ", found version 1: make these shards again" : "");
}

int manifest_read(struct manifest *m, const char *path)
{
    char *text;
    size_t n;
    int rc;

    memset(m, 0, sizeof *m);
    if ((rc = read_text(path, &text, &n)))
        return rc;
    if ((rc = check_hash(text, n)))
        rc = err_prefix("%s", path);
    else if (!(rc = parse_text(m, text, path)) && (rc = check(m)))
        rc = err_prefix("%s", path);
    free(text);
    if (rc)
        manifest_release(m);
    return rc;
}

int manifest_read_in(struct manifest *m, const char *dir, const char *quote)
{
    char *path = path_join(dir, "MANIFEST");
    struct stat st;
    int rc;

    if (!path)
        return err_memory();
    if (stat(path, &st) && errno == ENOENT && !stat(dir, &st))
        rc = err_set(GPT_INPUT,
                     "%s: expected a MANIFEST, found none: the shards are not complete, or not "
                     "gpt-tokshard's (then name them: %s%s/*.bin%s)",
                     dir, quote, dir, quote);
    else
        rc = manifest_read(m, path);
    free(path);
    return rc;
}

static void put_text(const struct manifest *m, FILE *f)
{
    fprintf(f, "format: " FORMAT "\n");
    for (size_t i = 0; i < COUNT(text_keys); i++)
        fprintf(f, "%s: %s\n", text_keys[i].name, *text_of(m, &text_keys[i]));
    for (size_t i = 0; i < COUNT(number_keys); i++)
        fprintf(f, "%s: %" PRId64 "\n", number_keys[i].name, *number_of(m, &number_keys[i]));
    fprintf(f, "# shard: split file bytes tokens documents invalid from to input xxh3-128\n");
    for (int i = 0; i < m->n; i++)
        put_shard(&m->shard[i], f);
}

int manifest_text(const struct manifest *m, char **text)
{
    size_t n = 0;
    FILE *f = open_memstream(text, &n);
    char hash[33];

    if (!f)
        return err_memory();
    put_text(m, f);
    if (!fflush(f)) {
        xxh_hex_of(*text, n, hash);
        fprintf(f, "manifest: %s\n", hash);
    }
    if (!file_close(f)) {
        free(*text);
        return err_memory();
    }
    return 0;
}

void manifest_release(struct manifest *m)
{
    for (size_t i = 0; i < COUNT(text_keys); i++)
        free(*text_of(m, &text_keys[i]));
    for (int i = 0; i < m->n; i++) {
        free(m->shard[i].name);
        free(m->shard[i].frames);
    }
    free(m->shard);
    free(m->frames);
    memset(m, 0, sizeof *m);
}

/* --- what it does not name --- */

static bool is_shard_or_index(const char *name)
{
    return text_ends(name, ".bin") || text_ends(name, ".bin.zst") || text_ends(name, ".idx");
}

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Frees `names`, n of them. */
static void free_names(char **names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free(names[i]);
    free(names);
}

/* Names of m's shards and their indexes, sorted. */
static int known_names(const struct manifest *m, char ***names, size_t *n)
{
    *n = 0;
    if (!(*names = malloc(2 * (size_t)m->n * sizeof **names + 1)))
        return err_memory();
    for (int i = 0; i < m->n; i++) {
        const char *name = m->shard[i].name;

        if (!((*names)[*n] = strdup(name)) || !((*names)[++*n] = shard_index_path(name)))
            return err_memory();
        ++*n;
    }
    qsort(*names, *n, sizeof **names, by_bytes);
    return 0;
}

int manifest_strays(const struct manifest *m, const char *dir, char ***names, int *n)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    char **known;
    size_t n_known;
    int rc;

    *names = NULL;
    *n = 0;
    if (!d)
        return err_sys("cannot open '%s'", dir);
    rc = known_names(m, &known, &n_known);
    while (!rc && (e = readdir(d))) {
        const char *name = e->d_name;

        if (!is_shard_or_index(name) || bsearch(&name, known, n_known, sizeof *known, by_bytes))
            continue;
        if (!(rc = grow_one(names, *n, sizeof **names)) && !((*names)[(*n)++] = strdup(name)))
            rc = err_memory();
    }
    closedir(d);
    free_names(known, n_known);
    if (*n && !rc)
        qsort(*names, (size_t)*n, sizeof **names, by_bytes);
    return rc;
}
