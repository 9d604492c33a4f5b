/* st_text.c - see st_text.h. */
#include "checkpoint/st_text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "base/text.h"

int st_text_wrong(const struct st_text *c, const char *p, const char *expected)
{
    char found[20] = "its end";
    int n = 0, most = c->j.end - p < 2 || *p != '\\' ? 1 : p[1] == 'u' ? 6 : 2;
    while (n < most && p + n < c->j.end && p[n] > 32 && p[n] < 127)
        n++;
    if (n)
        snprintf(found, sizeof found, "'%.*s'", n, p);
    else if (p < c->j.end)
        snprintf(found, sizeof found, "byte 0x%02x", (unsigned char)*p);
    return err_set(GPT_INPUT, "%s: offset %" PRIu64 ": %s: expected %s, found %s", c->path,
                   c->base + (uint64_t)(p - c->begin), c->what, expected, found);
}

int st_text_end(const struct st_text *c)
{
    return c->j.bad ? st_text_wrong(c, c->j.at, c->j.bad) : 0;
}

int st_text_nothing_more(struct st_text *c)
{
    return json_more(&c->j) ? st_text_wrong(c, c->j.at, "nothing but blanks after the last '}'")
                            : 0;
}

int st_text_decode(const struct st_text *c, const struct json_string *s, char **out)
{
    const char *end = s->s + s->n;
    char *o;
    *out = NULL;
    if (c->j.bad)
        return st_text_end(c);
    if (!(*out = o = malloc(s->n + 1))) /* what is decoded is never longer */
        return err_memory();
    for (const char *p = s->s; p < end;) {
        size_t n = text_utf8(p, (size_t)(end - p)), k = n;
        const char *expected = n ? NULL : "UTF-8";
        if (*p == '\\') {
            n = p[1] == 'u' ? 6 : 2;
            k = json_unescape(&(struct json_string){ p, n, true }, o);
            if (text_utf8(o, k) != k && end - p >= 12 && !memcmp(p + 6, "\\u", 2)) {
                n = 12; /* a pair of surrogates */
                k = json_unescape(&(struct json_string){ p, n, true }, o);
            }
            expected = text_utf8(o, k) != k ? "a pair of surrogates"
                       : *o                 ? NULL
                                            : "no U+0000 in a string";
        } else {
            memcpy(o, p, n);
        }
        if (expected) {
            free(*out);
            *out = NULL;
            return st_text_wrong(c, p, expected);
        }
        p += n;
        o += k;
    }
    *o = 0;
    return 0;
}

int st_text_string(struct st_text *c, char **out)
{
    struct json_string s = { NULL, 0, false };
    json_string(&c->j, &s);
    return st_text_decode(c, &s, out);
}
