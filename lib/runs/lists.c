/* lists.c - see lists.h. */
#include "runs/lists.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/grow.h"

enum { NUMBER_MAX = 40 };

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

static const char *skip_blanks(const char *p, const char *end)
{
    while (p < end && is_blank(*p))
        p++;
    return p;
}

static bool is_word(char c)
{
    return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* --- names and headings --- */

static bool ends_in(const char *s, size_t n, const char *end)
{
    size_t k = strlen(end);
    return n >= k && !memcmp(s + n - k, end, k);
}

/* Which list a variable of that name holds, and the part of its name that is the set's; -1: none.
 * Losses of training are no validation's. */
static int kind_of(const char *name, size_t n, size_t *own)
{
    static const char *const words[] = { "losses", "loss", "accs", "times", "time" };
    static const char *const plain[] = { "val", "final", "train", "all" };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t k = n - strlen(words[i]);
        if (!ends_in(name, n, words[i]) || (k && name[k - 1] != '_'))
            continue;
        bool train = n >= 5 && !memcmp(name, "train", 5);
        *own = k ? k - 1 : 0;
        for (size_t p = 0; p < sizeof plain / sizeof *plain; p++)
            if (*own == strlen(plain[p]) && !memcmp(name, plain[p], *own))
                *own = 0;
        return i >= 3 ? LIST_TIMES : train ? -1 : LIST_LOSSES;
    }
    return -1;
}

/* Behind the `[` of `NAME = [`, with the list's kind and name; NULL: another line. */
static const char *list_begin(const char *line, const char *end, int *which, const char **name,
                              size_t *own)
{
    const char *p = skip_blanks(line, end), *q = p;
    while (q < end && is_word(*q))
        q++;
    if (q == p || (*which = kind_of(p, (size_t)(q - p), own)) < 0)
        return NULL;
    *name = p;
    q = skip_blanks(q, end);
    if (q == end || *q != '=')
        return NULL;
    q = skip_blanks(q + 1, end);
    return q < end && *q == '[' ? q + 1 : NULL;
}

/* Imports, fences and blank lines stand between a heading and its lists, other code does not. */
static void take_heading(struct lists *l, const char *p, const char *end)
{
    static const char *const between[] = { "import ", "from ", "```" };
    p = skip_blanks(p, end);
    for (size_t i = 0; i < sizeof between / sizeof *between; i++) {
        size_t k = strlen(between[i]);
        if ((size_t)(end - p) >= k && !memcmp(p, between[i], k))
            return;
    }
    if (p == end)
        return;
    *l->heading = '\0';
    if (memchr(p, '=', (size_t)(end - p)) || memchr(p, '(', (size_t)(end - p)) ||
        end - p >= LIST_NAME)
        return;
    while (p < end && strchr("#*: \t", *p))
        p++;
    while (p < end && strchr("*: \t\r", end[-1]))
        end--;
    snprintf(l->heading, sizeof l->heading, "%.*s", (int)(end - p), p);
}

/* --- values --- */

/* A decimal number and how many digits stand behind its point; a dash: NaN. */
static bool take_number(const char **at, const char *end, struct printed *out)
{
    static const char dash[] = "\xe2\x80\x93"; /* of our own tables */
    char text[NUMBER_MAX + 1], *stop;
    size_t n = 0;
    if (end - *at >= 3 && !memcmp(*at, dash, 3)) {
        *out = (struct printed){ true, NAN, 0 };
        *at += 3;
        return true;
    }
    while (n < NUMBER_MAX && *at + n < end && strchr("0123456789.", (*at)[n]) && (*at)[n])
        n++;
    memcpy(text, *at, n);
    text[n] = '\0';
    const char *point = strchr(text, '.');
    *out = (struct printed){ true, strtod(text, &stop), point ? (int)(text + n - point - 1) : 0 };
    *at += n;
    return n && !*stop && isfinite(out->value);
}

static int take_values(struct lists *l, const char *p, const char *end)
{
    for (; l->open && (p = skip_blanks(p, end)) < end && *p != '#';) {
        struct printed x;
        const char *at = p;
        if (*p == ']') {
            l->open = NULL;
        } else if (*p == ',') {
            p++;
        } else if (!take_number(&p, end, &x)) {
            snprintf(l->to->wrong, sizeof l->to->wrong,
                     *at == '-' ? "a list with a negative number" : "a list of other than numbers");
            l->open = NULL;
        } else {
            int rc = grow_one(&l->open->v, l->open->n, sizeof x);
            if (rc)
                return rc;
            l->open->v[l->open->n++] = x;
        }
    }
    return 0;
}

/* The set that a list of times belongs to: the last of that name without times; NULL: none. */
static struct list_set *set_of_times(struct lists *l, const char *name, size_t own)
{
    for (int i = l->n - 1; i >= 0; i--) {
        struct list_set *s = &l->set[i];
        bool named = strlen(s->name) == own && !memcmp(s->name, name, own);
        if (!s->of[LIST_TIMES].seen && (named || (!own && i == l->n - 1)))
            return s;
    }
    return NULL;
}

static int begin_list(struct lists *l, int which, const char *name, size_t own, long line)
{
    struct list_set *s = which == LIST_TIMES ? set_of_times(l, name, own) : NULL;
    if (which == LIST_TIMES && !s) {
        l->times++;
        return 0;
    }
    if (which == LIST_LOSSES) {
        int rc = grow_one(&l->set, l->n, sizeof *l->set);
        if (rc)
            return rc;
        s = &l->set[l->n++];
        *s = (struct list_set){ .line = line };
        snprintf(s->name, sizeof s->name, "%.*s", own ? (int)own : LIST_NAME,
                 own ? name : l->heading);
        *l->heading = '\0';
    }
    l->to = s;
    l->open = &s->of[which];
    l->open->seen = true;
    return 0;
}

int lists_line(struct lists *l, const char *text, size_t n, long line)
{
    const char *end = text + n, *p = text, *name;
    size_t own;
    int which;
    if (!l->open && !(p = list_begin(text, end, &which, &name, &own))) {
        take_heading(l, text, end);
        return 0;
    }
    int rc = l->open ? 0 : begin_list(l, which, name, own, line);
    return rc || !l->open ? rc : take_values(l, p, end);
}

bool lists_open(const struct lists *l) { return l->open != NULL; }

int lists_digits(const struct list *losses)
{
    int most = 0, fewer = 0;
    for (int i = 0; i < losses->n; i++)
        most = losses->v[i].digits > most ? losses->v[i].digits : most;
    for (int i = 0; i < losses->n; i++)
        fewer += losses->v[i].digits < most;
    /* One printed loss in ten ends in a zero. */
    return 2 * fewer > losses->n ? 0 : most;
}

void lists_release(struct lists *l)
{
    for (int i = 0; i < l->n; i++)
        for (int k = 0; k < LISTS; k++)
            free(l->set[i].of[k].v);
    free(l->set);
    memset(l, 0, sizeof *l);
}
