/* vocab_forms.c - the three forms that GPT-2's vocabulary is handed around in.
 *
 * tiktoken rank file    "base64-of-bytes rank" a line
 * vocab.bpe, merges.txt "#version..." then "left right" a line, in the printable
 *                       alphabet that GPT-2 maps bytes to; line k makes 256+k
 * tokenizer.json        model.vocab {token: id} and model.merges, same alphabet
 */
#include "base/json.h"
#include "tokenize/vocab.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "tokenize/unicode.h"

struct text {
    const char *path, *at, *end;
    int line;
};

/* --- the vocabulary as it grows --- */

static int reserve(struct vocab *v, int tokens, size_t bytes)
{
    v->begin = calloc((size_t)tokens + 1, sizeof *v->begin);
    v->bytes = malloc(bytes + 1);
    if (!v->begin || !v->bytes)
        return err_memory();
    return 0;
}

static int too_long(const struct text *t, int id, size_t n)
{
    return err_set(GPT_INPUT, "%s: token %d: expected 1 to %d bytes, found %zu", t->path, id,
                   TOKEN_MAX_BYTES, n);
}

static int too_many(const struct text *t)
{
    return err_set(GPT_INPUT,
                   "%s: line %d: expected at most 65,535 tokens, which is what "
                   "uint16 shards can hold, found more",
                   t->path, t->line);
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
static int unmap(const char *s, size_t n, uint8_t *out)
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

static void put_single_bytes(struct vocab *v)
{
    byte_order(v->bytes);
    for (uint32_t i = 0; i <= 256; i++)
        v->begin[i] = i;
    v->tokens = 256;
}

/* Appends the merge of two mapped strings as the next token. */
static int put_merge(struct vocab *v, const struct text *t, const char *a, size_t na, const char *b,
                     size_t nb)
{
    uint8_t *out = v->bytes + v->begin[v->tokens];
    int m = 0, k = 0;

    if (v->tokens == TOKEN_NONE)
        return too_many(t);
    if ((m = unmap(a, na, out)) < 0 || (k = unmap(b, nb, out + m)) < 0)
        return err_set(GPT_INPUT,
                       "%s: line %d: expected characters of GPT-2's byte alphabet, "
                       "found '%.*s %.*s'",
                       t->path, t->line, (int)na, a, (int)nb, b);
    if (m < 1 || k < 1 || m + k > TOKEN_MAX_BYTES)
        return too_long(t, v->tokens, (size_t)(m + k));
    v->begin[v->tokens + 1] = v->begin[v->tokens] + (uint32_t)(m + k);
    v->tokens++;
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

static int parse_ranks(struct vocab *v, struct text *t)
{
    int rc;

    if ((rc = reserve(v, TOKEN_NONE, (size_t)(t->end - t->at))))
        return rc;
    for (t->line = 1; t->at < t->end; t->line++) {
        const char *eol = memchr(t->at, '\n', (size_t)(t->end - t->at));
        const char *space, *p;
        long rank = 0;
        int m;

        if (!eol)
            eol = t->end;
        space = memchr(t->at, ' ', (size_t)(eol - t->at));
        for (p = space ? space + 1 : eol; p < eol && *p >= '0' && *p <= '9' && rank < 1000000; p++)
            rank = rank * 10 + (*p - '0');
        if (p < eol && *p == '\r')
            p++;
        if (!space || p == space + 1 || p < eol)
            return err_set(GPT_INPUT, "%s: line %d: expected 'base64 rank', found '%.*s'", t->path,
                           t->line, (int)(eol - t->at < 80 ? eol - t->at : 80), t->at);
        if (v->tokens == TOKEN_NONE)
            return too_many(t);
        if (rank != v->tokens)
            return err_set(GPT_INPUT, "%s: line %d: expected rank %d, found %ld", t->path, t->line,
                           v->tokens, rank);
        m = base64_decode(t->at, (size_t)(space - t->at), v->bytes + v->begin[v->tokens]);
        if (m < 0)
            return err_set(GPT_INPUT, "%s: line %d: expected base64, found '%.*s'", t->path,
                           t->line, (int)(space - t->at < 80 ? space - t->at : 80), t->at);
        if (m < 1 || m > TOKEN_MAX_BYTES)
            return too_long(t, v->tokens, (size_t)m);
        v->begin[v->tokens + 1] = v->begin[v->tokens] + (uint32_t)m;
        v->tokens++;
        t->at = eol < t->end ? eol + 1 : eol;
    }
    return 0;
}

/* --- merges --- */

static int parse_merges(struct vocab *v, struct text *t)
{
    int rc;

    /* A character of the alphabet is at least a byte, so a line's token fits its line. */
    if ((rc = reserve(v, TOKEN_NONE, 256 + (size_t)(t->end - t->at))))
        return rc;
    put_single_bytes(v);
    for (t->line = 1; t->at < t->end; t->line++) {
        const char *eol = memchr(t->at, '\n', (size_t)(t->end - t->at));
        const char *end, *space;

        if (!eol)
            eol = t->end;
        end = eol > t->at && eol[-1] == '\r' ? eol - 1 : eol;
        space = memchr(t->at, ' ', (size_t)(end - t->at));
        if (t->line == 1 && end - t->at > 8 && !memcmp(t->at, "#version", 8))
            ;
        else if (end == t->at && eol + 1 >= t->end)
            ; /* a blank last line */
        else if (!space)
            return err_set(GPT_INPUT, "%s: line %d: expected 'left right', found '%.*s'", t->path,
                           t->line, (int)(end - t->at < 80 ? end - t->at : 80), t->at);
        else if ((rc = put_merge(v, t, t->at, (size_t)(space - t->at), space + 1,
                                 (size_t)(end - space - 1))))
            return rc;
        t->at = eol < t->end ? eol + 1 : eol;
    }
    return 0;
}

/* --- tokenizer.json --- */

static int json_line_of(const struct text *t, const struct json *j)
{
    int line = 1;

    for (const char *p = t->at; p < j->at; p++)
        line += *p == '\n';
    return line;
}

static int twice(const struct text *t, const struct json *j, const char *field)
{
    return err_set(GPT_INPUT, "%s: line %d: field '%s' comes twice", t->path, json_line_of(t, j),
                   field);
}

static int json_error(const struct text *t, const struct json *j)
{
    return err_set(GPT_INPUT, "%s: line %d: expected %s", t->path, json_line_of(t, j),
                   j->bad ? j->bad : "model.vocab and model.merges of a byte-level BPE");
}

/* One merge: "left right" or ["left", "right"]. */
static int json_merge(struct vocab *v, const struct text *t, struct json *j)
{
    struct json_string s[2];
    char buf[2][8 * TOKEN_MAX_BYTES];
    size_t n[2] = { 0, 0 };
    int k = 1;

    if (json_peek(j) == '[') {
        json_open(j, '[');
        for (k = 0; json_element(j) && k < 2 && json_string(j, &s[k]); k++)
            ;
    } else {
        json_string(j, &s[0]);
    }
    for (int i = 0; !j->bad && i < k; i++) {
        if (s[i].n > sizeof buf[i])
            return too_long(t, v->tokens, s[i].n);
        n[i] = json_unescape(&s[i], buf[i]);
    }
    if (!j->bad && k == 2)
        return put_merge(v, t, buf[0], n[0], buf[1], n[1]);
    if (!j->bad && k == 1) {
        const char *space = memchr(buf[0], ' ', n[0]);

        if (space)
            return put_merge(v, t, buf[0], (size_t)(space - buf[0]), space + 1,
                             n[0] - (size_t)(space - buf[0]) - 1);
    }
    return json_error(t, j);
}

/* Each {token: id}: the token with this id must have these bytes. Special
 * tokens lie after the merges. */
static int json_check_ids(struct vocab *v, const struct text *t, struct json *j)
{
    struct json_string key;
    char buf[8 * TOKEN_MAX_BYTES];
    uint8_t bytes[8 * TOKEN_MAX_BYTES];
    int seen = 0;

    json_open(j, '{');
    while (json_key(j, &key)) {
        uint64_t id;
        size_t n;
        const uint8_t *want;
        int m;

        if (!json_u64(j, &id))
            break;
        if (id >= (uint64_t)v->tokens)
            continue;
        if (key.n > sizeof buf)
            return too_long(t, (int)id, key.n);
        m = unmap(buf, json_unescape(&key, buf), bytes);
        want = vocab_token(v, (int)id, &n);
        if (m != (int)n || memcmp(want, bytes, n))
            return err_set(GPT_INPUT,
                           "%s: token '%.*s' has id %d: expected ids in the order of "
                           "merges",
                           t->path, (int)(key.n < 80 ? key.n : 80), key.s, (int)id);
        seen++;
    }
    if (!j->bad && seen != v->tokens)
        return err_set(GPT_INPUT, "%s: expected an id for each of %d tokens, found %d", t->path,
                       v->tokens, seen);
    return j->bad ? json_error(t, j) : 0;
}

static int parse_tokenizer_json(struct vocab *v, struct text *t)
{
    struct json j = { .at = t->at, .end = t->end }, ids = j;
    struct json_string key;
    bool have_ids = false, have_merges = false;
    int rc;

    if ((rc = reserve(v, TOKEN_NONE, 256 + (size_t)(t->end - t->at))))
        return rc;
    put_single_bytes(v);
    json_open(&j, '{');
    while (json_key(&j, &key)) {
        if (!json_equal(&key, "model") || json_peek(&j) != '{') {
            json_skip(&j);
            continue;
        }
        if (have_ids || have_merges)
            return twice(t, &j, "model");
        json_open(&j, '{');
        while (json_key(&j, &key)) {
            if (json_equal(&key, "merges") && json_peek(&j) == '[') {
                if (have_merges)
                    return twice(t, &j, "merges");
                have_merges = true;
                json_open(&j, '[');
                while (json_element(&j))
                    if ((rc = json_merge(v, t, &j)))
                        return rc;
                continue;
            }
            if (json_equal(&key, "vocab")) {
                if (have_ids)
                    return twice(t, &j, "vocab");
                ids = j;
                have_ids = true;
            }
            json_skip(&j);
        }
    }
    if (j.bad || !have_merges || !have_ids || json_peek(&ids) != '{')
        return json_error(t, &j);
    return json_check_ids(v, t, &ids);
}

int vocab_parse(struct vocab *v, const char *path, const char *text, size_t n)
{
    struct text t = { path, text, text + n, 1 };
    const char *eol = memchr(text, '\n', n);
    const char *space = memchr(text, ' ', eol ? (size_t)(eol - text) : n);

    if (n && *text == '{')
        return parse_tokenizer_json(v, &t);
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
