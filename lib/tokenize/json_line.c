/* json_line.c - see json_line.h. */
#include "tokenize/json_line.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

bool json_line_begin(struct json_line *l)
{
    struct json_string key;

    json_open(&l->j, '{');
    while (json_key(&l->j, &key)) {
        if (json_equal(&key, l->field)) {
            if (json_peek(&l->j) != '"' && !l->j.bad)
                l->wrong = LINE_NOT_TEXT;
            return !l->wrong && !l->j.bad;
        }
        json_skip(&l->j);
    }
    if (json_line_end(l))
        l->wrong = LINE_WITHOUT;
    return false;
}

bool json_line_end(struct json_line *l)
{
    struct json_string key;

    while (l->j.depth && json_key(&l->j, &key)) {
        if (json_equal(&key, l->field)) {
            l->wrong = LINE_TWICE;
            return false;
        }
        json_skip(&l->j);
    }
    if (!l->j.bad && json_more(&l->j))
        l->j.bad = "the end of the line";
    return !l->j.bad;
}

/* ", found null": the word at j, if one is there. */
static const char *word_at(const struct json *j, char *text, size_t size)
{
    size_t n = 0;
    while (j->at + n < j->end && n < 24 &&
           (isalnum((unsigned char)j->at[n]) || (j->at[n] && strchr("+-._", j->at[n]))))
        n++;
    bool no_json =
        (n == 3 && !memcmp(j->at, "NaN", 3)) || (n >= 8 && !memcmp(j->at + n - 8, "Infinity", 8));
    snprintf(text, size, n ? ", found %.*s%s" : "", (int)n, j->at,
             no_json ? ", which is not JSON" : "");
    return text;
}

int json_line_error(const struct json_line *l)
{
    const struct json *j = &l->j;
    long long column = (long long)(l->before + (j->at - l->begin)) + 1;

    if (l->wrong == LINE_WITHOUT)
        return err_set(GPT_INPUT,
                       "expected a field '%s', found none: --field NAME says which it is",
                       l->field);
    char found[64];
    if (l->wrong == LINE_NOT_TEXT)
        return err_set(GPT_INPUT, "column %lld: expected field '%s' to be a string%s", column,
                       l->field, word_at(j, found, sizeof found));
    if (l->wrong == LINE_TWICE)
        return err_set(GPT_INPUT, "column %lld: field '%s' comes twice", column, l->field);
    return err_set(GPT_INPUT, "column %lld: expected %s%s", column, j->bad,
                   j->at == j->end ? ", found the end of the line"
                                   : word_at(j, found, sizeof found));
}
