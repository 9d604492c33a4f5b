/* The part of JSON that headers are made of, read strictly. */
#include "state/st_json.h"

#include <stdlib.h>
#include <string.h>
#include "base/text.h"

int st_json_no_memory(const char *path) { return err_set(GPT_SYSTEM, "%s: out of memory", path); }

int st_json_fail(const struct st_json *c, size_t at, const char *expected)
{
    if (at >= c->n)
        return err_set(GPT_INPUT, "%s: offset %zu: header: expected %s, found its end", c->path,
                       c->base + at, expected);
    unsigned char b = (unsigned char)c->s[at];
    if (b > 32 && b < 127)
        return err_set(GPT_INPUT, "%s: offset %zu: header: expected %s, found '%c'", c->path,
                       c->base + at, expected, b);
    return err_set(GPT_INPUT, "%s: offset %zu: header: expected %s, found byte 0x%02x", c->path,
                   c->base + at, expected, b);
}

void st_json_blanks(struct st_json *c)
{
    while (c->i < c->n && strchr(" \t\r\n", c->s[c->i]) && c->s[c->i])
        c->i++;
}

bool st_json_at(struct st_json *c, char ch)
{
    st_json_blanks(c);
    return c->i < c->n && c->s[c->i] == ch;
}

int st_json_expect(struct st_json *c, char ch)
{
    if (!st_json_at(c, ch)) {
        char what[4] = { '\'', ch, '\'', 0 };
        return st_json_fail(c, c->i, what);
    }
    c->i++;
    return 0;
}

int st_json_next(struct st_json *c, char end, bool *more)
{
    *more = st_json_at(c, ',');
    if (!*more && !st_json_at(c, end))
        return st_json_fail(c, c->i, end == '}' ? "',' or '}'" : "',' or ']'");
    c->i++;
    return 0;
}

static size_t utf8_put(char *out, uint32_t u)
{
    if (u < 0x80) {
        out[0] = (char)u;
        return 1;
    }
    size_t len = u < 0x800 ? 2 : u < 0x10000 ? 3 : 4;
    static const unsigned char lead[5] = { 0, 0, 0xc0, 0xe0, 0xf0 };
    for (size_t i = len; i-- > 1; u >>= 6)
        out[i] = (char)(0x80 | (u & 0x3f));
    out[0] = (char)(lead[len] | u);
    return len;
}

static int hex4(struct st_json *c, uint32_t *u)
{
    *u = 0;
    for (int k = 0; k < 4; k++, c->i++) {
        int ch = c->i < c->n ? c->s[c->i] : 0;
        int d = ch >= '0' && ch <= '9' ? ch - '0' : ch >= 'a' && ch <= 'f' ? ch - 'a' + 10
              : ch >= 'A' && ch <= 'F' ? ch - 'A' + 10 : -1;
        if (d < 0)
            return st_json_fail(c, c->i, "four hexadecimal digits after \\u");
        *u = *u << 4 | (uint32_t)d;
    }
    return 0;
}

/* The escape after a backslash; at most 4 bytes to out. */
static int escape(struct st_json *c, char *out, size_t *len)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *p = c->i < c->n && c->s[c->i] ? strchr(from, c->s[c->i]) : NULL;
    if (p) {
        out[0] = to[p - from];
        *len = 1;
        c->i++;
        return 0;
    }
    if (c->i >= c->n || c->s[c->i] != 'u')
        return st_json_fail(c, c->i, "an escape of JSON");
    size_t at = c->i++;
    uint32_t u, low;
    int rc = hex4(c, &u);
    if (rc)
        return rc;
    if (u == 0)
        return err_set(GPT_INPUT, "%s: offset %zu: header: a string holds U+0000", c->path,
                       c->base + at);
    if (u >= 0xd800 && u < 0xdc00 && c->n - c->i >= 2 && !memcmp(c->s + c->i, "\\u", 2)) {
        c->i += 2;
        if ((rc = hex4(c, &low)))
            return rc;
        if (low < 0xdc00 || low > 0xdfff)
            return st_json_fail(c, at, "a pair of surrogates");
        u = 0x10000 + ((u - 0xd800) << 10) + (low - 0xdc00);
    } else if (u >= 0xd800 && u <= 0xdfff) {
        return st_json_fail(c, at, "a pair of surrogates");
    }
    *len = utf8_put(out, u);
    return 0;
}

int st_json_string(struct st_json *c, char **out)
{
    int rc = st_json_expect(c, '"');
    if (rc)
        return rc;
    size_t end = c->i;                       /* the decoded string is never longer */
    while (end < c->n && c->s[end] != '"')
        end += c->s[end] == '\\' ? 2 : 1;
    char *buf = malloc((end > c->n ? c->n : end) - c->i + 1), *p = buf;
    if (!buf)
        return st_json_no_memory(c->path);
    while (c->i < c->n && c->s[c->i] != '"') {
        unsigned char b = (unsigned char)c->s[c->i];
        size_t len = 0;
        if (b == '\\') {
            c->i++;
            if ((rc = escape(c, p, &len)))
                goto fail;
        } else if (b < 0x20) {
            rc = st_json_fail(c, c->i, "no control character in a string");
            goto fail;
        } else {
            len = text_utf8(c->s + c->i, c->n - c->i);
            if (!len) {
                rc = st_json_fail(c, c->i, "UTF-8");
                goto fail;
            }
            memcpy(p, c->s + c->i, len);
            c->i += len;
        }
        p += len;
    }
    if (c->i >= c->n) {
        rc = st_json_fail(c, c->i, "'\"'");
        goto fail;
    }
    c->i++;
    *p = 0;
    *out = buf;
    return 0;
fail:
    free(buf);
    return rc;
}

/* A whole number below 2^64, as the format has it: no sign, point, exponent or leading zero. */
int st_json_number(struct st_json *c, uint64_t *out)
{
    st_json_blanks(c);
    size_t at = c->i;
    uint64_t v = 0;
    for (; c->i < c->n && c->s[c->i] >= '0' && c->s[c->i] <= '9'; c->i++) {
        if (__builtin_mul_overflow(v, 10u, &v)
            || __builtin_add_overflow(v, (uint64_t)(c->s[c->i] - '0'), &v))
            return err_set(GPT_INPUT, "%s: offset %zu: header: a number above 2^64 - 1", c->path,
                           c->base + at);
    }
    if (c->i == at || (c->s[at] == '0' && c->i > at + 1))
        return st_json_fail(c, at, "a whole number");
    *out = v;
    return 0;
}
