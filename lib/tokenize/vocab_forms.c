/* vocab_forms.c - the three forms that GPT-2's vocabulary is handed around in.
 *
 * tiktoken rank file    "base64-of-bytes rank" a line
 * vocab.bpe, merges.txt "#version..." then "left right" a line, in the printable
 *                       alphabet that GPT-2 maps bytes to; line k makes 256+k
 * tokenizer.json        vocab_json.c
 */
#include "tokenize/vocab_forms.h"

#include <stdlib.h>
#include <string.h>
#include "tokenize/unicode.h"

/* --- the vocabulary as it grows --- */

int vocab_reserve(struct vocab *v, int tokens, size_t bytes)
{
    v->begin = calloc((size_t)tokens + 1, sizeof *v->begin);
    v->bytes = malloc(bytes + 1);
    v->left_bytes = calloc((size_t)tokens, 1);
    return v->begin && v->bytes && v->left_bytes ? 0 : err_memory();
}

int vocab_line(const struct vocab_text *t)
{
    int line = 1;

    for (const char *p = t->begin; p < t->at; p++)
        line += *p == '\n';
    return line;
}

int vocab_too_long(const struct vocab_text *t, int id, size_t n)
{
    return err_set(GPT_INPUT, "%s: token %d: expected 1 to %d bytes, found %zu", t->path, id,
                   TOKEN_MAX_BYTES, n);
}

int vocab_too_many(const struct vocab_text *t)
{
    return err_set(GPT_INPUT,
                   "%s: line %d: expected at most 65,535 tokens, which is what "
                   "uint16 shards can hold, found more",
                   t->path, vocab_line(t));
}

/* --- GPT-2's printable alphabet --- */

static bool printable(int b)
{
    return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
}

/* Byte of token id < 256: printable bytes first, then the other 68. */
static void byte_order(uint8_t order[256])
{
    int n = 0;

    for (int b = 0; b < 256; b++)
        if (printable(b))
            order[n++] = (uint8_t)b;
    for (int b = 0; b < 256; b++)
        if (!printable(b))
            order[n++] = (uint8_t)b;
}

/* Undoes the alphabet; returns the bytes written (out needs n), or -1. */
int vocab_unmap(const char *s, size_t n, uint8_t *out)
{
    uint8_t order[256];
    int m = 0;

    byte_order(order);
    while (n > 0) {
        uint32_t c;
        int k = utf8_decode((const unsigned char *)s, n, &c);

        if (!k || (c >= 0x100 + 68) || (c < 0x100 && !printable((int)c)))
            return -1;
        out[m++] = c < 0x100 ? (uint8_t)c : order[188 + c - 0x100];
        s += k;
        n -= (size_t)k;
    }
    return m;
}

void vocab_put_bytes(struct vocab *v)
{
    byte_order(v->bytes);
    for (uint32_t i = 0; i <= 256; i++)
        v->begin[i] = i;
    v->tokens = 256;
}

/* Appends the merge of two mapped strings as the next token. */
int vocab_put_merge(struct vocab *v, const struct vocab_text *t, const char *a, size_t na,
                    const char *b, size_t nb)
{
    uint8_t *out = v->bytes + v->begin[v->tokens];
    int m = 0, k = 0;

    if (v->tokens == TOKEN_NONE)
        return vocab_too_many(t);
    if ((m = vocab_unmap(a, na, out)) < 0 || (k = vocab_unmap(b, nb, out + m)) < 0)
        return err_set(GPT_INPUT,
                       "%s: line %d: expected characters of GPT-2's byte alphabet, "
                       "found '%.*s %.*s'",
                       t->path, vocab_line(t), (int)na, a, (int)nb, b);
    if (m < 1 || k < 1 || m + k > TOKEN_MAX_BYTES)
        return vocab_too_long(t, v->tokens, (size_t)(m + k));
    v->begin[v->tokens + 1] = v->begin[v->tokens] + (uint32_t)(m + k);
    v->left_bytes[v->tokens++] = (uint8_t)m;
    return 0;
}

/* --- rank file --- */

static int base64_value(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Decodes n characters; returns the bytes, or -1. out needs n. */
static int base64_decode(const char *s, size_t n, uint8_t *out)
{
    int m = 0;
    uint32_t acc = 0;

    if (n == 0 || n % 4)
        return -1;
    for (size_t i = 0; i < n; i++) {
        int x = base64_value(s[i]), pad = s[i] == '=' && i + 2 >= n;

        if (x < 0 && !(pad && (i + 1 == n || s[n - 1] == '=')))
            return -1;
        acc = acc << 6 | (uint32_t)(x < 0 ? 0 : x);
        if (i % 4 == 3) {
            out[m++] = (uint8_t)(acc >> 16);
            out[m++] = (uint8_t)(acc >> 8);
            out[m++] = (uint8_t)acc;
        }
    }
    return m - (s[n - 1] == '=') - (s[n - 2] == '=');
}

static int parse_ranks(struct vocab *v, struct vocab_text *t)
{
    int rc;

    if ((rc = vocab_reserve(v, TOKEN_NONE, (size_t)(t->end - t->at))))
        return rc;
    while (t->at < t->end) {
        const char *eol = memchr(t->at, '\n', (size_t)(t->end - t->at));
        const char *space, *p;
        long rank = 0;
        int m;

        if (!eol)
            eol = t->end;
        space = memchr(t->at, ' ', (size_t)(eol - t->at));
        for (p = space ? space + 1 : eol; p < eol && *p >= '0' && *p <= '9' && rank < 1000000; p++)
            rank = rank * 10 + (*p - '0');
        if (!space || p == space + 1 || p < eol)
            return err_set(GPT_INPUT, "%s: line %d: expected 'base64 rank', found '%.*s'", t->path,
                           vocab_line(t), (int)(eol - t->at < 80 ? eol - t->at : 80), t->at);
        if (v->tokens == TOKEN_NONE)
            return vocab_too_many(t);
        if (rank != v->tokens)
            return err_set(GPT_INPUT, "%s: line %d: expected rank %d, found %ld", t->path,
                           vocab_line(t), v->tokens, rank);
        m = base64_decode(t->at, (size_t)(space - t->at), v->bytes + v->begin[v->tokens]);
        if (m < 0)
            return err_set(GPT_INPUT, "%s: line %d: expected base64, found '%.*s'", t->path,
                           vocab_line(t), (int)(space - t->at < 80 ? space - t->at : 80), t->at);
        if (m < 1 || m > TOKEN_MAX_BYTES)
            return vocab_too_long(t, v->tokens, (size_t)m);
        v->begin[v->tokens + 1] = v->begin[v->tokens] + (uint32_t)m;
        v->tokens++;
        t->at = eol < t->end ? eol + 1 : eol;
    }
    return 0;
}

/* --- merges --- */

static int parse_merges(struct vocab *v, struct vocab_text *t)
{
    int rc;

    /* A character of the alphabet is at least a byte, so a line's token fits its line. */
    if ((rc = vocab_reserve(v, TOKEN_NONE, 256 + (size_t)(t->end - t->at))))
        return rc;
    vocab_put_bytes(v);
    while (t->at < t->end) {
        const char *eol = memchr(t->at, '\n', (size_t)(t->end - t->at));
        const char *end = eol ? eol : t->end, *space;

        space = memchr(t->at, ' ', (size_t)(end - t->at));
        if (t->at == t->begin && end - t->at > 8 && !memcmp(t->at, "#version", 8))
            ;
        else if (end == t->at && end + 1 >= t->end)
            ; /* a blank last line */
        else if (!space)
            return err_set(GPT_INPUT, "%s: line %d: expected 'left right', found '%.*s'", t->path,
                           vocab_line(t), (int)(end - t->at < 80 ? end - t->at : 80), t->at);
        else if ((rc = vocab_put_merge(v, t, t->at, (size_t)(space - t->at), space + 1,
                                       (size_t)(end - space - 1))))
            return rc;
        t->at = end < t->end ? end + 1 : end;
    }
    return 0;
}

int vocab_parse(struct vocab *v, const char *path, const char *text, size_t n)
{
    struct vocab_text t = { path, text, text, text + n };
    const char *eol = memchr(text, '\n', n);
    const char *space = memchr(text, ' ', eol ? (size_t)(eol - text) : n);

    if (n && *text == '{')
        return vocab_parse_json(v, &t);
    if (n > 8 && !memcmp(text, "#version", 8))
        return parse_merges(v, &t);
    if (!space)
        return err_set(GPT_INPUT,
                       "%s: line 1: expected a tiktoken rank file ('base64 rank'), "
                       "vocab.bpe ('#version: 0.2') or tokenizer.json, found '%.*s'",
                       path, (int)(n < 40 ? n : 40), text);
    return space[1] >= '0' && space[1] <= '9' && base64_value(*text) >= 0 ? parse_ranks(v, &t)
                                                                          : parse_merges(v, &t);
}
