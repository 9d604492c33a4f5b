/* vocab.c - loading a vocabulary, naming it, finding it. */
#include "tokenize/vocab.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/file.h"
#include "base/hash.h"

static size_t base64_encode(const uint8_t *s, size_t n, char *out)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char *o = out;

    for (size_t i = 0; i < n; i += 3) {
        uint32_t x = (uint32_t)s[i] << 16 | (i + 1 < n ? (uint32_t)s[i + 1] << 8 : 0) |
                     (i + 2 < n ? s[i + 2] : 0);

        *o++ = digit[x >> 18];
        *o++ = digit[x >> 12 & 63];
        *o++ = i + 1 < n ? digit[x >> 6 & 63] : '=';
        *o++ = i + 2 < n ? digit[x & 63] : '=';
    }
    return (size_t)(o - out);
}

/* The name of a vocabulary is the hash of its canonical rank file, with ids in place of ranks, and
 * behind it the document start where that is not the next. */
static void set_name(struct vocab *v)
{
    struct sha256 h;
    char start[16];

    sha256_init(&h);
    for (int rank = 0; rank < v->tokens; rank++) {
        char line[2 * TOKEN_MAX_BYTES + 16];
        size_t n;
        const uint8_t *s = vocab_token(v, rank, &n);

        n = base64_encode(s, n, line);
        n += (size_t)sprintf(line + n, " %d\n", (int)vocab_id(v, (uint32_t)rank));
        sha256_add(&h, line, n);
    }
    if (v->bos != v->tokens)
        sha256_add(&h, start, (size_t)sprintf(start, "%d\n", v->bos));
    sha256_hex(&h, v->sha256);
    v->name = !strcmp(v->sha256, GPT2_SHA256) ? "gpt2" : "other";
}

int vocab_load(struct vocab **out, const char *path)
{
    struct vocab *v = calloc(1, sizeof *v);
    char *text = NULL;
    size_t n;
    int rc;

    *out = NULL;
    if (!v)
        return err_memory();
    if ((rc = file_read_text(path, 256u << 20, &text, &n)) || (rc = vocab_parse(v, path, text, n)))
        goto fail;
    if (v->tokens < 256) {
        rc = err_set(GPT_INPUT, "%s: expected at least 256 tokens, found %d", path, v->tokens);
        goto fail;
    }
    if ((rc = vocab_make_tables(v, path)))
        goto fail;
    free(v->left_bytes);
    v->left_bytes = NULL;
    if (!v->size) { /* the form does not say */
        v->bos = v->tokens;
        v->size = v->tokens + 1;
    }
    set_name(v);
    free(text);
    *out = v;
    return 0;
fail:
    free(text);
    vocab_free(v);
    return rc;
}

int vocab_bytes(struct vocab **out)
{
    struct vocab *v = calloc(1, sizeof *v);

    *out = NULL;
    if (!v || !(v->begin = malloc(257 * sizeof *v->begin)) || !(v->bytes = malloc(256))) {
        vocab_free(v);
        return err_memory();
    }
    for (uint32_t i = 0; i < 256; i++) {
        v->begin[i] = i;
        v->bytes[i] = (uint8_t)i;
    }
    v->begin[256] = 256;
    v->tokens = v->bos = 256;
    v->size = 257;
    set_name(v);
    v->name = "bytes";
    *out = v;
    return 0;
}

void vocab_free(struct vocab *v)
{
    if (!v)
        return;
    free(v->id);
    free(v->rank);
    free(v->left_bytes);
    free(v->begin);
    free(v->bytes);
    free(v->length);
    free(v->split);
    free(v->shorter);
    free(v->pair);
    free(v->maybe);
    free(v->trie);
    free(v->trie_token);
    free(v->two);
    free(v);
}

static char *beside_program(const char *rest)
{
    char exe[4096], *p = NULL;
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);

    if (n <= 0)
        return NULL;
    exe[n] = 0;
    if (strrchr(exe, '/'))
        *strrchr(exe, '/') = 0;
    return asprintf(&p, "%s/%s", exe, rest) < 0 ? NULL : p;
}

static char *in_data_home(const char *rest)
{
    const char *xdg = getenv("XDG_DATA_HOME"), *home = getenv("HOME");
    char *p = NULL;
    int n = xdg && *xdg     ? asprintf(&p, "%s/%s", xdg, rest)
            : home && *home ? asprintf(&p, "%s/.local/share/%s", home, rest)
                            : -1;

    return n < 0 ? NULL : p;
}

int vocab_find(char **path)
{
    const char *env = getenv("GPT_VOCAB");
    char *place[3], tried[3 * 4200] = "";

    *path = NULL;
    if (env && *env) /* the user's choice: no other place is searched */
        return (*path = strdup(env)) ? 0 : err_memory();
    place[0] = beside_program("../vocab/gpt2.tiktoken");
    place[1] = beside_program("../share/gpt-tools/gpt2.tiktoken");
    place[2] = in_data_home("gpt-tools/gpt2.tiktoken");
    for (int i = 0; i < 3; i++) {
        if (place[i] && !*path && !access(place[i], R_OK)) {
            *path = place[i];
            continue;
        }
        if (place[i] && strlen(tried) + strlen(place[i]) + 16 < sizeof tried)
            sprintf(tried + strlen(tried), "%s%s", *tried ? ", " : "", place[i]);
        free(place[i]);
    }
    if (*path)
        return 0;
    return err_set(GPT_INPUT,
                   "no GPT-2 vocabulary: looked for %s; fetch it with 'make vocab' or "
                   "share/get-vocab, name one with --vocab FILE or GPT_VOCAB, or use --tokenizer "
                   "byte",
                   tried);
}
