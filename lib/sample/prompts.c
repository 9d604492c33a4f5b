/* prompts.c - see prompts.h. */
#include "sample/prompts.h"

#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/grow.h"
#include "base/json.h"
#include "tokenize/bpe.h"
#include "tokenize/source.h"
#include "tokenize/unicode.h"

/* -- text to tokens --------------------------------------------------------------- */

/* n bytes with U+FFFD in place of what is not UTF-8, a NUL and BPE_PAD behind them. */
static char *repaired(const char *s, size_t n, bool json, size_t *m, int64_t *invalid)
{
    char *out = calloc(3 * n + BPE_PAD + 1, 1);
    *m = out ? utf8_repair(out, s, n, json, invalid) : 0;
    return out;
}

/* Appends the tokens of m bytes, which have BPE_PAD readable ones behind them. */
static int encode(struct prompt *p, struct bpe *b, const char *s, size_t m)
{
    uint16_t *token = malloc((m + BPE_SLACK) * sizeof *token);
    int32_t *all = realloc(p->token, ((size_t)p->n + m + 1) * sizeof *all);
    int rc = token && all ? bpe_reserve(b, m) : err_memory();
    if (all)
        p->token = all;
    if (!rc) {
        size_t n = bpe_encode(b, s, m, false, token);
        for (size_t i = 0; i < n; i++)
            p->token[p->n + (int)i] = token[i];
        p->n += (int)n;
    }
    free(token);
    return rc;
}

enum { MAX_TEXT = 1 << 28 };

static int add(struct prompts *p, const char *text, size_t n, const char *more, size_t m, bool json,
               char *id)
{
    int rc = n + m > MAX_TEXT ? err_set(GPT_INPUT, "a text of more than %d bytes", MAX_TEXT)
                              : grow_one(&p->v, (size_t)p->n, sizeof *p->v);
    if (!rc && !p->bpe)
        rc = bpe_new(&p->bpe, p->vocab);
    if (rc) {
        free(id);
        return rc;
    }
    struct prompt *q = &p->v[p->n++];
    *q = (struct prompt){ .id = id, .token = malloc(sizeof *q->token) };
    char *tail = more ? repaired(more, m, json, &m, &p->invalid) : NULL;
    q->text = repaired(text, n, json, &n, &p->invalid);
    if (!q->token || !q->text || (more && !tail))
        rc = err_memory();
    if (!rc) {
        q->token[q->n++] = p->vocab->bos;
        rc = encode(q, p->bpe, q->text, n);
    }
    q->scored = more ? -q->n : -1;
    if (!rc && more)
        rc = encode(q, p->bpe, tail, m);
    q->scored += q->n;
    q->bytes = n;
    q->scored_bytes = more ? m : n;
    free(tail);
    return rc;
}

int prompts_add(struct prompts *p, const char *text, const char *continuation)
{
    return add(p, text, strlen(text), continuation, continuation ? strlen(continuation) : 0, false,
               NULL);
}

void prompts_release(struct prompts *p)
{
    for (int i = 0; i < p->n; i++) {
        free(p->v[i].id);
        free(p->v[i].text);
        free(p->v[i].token);
    }
    free(p->v);
    bpe_free(p->bpe);
    *p = (struct prompts){ 0 };
}

/* -- lines ------------------------------------------------------------------------ */

static int add_line(struct prompts *p, const char *s, size_t n, bool tabs)
{
    const char *tab = tabs ? memchr(s, '\t', n) : NULL;
    size_t first = tab ? (size_t)(tab - s) : n;
    return add(p, s, first, tab ? tab + 1 : NULL, tab ? n - first - 1 : 0, false, NULL);
}

struct object {
    char *text, *more, *id;
    size_t n, m;
};

static bool take_string(struct json *j, char **out, size_t *n)
{
    struct json_string s;
    if (*out || json_peek(j) != '"' || !json_string(j, &s) || !(*out = calloc(s.n + 1, 1)))
        return false;
    *n = json_unescape(&s, *out);
    return true;
}

static bool take_id(struct json *j, struct object *o)
{
    const char *from;
    size_t n;
    if (json_peek(j) == '"')
        return take_string(j, &o->id, &n);
    from = j->at;
    return !o->id && json_skip(j) && (o->id = strndup(from, (size_t)(j->at - from)));
}

static int add_object(struct prompts *p, const char *s, size_t n)
{
    struct json j = { .at = s, .end = s + n };
    struct object o = { 0 };
    struct json_string key;
    bool good = json_open(&j, '{');
    int rc;

    while (good && json_key(&j, &key))
        good = json_equal(&key, "text")           ? take_string(&j, &o.text, &o.n)
               : json_equal(&key, "continuation") ? take_string(&j, &o.more, &o.m)
               : json_equal(&key, "id")           ? take_id(&j, &o)
                                                  : json_skip(&j);
    if (good && !j.bad && json_more(&j))
        j.bad = "the end of the line";
    if (!good || j.bad)
        rc = err_set(GPT_INPUT, "column %lld: expected %s", (long long)(j.at - s) + 1,
                     j.bad ? j.bad : "text, continuation and id once, as strings");
    else if (!o.text)
        rc = err_set(GPT_INPUT, "expected a field 'text', found none");
    else {
        rc = add(p, o.text, o.n, o.more, o.m, true, o.id);
        o.id = NULL;
    }
    free(o.text), free(o.more), free(o.id);
    return rc;
}

static int take_lines(struct prompts *p, const char *path, const char *s, size_t n, bool jsonl,
                      bool tabs)
{
    int64_t line = 1;
    for (size_t at = 0; at < n; line++) {
        const char *end = memchr(s + at, '\n', n - at);
        size_t length = end ? (size_t)(end - s) - at : n - at;
        int rc = jsonl ? is_blank_line(s + at, s + at + length) ? 0 : add_object(p, s + at, length)
                       : add_line(p, s + at, length, tabs);
        if (rc)
            return rc == GPT_INPUT ? err_prefix("%s: line %lld", path, (long long)line) : rc;
        at += length + 1;
    }
    return 0;
}

int prompts_read(struct prompts *p, const char *path, bool jsonl, bool tabs)
{
    char *s;
    size_t n;
    int rc = file_read_text(path, 0, &s, &n);
    if (rc)
        return rc;
    rc = take_lines(p, path, s, n, jsonl, tabs);
    free(s);
    return rc;
}
