/* json.c - see json.h. */
#include "base/json.h"

#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

static bool bad(struct json *j, const char *expected)
{
    if (!j->bad)
        j->bad = expected;
    return false;
}

/* Whether n bytes of text are left; if so, they are at j->at. */
static inline bool have(struct json *j, size_t n)
{
    while ((size_t)(j->end - j->at) < n) {
        if (!j->refill || !j->refill(j))
            return false;
        j->refills++;
    }
    return true;
}

char json_peek(struct json *j)
{
    while (have(j, 1) && (*j->at == ' ' || *j->at == '\t' || *j->at == '\n' || *j->at == '\r'))
        j->at++;
    return j->bad || j->at == j->end ? 0 : *j->at;
}

bool json_more(struct json *j)
{
    json_peek(j);
    return j->at < j->end;
}

bool json_open(struct json *j, char bracket)
{
    if (json_peek(j) != bracket)
        return bad(j, bracket == '{' ? "'{'" : "'['");
    if (++j->depth > JSON_DEPTH)
        return bad(j, "at most 200 levels of brackets");
    j->at++;
    j->opened = true;
    return true;
}

/* Separator before the next member: true if there is one. */
static bool next_member(struct json *j, char close)
{
    char c = json_peek(j);
    bool first = j->opened;

    j->opened = false;
    if (c == close) {
        j->at++;
        j->depth--;
        return false;
    }
    if (first)
        return !j->bad;
    if (c != ',')
        return bad(j, close == '}' ? "',' or '}'" : "',' or ']'");
    j->at++;
    return true;
}

bool json_key(struct json *j, struct json_string *key)
{
    if (!next_member(j, '}'))
        return false;
    if (json_peek(j) != '"')
        return bad(j, "a key in quotes");
    if (!json_string(j, key))
        return false;
    if (json_peek(j) != ':')
        return bad(j, "':'");
    j->at++;
    return true;
}

bool json_element(struct json *j) { return next_member(j, ']'); }

/* First byte at or after p that ends a plain stretch: quote, backslash or
 * control character. Eight bytes at a time (Mycroft's zero-byte test). */
static const char *plain_end(const char *p, const char *end)
{
    const uint64_t ones = UINT64_C(0x0101010101010101), high = ones << 7;

    for (; end - p >= 8; p += 8) {
        uint64_t u, q, b;

        memcpy(&u, p, 8);
        q = u ^ ones * '"';
        b = u ^ ones * '\\';
        /* The last term flags bytes below 0x20. A borrow can flag a byte wrongly, but only
         * behind a true hit; the loop below finds the first true one. */
        if ((((q - ones) & ~q) | ((b - ones) & ~b) | ((u - ones * 0x20) & ~u)) & high)
            break;
    }
    while (p < end && *p != '"' && *p != '\\' && (unsigned char)*p >= 0x20)
        p++;
    return p;
}

static bool hex4(const char *p, unsigned *x)
{
    *x = 0;
    for (int i = 0; i < 4; i++) {
        char c = p[i];
        unsigned d = c >= '0' && c <= '9'   ? (unsigned)(c - '0')
                     : c >= 'a' && c <= 'f' ? (unsigned)(c - 'a' + 10)
                     : c >= 'A' && c <= 'F' ? (unsigned)(c - 'A' + 10)
                                            : 16;

        if (d > 15)
            return false;
        *x = *x << 4 | d;
    }
    return true;
}

/* At a backslash in a string: the length of the escape, 2 or 6; 0 if it is none. If it is the first
 * half of a surrogate pair, the second is there, too. */
static inline int escape_length(struct json *j)
{
    unsigned x;

    have(j, 12);
    switch (j->end - j->at < 2 ? 0 : j->at[1]) {
    case '"':
    case '\\':
    case '/':
    case 'b':
    case 'f':
    case 'n':
    case 'r':
    case 't': return 2;
    case 'u':
        if (j->end - j->at >= 6 && hex4(j->at + 2, &x))
            return 6;
        return bad(j, "four hexadecimal digits after \\u");
    default: return bad(j, "one of \\\" \\\\ \\/ \\b \\f \\n \\r \\t \\u");
    }
}

/* What ends a plain stretch, if it does not end the string. */
static bool bad_end(struct json *j)
{
    return bad(j, j->at == j->end ? "the closing '\"' of a string"
                                  : "no control character in a string");
}

bool json_string(struct json *j, struct json_string *s)
{
    int64_t refills;

    if (json_peek(j) != '"')
        return bad(j, "a string");
    have(j, JSON_HELD + 16); /* and so, an escape at the end of it */
    refills = j->refills;
    s->s = ++j->at;
    s->escaped = false;
    for (;;) {
        int k;

        j->at = plain_end(j->at, j->end);
        if (!have(j, 1))
            return bad_end(j);
        if (*j->at == '"')
            break;
        if (*j->at == '\\') {
            if (!(k = escape_length(j)))
                return false;
            s->escaped = true;
            j->at += k;
        } else if ((unsigned char)*j->at < 0x20) {
            return bad_end(j);
        }
    }
    s->s = j->refills == refills ? s->s : NULL;
    s->n = s->s ? (size_t)(j->at - s->s) : 0;
    j->at++;
    return true;
}

static const char *digits_end(const char *p, const char *end)
{
    while (p < end && *p >= '0' && *p <= '9')
        p++;
    return p;
}

/* The end of the integer part of a number at p; NULL if there is none or it has a leading zero. */
static const char *integer_end(const char *p, const char *end)
{
    const char *q = digits_end(p, end);

    return q == p || (*p == '0' && q > p + 1) ? NULL : q;
}

bool json_u64(struct json *j, uint64_t *x)
{
    bool some = json_peek(j) && (have(j, JSON_HELD) || true);
    const char *q = some ? integer_end(j->at, j->end) : NULL;

    *x = 0;
    if (!q)
        return bad(j, "a whole number");
    for (const char *p = j->at; p < q; p++)
        if (__builtin_mul_overflow(*x, 10u, x) ||
            __builtin_add_overflow(*x, (uint64_t)(*p - '0'), x))
            return bad(j, "a whole number below 2^64");
    j->at = q;
    return true;
}

static bool skip_word(struct json *j, const char *word)
{
    size_t n = strlen(word);

    if (!have(j, n) || memcmp(j->at, word, n))
        return bad(j, "a value");
    j->at += n;
    return true;
}

static bool skip_number(struct json *j)
{
    const char *p, *q;
    bool held = !have(j, JSON_HELD) || !j->refill;

    p = integer_end(j->at + (*j->at == '-'), j->end);
    if (p && p < j->end && *p == '.') {
        q = digits_end(p + 1, j->end);
        p = q > p + 1 ? q : NULL;
    }
    if (p && p < j->end && (*p == 'e' || *p == 'E')) {
        p++;
        p += p < j->end && (*p == '+' || *p == '-');
        q = digits_end(p, j->end);
        p = q > p ? q : NULL;
    }
    if (!held && p == j->end)
        return bad(j, "a shorter number");
    if (!p)
        return bad(j, "a value");
    j->at = p;
    return true;
}

bool json_skip(struct json *j)
{
    struct json_string s;

    switch (json_peek(j)) {
    case '"': return json_string(j, &s);
    case '{':
        json_open(j, '{');
        while (json_key(j, &s))
            if (!json_skip(j))
                return false;
        return !j->bad;
    case '[':
        json_open(j, '[');
        while (json_element(j))
            if (!json_skip(j))
                return false;
        return !j->bad;
    case 't': return skip_word(j, "true");
    case 'f': return skip_word(j, "false");
    case 'n': return skip_word(j, "null");
    case 0: return bad(j, "a value");
    default: return skip_number(j);
    }
}

static char *put_utf8(char *o, unsigned c)
{
    if (c < 0x80) {
        *o++ = (char)c;
    } else if (c < 0x800) {
        *o++ = (char)(0xc0 | c >> 6);
        *o++ = (char)(0x80 | (c & 63));
    } else if (c < 0x10000) {
        *o++ = (char)(0xe0 | c >> 12);
        *o++ = (char)(0x80 | (c >> 6 & 63));
        *o++ = (char)(0x80 | (c & 63));
    } else {
        *o++ = (char)(0xf0 | c >> 18);
        *o++ = (char)(0x80 | (c >> 12 & 63));
        *o++ = (char)(0x80 | (c >> 6 & 63));
        *o++ = (char)(0x80 | (c & 63));
    }
    return o;
}

/* Undoes the escape at *p, which is one, before end; *p moves behind it. */
static char *unescape_one(const char **p, const char *end, char *o)
{
    unsigned c, d;
    char k = (*p)[1];

    *p += 2;
    switch (k) {
    case 'b': *o++ = '\b'; return o;
    case 'f': *o++ = '\f'; return o;
    case 'n': *o++ = '\n'; return o;
    case 'r': *o++ = '\r'; return o;
    case 't': *o++ = '\t'; return o;
    case 'u': break;
    default: *o++ = k; return o;
    }
    hex4(*p, &c);
    *p += 4;
    if (c >> 10 == 0x36 && end - *p >= 6 && (*p)[0] == '\\' && (*p)[1] == 'u' && hex4(*p + 2, &d) &&
        d >> 10 == 0x37) {
        c = 0x10000 + ((c & 0x3ff) << 10 | (d & 0x3ff));
        *p += 6;
    }
    return put_utf8(o, c);
}

size_t json_unescape(const struct json_string *s, char *out)
{
    const char *p = s->s, *end = p + s->n;
    char *o = out;

    while (p < end) {
        const char *q = plain_end(p, end);

        memmove(o, p, (size_t)(q - p));
        o += q - p;
        p = q;
        if (p < end)
            o = unescape_one(&p, end, o);
    }
    return (size_t)(o - out);
}

/* Copies a plain stretch from p, up to end; *o moves with it. Returns its end. */
static const char *copy_plain(const char *p, const char *end, char **o)
{
#ifdef __SSE2__
    for (; p < end; p += 16, *o += 16) {
        __m128i x = _mm_loadu_si128((const __m128i *)p);
        __m128i stop = _mm_or_si128(_mm_cmpeq_epi8(x, _mm_set1_epi8('"')),
                                    _mm_cmpeq_epi8(x, _mm_set1_epi8('\\')));
        int mask = _mm_movemask_epi8(
            _mm_or_si128(stop, _mm_cmpeq_epi8(_mm_min_epu8(x, _mm_set1_epi8(0x1f)), x)));
        int k = mask ? __builtin_ctz((unsigned)mask) : 16;

        _mm_storeu_si128((__m128i *)*o, x);
        if (k < 16 || end - p <= 16) {
            k = end - p < k ? (int)(end - p) : k;
            *o += k;
            return p + k;
        }
    }
    return p;
#else
    const char *q = plain_end(p, end);

    memcpy(*o, p, (size_t)(q - p));
    *o += q - p;
    return q;
#endif
}

bool json_begin_text(struct json *j)
{
    if (json_peek(j) != '"')
        return bad(j, "a string");
    j->at++;
    return true;
}

bool json_text(struct json *j, char *out, size_t room, size_t *n)
{
    char *o = out;
    bool ended = false;

    while (room - (size_t)(o - out) >= 4) { /* what an escape may give */
        size_t left = room - (size_t)(o - out);
        const char *end = (size_t)(j->end - j->at) > left ? j->at + left : j->end;

        j->at = copy_plain(j->at, end, &o);
        if (j->at == end && end < j->end)
            continue;
        if (!have(j, 1)) {
            bad_end(j);
            break;
        }
        if (*j->at == '"') {
            j->at++;
            ended = true;
            break;
        }
        if (*j->at == '\\') {
            if (!escape_length(j))
                break;
            o = unescape_one(&j->at, j->end, o);
        } else if ((unsigned char)*j->at < 0x20) {
            bad_end(j);
            break;
        }
    }
    *n = (size_t)(o - out);
    return ended;
}

bool json_copy_string(struct json *j, char *out, size_t *n)
{
    return json_begin_text(j) && json_text(j, out, SIZE_MAX, n);
}

bool json_equal(const struct json_string *s, const char *text)
{
    size_t n = strlen(text);
    char buf[256];

    if (!s->s)
        return false;
    if (s->escaped && s->n <= sizeof buf) /* a key may be spelt with escapes */
        return json_unescape(s, buf) == n && !memcmp(buf, text, n);
    return !s->escaped && s->n == n && !memcmp(s->s, text, n);
}
