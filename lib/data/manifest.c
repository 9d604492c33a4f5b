/* manifest.c - see manifest.h. */
#include "data/manifest.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"

#define FORMAT "gpt-shards 1"

const char *split_name(enum split s)
{
    return s == SPLIT_VAL ? "val" : "train";
}

static int no_memory(void)
{
    return err_set(GPT_SYSTEM, "out of memory for the manifest");
}

/* The text keys, in the order of the file. */
struct text_key { const char *name; size_t offset; };
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
    struct manifest_shard *p;

    /* Grows by doubling: a power of two is full. */
    if (!(m->n & (m->n - 1))) {
        p = realloc(m->shard, (m->n ? 2 * (size_t)m->n : 1) * sizeof *p);
        if (!p)
            return no_memory();
        m->shard = p;
    }
    m->shard[m->n] = *s;
    if (!(m->shard[m->n].name = strdup(s->name)))
        return no_memory();
    m->n++;
    return 0;
}

int manifest_shard_line(const struct manifest_shard *s, char *buf, size_t room)
{
    return snprintf(buf, room, "shard: %s %s %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 ":%" PRId64
                    " %s", split_name(s->split), s->name, s->bytes, s->tokens, s->documents,
                    s->from_document, s->from_token, s->hash);
}

int manifest_parse_shard(struct manifest *m, const char *line)
{
    char split[8], name[512], hash[33], rest;
    struct manifest_shard s = { .name = name };

    if (sscanf(line, "shard: %7s %511s %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 ":%" SCNd64
               " %32s%c", split, name, &s.bytes, &s.tokens, &s.documents, &s.from_document,
               &s.from_token, hash, &rest) != 8
        || (strcmp(split, "train") && strcmp(split, "val")) || strchr(name, '/')
        || s.bytes < 0 || s.tokens < 0 || s.tokens > INT32_MAX || s.documents < 0
        || s.from_document < 0 || s.from_token < 0 || strspn(hash, "0123456789abcdef") != 32)
        return err_set(GPT_INPUT, "expected 'shard: train|val NAME BYTES TOKENS DOCUMENTS "
                       "DOCUMENT:TOKEN HASH', found '%s'", line);
    s.split = strcmp(split, "val") ? SPLIT_TRAIN : SPLIT_VAL;
    memcpy(s.hash, hash, 33);
    return manifest_add(m, &s);
}

static int parse_line(struct manifest *m, const char *line)
{
    const char *value = strstr(line, ": ");
    size_t n = value ? (size_t)(value - line) : 0;

    if (!value)
        return err_set(GPT_INPUT, "expected 'key: value', found '%s'", line);
    value += 2;
    if (n == 5 && !memcmp(line, "shard", 5))
        return manifest_parse_shard(m, line);
    for (size_t i = 0; i < COUNT(text_keys); i++)
        if (n == strlen(text_keys[i].name) && !memcmp(line, text_keys[i].name, n)) {
            char **p = text_of(m, &text_keys[i]);

            free(*p);
            return (*p = strdup(value)) ? 0 : no_memory();
        }
    for (size_t i = 0; i < COUNT(number_keys); i++)
        if (n == strlen(number_keys[i].name) && !memcmp(line, number_keys[i].name, n)) {
            char *end;
            int64_t x = strtoll(value, &end, 10);

            if (end == value || *end || x < 0)
                return err_set(GPT_INPUT, "expected a number, found '%s'", value);
            *number_of(m, &number_keys[i]) = x;
            return 0;
        }
    return 0;      /* a key of a later version */
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
        return err_set(GPT_INPUT, "expected the hash %.32s of the lines above, found %s: changed "
                       "since it was written", text + n - 33, hash);
    return 0;
}

int manifest_read(struct manifest *m, const char *path)
{
    char *text, *line, *next;
    size_t n;
    int rc, number = 0;

    memset(m, 0, sizeof *m);
    if ((rc = file_read(path, 256u << 20, &text, &n)))
        return rc;
    if (strncmp(text, "format: " FORMAT "\n", strlen("format: " FORMAT "\n"))) {
        free(text);
        return err_set(GPT_INPUT, "%s: line 1: expected 'format: " FORMAT "'", path);
    }
    if ((rc = check_hash(text, n))) {
        rc = err_prefix("%s", path);
        goto out;
    }
    for (line = text; *line; line = next) {
        char *eol = strchr(line, '\n');

        number++;
        next = eol ? eol + 1 : line + strlen(line);
        if (eol)
            *eol = 0;
        if (*line && *line != '#' && (rc = parse_line(m, line))) {
            rc = err_prefix("%s: line %d", path, number);
            goto out;
        }
    }
    if ((rc = check(m)))
        rc = err_prefix("%s", path);
out:
    free(text);
    if (rc)
        manifest_release(m);
    return rc;
}

int manifest_text(const struct manifest *m, char **text)
{
    size_t n = 0, body;
    FILE *f = open_memstream(text, &n);
    char hash[33], line[1024];

    if (!f)
        return no_memory();
    fprintf(f, "format: " FORMAT "\n");
    for (size_t i = 0; i < COUNT(text_keys); i++)
        fprintf(f, "%s: %s\n", text_keys[i].name, *text_of(m, &text_keys[i]));
    for (size_t i = 0; i < COUNT(number_keys); i++)
        fprintf(f, "%s: %" PRId64 "\n", number_keys[i].name, *number_of(m, &number_keys[i]));
    fprintf(f, "# shard: split file bytes tokens documents first-document:token xxh3-128\n");
    for (int i = 0; i < m->n; i++) {
        manifest_shard_line(&m->shard[i], line, sizeof line);
        fprintf(f, "%s\n", line);
    }
    if (fflush(f)) {
        fclose(f);
        free(*text);
        return no_memory();
    }
    body = n;
    xxh_hex_of(*text, body, hash);
    fprintf(f, "manifest: %s\n", hash);
    if (fclose(f)) {
        free(*text);
        return no_memory();
    }
    return 0;
}

void manifest_release(struct manifest *m)
{
    for (size_t i = 0; i < COUNT(text_keys); i++)
        free(*text_of(m, &text_keys[i]));
    for (int i = 0; i < m->n; i++)
        free(m->shard[i].name);
    free(m->shard);
    memset(m, 0, sizeof *m);
}
