/* json_stream.c - see json_stream.h. */
#include "tokenize/json_stream.h"

#include <string.h>

enum {
    AT_BEGIN, /* before '{' */
    BEFORE_KEY, /* a key, or '}' after '{' */
    AFTER_COMMA, /* a key */
    IN_KEY,
    BEFORE_COLON,
    BEFORE_VALUE, /* a value, or ']' after '[' */
    AFTER_ARRAY_COMMA, /* a value */
    IN_STRING,
    IN_TEXT,
    IN_WORD, /* number, true, false, null */
    AFTER_VALUE,
    AT_END, /* white space to the line's end */
};

void json_stream_init(struct json_stream *j, const char *field)
{
    memset(j, 0, sizeof *j);
    j->field = field;
}

static void expect(struct json_stream *j, const char *what)
{
    if (!j->bad)
        j->bad = what;
}

static void expect_separator(struct json_stream *j)
{
    expect(j, j->open[j->depth - 1] == '{' ? "',' or '}'" : "',' or ']'");
}

static void open_bracket(struct json_stream *j, char c)
{
    if (j->depth == JSON_DEPTH) {
        expect(j, "at most 200 levels of brackets");
        return;
    }
    j->open[j->depth++] = c;
    j->state = c == '{' ? BEFORE_KEY : BEFORE_VALUE;
}

static void close_bracket(struct json_stream *j, char open)
{
    if (j->open[j->depth - 1] != open) {
        expect_separator(j);
        return;
    }
    j->state = --j->depth ? AFTER_VALUE : AT_END;
}

static void begin_value(struct json_stream *j, char c)
{
    bool field = j->is_field;

    j->is_field = false;
    if (c == '"') {
        j->state = field ? IN_TEXT : IN_STRING;
        j->found |= field;
    } else if (field) {
        expect(j, "the field to be a string");
    } else if (c == '{' || c == '[') {
        open_bracket(j, c);
    } else {
        j->state = IN_WORD;
        j->word[0] = c;
        j->n_word = 1;
    }
}

/* The word is whole: it must be a JSON value. */
static void end_word(struct json_stream *j)
{
    struct json w = { .at = j->word, .end = j->word + j->n_word };

    if (!json_skip(&w))
        expect(j, w.bad);
    else if (w.at != w.end)
        expect_separator(j);
    j->state = AFTER_VALUE;
}

static void end_key(struct json_stream *j)
{
    struct json_string key = { .s = j->word, .n = (size_t)j->n_word };

    key.escaped = memchr(key.s, '\\', key.n) != NULL;
    j->is_field =
        j->depth == 1 && !j->found && j->n_word < (int)sizeof j->word && json_equal(&key, j->field);
    j->state = BEFORE_COLON;
}

/* A character between strings. */
static void structural(struct json_stream *j, char c)
{
    if (j->state == IN_WORD) {
        if (!strchr(" \t\r\n,]}", c)) {
            if (j->n_word == sizeof j->word)
                expect(j, "a number of at most 64 characters");
            else
                j->word[j->n_word++] = c;
            return;
        }
        end_word(j);
    }
    if (c == ' ' || c == '\t' || c == '\r')
        return;
    if (c == '\n') {
        if (j->state != AT_END)
            expect(j, j->state == AFTER_VALUE ? "',' or '}'" : "the line to go on");
        else if (!j->found)
            expect(j, "the field that holds the text");
        j->done = true;
        return;
    }
    switch (j->state) {
    case AT_BEGIN: c == '{' ? open_bracket(j, c) : expect(j, "'{'"); break;
    case BEFORE_KEY:
    case AFTER_COMMA:
        if (c == '"') {
            j->state = IN_KEY;
            j->n_word = 0;
        } else if (c == '}' && j->state == BEFORE_KEY)
            close_bracket(j, '{');
        else
            expect(j, "a key in quotes");
        break;
    case BEFORE_COLON: c == ':' ? (void)(j->state = AFTER_ARRAY_COMMA) : expect(j, "':'"); break;
    case BEFORE_VALUE: c == ']' ? close_bracket(j, '[') : begin_value(j, c); break;
    case AFTER_ARRAY_COMMA: begin_value(j, c); break;
    case AFTER_VALUE:
        if (c == ',')
            j->state = j->open[j->depth - 1] == '{' ? AFTER_COMMA : AFTER_ARRAY_COMMA;
        else if (c == '}' || c == ']')
            close_bracket(j, c == '}' ? '{' : '[');
        else
            expect_separator(j);
        break;
    default: expect(j, "the end of the line");
    }
}

/* Bytes of the string at p, of at most n, that go together: plain ones, or a whole
 * escape with the second half of its surrogate pair. 0: wrong, and said. */
static size_t string_part(struct json_stream *j, const char *p, size_t n)
{
    struct json e = { .at = p, .end = p + n };
    size_t k;

    if (*p != '\\') {
        for (k = 1; k < n && p[k] != '"' && p[k] != '\\' && (unsigned char)p[k] >= 0x20; k++)
            ;
        return k;
    }
    k = (size_t)json_escape_length(&e);
    if (!k) {
        expect(j, e.bad);
        return 0;
    }
    e.at = p + 6;
    if (k == 6 && (p[2] | 0x20) == 'd' && n >= 12 && p[6] == '\\' && json_escape_length(&e) == 6)
        k = 12;
    return k;
}

/* Inside a string: takes as much as it can; returns the bytes taken. */
static size_t in_string(struct json_stream *j, const char *in, size_t n, bool last, char *out,
                        size_t room, size_t *got)
{
    size_t i = 0, k;

    while (i < n && *got + 8 <= room && (last || n - i >= 12)) {
        if (in[i] == '"') {
            if (j->state == IN_KEY)
                end_key(j);
            else
                j->state = AFTER_VALUE;
            return i + 1;
        }
        if ((unsigned char)in[i] < 0x20) {
            expect(j, in[i] == '\n' ? "the closing '\"' of a string"
                                    : "no control character in a string");
            return i;
        }
        if (!(k = string_part(j, in + i, n - i)))
            return i;
        if (in[i] != '\\' && k > room - *got)
            k = room - *got;
        if (j->state == IN_TEXT) {
            struct json_string s = { .s = in + i, .n = k };

            *got += json_unescape(&s, out + *got);
        } else if (j->state == IN_KEY) {
            for (size_t c = 0; c < k; c++)
                if (j->n_word < (int)sizeof j->word)
                    j->word[j->n_word++] = in[i + c];
        }
        i += k;
    }
    return i;
}

size_t json_stream_feed(struct json_stream *j, const char *in, size_t n, bool last, char *out,
                        size_t room, size_t *got)
{
    size_t i = 0;

    *got = 0;
    while (i < n && !j->done && !j->bad) {
        if (j->state == IN_KEY || j->state == IN_STRING || j->state == IN_TEXT) {
            size_t k = in_string(j, in + i, n - i, last, out, room, got);

            if (!k)
                break;
            i += k;
        } else {
            structural(j, in[i]);
            i += !j->bad;
        }
    }
    j->at += (int64_t)i;
    if (i == n && last && !j->done && !j->bad) { /* a last line without a line break */
        if (j->state == IN_KEY || j->state == IN_STRING || j->state == IN_TEXT)
            expect(j, "the closing '\"' of a string");
        else
            structural(j, '\n');
    }
    return i;
}
