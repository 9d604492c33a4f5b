/* prefix.c - see prefix.h. */
#include "runs/prefix.h"

#include <stdbool.h>
#include <string.h>

enum { BRACKET_MAX = 40 };

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* The length of a text in which '9' is any digit, if the line begins with it; 0: it does not. */
static size_t like(const char *s, size_t n, const char *shape)
{
    size_t k = strlen(shape);
    if (n < k)
        return 0;
    for (size_t i = 0; i < k; i++)
        if (shape[i] == '9' ? !is_digit(s[i]) : s[i] != shape[i])
            return 0;
    return k;
}

static size_t blanks(const char *s, size_t n)
{
    size_t k = 0;
    while (k < n && (s[k] == ' ' || s[k] == '\t'))
        k++;
    return k;
}

/* ESC [ digits and ';', a letter. */
static size_t colour(const char *s, size_t n)
{
    size_t k = 2;
    if (n < 3 || s[0] != '\033' || s[1] != '[')
        return 0;
    while (k < n && (is_digit(s[k]) || s[k] == ';'))
        k++;
    return k < n && ((s[k] | 32) >= 'a' && (s[k] | 32) <= 'z') ? k + 1 : 0;
}

/* `2026-11-26`, `11:35:33.041`, both joined by T or not, with a zone or not. */
static size_t date(const char *s, size_t n)
{
    size_t k = like(s, n, "9999-99-99");
    if (!k)
        k = like(s, n, "9999/99/99");
    size_t joint = k && k < n && s[k] == 'T', at = k + joint;
    size_t time = !k || joint ? like(s + at, n - at, "99:99:99") : 0;
    if (!time)
        return k;
    at += time;
    if (at + 1 < n && (s[at] == '.' || s[at] == ',') && is_digit(s[at + 1]))
        for (at++; at < n && is_digit(s[at]);)
            at++;
    if (at < n && s[at] == 'Z')
        return at + 1;
    size_t zone =
        at < n && (s[at] == '+' || s[at] == '-') ? like(s + at + 1, n - at - 1, "99:99") : 0;
    return at + (zone ? zone + 1 : 0);
}

static size_t word(const char *s, size_t n)
{
    static const char *const words[] = { "INFO", "DEBUG", "WARNING", "-", "|" };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t k = strlen(words[i]);
        if (n > k && !memcmp(s, words[i], k) && strchr(" :", s[k]))
            return k;
    }
    return 0;
}

/* `[default0]`, `[1,0]<stdout>`, `[2026-11-26 11:35:33]` */
static size_t bracket(const char *s, size_t n)
{
    const char *end = n && *s == '[' ? memchr(s, ']', n < BRACKET_MAX ? n : BRACKET_MAX) : NULL;
    size_t k = end ? (size_t)(end - s) + 1 : 0;
    size_t to = k ? like(s + k, n - k, "<stdout>") : 0;
    return k + (to ? to : k ? like(s + k, n - k, "<stderr>") : 0);
}

/* `12`, before a ':' that a blank or the line's end follows */
static size_t rank(const char *s, size_t n)
{
    size_t k = 0;
    while (k < n && is_digit(s[k]))
        k++;
    return k && k < 6 && k < n && s[k] == ':' && (k + 1 == n || s[k + 1] == ' ') ? k : 0;
}

static size_t part(const char *s, size_t n)
{
    size_t k = bracket(s, n);
    if (!k)
        k = date(s, n);
    if (!k)
        k = rank(s, n);
    if (!k)
        k = word(s, n);
    return k + (k && k < n && s[k] == ':');
}

struct prefix prefix_of(const char *line, size_t n, int most)
{
    struct prefix p = { 0 };
    for (size_t k = 1; k;) {
        const char *s = line + p.bytes;
        size_t left = n - p.bytes;
        if (!(k = blanks(s, left)) && !(k = colour(s, left)) && p.parts < most)
            p.parts += (k = part(s, left)) > 0;
        p.bytes += k;
    }
    return p;
}

size_t prefix_uncolour(char *line, size_t n)
{
    size_t to = 0, k;
    for (size_t i = 0; i < n; i += k ? k : 1)
        if (!(k = colour(line + i, n - i)))
            line[to++] = line[i];
    return to;
}
